//! `katydid bench`: measures the same calls on the driver directly, through shared memory, a unix socket and TCP, in turns. On
//! request, it adds TLS and vsock, and several sessions through NVIDIA's Multi-Process Service.
//!
//! Each run is a fresh process ([`mod@body`]), so that it measures the first call as programs experience it. The ways take turns
//! within a round, so that a slow machine slows all of them. A warm worker is ready before each run. Slow measurements (large
//! copies, very many objects) are part of the first round alone. They are not made over the unix socket, which has no such
//! budgets. Measurements outside of rounds come between them: every figure is taken once before any is repeated, and further
//! rounds begin while there is time.

mod body;
mod checkpoint;
mod cuda;
mod empty_kernel;
mod figures;
pub mod flags;
mod journal;
mod machine;
mod network;
mod noise;
mod opencl;
mod opencl_calls;
mod parts;
mod report;
mod sampling;
mod sessions;
mod setup;
mod soft;

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use katydid_scratch::Scratch;
use katydid_transport::Address;

use crate::flags::{
    Against, BenchBodyFlags, BenchFlags, BenchHolderFlags, BenchOpenclBodyFlags, BenchSoftBodyFlags, Subject,
};
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::output::terminal::Progress;
use katydid_cli_core::probe::{Probe, ProbedDriver, probe_in_child};
use katydid_cli_core::server::mps::Mps;
use katydid_cli_core::server::private_server::PrivateServer;
use network::PLAIN_COPIES;
use report::Comparison;
use sampling::Report;
use setup::{Setup, Way, native_search, prepared, wait_until_warm};

/// Certificates for a server and a program on this machine, removed with this value.
#[derive(Debug)]
pub struct Loopback {
    /// Folder with the server's certificate and key.
    pub server: PathBuf,
    /// Folder with the program's certificate and key.
    pub client: PathBuf,
    /// Folder that holds both, removed on drop.
    pub folder: Scratch,
}

/// Most rounds; each figure is the median over them.
const MAX_ROUNDS: u32 = 4;
const QUICK_ROUNDS: u32 = 2;
/// Rounds before the measurement of many sessions.
const FIRST_ROUNDS: u32 = 2;
/// Time after which nothing more begins, unless the flags say otherwise. The bench then ends within a minute and a half.
const BENCH_TIME_LIMIT: Duration = Duration::from_secs(70);
/// Number of starts without a warm worker.
const COLD_STARTS: u32 = 3;
/// Numbers of concurrent programs, with their keys.
const SESSION_COUNTS: [(usize, &str); 3] = [(1, "sessions_1"), (8, "sessions_8"), (64, "sessions_64")];
/// Most sessions of quick runs. More are measured last, since making 64 contexts can take half a minute.
const FEW_SESSIONS: usize = 8;
/// The vsock address of the machine itself.
const VMADDR_CID_LOCAL: u32 = 1;
/// Runs the measuring program.
///
/// # Errors
///
/// What could not be measured.
pub fn body(flags: &BenchBodyFlags) -> Outcome {
    body::main(flags)
}

/// Runs the measuring program of `bench soft`.
///
/// # Errors
///
/// What could not be measured.
pub fn soft_body(flags: &BenchSoftBodyFlags) -> Outcome {
    soft::body(flags)
}

/// Runs the measuring program of `bench opencl`.
///
/// # Errors
///
/// What could not be measured.
pub fn opencl_body(flags: &BenchOpenclBodyFlags) -> Outcome {
    opencl::body(flags)
}

/// Runs the program that `bench checkpoint` checkpoints.
///
/// # Errors
///
/// What could not be measured.
pub fn holder(flags: &BenchHolderFlags) -> Outcome {
    checkpoint::holder(flags)
}

/// Runs the command.
///
/// # Errors
///
/// What could not be measured.
pub fn main(flags: &BenchFlags, certs: impl FnOnce() -> Result<Loopback, Failure>) -> Outcome {
    flags.check()?;
    match flags.subject {
        Some(Subject::Soft) => return soft::main(flags),
        Some(Subject::Checkpoint) => return checkpoint::main(flags),
        Some(Subject::Opencl) => return opencl::main(flags),
        Some(Subject::Journal) => return journal::main(flags),
        None => {}
    }
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let driver = match probe_in_child(&flags.driver) {
        Probe::Works(facts) => facts,
        Probe::Fails(reason) => return Err(Failure::server(format!("cannot measure: {reason}"))),
    };
    let certs = flags.tls.then(certs).transpose()?;
    let server = PrivateServer::start_with(&flags.driver, &on_loopback(certs.as_ref(), flags.vsock), None)?;
    let mut ways = ways(flags, &layout, &driver, &server);
    ways.extend(certs.as_ref().and_then(|certs| tls(&layout, &server, certs)));
    ways.extend(between_machines(&layout, &server));
    let service = flags.mps.then(|| Service::start(&flags.driver)).transpose()?;
    let beside = service.as_ref().map(|service| service.setup(&layout));
    let many: Vec<&Setup> = ways.iter().filter(|setup| setup.way <= Way::Shm).chain(&beside).collect();
    let deadline = deadline(flags);
    let rounds = flags.rounds.unwrap_or(if flags.quick { QUICK_ROUNDS } else { MAX_ROUNDS });
    let mut comparison = Comparison::new(driver.clone(), ways.iter().chain(&beside).map(|setup| setup.way));
    measure_round(flags, &ways, &server, &mut comparison)?;
    measure_plain(flags.quick, &mut comparison);
    measure_sessions(|number| number <= FEW_SESSIONS, &many, deadline, &mut comparison);
    measure_journal(flags, &layout, &mut comparison)?;
    measure_cold(flags, &ways, &mut comparison)?;
    measure_rounds(rounds.min(FIRST_ROUNDS), deadline, flags, &ways, &server, &mut comparison)?;
    if !flags.quick {
        measure_sessions(|number| number > FEW_SESSIONS, &many, deadline, &mut comparison);
    }
    measure_rounds(rounds, deadline, flags, &ways, &server, &mut comparison)?;
    server.stop();
    if flags.json {
        document::write(&comparison.json())?;
    } else {
        comparison.write_table(&mut io::stdout().lock())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the ways: native, then the addresses of one server. On the unix socket, the shim uses shared memory unless a variable
/// forbids it.
fn ways(flags: &BenchFlags, layout: &Layout, driver: &ProbedDriver, server: &PrivateServer) -> Vec<Setup> {
    let search = native_search(layout, &driver.path);
    let native = Setup { way: Way::Native, search, server: None, stream: false };
    let through = |way, at: usize, stream| {
        let server = server.addresses().get(at).cloned();
        Setup { way, search: Some(layout.program_search()), server, stream }
    };
    let mut ways = Vec::from_iter((flags.against == Against::Native).then_some(native));
    ways.extend([through(Way::Shm, 0, false), through(Way::Unix, 0, true), through(Way::Tcp, 1, true)]);
    ways
}

/// Returns the server's addresses beside its unix socket: TCP, TLS if there are certificates, and vsock if requested.
fn on_loopback(certs: Option<&Loopback>, vsock: bool) -> Vec<Address> {
    let host = || "127.0.0.1".to_owned();
    let tls = certs.map(|certs| Address::Tls { host: host(), port: 0, certs: Some(certs.server.clone()) });
    let vsock = vsock.then_some(Address::Vsock { cid: VMADDR_CID_LOCAL, port: 0 });
    [Address::Tcp { host: host(), port: 0 }].into_iter().chain(tls).chain(vsock).collect()
}

/// Returns the way through TLS.
fn tls(layout: &Layout, server: &PrivateServer, certs: &Loopback) -> Option<Setup> {
    let address = server.addresses().iter().find(|address| matches!(address, Address::Tls { .. }))?;
    let address = address.clone().with_certs(Some(&certs.client));
    Some(Setup { way: Way::Tls, search: Some(layout.program_search()), server: Some(address), stream: true })
}

/// Returns the way through vsock, if the server listens there.
fn between_machines(layout: &Layout, server: &PrivateServer) -> Option<Setup> {
    let address = server.addresses().iter().find(|address| matches!(address, Address::Vsock { .. }))?.clone();
    Some(Setup { way: Way::Vsock, search: Some(layout.program_search()), server: Some(address), stream: true })
}

/// Returns when nothing more begins. A number of rounds without a time has no deadline.
fn deadline(flags: &BenchFlags) -> Option<Instant> {
    let within = match (&flags.within, flags.rounds) {
        (Some(within), _) => within.0,
        (None, Some(_)) => return None,
        (None, None) => BENCH_TIME_LIMIT,
    };
    Instant::now().checked_add(within)
}

/// Measures further rounds, up to `most`, or until there is no time for one as long as the last.
fn measure_rounds(
    most: u32,
    deadline: Option<Instant>,
    flags: &BenchFlags,
    ways: &[Setup],
    server: &PrivateServer,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let mut last = Duration::ZERO;
    while comparison.rounds() < most && deadline.is_none_or(|deadline| Instant::now() + last < deadline) {
        let start = Instant::now();
        measure_round(flags, ways, server, comparison)?;
        last = start.elapsed();
    }
    Ok(())
}

/// Measures one run on each way. A failure ends the measurement, since figures could not be compared.
fn measure_round(
    flags: &BenchFlags,
    ways: &[Setup],
    server: &PrivateServer,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let (progress, quick, round) = (Progress::on_stderr(), flags.quick, comparison.rounds() + 1);
    for setup in ways {
        progress.show(&format!("round {round}: {}", setup.way.title()));
        wait_until_warm(server)?;
        let mut command = prepared(setup);
        command.args(quick.then_some("--quick"));
        command.args((!quick && round == 1 && setup.way != Way::Unix).then_some("--heavy"));
        command.args((setup.way == Way::Native).then_some("--by-hand"));
        comparison.add(setup.way, run(setup.way, command)?);
    }
    comparison.end_round();
    Ok(())
}

/// Measures what the network path can do by itself, to compare TCP with.
fn measure_plain(quick: bool, comparison: &mut Comparison) {
    Progress::on_stderr().show("plain TCP");
    for (connections, key) in PLAIN_COPIES {
        let samples = network::plain(connections, if quick { 3 } else { 12 });
        comparison.note(Way::Tcp, key, samples.map_err(|error| error.to_string()));
    }
}

/// A server whose sessions share the GPU, with the service for that.
struct Service {
    /// The server; dropped first, while the GPU is still shared.
    server: PrivateServer,
    _mps: Mps,
}

impl Service {
    fn start(driver: &str) -> Result<Self, Failure> {
        let mps = Mps::start()?;
        Ok(Self { server: PrivateServer::start_with_mps(driver, &mps)?, _mps: mps })
    }

    fn setup(&self, layout: &Layout) -> Setup {
        let server = Some(self.server.address().clone());
        Setup { way: Way::Mps, search: Some(layout.program_search()), server, stream: false }
    }
}

/// Measures several concurrent programs, natively and over shared memory, which programs on the same machine use.
fn measure_sessions(
    is_selected: impl Fn(usize) -> bool,
    ways: &[&Setup],
    deadline: Option<Instant>,
    comparison: &mut Comparison,
) {
    let progress = Progress::on_stderr();
    for (number, key) in SESSION_COUNTS.into_iter().filter(|(number, _)| is_selected(*number)) {
        for setup in ways {
            progress.show(&format!("{number} at once: {}", setup.way.title()));
            let each = match deadline.is_some_and(|deadline| Instant::now() > deadline) {
                true => Err(cuda::CudaError::no_time().to_string()),
                false => sessions::together(setup, number).map(|each| vec![each]),
            };
            comparison.note(setup.way, key, each);
        }
    }
}

/// Measures the cost of keeping a journal.
fn measure_journal(flags: &BenchFlags, layout: &Layout, comparison: &mut Comparison) -> Result<(), Failure> {
    Progress::on_stderr().show("the journal");
    comparison.journal = journal::measure(&flags.driver, layout, flags.quick)?;
    Ok(())
}

/// Measures first calls natively and with a server that keeps no worker ready. It needs a separate server, since a pool refills
/// itself.
fn measure_cold(flags: &BenchFlags, ways: &[Setup], comparison: &mut Comparison) -> Result<(), Failure> {
    let progress = Progress::on_stderr();
    let server = PrivateServer::start_with(&flags.driver, &[], Some(0))?;
    for round in 1..=if flags.quick { 1 } else { COLD_STARTS } {
        for setup in ways.iter().filter(|setup| setup.way <= Way::Shm) {
            progress.show(&format!("cold start {round}: {}", setup.way.title()));
            let cold = setup.server.as_ref().map(|_| server.address().clone());
            let mut command = prepared(&Setup { server: cold, search: setup.search.clone(), ..*setup });
            command.arg("--only-start");
            comparison.add(setup.way, run(setup.way, command)?);
        }
    }
    server.stop();
    Ok(())
}

/// Runs the measuring program once. Stamps its start as late as possible, so that first calls compare.
fn run(way: Way, mut command: Command) -> Result<Report, Failure> {
    let fail = |reason: String| Failure::work(format!("cannot measure {}: {reason}", way.title()));
    command.args(["--started", &sampling::now().to_string()]);
    let output = command.output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        return Err(fail(format!("the measuring program ended with {} (its message stands above)", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| fail(error.to_string()))
}
