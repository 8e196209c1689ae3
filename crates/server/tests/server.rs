//! The whole server with workers that have no GPU: this test binary, started again as a worker.
//!
//! A worker of these tests does what `KATYDID_FAKE` says; a program of these tests writes a hello by hand.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(unsafe_code, reason = "a worker takes over the descriptor that the server left open for it")]

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::thread::sleep;
use std::time::Duration;

use katydid_server::{Server, ServerConfig, SessionView, SessionsView, Verbosity, WorkerCommand};
use katydid_tests::deadline::hang::{hang_limit, until};
use katydid_transport::{Address, Pending};
use katydid_wire::handshake::{
    Build, ConnectionRole, HandshakeError, Hello, LINK_TIMEOUT_SECONDS, LinkKind, Ready, RefusalCode, Refused,
    SessionClaim, SessionKind,
};
use katydid_wire::key::SessionKey;
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn build() -> Build {
    Build::current([7; 32])
}

/// Not a test: a worker, when the server starts this binary with `FAKE_CONTROL` set.
#[test]
fn fake_worker() {
    let Ok(number) = std::env::var("FAKE_CONTROL") else { return };
    // SAFETY: the server opened this descriptor for this process alone.
    let control = unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) };
    // A server that is gone receives nothing.
    let say = |text: &str| {
        let _ = send(&control, text.as_bytes(), SendFlags::empty());
    };
    let does = std::env::var("KATYDID_FAKE").unwrap();
    if let Some(gate) = does.strip_prefix("starts with ") {
        until("the test lets it start", || Path::new(gate).exists());
    }
    match does.as_str() {
        "fail" => {
            say("failed this machine has no driver");
            exit(1)
        }
        "die" => exit(3),
        "noisy" => {
            say("warm fake");
            be_noisy();
        }
        "soft" => say("warm softcuda"),
        _ => say("warm fake"),
    }
    let Ok(Some((program, note))) = Pending::receive(control.as_fd(), &build()) else { exit(0) };
    match std::env::var("KATYDID_FAKE").unwrap().as_str() {
        "noisy" => {
            write(b"last words");
            exit(4);
        }
        "hoard" => {
            // Its own memory is as small as before. A last command would replace the shell, and free what the shell holds.
            let held = "printf -v held %200000000s x; sleep 1000; echo ended";
            drop(Command::new("/bin/bash").args(["-c", held]).stdout(Stdio::null()).spawn().unwrap());
        }
        _ => {}
    }
    let lingers = std::env::var("KATYDID_FAKE").unwrap() == "linger";
    say(if lingers { "usage 1073741824 17" } else { "usage 4096 17" });
    let mut socket = UnixStream::from(program.socket().try_clone_to_owned().unwrap());
    // A program that is gone reads nothing.
    let _ = socket.write_all(&note).and_then(|()| socket.write_all(b"."));
    // Until the program hangs up, or another process comes that knows the key.
    let mut both = [socket.as_fd(), control.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll(&mut both, None).unwrap();
    if both[0].revents().is_empty()
        && let Ok(Some((pending, _))) = Pending::receive(control.as_fd(), &build())
    {
        let mut socket = UnixStream::from(pending.socket().try_clone_to_owned().unwrap());
        socket.write_all(b"at home.").unwrap();
    }
    say("ended");
    if lingers {
        // The server reads this after the message above.
        say("usage 1073741824 18");
        sleep(Duration::from_millis(500));
    }
    exit(0)
}

/// Lines of a worker's flood: more than a worker may write at once.
const FLOOD_LINES: usize = 5000;

/// Writes what hostile native code may write to its standard error.
fn be_noisy() {
    let _ = rustix::fs::ftruncate(rustix::stdio::stderr(), 0);
    write(format!("katydid worker {}: own words\n", std::process::id()).as_bytes());
    write(b"\tas \x1b[2J\xffit came\nkatydid serve: forged\n");
    write(&[&[b'x'; 3000][..], b"\n"].concat());
    write(b"flood\n".repeat(FLOOD_LINES).as_slice());
}

fn write(mut text: &[u8]) {
    while !text.is_empty() {
        text = &text[rustix::io::write(rustix::stdio::stderr(), text).unwrap()..];
    }
}

/// A server in a folder of its own.
struct Bench {
    server: Option<Server>,
    folder: TempDir,
}

impl Bench {
    fn new(fake: &str) -> Self {
        Self::with(fake, |_| {})
    }

    fn with(fake: &str, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), fake);
        change(&mut config);
        Self { server: Some(Server::start(config).unwrap()), folder }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("sock")).unwrap();
        stream.set_read_timeout(Some(hang_limit())).unwrap();
        stream
    }

    /// A program that has said hello.
    fn program(&self, name: &str) -> UnixStream {
        let mut stream = self.connect();
        stream.write_all(&hello(name).encode(&build()).unwrap()).unwrap();
        stream
    }

    /// A program that is served, and the note that its worker received.
    fn served(&self, name: &str) -> (UnixStream, String) {
        let mut stream = self.program(name);
        let mut note = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 && byte != *b"." {
            note.extend(byte);
        }
        (stream, String::from_utf8(note).unwrap())
    }

    fn refused(&self, mut stream: UnixStream) -> Refused {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        Refused::decode(&answer).unwrap()
    }

    /// Returns whether a program is served now.
    fn refused_or_served(&self, name: &str) -> bool {
        let mut first = [0];
        // A worker of these tests answers with its note, which begins with a word.
        self.program(name).read_exact(&mut first).is_ok() && first == *b"k"
    }

    fn sessions(&self) -> Vec<SessionView> {
        let mut stream = UnixStream::connect(self.folder.path().join("admin")).unwrap();
        stream.write_all(b"GET /v1/sessions HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<SessionsView>(body).unwrap().sessions
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }
}

fn config(folder: &Path, fake: &str) -> ServerConfig {
    let script = "FAKE_CONTROL=$2 exec \"$0\" --exact fake_worker --nocapture";
    let worker = WorkerCommand {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into(), std::env::current_exe().unwrap().into()],
        set: vec![("KATYDID_FAKE".into(), fake.into())],
        unset: Vec::new(),
        ..WorkerCommand::default()
    };
    ServerConfig {
        listen: vec![Address::Unix(folder.join("sock"))],
        admin: folder.join("admin"),
        insecure: false,
        worker,
        driver: "fake".into(),
        warm: 1,
        max_sessions: 8,
        peer_sessions: 8,
        peer_connections: 64,
        session_memory: None,
        host_memory: None,
        needs_driver: false,
        cpu_opencl: false,
        worker_images: false,
        build: build(),
        hello_timeout: hang_limit(),
        verbosity: Verbosity::Private,
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        session: SessionKind::CUDA,
        claim: SessionClaim::NEW,
        link: LinkKind::STREAM,
        pid: 1,
        memory_limit: None,
        program: "test".into(),
        name: name.into(),
        arenas: Vec::new(),
        link_timeout: LINK_TIMEOUT_SECONDS,
        reservation: SessionKey::NONE,
    }
}

fn is_alive(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

#[test]
fn a_program_gets_a_worker_and_a_line_in_the_table() {
    let bench = Bench::new("serve");
    let (program, note) = bench.served("nightly");
    assert_eq!(Note::decode(note.as_bytes()).memory_limit, None);
    until("the worker's report", || bench.sessions().first().is_some_and(|session| session.calls == Some(17)));
    let session = bench.sessions().remove(0);
    assert_eq!((session.name.as_str(), session.program.as_str()), ("nightly", "test"));
    assert_eq!((session.peer.as_str(), session.link.as_str()), ("unix", "stream"));
    assert_eq!((session.pid, session.device_memory), (std::process::id(), Some(4096)));
    drop(program);
    until("the end of the session", || bench.sessions().is_empty());
    assert!(!is_alive(session.worker_pid), "the worker is left, or was not reaped");
}

#[test]
fn every_program_has_a_worker_of_its_own_and_another_is_ready() {
    let bench = Bench::new("serve");
    let _programs: Vec<_> = ["a", "b", "c"].map(|name| bench.served(name)).into();
    let mut workers: Vec<u32> = bench.sessions().iter().map(|session| session.worker_pid).collect();
    workers.dedup();
    assert_eq!(workers.len(), 3);
    until("a warm worker", || bench.server.as_ref().unwrap().workers().ready == 1);
}

#[test]
fn a_worker_that_is_killed_ends_its_session_and_no_other() {
    let bench = Bench::new("serve");
    let (mut first, _) = bench.served("first");
    let _second = bench.served("second");
    let worker = i32::try_from(bench.sessions()[0].worker_pid).unwrap();
    kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    until("the end of the session", || bench.sessions().len() == 1);
    assert_eq!(bench.sessions()[0].name, "second");
}

#[test]
fn stopping_ends_the_sessions_reaps_the_workers_and_removes_the_sockets() {
    let mut bench = Bench::new("serve");
    let (mut program, _) = bench.served("a");
    let worker = bench.sessions()[0].worker_pid;
    bench.stop();
    assert!(!is_alive(worker));
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 0);
}

#[test]
fn failed_driver_start_is_reported_to_the_program() {
    let bench = Bench::new("fail");
    let refused = bench.refused(bench.program("a"));
    assert_eq!(refused.code, RefusalCode::DRIVER);
    assert!(refused.text.contains("this machine has no driver"), "{refused}");
}

#[test]
fn silent_worker_death_is_reported() {
    let bench = Bench::new("die");
    let refused = bench.refused(bench.program("a"));
    assert!(refused.text.contains("exit status: 3"), "{refused}");
}

#[test]
fn programs_beyond_the_limit_are_refused_until_a_slot_is_free() {
    let bench = Bench::with("serve", |config| config.max_sessions = 1);
    let (program, _) = bench.served("first");
    let refused = bench.refused(bench.program("second"));
    assert_eq!(refused.code, RefusalCode::BUSY);
    assert!(refused.text.contains("--max-sessions"), "{refused}");
    drop(program);
    until("the end of the session", || bench.sessions().is_empty());
    bench.served("third");
}

/// A peer that has said hello in this role, without a session's key.
fn in_role(bench: &Bench, hello: Hello, role: ConnectionRole) -> UnixStream {
    let mut stream = bench.connect();
    let claim = SessionClaim { role, ..SessionClaim::NEW };
    stream.write_all(&Hello { claim, ..hello }.encode(&build()).unwrap()).unwrap();
    stream
}

#[test]
fn a_role_in_which_no_session_begins_costs_no_worker() {
    // A program that waits would start one.
    let bench = Bench::with("serve", |config| config.warm = 0);
    let nvml = Hello { session: SessionKind::NVML, ..hello("a") };
    for (hello, role) in [
        (hello("a"), ConnectionRole(0)),
        (hello("a"), ConnectionRole(7)),
        (hello("a"), ConnectionRole(u32::MAX)),
        (hello("a"), ConnectionRole::BULK),
        (nvml.clone(), ConnectionRole::COMPANION),
        (nvml, ConnectionRole(9)),
    ] {
        let refused = bench.refused(in_role(&bench, hello, role));
        assert_eq!(refused.code, RefusalCode::BAD_HELLO, "{role:?}");
        assert!(refused.text.contains(&role.0.to_string()) && refused.text.contains("release"), "{refused}");
    }
    let workers = bench.server.as_ref().unwrap().workers();
    assert_eq!((workers.ready, workers.warming, workers.last_failure), (0, 0, None));
}

#[test]
fn a_slot_is_kept_for_a_program_that_is_about_to_start_and_for_no_other() {
    let bench = Bench::with("serve", |config| config.max_sessions = 1);
    let reserve = || {
        let mut stream = in_role(&bench, hello("katydid"), ConnectionRole::RESERVATION);
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap();
        Ready::decode(&answer[..length], &build()).map(|ready| (stream, ready.key))
    };
    let (mut keeper, reservation) = reserve().unwrap();
    assert!(bench.sessions().is_empty(), "none has begun");
    for refused in [bench.program("other"), in_role(&bench, hello(""), ConnectionRole::INQUIRY)] {
        assert_eq!(bench.refused(refused).code, RefusalCode::BUSY);
    }
    assert!(matches!(reserve(), Err(HandshakeError::Refused(refused)) if refused.code == RefusalCode::BUSY));
    let mut program = bench.connect();
    program.write_all(&Hello { reservation, ..hello("awaited") }.encode(&build()).unwrap()).unwrap();
    until("the session", || bench.sessions().first().is_some_and(|session| session.name == "awaited"));
    assert_eq!(keeper.read(&mut [0]).unwrap(), 0, "the slot is not kept any more");
    drop(program);
    until("the end of the session", || bench.sessions().is_empty());
    // A reservation that is dropped frees its slot.
    drop(reserve().unwrap());
    until("a slot", || reserve().is_ok());
    until("a session", || bench.refused_or_served("next"));
}

#[test]
fn a_program_begins_when_the_worker_before_it_has_given_its_memory_back() {
    let bench = Bench::new("linger");
    let (program, _) = bench.served("first");
    until("the worker's report", || bench.sessions()[0].device_memory == Some(1 << 30));
    until("a warm worker", || bench.server.as_ref().unwrap().workers().ready == 1);
    let worker = bench.sessions()[0].worker_pid;
    drop(program);
    // Natively the program's own end would wait for that.
    until("the worker's report that it ends", || bench.sessions()[0].calls == Some(18));
    bench.served("second");
    assert!(!is_alive(worker), "its memory is not there yet");
}

#[test]
fn the_servers_memory_limit_is_passed_to_the_worker() {
    let bench = Bench::with("serve", |config| config.session_memory = Some(1 << 20));
    assert_eq!(Note::decode(bench.served("a").1.as_bytes()).memory_limit, Some(1 << 20));
}

/// When a process was started, in ticks.
fn started(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap()
}

#[test]
fn a_renewal_replaces_idle_workers_and_no_other() {
    let bench = Bench::new("serve");
    let (mut first, _) = bench.served("first");
    until("a warm worker", || bench.server.as_ref().unwrap().workers().ready == 1);
    let mut since = Command::new("sleep").arg("1000").spawn().unwrap();
    bench.server.as_ref().unwrap().renewal()();
    let (_second, _) = bench.served("second");
    let workers: Vec<u32> = bench.sessions().iter().map(|session| session.worker_pid).collect();
    assert!(started(workers[0]) <= started(since.id()) && started(workers[1]) >= started(since.id()));
    since.kill().unwrap();
    since.wait().unwrap();
    first.set_nonblocking(true).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn session_key_attaches_to_its_worker() {
    let bench = Bench::new("serve");
    let (_program, note) = bench.served("a");
    let (_other, other) = bench.served("b");
    let (key, other) = (Note::decode(note.as_bytes()).key, Note::decode(other.as_bytes()).key);
    assert!(!key.is_none() && !key.matches(&other));
    let mut guess = key;
    guess.0[15] ^= 1;
    let attach = |key| {
        let mut stream = bench.connect();
        let claim = SessionClaim { role: ConnectionRole::COMPANION, key, frames: 0 };
        stream.write_all(&Hello { claim, ..hello("") }.encode(&build()).unwrap()).unwrap();
        stream
    };
    let refused = bench.refused(attach(guess));
    assert_eq!(refused.code, RefusalCode::NO_SESSION);
    let mut answer = [0; 8];
    attach(key).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"at home.");
}

#[test]
fn without_warm_workers_one_is_started_on_demand() {
    let bench = Bench::with("serve", |config| config.warm = 0);
    assert_eq!(bench.server.as_ref().unwrap().workers().ready, 0);
    bench.served("a");
}

#[test]
fn programs_that_hang_up_while_they_wait_cost_no_workers() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let bench = Bench::with(&format!("starts with {}", gate.display()), |config| config.warm = 0);
    let counts = || {
        let workers = bench.server.as_ref().unwrap().workers();
        (workers.warming, workers.ready)
    };
    let gone: Vec<_> = (0..6).map(|_| bench.program("gone")).collect();
    until("a worker starts for each", || counts() == (6, 0));
    // A worker that is being started holds copies of these sockets until its exec.
    gone.iter().for_each(|program| program.shutdown(Shutdown::Both).unwrap());
    fs::write(&gate, "").unwrap();
    until("the workers are left for others", || counts() == (0, 6));
    let _served = bench.served("here");
    assert_eq!(counts(), (0, 5));
}

#[test]
fn another_build_is_refused_with_both_names() {
    let bench = Bench::new("serve");
    let mut stream = bench.connect();
    let other_build = Build { release: "9.9.9".into(), ..Build::current([8; 32]) };
    stream.write_all(&hello("a").encode(&other_build).unwrap()).unwrap();
    let refused = bench.refused(stream);
    assert_eq!(refused.code, RefusalCode::OTHER_BUILD);
    assert!(refused.text.contains("9.9.9") && refused.text.contains(env!("CARGO_PKG_VERSION")), "{refused}");
}

#[test]
fn garbage_and_silence_do_not_keep_a_program_out() {
    let bench = Bench::with("serve", |config| config.hello_timeout = Duration::from_millis(200));
    let silent: Vec<_> = (0..300).map(|_| bench.connect()).collect();
    for garbage in [[0; 4096], [0xff; 4096], [b'G'; 4096]] {
        let mut stream = bench.connect();
        // The server may have hung up already.
        let _ = stream.write_all(&garbage);
    }
    until("a session among the other clients", || {
        let mut program = bench.connect();
        // While all slots are taken the server refuses unread, and has hung up already.
        let written = program.write_all(&hello("a").encode(&build()).unwrap());
        let mut first = [0];
        // A worker of these tests answers with its note, which begins with a word.
        written.and_then(|()| program.read(&mut first)).is_ok_and(|_| first == *b"k")
    });
    drop(silent);
}

#[test]
fn a_hostile_name_cannot_reach_a_terminal() {
    let bench = Bench::new("serve");
    let _program = bench.served("\u{1b}[2Jgone\n");
    assert_eq!(bench.sessions()[0].name, " [2Jgone");
}

#[test]
fn the_children_of_a_worker_count_as_the_worker() {
    let bench = Bench::with("hoard", |config| config.host_memory = Some(100 << 20));
    let (mut program, _) = bench.served("a");
    let worker = bench.sessions().first().map(|session| session.worker_pid);
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
    until("the end of the session", || bench.sessions().is_empty());
    assert!(worker.is_none_or(|worker| !is_alive(worker)));
    let beside = Bench::with("serve", |config| config.host_memory = Some(100 << 20));
    beside.served("b");
}

/// Not a test by itself: a server with hostile workers, whose standard error the test below reads.
#[test]
fn server_whose_words_are_read() {
    let Ok(kind) = std::env::var("SERVER_KIND") else { return };
    match kind.as_str() {
        "refused" => return refuse_many(),
        "few" => return serve_with_few_descriptors(),
        "loader" => return serve_beside_a_broken_opencl_driver(),
        _ => {}
    }
    let is_private = kind == "private";
    let mut bench = Bench::with("noisy", |config| {
        config.verbosity = if is_private { Verbosity::Private } else { Verbosity::Everything };
        // A program that comes starts one.
        config.warm = 0;
    });
    let mut program = bench.program("a");
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
    until("the end of the session", || bench.sessions().is_empty());
    bench.stop();
}

fn serve_with_few_descriptors() {
    katydid_server::raise_descriptors();
    let mut bench = Bench::with("serve", |config| (config.verbosity, config.warm) = (Verbosity::Everything, 0));
    bench.served("a");
    bench.stop();
}

#[test]
fn a_server_that_may_have_few_descriptors_has_fewer_slots_and_says_so() {
    let server_lines = lines_of_server("few");
    let expected = "allows this server 400 descriptors (ulimit -Hn): 16 connections wait at a listener, instead of 128, and 1 sessions";
    assert!(server_lines.contains(expected), "{server_lines}");
}

/// Runs a server whose workers end when they load drivers of OpenCL.
fn serve_beside_a_broken_opencl_driver() {
    let mut bench = Bench::with("soft", |config| {
        config.verbosity = Verbosity::Problems;
        let script = config.worker.arguments[1].to_str().unwrap();
        config.worker.arguments[1] = format!("[ $1 = --loads-opencl ] && exit 3; {script}").into();
    });
    let until_ready = || until("a ready worker", || bench.server.as_ref().unwrap().workers().ready == 1);
    let programs = [(); 2].map(|()| {
        until_ready();
        let mut program = bench.connect();
        let hello = Hello { session: SessionKind::OPENCL, ..hello("a") };
        program.write_all(&hello.encode(&build()).unwrap()).unwrap();
        program.read_exact(&mut [0]).unwrap();
        program
    });
    until_ready();
    drop(programs);
    bench.stop();
}

#[test]
fn a_worker_that_fails_to_load_opencl_is_the_last_that_does() {
    let server_lines = lines_of_server("loader");
    let count = |words| server_lines.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count("a worker could not be started: its process ended with exit status: 3"), 1, "{server_lines}");
    assert_eq!(count("name the others in KATYDID_OPENCL_DRIVERS, and restart the server"), 1, "{server_lines}");
}

/// Connections that are refused.
const REFUSED_CONNECTIONS: usize = 300;

fn refuse_many() {
    let mut bench = Bench::with("serve", |config| (config.verbosity, config.warm) = (Verbosity::Everything, 0));
    for _ in 0..REFUSED_CONNECTIONS {
        let mut stream = bench.connect();
        stream.write_all(&hello("a").encode(&Build::current([8; 32])).unwrap()).unwrap();
        assert_eq!(bench.refused(stream).code, RefusalCode::OTHER_BUILD);
    }
    bench.stop();
}

#[test]
fn a_peer_that_is_refused_without_end_does_not_fill_the_log() {
    let server_lines = lines_of_server("refused");
    let lines = server_lines.lines().filter(|line| line.contains("unix: refused: ")).count();
    assert!((20..REFUSED_CONNECTIONS / 2).contains(&lines), "{lines} in {server_lines}");
    assert!(server_lines.contains(" lines about refused connections were left out, of 1 source"), "{server_lines}");
}

/// Returns the lines of such a server, from a file.
fn lines_of_server(kind: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let exec = if kind == "few" { "ulimit -n 400; exec \"$0\" \"$@\"" } else { "exec \"$0\" \"$@\"" };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", exec]).arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", "server_whose_words_are_read", "--nocapture"])
        .env("SERVER_KIND", kind)
        .stdout(Stdio::null());
    let mut there = file.reopen().unwrap();
    there.write_all(b"said before\n").unwrap();
    assert!(command.stderr(there).status().unwrap().success());
    fs::read_to_string(file.path()).unwrap()
}

#[test]
fn worker_output_cannot_forge_server_lines_or_fill_its_log() {
    let server_lines = lines_of_server("served");
    assert!(server_lines.starts_with("said before\n"), "{server_lines}");
    let begin = server_lines.lines().find_map(|line| line.strip_suffix("own words")).unwrap();
    assert!(begin.starts_with("katydid serve: worker "), "{begin}");
    for words in [" as  [2J\u{fffd}it came", "katydid serve: forged", &"x".repeat(1000), "last words"] {
        assert!(server_lines.contains(&format!("{begin}{words}")), "{words} is not in {server_lines}");
    }
    assert!(
        server_lines.lines().all(|line| line.starts_with("katydid serve: ") || !line.contains("forged")),
        "{server_lines}"
    );
    let flood = server_lines.lines().filter(|line| line.ends_with("flood")).count();
    assert!((1..FLOOD_LINES / 2).contains(&flood), "{flood}");
    // The summary names the worker, or precedes the worker's next line if there was room for one again.
    let summaries = [" more lines of it were left out", " more lines like the next one were left out"];
    assert!(summaries.iter().any(|summary| server_lines.contains(summary)), "{server_lines}");
    assert!(server_lines.contains("exit status: 4"), "{server_lines}");
}

#[test]
fn the_user_of_a_private_server_sees_what_its_worker_writes_as_it_came() {
    let server_lines = lines_of_server("private");
    assert!(server_lines.starts_with("said before\n"), "{server_lines}");
    assert!(
        server_lines.lines().any(|line| line.starts_with("katydid worker ") && line.ends_with(": own words")),
        "{server_lines}"
    );
    assert!(server_lines.contains("\n\tas  [2J\u{fffd}it came\n"), "{server_lines}");
    assert_eq!(server_lines.matches("flood\n").count(), FLOOD_LINES);
    assert!(server_lines.ends_with("last words\n"), "{server_lines}");
}
