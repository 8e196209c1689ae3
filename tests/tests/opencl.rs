//! Every program of OpenCL, on every way: directly on PoCL, through Katydid over shared memory, over TCP and over frames on
//! a unix socket. A test a combination, named `way::program`; one text serves for all of them.
//!
//! The driver is the one that `cargo xtask setup` fetched; where it could not be, that is said and nothing is tested.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

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
    if !places.opencl().join("vendors").exists() {
        println!("not tested: no OpenCL driver in {}; `cargo xtask setup` fetches one", places.opencl().display());
        return ExitCode::SUCCESS;
    }
    let (server, programs) = match (Server::start_with(&places, "soft", &[], &driver(&places)), programs()) {
        (Ok(server), Ok(programs)) => (server, programs),
        (Err(error), _) => return failed(&error),
        (_, Err(error)) => return failed(&error),
    };
    let mut trials = Vec::new();
    for program in &programs {
        for way in ways(&server) {
            let (places, way, program) = (places.clone(), way.clone(), program.clone());
            trials.push(Trial::test(format!("{way}::{program}"), move || one(&places, &way, &program)));
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

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("apps-opencl")
}

fn expected() -> PathBuf {
    sources().join("expected")
}

/// The names of all programs, in order.
fn programs() -> std::io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(sources())?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// What makes a process find the driver, and keep what it compiles below the target folder.
fn driver(places: &Places) -> Vec<(&'static str, OsString)> {
    let root = places.opencl();
    vec![
        ("OCL_ICD_VENDORS", root.join("vendors").into()),
        ("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu").into()),
        ("POCL_CACHE_DIR", root.join("cache").into()),
    ]
}

fn ways(server: &Server) -> [Way; 4] {
    let [shm, tcp] = Way::through(server);
    let unix = Way::Served { name: "unix", address: server.unix(), as_stream: true };
    [Way::Direct { name: "pocl", folder: None }, shm, tcp, unix]
}

fn one(places: &Places, way: &Way, name: &str) -> Result<(), Failed> {
    let mut command: Command = way.command(places, &places.apps.join("opencl").join(name));
    // The loader is needed on every way; the driver is the server's but on the direct one.
    match way {
        Way::Direct { .. } => drop(command.envs(driver(places))),
        _ => drop(command.env("LD_LIBRARY_PATH", places.opencl().join("usr/lib/x86_64-linux-gnu"))),
    }
    judge(places, name, &run(&mut command, LIMIT)?)?;
    Ok(())
}
