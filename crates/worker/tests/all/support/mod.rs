//! A program, a server and a worker process, put together for tests: the program is the test, the server a thread of
//! it, the worker this same test binary started again.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::cell::RefCell;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use katydid_arena::{NegotiatedArenas, Offers};
use katydid_tests::cargo::softcuda;
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{Address, Pending, ProgramLink};
use katydid_wire::SPEC_HASH;
use katydid_wire::codec::{Message, Reply};
use katydid_wire::handshake::{Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, SessionClaim, SessionKind};
use katydid_wire::key::SessionKey;
use katydid_wire::message::kdContextRetain;
use katydid_worker::WorkerOptions;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tempfile::TempDir;

/// Tells the test binary that it is the worker; its control socket is descriptor 0.
const ROLE: &str = "KATYDID_TEST_WORKER";

/// Names the drivers of OpenCL that a worker of these tests loads before a program comes.
pub(crate) const OPENCL_DRIVERS: &str = "KATYDID_OPENCL_DRIVERS";

/// Programs share this process, and with it the addresses of the arenas.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The link that carries frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Rings in memory that both sides map.
    Shm,
    /// The unix socket itself.
    Unix,
    /// TCP over loopback.
    Tcp,
}

/// Names the session of every program here.
pub(crate) const KEY: SessionKey = SessionKey([0x4b; 16]);

/// Names another driver than softcuda, to run these tests on a GPU: `auto`, or a path.
const OTHER_DRIVER: &str = "KATYDID_TEST_DRIVER";

/// The driver of these tests.
pub(crate) fn driver() -> String {
    env::var(OTHER_DRIVER).unwrap_or_else(|_| softcuda().to_str().unwrap().to_owned())
}

/// The worker's half of the binary, which `spawn_worker` starts by this name; returns at once in the tests' own process.
#[test]
fn worker_process() {
    if env::var_os(ROLE).is_some() {
        let control = rustix::stdio::stdin().try_clone_to_owned().unwrap();
        let driver = soft_choice();
        let (module_cache, watches, has_journal) = (None, false, true);
        let options = WorkerOptions {
            control,
            socket_broker: None,
            driver,
            soft: None,
            requires_gpu: false,
            module_cache,
            host_memory: u64::MAX,
            watches,
            has_journal,
            loads_opencl: env::var_os(OPENCL_DRIVERS).is_some(),
            sandbox: None,
        };
        let code = katydid_worker::run(options);
        std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { 1 });
    }
}

fn soft_choice() -> katydid_driver::DriverChoice {
    env::var(ROLE).unwrap().parse().unwrap()
}

/// Starts a worker process; its lines can be read from its standard error.
pub(crate) fn spawn_worker(driver: &str) -> (Child, OwnedFd) {
    spawn_worker_with(driver, &[])
}

/// Starts a worker like [`spawn_worker`], with additional variables.
pub(crate) fn spawn_worker_with(driver: &str, variables: &[(&str, &str)]) -> (Child, OwnedFd) {
    let (server_end, worker_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "support::worker_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, driver)
        .envs(variables.iter().copied())
        .stdin(Stdio::from(worker_end))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, server_end)
}

/// Takes a program, and the process that comes after it, and hands them to the worker. The worker ends with its server, so this
/// server stays until the test is over.
fn serve_all(mut accept: impl FnMut() -> OwnedFd + Send + 'static, control: OwnedFd, note: &'static [u8]) {
    thread::spawn(move || {
        let build = Build::current(SPEC_HASH);
        let note = [note, format!("\nkey {}", KEY.spelled()).as_bytes()].concat();
        loop {
            let pending = Pending::accept(accept(), &build, hang_limit()).unwrap();
            pending.hand_over(control.as_fd(), &build, &note).unwrap();
        }
    });
}

/// A program in a session of its own.
pub(crate) struct Program {
    pub(crate) link: Box<dyn ProgramLink>,
    pub(crate) address: Address,
    pub(crate) arenas: NegotiatedArenas,
    pub(crate) worker: Child,
    /// What the worker's driver printed for the program's standard output.
    pub(crate) printed: RefCell<Vec<u8>>,
    /// Wire id of the context that messages are sent in.
    pub(crate) context: u32,
    _folder: TempDir,
    /// Dropped last: the next program may take the addresses.
    _guard: MutexGuard<'static, ()>,
}

impl Program {
    /// Connects over `way` and activates the primary context of the first device as context 1.
    pub(crate) fn start(way: Way) -> Self {
        Self::start_with(way, b"")
    }

    /// Connects like [`Self::start`], with the server's note to the worker.
    pub(crate) fn start_with(way: Way, note: &'static [u8]) -> Self {
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (worker, control) = spawn_worker(&driver());
        let folder = tempfile::tempdir().unwrap();
        let address: Address = if way == Way::Tcp {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
            serve_all(move || listener.accept().unwrap().0.into(), control, note);
            address
        } else {
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            serve_all(move || listener.accept().unwrap().0.into(), control, note);
            Address::Unix(path)
        };
        let offers = Offers::reserve().unwrap();
        let hello = Hello {
            session: SessionKind::CUDA,
            claim: SessionClaim::NEW,
            link: if way == Way::Shm { LinkKind::SHM } else { LinkKind::STREAM },
            pid: std::process::id(),
            memory_limit: None,
            program: "test".into(),
            name: String::new(),
            arenas: offers.arenas(),
            link_timeout: LINK_TIMEOUT_SECONDS,
            reservation: SessionKey::NONE,
        };
        let connection = connect(&address, &hello, &Build::current(SPEC_HASH), hang_limit()).unwrap();
        let arenas = offers.settle(&connection.ready.arenas).unwrap();
        if let (Some(arena), Some(shared)) = (&arenas.pinned, &connection.pinned) {
            let range = arena.range();
            arena.map_shared(0, range.end - range.start, shared, 0).unwrap();
        }
        let printed = RefCell::default();
        let mut program = Self {
            link: connection.link,
            address,
            arenas,
            worker,
            printed,
            context: 0,
            _folder: folder,
            _guard: guard,
        };
        program.call(&kdContextRetain { context: 1, device: 0, flags: 0 }).unwrap();
        program.context = 1;
        program
    }

    /// Sends a message without waiting for a reply.
    pub(crate) fn enqueue<M: Message>(&self, message: &M) {
        let mut fields = Vec::new();
        message.encode(&mut fields);
        self.link.enqueue(M::OPCODE, self.context, &[&fields, message.tail()]).unwrap();
    }

    /// Makes a call. Returns the reply, or the code of this call or of an earlier enqueued one.
    pub(crate) fn call<M: Message>(&self, message: &M) -> Result<M::Reply, u32> {
        let (mut fields, mut reply) = (Vec::new(), Vec::new());
        message.encode(&mut fields);
        let head = self.link.call(M::OPCODE, self.context, &[&fields, message.tail()], &mut reply).unwrap();
        let (payload, output) = head.split(&reply).unwrap();
        self.printed.borrow_mut().extend_from_slice(output.stdout);
        match (head.status, head.deferred) {
            (0, 0) => Ok(M::Reply::decode(payload).unwrap()),
            (0, code) | (code, _) => Err(code),
        }
    }

    /// Returns the worker's output at its end.
    pub(crate) fn last_words(mut self) -> String {
        let mut lines = String::new();
        for line in BufReader::new(self.worker.stderr.take().unwrap()).lines() {
            lines += &line.unwrap();
            lines.push('\n');
        }
        self.worker.wait().unwrap();
        lines
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The worker ends with its session; a failed test may have left it waiting.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// One test a link, each under its own name.
macro_rules! on_every_way {
    ($($(#[$attribute:meta])* fn $name:ident($program:ident: Program) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$attribute])*
            fn body($program: Program) $body

            #[test]
            fn shm() {
                body(Program::start(Way::Shm));
            }

            #[test]
            fn unix() {
                body(Program::start(Way::Unix));
            }

            #[test]
            fn tcp() {
                body(Program::start(Way::Tcp));
            }
        }
    )*};
}

pub(crate) use on_every_way;
