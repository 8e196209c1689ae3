//! `katydid bench`: the same measurements on the driver directly, through shared memory and through TCP, in turns.
//!
//! Each run is a fresh process ([`mod@body`]), so that the first call is measured as programs meet it; the ways take turns
//! within a round, so that a machine that slows down slows all of them. A warm worker is ready before each run.

mod body;
mod checkpoint;
mod cuda;
mod figures;
mod opencl;
mod report;
mod soft;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use katydid_transport::Address;

use crate::address;
use crate::failure::{Failure, Outcome};
use crate::flags::{
    Against, BenchBodyFlags, BenchFlags, BenchHolderFlags, BenchOpenclBodyFlags, BenchSoftBodyFlags, Subject,
};
use crate::layout::{self, Layout};
use crate::private::PrivateServer;
use crate::probe::{DriverFacts, Probe, probe_apart};
use crate::terminal::Progress;
use body::Report;
use report::{Comparison, Way};

/// Rounds; each figure is the median over them.
const ROUNDS: u32 = 5;
const QUICK_ROUNDS: u32 = 2;
/// How long a worker may take to become ready.
const WARM_LIMIT: Duration = Duration::from_secs(120);

/// The measuring program.
pub(crate) fn body(flags: &BenchBodyFlags) -> Outcome {
    body::main(flags)
}

/// The measuring program of `bench soft`.
pub(crate) fn soft_body(flags: &BenchSoftBodyFlags) -> Outcome {
    soft::body(flags)
}

/// The measuring program of `bench opencl`.
pub(crate) fn opencl_body(flags: &BenchOpenclBodyFlags) -> Outcome {
    opencl::body(flags)
}

/// The program that `bench checkpoint` takes checkpoints of.
pub(crate) fn holder(flags: &BenchHolderFlags) -> Outcome {
    checkpoint::holder(flags)
}

/// Runs the command.
pub(crate) fn main(flags: &BenchFlags) -> Outcome {
    match flags.subject {
        Some(Subject::Soft) => return soft::main(flags),
        Some(Subject::Checkpoint) => return checkpoint::main(flags),
        Some(Subject::Opencl) => return opencl::main(flags),
        None => {}
    }
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let driver = match probe_apart(&flags.driver) {
        Probe::Works(facts) => facts,
        Probe::Fails(reason) => return Err(Failure::server(format!("cannot measure: {reason}"))),
    };
    let loopback = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let server = PrivateServer::start_with(&flags.driver, &[loopback])?;
    let ways = ways(flags, &layout, &driver, &server);
    let comparison = measure(flags.quick, &ways, &driver, &server)?;
    server.stop();
    let mut out = io::stdout().lock();
    if flags.json {
        comparison.write_json(&mut out)?
    } else {
        comparison.write_table(&mut out)?
    }
    Ok(ExitCode::SUCCESS)
}

/// A way with what its measuring program needs.
struct Setup {
    way: Way,
    /// The loader's search path; `None` unsets it.
    search: Option<OsString>,
    /// The server, except for the native way.
    server: Option<Address>,
}

/// Native first, then one server's two addresses: the shim makes shared memory of the unix socket and a stream of TCP.
fn ways(flags: &BenchFlags, layout: &Layout, driver: &DriverFacts, server: &PrivateServer) -> Vec<Setup> {
    let native = Setup { way: Way::Native, search: native_search(layout, &driver.path), server: None };
    let through =
        |way, server: Option<&Address>| Setup { way, search: Some(layout.program_search()), server: server.cloned() };
    let mut ways = Vec::from_iter((flags.against == Against::Native).then_some(native));
    ways.push(through(Way::Shm, server.addresses().first()));
    ways.push(through(Way::Tcp, server.addresses().get(1)));
    ways
}

/// Where the loader finds the very driver that the workers opened.
fn native_search(layout: &Layout, driver: &Path) -> Option<OsString> {
    let rest = layout.driver_search();
    match driver.parent().filter(|folder| folder.is_absolute()) {
        Some(folder) => Some(layout::first(folder, rest.as_deref())),
        None => rest,
    }
}

/// All rounds. One run that fails ends the measurement: its figures could not be compared.
fn measure(quick: bool, ways: &[Setup], driver: &DriverFacts, server: &PrivateServer) -> Result<Comparison, Failure> {
    let progress = Progress::new();
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let mut comparison = Comparison::new(driver.clone(), ways.iter().map(|setup| setup.way));
    for round in 1..=rounds {
        for setup in ways {
            progress.show(&format!("round {round} of {rounds}: {}", setup.way.title()));
            wait_until_warm(server)?;
            comparison.add(setup.way, run(setup, quick)?);
        }
    }
    Ok(comparison)
}

/// A program that meets no ready worker would measure the driver's start.
fn wait_until_warm(server: &PrivateServer) -> Result<(), Failure> {
    let deadline = Instant::now() + WARM_LIMIT;
    while server.workers().ready == 0 {
        if let Some(reason) = server.workers().last_failure {
            return Err(Failure::server(format!("cannot measure: no worker starts: {reason}")));
        }
        if Instant::now() > deadline {
            return Err(Failure::server("cannot measure: no worker became ready: see `katydid doctor`"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// One run of the measuring program. Its start is stamped as late as possible, so that first calls compare.
fn run(setup: &Setup, quick: bool) -> Result<Report, Failure> {
    let fail = |reason: String| Failure::work(format!("cannot measure {}: {reason}", setup.way.title()));
    let mut command = Command::new("/proc/self/exe");
    command.arg("bench-body").args(quick.then_some("--quick"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    match &setup.search {
        Some(search) => command.env(layout::SEARCH, search),
        None => command.env_remove(layout::SEARCH),
    };
    if let Some(server) = &setup.server {
        command.env(address::VARIABLE, server.to_string());
    }
    command.args(["--started", &body::now().to_string()]);
    let output = command.output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        return Err(fail(format!("the measuring program ended with {} (its message stands above)", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| fail(error.to_string()))
}
