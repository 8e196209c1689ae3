//! Clients that take more than their share of connections, of a worker's time, of sessions or of memory. They hinder no other
//! client, and the server holds no more once they are gone.

#[path = "support/peer.rs"]
mod peer;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands;
use katydid_tests::deadline::PatientStream;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Running};
use katydid_tests::server::{Server, ask};
use katydid_tests::watch::{WAIT_TIMEOUT, children, descriptors, runs, threads, until};
use katydid_tests::way::Way;
use katydid_transport::connect;
use katydid_transport::{Address, ConnectError, ConnectedLink, ProgramLink, companion};
use katydid_wire::handshake::{ConnectionRole, HandshakeError, RefusalCode, SessionClaim, SessionKind};
use katydid_wire::key::SessionKey;

/// A server that listens on all kinds of sockets.
struct Bench {
    paths: Paths,
    server: Server,
}

impl Bench {
    fn new(variables: &[(&str, &str)]) -> Result<Self> {
        let paths = Paths::of_this_test()?;
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.into())).collect();
        let server = Server::start_tls(&paths, &driver_under_test(), &variables)?;
        Ok(Self { paths, server })
    }

    fn with(driver: &str, options: &[&str]) -> Result<Self> {
        let paths = Paths::of_this_test()?;
        let server = Server::start(&paths, driver, options)?;
        Ok(Self { paths, server })
    }

    fn ways(&self) -> Vec<Way> {
        let [shm, tcp] = Way::through(&self.server);
        [shm, tcp].into_iter().chain(Way::tls(&self.server)).collect()
    }

    /// Returns the server's address on each way.
    fn addresses(&self) -> Vec<String> {
        let all = [Some(self.server.unix()), Some(self.server.tcp().to_owned()), self.server.tls().map(str::to_owned)];
        all.into_iter().flatten().collect()
    }

    /// Runs a program, which must end well.
    fn serves(&self, way: &Way) -> Result<()> {
        let mut command = way.command(&self.paths, &self.paths.program("vector_add", Variant::Static));
        let outcome = program::run(&mut command, WAIT_TIMEOUT).with_context(|| way.to_string())?;
        ensure!(outcome.status.success(), "{way}: {}\n{}", outcome.ending(), outcome.errors());
        Ok(())
    }

    fn fixture(&self, way: &Way, arguments: &[&str]) -> std::process::Command {
        let mut command = way.command(&self.paths, &self.paths.program("fixture", Variant::Static));
        command.args(arguments);
        command
    }

    /// Starts a program that has a session and makes no call until its input ends.
    fn idle(&self, way: &Way) -> Result<Running> {
        let mut running = Running::start(&mut self.fixture(way, &["idle"]), Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        Ok(running)
    }

    /// Waits until the server holds as little as before.
    fn holds_no_more_than(&self, held_before: (usize, usize)) -> Result<()> {
        let mut now = held_descriptors(&self.server);
        let is_so = until("the server holds no more than before", || {
            now = held_descriptors(&self.server);
            now.0 <= held_before.0 && now.1 <= held_before.1
        });
        is_so.with_context(|| format!("descriptors and threads: {held_before:?} before, {now:?} now"))
    }
}

fn goes_on(mut running: Running) -> Result<()> {
    running.close_input();
    let outcome = running.finish(WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    Ok(())
}

fn held_descriptors(server: &Server) -> (usize, usize) {
    (descriptors(server.pid()), threads(server.pid()))
}

/// Connects to the session of this key with as long a hello as possible, and then waits.
fn long_visit(address: &str, key: SessionKey) -> Result<Box<dyn peer::Connection>> {
    let mut hello = peer::hello(SessionKind::CUDA, SessionClaim { role: ConnectionRole::COMPANION, key, frames: 0 });
    (hello.program, hello.name) = ("a".repeat(4096), "b".repeat(4096));
    let mut socket = peer::connect(address)?;
    socket.write_all(&hello.encode(&peer::build())?)?;
    Ok(socket)
}

/// More connections than the socket of a worker queues.
const VISIT_COUNT: usize = 200;

/// Connections wait at a worker that accepts none. Meanwhile the server goes on, also searching all sessions for idle memory,
/// and holds nothing of these connections.
fn visits_hold_nothing_up(bench: &Bench, address: &str) -> Result<()> {
    let server = &bench.server;
    let at: Address = address.parse()?;
    let (silent, ready) = companion(&at, SessionKey::NONE, WAIT_TIMEOUT)?;
    until("the next worker is ready", || {
        server.admin("/v1/server").is_ok_and(|view| view["workers"]["ready"] == 1 && view["workers"]["warming"] == 0)
    })?;
    let held_before = held_descriptors(server);
    thread::scope(|scope| -> Result<()> {
        let mut connections = Vec::new();
        for number in 0..VISIT_COUNT {
            if address.starts_with("tls:") {
                let (at, key) = (at.clone(), ready.key);
                // A companion that is not let in gives up after a while.
                scope.spawn(move || drop(companion(&at, key, Duration::from_secs(20))));
            } else {
                connections.push(long_visit(address, ready.key).with_context(|| format!("visit {number}"))?);
            }
        }
        let [way, _] = Way::through(server);
        // This program finds no memory, so the server asks all sessions for what they hold idle.
        let mut command = bench.fixture(&way, &["takes", "block", "1000000000000"]);
        let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
        ensure!(outcome.text().contains("error 2 "), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
        bench.serves(&way)?;
        server.workers_of(1)?;
        // The connections still wait at this point.
        bench.holds_no_more_than(held_before)
    })?;
    drop(silent);
    server.workers_of(0)?;
    Ok(())
}

/// A listener that accepts no connection: the kernel's backlog holds the program's.
#[test]
fn a_server_has_as_long_to_answer_as_the_environment_says() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&socket)?;
    let path = paths.program("vector_add", Variant::Static);
    let mut program = std::process::Command::new(&path);
    program.env("LD_LIBRARY_PATH", paths.shim());
    let mut tool = commands::katydid(&paths, &["run", "--"]);
    tool.arg(&path);
    for mut command in [program, tool] {
        command.env("KATYDID_SERVER", format!("unix:{}", socket.display())).env("KATYDID_CONNECT_TIMEOUT", "3s");
        let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
        let errors = outcome.errors();
        ensure!(!outcome.status.success() && errors.contains("did not answer within 3 s"), "{command:?}: {errors}");
    }
    Ok(())
}

#[test]
fn connections_of_a_silent_session_hold_nothing_up_and_leave_nothing() -> Result<()> {
    let bench = Bench::new(&[])?;
    for address in bench.addresses() {
        visits_hold_nothing_up(&bench, &address).with_context(|| address.clone())?;
    }
    Ok(())
}

/// Number of silent connections at a time: more than a listener has slots.
const SILENT_CONNECTIONS: usize = 200;

/// Keeps `count` silent connections open, and opens each again that is closed, until `stop` is set.
fn keep_connecting(address: &str, stop: &AtomicBool, closed: &AtomicUsize) {
    let mut connections: Vec<SilentConnection> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while connections.len() < SILENT_CONNECTIONS {
            match SilentConnection::connect(address) {
                Ok(silent) => connections.push(silent),
                Err(_) => break,
            }
        }
        let held_before = connections.len();
        connections.retain(SilentConnection::is_open);
        closed.fetch_add(held_before - connections.len(), Ordering::Relaxed);
        thread::sleep(Duration::from_millis(10));
    }
}

enum SilentConnection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl SilentConnection {
    fn connect(address: &str) -> Result<Self> {
        Ok(match address.strip_prefix("unix:") {
            Some(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Self::Unix(stream)
            }
            None => {
                let (_, endpoint) = address.split_once("://").context("no address")?;
                let stream = TcpStream::connect(endpoint.split('?').next().unwrap_or_default())?;
                stream.set_nonblocking(true)?;
                Self::Tcp(stream)
            }
        })
    }

    /// Whether the server has neither sent a byte nor closed the connection.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        let read = match self {
            Self::Unix(stream) => (&*stream).read(&mut byte),
            Self::Tcp(stream) => (&*stream).read(&mut byte),
        };
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

#[test]
fn silent_connections_lock_no_program_out() -> Result<()> {
    let bench = Bench::new(&[])?;
    for way in bench.ways() {
        bench.serves(&way)?;
    }
    bench.server.workers_of(0)?;
    for address in bench.addresses() {
        let (stop, closed) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| keep_connecting(&address, &stop, &closed));
            let outcome =
                until("connections are closed for others", || closed.load(Ordering::Relaxed) > SILENT_CONNECTIONS)
                    .map_err(anyhow::Error::from)
                    .and_then(|()| {
                        let ways = bench.ways();
                        ways.iter().cycle().take(2 * ways.len()).try_for_each(|way| bench.serves(way))
                    });
            stop.store(true, Ordering::Relaxed);
            outcome
        })
        .with_context(|| format!("while silent connections come to {address}"))?;
    }
    bench.server.workers_of(0)?;
    Ok(())
}

#[test]
fn silent_connections_cost_no_threads_and_few_descriptors() -> Result<()> {
    let bench = Bench::new(&[])?;
    // A worker that is about to start takes descriptors too.
    until("the server's workers are warm", || {
        let found = bench.server.admin("/v1/server");
        found.is_ok_and(|view| view["workers"]["warming"] == 0 && view["workers"]["ready"] != 0)
    })?;
    let held_before = held_descriptors(&bench.server);
    let mut silent = Vec::new();
    for address in bench.addresses() {
        for _ in 0..SILENT_CONNECTIONS {
            silent.push(SilentConnection::connect(&address)?);
        }
    }
    // Once the last connection is closed or waits, all before it are too.
    until("those beyond the places are closed", || {
        silent.iter().filter(|silent| !silent.is_open()).count() >= SILENT_CONNECTIONS
    })?;
    let now = held_descriptors(&bench.server);
    ensure!(now.1 <= held_before.1 + 1, "{held_before:?} before, {now:?} now");
    ensure!(now.0 <= held_before.0 + 3 * 128, "{held_before:?} before, {now:?} now");
    drop(silent);
    bench.holds_no_more_than(held_before)
}

/// Sends a request that announces more bytes than there is memory.
fn huge(socket: &Path, path: &str) -> Result<String> {
    let mut stream = PatientStream::new(UnixStream::connect(socket)?, WAIT_TIMEOUT)?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_request_that_announces_too_much_is_refused_and_ends_nothing() -> Result<()> {
    let bench = Bench::new(&[])?;
    let home = tempfile::tempdir()?;
    let [way, _] = Way::through(&bench.server);
    let mut command = way.job(&bench.paths, &["--name", "busy"], &bench.paths.program("fixture", Variant::Static));
    command.arg("idle").env("XDG_RUNTIME_DIR", home.path());
    let mut running = Running::start(&mut command, Stdio::piped())?;
    running.wait_for("ready", WAIT_TIMEOUT)?;
    let control = home.path().join("katydid/jobs/busy/control");
    let sockets: [(PathBuf, &str); 2] = [(bench.server.admin_socket(), "/v1/sessions"), (control, "/v1/job")];
    for (socket, path) in &sockets {
        let answer = huge(socket, path).with_context(|| format!("{}", socket.display()))?;
        ensure!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
        ensure!(answer.contains("\"error\":"), "{path}: {answer}");
        // The server answers clients beside silent connections and one that sends a byte now and then.
        let idle = (0..300).map(|_| UnixStream::connect(socket)).collect::<Result<Vec<_>, _>>()?;
        ask(socket, "GET", path).with_context(|| format!("{} beside idle connections", socket.display()))?;
        drop(idle);
    }
    bench.server.workers_of(1)?;
    goes_on(running)?;
    bench.server.workers_of(0)?;
    Ok(())
}

fn nvml(address: &Address, timeout: Duration) -> Result<Box<dyn ProgramLink>, ConnectError> {
    connect(address, &peer::hello(SessionKind::NVML, SessionClaim::NEW), &peer::build(), timeout)
        .map(|ConnectedLink { link, .. }| link)
}

fn is_crowded(error: &ConnectError) -> bool {
    let ConnectError::Handshake { source: HandshakeError::Refused(refused), .. } = error else { return false };
    refused.code == RefusalCode::CROWDED
}

/// The server ends connections for questions about devices that ask nothing. A program that lost its connection, or got none,
/// asks over a new one.
#[test]
fn idle_connections_for_questions_about_devices_make_room() -> Result<()> {
    let bench = Bench::new(&[])?;
    let address: Address = bench.server.tcp().parse()?;
    // On a busy machine, the worker that waits for the next program starts late.
    until("a worker waits for a program", || !children(bench.server.pid()).is_empty())?;
    let held_before = children(bench.server.pid()).len();
    let mut idle = Vec::new();
    let refusal = loop {
        match nvml(&address, WAIT_TIMEOUT.min(Duration::from_millis(500))) {
            Ok(link) => idle.push(link),
            Err(error) => break error,
        }
        ensure!(idle.len() <= 64, "one peer has as many processes as it wants");
    };
    ensure!(is_crowded(&refusal) || matches!(refusal, ConnectError::Deadline { .. }), "{refusal}");
    // The program's library waits for its turn.
    let program = bench.paths.program("nvml_queries", Variant::Plain);
    let [_, tcp] = Way::through(&bench.server);
    let outcome = program::run(&mut tcp.command(&bench.paths, &program), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}\n{}", outcome.ending(), outcome.errors());
    until("the processes that answer no program end", || {
        children(bench.server.pid()).iter().filter(|pid| runs(**pid)).count() <= held_before
    })?;
    let mut reply = Vec::new();
    let answer = idle[0].call(1, 0, &[], &mut reply);
    ensure!(answer.is_err(), "the connection is still there");
    Ok(())
}

#[test]
fn one_address_has_its_share_of_sessions_and_others_the_rest() -> Result<()> {
    let bench = Bench::with(&driver_under_test(), &["--max-sessions", "4", "--peer-sessions", "2"])?;
    let [unix, tcp] = Way::through(&bench.server);
    let both = [bench.idle(&tcp)?, bench.idle(&tcp)?];
    let outcome = program::run(&mut bench.fixture(&tcp, &["idle"]), WAIT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("--peer-sessions"), "{}", outcome.errors());
    let others = [bench.idle(&unix)?, bench.idle(&unix)?];
    let outcome = program::run(&mut bench.fixture(&unix, &["idle"]), WAIT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("--max-sessions"), "{}", outcome.errors());
    both.into_iter().chain(others).try_for_each(goes_on)?;
    bench.server.workers_of(0)?;
    bench.serves(&tcp)
}

/// The test runs on softcuda, where device memory is the machine's memory.
#[test]
fn a_session_beyond_its_host_memory_limit_ends_alone() -> Result<()> {
    let bench = Bench::with("soft", &["--host-memory", "256M"])?;
    let [unix, tcp] = Way::through(&bench.server);
    for way in [unix, tcp] {
        let beside = bench.idle(&way)?;
        let outcome = program::run(&mut bench.fixture(&way, &["copies", "512"]), WAIT_TIMEOUT)?;
        ensure!(outcome.status.code() == Some(3), "{way}: {}\n{}", outcome.ending(), outcome.text());
        until("a line about it", || bench.server.log().contains("--host-memory"))?;
        bench.server.workers_of(1)?;
        goes_on(beside)?;
        bench.serves(&way)?;
    }
    Ok(())
}

/// The server cuts names that a peer makes up before it logs them.
#[test]
fn a_line_of_the_log_is_short_whatever_a_program_calls_itself() -> Result<()> {
    let bench = Bench::new(&[])?;
    for address in [bench.server.unix(), bench.server.tcp().to_owned()] {
        let mut hello = peer::hello(SessionKind::CUDA, SessionClaim::NEW);
        (hello.program, hello.name) = ("p".repeat(4096), "n".repeat(4096));
        let mut socket = peer::connect(&address)?;
        socket.write_all(&hello.encode(&peer::build())?)?;
        bench.server.workers_of(1)?;
        let mut unknown = hello.clone();
        unknown.claim = SessionClaim { role: ConnectionRole::PROGRAM, key: SessionKey([9; 16]), frames: 0 };
        let mut refused = peer::connect(&address)?;
        refused.write_all(&unknown.encode(&peer::build())?)?;
        refused.read_to_end(&mut Vec::new())?;
        drop(socket);
        bench.server.workers_of(0)?;
    }
    let log = fs::read_to_string(bench.server.admin_socket().with_file_name("log"))?;
    ensure!(log.contains("pppp") && log.contains("nnnn"), "{log}");
    let longest = log.lines().map(str::len).max().unwrap_or(0);
    ensure!(longest < 512, "a line of {longest} bytes");
    Ok(())
}
