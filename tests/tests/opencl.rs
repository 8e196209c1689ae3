//! Every program of OpenCL, on every way: directly on PoCL, through Katydid over shared memory, over TCP and over frames on
//! a unix socket. A test a combination, named `way::program`; one text serves for all of them.
//!
//! The driver is the one that `cargo xtask setup` fetched; where it could not be, that is said and nothing is tested.

use std::process::{Command, ExitCode};
use std::time::Duration;

use katydid_tests::opencl::{driver, expected, has_driver, libraries, program, programs};
use katydid_tests::places::Places;
use katydid_tests::program::run;
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::way::Way;
use libtest_mimic::{Arguments, Failed, Trial};

/// Far more than any program needs, on a busy machine too; only a hang takes longer.
const LIMIT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let places = match Places::of_this_test() {
        Ok(places) => Places { expected: expected(), ..places },
        Err(error) => return failed(&error),
    };
    if !has_driver(&places) {
        println!("not tested: no OpenCL driver in {}; `cargo xtask setup` fetches one", places.opencl().display());
        return ExitCode::SUCCESS;
    }
    let (server, programs) = match (Server::start_with(&places, "soft", &[], &driver(&places)), programs(&places)) {
        (Ok(server), Ok(programs)) => (server, programs),
        (Err(error), _) => return failed(&error),
        (_, Err(error)) => return failed(&error),
    };
    let mut trials = Vec::new();
    for name in &programs {
        for way in ways(&server) {
            let (places, way, name) = (places.clone(), way.clone(), name.clone());
            trials.push(Trial::test(format!("{way}::{name}"), move || one(&places, &way, &name)));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(server);
    conclusion.exit_code()
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn ways(server: &Server) -> [Way; 4] {
    let [shm, tcp] = Way::through(server);
    let unix = Way::Served { name: "unix", address: server.unix(), as_stream: true };
    [Way::Direct { name: "pocl", folder: None }, shm, tcp, unix]
}

fn one(places: &Places, way: &Way, name: &str) -> Result<(), Failed> {
    let mut command: Command = way.command(places, &program(places, name));
    // The loader is needed on every way; the driver is the server's but on the direct one.
    match way {
        Way::Direct { .. } => drop(command.envs(driver(places))),
        _ => drop(command.env("LD_LIBRARY_PATH", libraries(places))),
    }
    judge(places, name, &run(&mut command, LIMIT)?)?;
    Ok(())
}
