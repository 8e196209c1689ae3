//! NVIDIA's Multi-Process Service for the workers of a server: their kernels run side by side, instead of time-slicing the GPU.
//!
//! The service is a process of the driver's (`nvidia-cuda-mps-control`), which starts another one when the first worker comes. A
//! server starts a service of its own, with folders of its own, whatever else the machine has. It runs in the foreground, so that
//! it ends properly with the server, and is killed with a killed server. The second process ends with the first.
//!
//! A thread watches the service. If that ends while the server lives, the thread starts it again, with the same folders. Sessions
//! that used it fail, as the driver defines, and waiting warm workers are replaced.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use katydid_scratch::{Scratch, private};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::child::dies_with_us;
use crate::output::failure::{Failure, print_message};

/// The control program, found in PATH.
const MPS_CONTROL_PROGRAM: &str = "nvidia-cuda-mps-control";
/// Socket on which it listens, in its folder.
const MPS_CONTROL_SOCKET: &str = "control";
/// How long it may take until it listens, and to end, on a busy machine too.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks of the service.
const MPS_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time before an ended service is started again; it doubles each time, until a service outlives the longest.
const FIRST_RESTART_BACKOFF: Duration = Duration::from_millis(500);
/// Longest such time.
const MAX_RESTART_BACKOFF: Duration = Duration::from_secs(30);

/// A service that lives as long as this value.
pub struct Mps {
    /// Mode 0700; removed after the service, whose sockets are in it.
    folder: Arc<Scratch>,
    /// Closing this ends the supervisor.
    stop: Option<OwnedFd>,
    supervisor: Option<JoinHandle<()>>,
    revived: RestartHook,
}

/// Called whenever the service was started again.
type RestartHook = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

impl Mps {
    /// Starts a service, and returns when it listens.
    ///
    /// # Errors
    ///
    /// The service is not installed, or does not start.
    pub fn start() -> Result<Self, Failure> {
        let folder = prepared().map_err(|error| {
            Failure::server(format!("--mps: cannot make folders: {error}; set TMPDIR to one with free space"))
        })?;
        let (folder, revived) = (Arc::new(folder), RestartHook::default());
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(Failure::server)?;
        let (sender, receiver) = mpsc::channel();
        let supervisor = MpsSupervisor { folder: Arc::clone(&folder), stopped, revived: Arc::clone(&revived) };
        let supervisor = thread::Builder::new().name("mps".to_owned()).spawn(move || supervisor.supervise(&sender));
        let service =
            Self { folder, stop: Some(stop), supervisor: Some(supervisor.map_err(Failure::server)?), revived };
        receiver.recv().unwrap_or_else(|_| Err(Failure::server("--mps: the service's thread has ended")))?;
        Ok(service)
    }

    /// Variables by which the driver in a worker finds the service.
    pub fn variables(&self) -> [(OsString, OsString); 2] {
        variables(self.folder.path())
    }

    /// Sets the work to do whenever the service was started again.
    pub fn when_revived(&self, work: impl Fn() + Send + Sync + 'static) {
        // The work is set only once.
        let _ = self.revived.set(Box::new(work));
    }
}

impl fmt::Debug for Mps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mps").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        self.stop = None;
        // If the thread panicked, it has ended too, and the service with it.
        let _ = self.supervisor.take().map(JoinHandle::join);
    }
}

/// State of the thread that starts the service; the service dies with the thread.
struct MpsSupervisor {
    folder: Arc<Scratch>,
    /// Readable once the service is to end.
    stopped: OwnedFd,
    revived: RestartHook,
}

impl MpsSupervisor {
    /// Keeps a service running until it is to end; reports the outcome of its first start to `sender`.
    fn supervise(&self, sender: &mpsc::Sender<Result<(), Failure>>) {
        let mut started = self.start();
        let first = started.as_mut().map(drop).map_err(|error| Failure::server(error.to_string()));
        if sender.send(first).is_err() {
            return;
        }
        let mut backoff = FIRST_RESTART_BACKOFF;
        while let Ok(service) = started {
            let since = Instant::now();
            let status = match self.wait_for_end(service) {
                Some(status) => status,
                None => return,
            };
            if since.elapsed() > MAX_RESTART_BACKOFF {
                backoff = FIRST_RESTART_BACKOFF;
            }
            print_message(format_args!(
                "--mps: {MPS_CONTROL_PROGRAM} has ended ({status}), and is started again; sessions that used it have to begin anew"
            ));
            started = self.start_again(&mut backoff);
        }
    }

    /// Retries until the service starts; an error means that it is to end.
    fn start_again(&self, backoff: &mut Duration) -> Result<Service, Failure> {
        loop {
            if self.is_stopped_within(*backoff) {
                return Err(Failure::server("--mps: it is to end"));
            }
            *backoff = MAX_RESTART_BACKOFF.min(*backoff * 2);
            match self.start() {
                Ok(service) => {
                    self.revived.get().iter().for_each(|work| work());
                    return Ok(service);
                }
                Err(error) => print_message(format_args!("{error} (next attempt in {} s)", backoff.as_secs_f32())),
            }
        }
    }

    /// Starts the service, perhaps after an earlier one, and waits until it listens.
    fn start(&self) -> Result<Service, Failure> {
        let folder = self.folder.path();
        // The socket of an earlier service would be mistaken for the new one's.
        fs::remove_dir_all(pipes(folder)).and_then(|()| private::folder(&pipes(folder))).map_err(Failure::server)?;
        let log = private::create(&output(folder)).map_err(Failure::server)?;
        let mut command = Command::new(MPS_CONTROL_PROGRAM);
        command.arg("-f").envs(variables(folder)).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(Failure::server)?).stderr(log);
        dies_with_us(&mut command);
        let mut service = Service(command.spawn().map_err(|error| not_started(&error))?);
        let deadline = Instant::now() + SERVICE_TIMEOUT;
        while !pipes(folder).join(MPS_CONTROL_SOCKET).exists() {
            let has_ended = service.0.try_wait().map_err(Failure::server)?.is_some();
            if has_ended || Instant::now() > deadline || self.is_stopped_within(MPS_POLL_INTERVAL) {
                let log_text = fs::read_to_string(output(folder)).unwrap_or_default();
                let last = log_text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
                return Err(Failure::server(format!(
                    "--mps: {MPS_CONTROL_PROGRAM} does not start; it said: {last}; without --mps the driver time-slices sessions"
                )));
            }
        }
        Ok(service)
    }

    /// Waits for the end of the service, and returns how it ended; `None` if it is to end.
    fn wait_for_end(&self, mut service: Service) -> Option<String> {
        let pidfd = pidfd_open(Pid::from_child(&service.0), PidfdFlags::empty()).ok()?;
        let mut events = [PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut events, None) {}
        if !events[0].revents().is_empty() {
            return None;
        }
        Some(service.0.wait().map_or_else(|error| error.to_string(), |status| status.to_string()))
    }

    fn is_stopped_within(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        poll(&mut [PollFd::new(&self.stopped, PollFlags::IN)], limit.as_ref()).is_ok_and(|count| count > 0)
    }
}

/// A process of the service. Dropping the value ends it properly, or kills it after a timeout.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let deadline = Instant::now() + SERVICE_TIMEOUT;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(MPS_POLL_INTERVAL);
        }
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a folder with the folders of the service.
fn prepared() -> io::Result<Scratch> {
    let folder = Scratch::for_sockets("mps")?;
    private::folder(&pipes(folder.path()))?;
    private::folder(&logs(folder.path()))?;
    Ok(folder)
}

fn pipes(folder: &Path) -> PathBuf {
    folder.join("pipe")
}

fn logs(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// File with the output of the service.
fn output(folder: &Path) -> PathBuf {
    logs(folder).join("output")
}

fn variables(folder: &Path) -> [(OsString, OsString); 2] {
    [
        ("CUDA_MPS_PIPE_DIRECTORY".into(), pipes(folder).into_os_string()),
        ("CUDA_MPS_LOG_DIRECTORY".into(), logs(folder).into_os_string()),
    ]
}

fn not_started(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::server(format!(
            "--mps: there is no {MPS_CONTROL_PROGRAM} in PATH; it comes with NVIDIA's driver. Without --mps the driver time-slices sessions"
        )),
        _ => Failure::server(format!(
            "--mps: cannot start {MPS_CONTROL_PROGRAM}: {error}; without --mps the driver time-slices sessions"
        )),
    }
}
