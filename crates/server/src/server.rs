//! The server as a whole: what its threads share, how it starts, how it stops.
//!
//! ```text
//! accept thread ─ silent connections; a short-lived thread for each that speaks: hello, admission, hand-over
//! pool thread   ─ a thread a worker: supervises it until it is reaped
//! admin thread  ─ HTTP on the admin socket
//! host-memory   ─ looks at what workers hold
//! ```
//!
//! Stopping makes [`ServerState::stop`] readable, which every long wait also waits for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Scope};
use std::time::Duration;

use katydid_http::HttpServer;
use katydid_transport::Address;
use katydid_wire::handshake::Build;
use rustix::event::{EventfdFlags, eventfd};

use crate::accept;
use crate::admin;
use crate::descriptors::DescriptorBudget;
use crate::listen::{ListenError, Listener, SocketFile, bind_unix};
use crate::nvml_processes::NvmlProcesses;
use crate::pool::{PoolError, WorkerPool};
use crate::report::{Reporter, Verbosity};
use crate::sessions::{Sessions, now};
use crate::shared::ServerState;
use crate::slots::{Greetings, MAX_SLOTS_PER_LISTENER, SlotLimits};
use crate::view::WorkersView;
use crate::workers::control_group::ControlGroups;
use crate::workers::handle::WorkerNeeds;
use crate::workers::host_memory::{self, HostMemory, HostMemoryLimit};
use crate::workers::spawn::{MemoryLimits, Worker, WorkerCommand, spawn};
use crate::workers::supervisor::supervise;

/// How long reaping keepers may take.
const KEEPERS_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a worker load the drivers of OpenCL before a program comes.
const LOADS_OPENCL: &str = "--loads-opencl";

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Addresses for programs; at least one.
    pub listen: Vec<Address>,
    /// Path of the admin socket.
    pub admin: PathBuf,
    /// Allow TCP beyond loopback.
    pub insecure: bool,
    /// How workers are started.
    pub worker: WorkerCommand,
    /// The driver that workers open, for the admin API.
    pub driver: String,
    /// Number of workers that are kept ready for programs.
    pub warm: usize,
    /// Most sessions at a time.
    pub max_sessions: usize,
    /// Most sessions at a time of one peer over a network: an address, or a virtual machine.
    pub peer_sessions: usize,
    /// Most connections of such a peer, on one listener, that no worker has yet.
    pub peer_connections: usize,
    /// Most device memory of one session, in bytes.
    pub session_memory: Option<u64>,
    /// Most of this machine's memory that one session holds, in bytes; none is three quarters of it.
    pub host_memory: Option<u64>,
    /// Show processors as OpenCL devices to programs that connect other than by a unix socket.
    pub cpu_opencl: bool,
    /// Save and restore workers as processes for peers that connect other than by a unix socket.
    pub worker_images: bool,
    /// The build that programs must match.
    pub build: Build,
    /// How long a program may take to send its hello.
    pub hello_timeout: Duration,
    /// The server is useless without a driver: its starter waits for one ([`Server::wait_for_driver`]), and reports what prevents
    /// it.
    pub needs_driver: bool,
    /// Which lines the server writes to standard error.
    pub verbosity: Verbosity,
}

/// Why a server could not start. A failed start leaves nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system lacks a resource.
    #[error("cannot {what}: {source}; see ulimit -n and ulimit -u")]
    System {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerState>,
    threads: Vec<JoinHandle<()>>,
    /// None while the server stops.
    admin: Option<HttpServer>,
    admin_file: SocketFile,
}

impl Server {
    /// Binds all addresses and begins to serve.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. A driver that does not work is not an error: it is reported, and retried.
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        let listeners: Vec<Listener> =
            config.listen.iter().map(|address| Listener::bind(address, config.insecure)).collect::<Result<_, _>>()?;
        let (admin_socket, admin_file) = bind_unix(&config.admin)?;
        let shared = Arc::new(share(config, &listeners)?);
        let admin = admin::open(admin_socket, &shared)
            .map_err(|source| StartError::System { what: "open the admin socket", source })?;
        let mut server = Self { shared, threads: Vec::new(), admin: Some(admin), admin_file };
        server.start_threads(listeners)?;
        Ok(server)
    }

    fn start_threads(&mut self, listeners: Vec<Listener>) -> Result<(), StartError> {
        if let Some(measured) = &self.shared.memory_limits.measured {
            let started = host_memory::start(measured);
            self.threads.push(started.map_err(|source| StartError::System { what: "start a thread", source })?);
        }
        self.start_thread("pool", |shared| fill_pool(&shared))?;
        self.start_thread("accept", move |shared| accept::serve(&listeners, &shared))
    }

    fn start_thread(
        &mut self,
        name: &str,
        body: impl FnOnce(Arc<ServerState>) + Send + 'static,
    ) -> Result<(), StartError> {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name(name.to_owned());
        let started = builder.spawn(move || body(shared));
        self.threads.push(started.map_err(|source| StartError::System { what: "start a thread", source })?);
        Ok(())
    }

    /// Returns the addresses that programs can use.
    pub fn addresses(&self) -> &[Address] {
        &self.shared.addresses
    }

    /// Returns the path of the admin socket.
    pub fn admin(&self) -> &Path {
        self.admin_file.path()
    }

    /// Returns the state of the pool of workers.
    pub fn workers(&self) -> WorkersView {
        self.shared.pool.view().0
    }

    /// Waits until a worker is ready, the wait `is_given_up`, or no worker has been starting for `timeout`.
    ///
    /// # Errors
    ///
    /// Why no worker is ready.
    pub fn wait_for_driver(&self, timeout: Duration, is_given_up: &dyn Fn() -> bool) -> Result<(), String> {
        let driver = self.shared.pool.driver(timeout, is_given_up);
        driver.map(drop).map_err(|error| match error {
            PoolError::Failed(reason) => reason,
            other => other.to_string(),
        })
    }

    /// Returns a function that replaces the workers that serve no program yet. For the process that changes the environment they
    /// were started in.
    pub fn renewal(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.pool.renew()
    }

    /// Returns the current number of sessions. A session counts until its worker is reaped, and then holds nothing any more.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.view().sessions.len()
    }

    /// Returns the process ids of the workers that serve a program.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.shared.sessions.workers_memory().into_iter().map(|(worker, _)| worker).collect()
    }

    /// Ends all sessions, removes the sockets, and returns when every worker is reaped.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.sessions.stop();
        let idle = self.shared.pool.stop();
        // The counter of a fresh eventfd has room for a one. The supervisors now kill their workers.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_le_bytes());
        drop(idle);
        if let Some(measured) = &self.shared.memory_limits.measured {
            measured.stop();
        }
        if let Some(admin) = self.admin.take() {
            admin.close();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
        // No thread here waits for the threads of keepers' sessions.
        self.shared.sessions.wait_until_none(KEEPERS_END_TIMEOUT);
        self.shared.reporter.tell_all_left_out();
    }
}

fn share(config: ServerConfig, listeners: &[Listener]) -> Result<ServerState, StartError> {
    let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| StartError::System { what: "make an event descriptor", source: errno.into() })?;
    let addresses = listeners.iter().map(Listener::address).collect::<io::Result<_>>();
    let reporter = Reporter::new(config.verbosity);
    let shares = shares(&config, listeners.len(), &reporter);
    let memory_limits = memory_limits(&config);
    Ok(ServerState {
        pool: WorkerPool::new(config.warm),
        sessions: Sessions::new(shares.sessions, config.peer_sessions),
        reporter,
        build: config.build,
        hello_timeout: config.hello_timeout,
        slots: SlotLimits { of_listener: shares.of_listener, of_peer: config.peer_connections },
        greetings: Greetings::default(),
        watchers: NvmlProcesses::default(),
        session_memory: config.session_memory,
        cpu_opencl: config.cpu_opencl,
        worker_images: config.worker_images,
        driver: config.driver,
        addresses: addresses.map_err(|source| StartError::System { what: "read a socket's address", source })?,
        started: now(),
        memory_limits,
        worker: config.worker,
        is_warned: AtomicBool::new(false),
        tells_failures: AtomicBool::new(!config.needs_driver),
        stop,
    })
}

/// Returns what fits in this process's descriptors. A server of one program reports no shortage, since the limit is its user's
/// own choice.
fn shares(config: &ServerConfig, listeners: usize, reporter: &Reporter) -> DescriptorBudget {
    let shares = DescriptorBudget::for_this_process(listeners, config.max_sessions, config.warm);
    if shares.descriptor_limit.is_none() || config.verbosity == Verbosity::Private {
        return DescriptorBudget {
            of_listener: MAX_SLOTS_PER_LISTENER,
            sessions: config.max_sessions,
            descriptor_limit: None,
        };
    }
    reporter.problem(format_args!("{shares}"));
    shares
}

/// Returns the memory limits. The server measures workers of tenants from outside, and all workers if it has a memory limit.
fn memory_limits(config: &ServerConfig) -> MemoryLimits {
    let limit = config.host_memory.map_or_else(HostMemoryLimit::default, |bytes| HostMemoryLimit { bytes });
    if !config.worker.serves_tenants && config.host_memory.is_none() {
        return MemoryLimits { limit, ..MemoryLimits::default() };
    }
    let measured = HostMemory::new(limit, config.worker.serves_tenants);
    let (groups, no_groups) = match ControlGroups::prepare(limit.bytes) {
        Ok(groups) => (Some(groups), None),
        Err(reason) => (None, Some(reason)),
    };
    MemoryLimits { limit, measured: Some(Arc::new(measured)), groups, no_groups: Mutex::new(no_groups) }
}

/// Keeps the pool filled. Workers die with this thread, which ends only after all of them.
fn fill_pool(shared: &ServerState) {
    thread::scope(|scope| {
        while let Some(need) = shared.pool.wait_for_need() {
            let mut command = shared.worker.clone();
            command.arguments.extend(need.loads_opencl.then(|| LOADS_OPENCL.into()));
            let started =
                spawn(&command, &shared.memory_limits).and_then(|worker| start_supervisor(scope, shared, worker, need));
            if let Err(error) = started {
                shared.start_failed(&error.to_string(), need);
            }
        }
    });
}

fn start_supervisor<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope ServerState,
    worker: Worker,
    need: WorkerNeeds,
) -> io::Result<()> {
    let builder = thread::Builder::new().name(format!("worker-{}", worker.pid()));
    builder.spawn_scoped(scope, move || supervise(shared, worker, need)).map(drop)
}
