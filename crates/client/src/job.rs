//! The job thread: carries out in this program what the supervisor of its job orders (`katydid_wire::job`).
//!
//! It runs only in programs of a job, beside the program's own threads, and takes no signals. The rule: a program never waits for
//! ever for want of a supervisor. When the connection to the supervisor ends, a held program resumes. A detached one tries to
//! reach a supervisor again, since only a supervisor can bring its session back. One that has lost its worker gets the error.
//!
//! A program announces itself before it connects to its server. So the supervisor never has it dumped with an unknown connection.
//!
//! Each supervisor holds a lock on the file `lock` beside the job socket for as long as it lives, and before a restored program
//! runs. When that lock is free, no supervisor will come.

pub mod process_request;

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use katydid_transport::{Address, ControlChannel, ControlError, LinkError, QuiesceGate};
use katydid_wire::handshake::{LinkKind, SessionKind};
use katydid_wire::job::{
    FromProgram, GENERATIONS_FILE, HIDDEN_EXTENSION, HOLD_FRAMES_VARIABLE, JOB_PROTOCOL_VERSION, JOB_VARIABLE,
    MAX_JOB_MESSAGE_BYTES, ToProgram,
};
use katydid_wire::key::SessionKey;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock};
use rustix::io::Errno;

use crate::environment::{OpenError, program_name, variable};
use crate::fork::ProcessOwned;
use crate::output::report;
use crate::{fork, threads};

/// Pause between attempts of a detached program to reach a supervisor.
const REJOIN_INTERVAL: Duration = Duration::from_millis(2);
/// Pause between attempts of a program that runs without a supervisor.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Attempts between two checks whether there is a supervisor at all.
const ATTEMPTS_BETWEEN_CHECKS: u32 = 250;
/// Descriptors for a connection to the supervisor, one to the worker, and the memory that the worker passes.
const SPARE_DESCRIPTORS: usize = 3;
/// How long a worker may take to attach the program again.
const RESUME_TIMEOUT: Duration = Duration::from_secs(60);

/// A program's membership in its job.
#[derive(Debug)]
pub struct JobMembership {
    path: PathBuf,
    stops: Vec<u64>,
    /// The connection to the supervisor, while that knows only that the program exists.
    announced: Option<ProcessOwned<ControlChannel>>,
}

impl JobMembership {
    /// Joins the job whose socket is at `path`. The program will stop before each frame of `stops`, which count from 0 and
    /// ascend.
    pub fn new(path: PathBuf, stops: Vec<u64>) -> Self {
        Self { path, stops, announced: None }
    }

    /// Joins the job that the environment names, if there is one.
    ///
    /// # Errors
    ///
    /// [`OpenError::Setting`].
    pub fn from_environment() -> Result<Option<Self>, OpenError> {
        let Some(path) = variable(JOB_VARIABLE) else { return Ok(None) };
        let stops = match variable(HOLD_FRAMES_VARIABLE) {
            None => Vec::new(),
            Some(value) => read_stops(&value).ok_or_else(|| {
                let expected = "ascending numbers of frames, from 1, with commas between";
                OpenError::Setting(format!("{HOLD_FRAMES_VARIABLE}={value:?} is not {expected}"))
            })?,
        };
        Ok(Some(Self::new(path.into(), stops)))
    }

    /// Tells the supervisor that there will be a session. The supervisor waits for announced programs before it has them dumped.
    /// During a dump it hides its socket, and the program waits here.
    pub fn announce(&mut self) {
        let mut attempts = 0;
        while self.announced.is_none() {
            match reach(&self.path) {
                Ok(channel) => self.announced = Some(channel),
                Err(error) if error.kind() != ErrorKind::NotFound || is_absent(&self.path) => return,
                Err(_) if u32::is_multiple_of(attempts, ATTEMPTS_BETWEEN_CHECKS) && is_abandoned(&self.path) => return,
                Err(_) => thread::sleep(REJOIN_INTERVAL),
            }
            attempts += 1;
        }
    }
}

/// Returns the generations of this program's job, the current one first. The job's start and each restore have a number, which
/// the supervisor notes beside the job socket. Empty outside of jobs.
pub fn generations() -> Vec<u64> {
    let read_generations = || {
        let socket = variable(JOB_VARIABLE)?;
        std::fs::read_to_string(Path::new(&socket).parent()?.join(GENERATIONS_FILE)).ok()
    };
    read_generations().unwrap_or_default().lines().filter_map(|line| u64::from_str_radix(line, 16).ok()).collect()
}

/// Parses the numbers of the frames before which the program stops. The result counts from 0.
fn read_stops(text: &str) -> Option<Vec<u64>> {
    let stops: Option<Vec<u64>> =
        text.split(',').map(|number| number.trim().parse::<u64>().ok()?.checked_sub(1)).collect();
    stops.filter(|stops| stops.is_sorted())
}

/// The state of the program's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionLocation {
    /// Connected to its worker.
    Present,
    /// Detached from its worker.
    Away,
    /// Its worker has ended.
    WorkerLost,
}

/// A session as the job thread needs it.
pub trait SupervisedSession: Sync {
    /// API that the session speaks.
    fn kind(&self) -> SessionKind;

    /// Gate that quiesces the session's link; none if the link cannot be held.
    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate>;

    /// Returns whether its worker is gone for good.
    fn is_lost(&self) -> bool;

    /// Releases memory that the program can do without: it is about to be dumped.
    fn leaving(&self) {}

    /// Notes that the session will resume with a worker, perhaps another one. Frames are still held.
    fn resumed(&self) {}

    /// Notes that the link broke while `what` was done.
    fn note_broken(&self, what: &str, error: &LinkError);

    /// Gives the session up: reports why, and releases the threads that wait for it.
    fn give_up(&self, why: &str);
}

/// The job thread of one session.
pub struct JobThread<'a> {
    session: &'a dyn SupervisedSession,
    link: &'a dyn QuiesceGate,
    job: JobMembership,
    address: String,
    kind: LinkKind,
    state: SessionLocation,
    is_held: bool,
    attempts: u32,
    /// Reserved for reconnecting, while the program is away.
    spare: SpareDescriptors,
}

impl<'a> JobThread<'a> {
    /// Creates the job thread of a session at `address`; none if its link cannot be held.
    pub fn new(
        session: &'a dyn SupervisedSession,
        job: JobMembership,
        address: &Address,
        kind: LinkKind,
    ) -> Option<Self> {
        let link = session.quiesce_gate()?;
        let (address, state) = (address.to_string(), SessionLocation::Present);
        let mut job_thread = Self {
            session,
            link,
            job,
            address,
            kind,
            state,
            is_held: false,
            attempts: 0,
            spare: SpareDescriptors::default(),
        };
        job_thread.arm();
        Some(job_thread)
    }

    /// Serves supervisors until the process or the session ends.
    pub fn run(mut self) {
        while !self.session.is_lost() {
            match self.job.announced.take().or_else(|| self.reach()) {
                Some(channel) => {
                    self.spare = SpareDescriptors::default();
                    self.serve(&channel);
                }
                None if self.state == SessionLocation::Present => thread::sleep(RECONNECT_INTERVAL),
                None => self.wait_eagerly(),
            }
            self.do_without();
        }
    }

    /// Connects to the supervisor, if it is there. Opens nothing otherwise: the program may be dumped at any moment.
    fn reach(&mut self) -> Option<ProcessOwned<ControlChannel>> {
        self.job.path.symlink_metadata().ok()?;
        // The connection uses one of the spare descriptors.
        self.spare.give_one();
        reach(&self.job.path).ok()
    }

    /// Pauses before the next attempt of a detached program. Now and then it checks whether a supervisor will come.
    fn wait_eagerly(&mut self) {
        thread::sleep(REJOIN_INTERVAL);
        self.attempts += 1;
        if self.attempts.is_multiple_of(ATTEMPTS_BETWEEN_CHECKS) && is_abandoned(&self.job.path) {
            self.give_up("the supervisor of its job has ended while the program was away from its worker");
        }
    }

    /// Sets the link to stop at the next frame of the list.
    fn arm(&mut self) {
        if !self.job.stops.is_empty() {
            let stop = self.job.stops.remove(0);
            if let Err(error) = self.link.set_stop_at(stop) {
                report(format_args!("{HOLD_FRAMES_VARIABLE}: {error}"));
            }
        }
    }

    /// Handles the absence of a supervisor.
    fn do_without(&mut self) {
        match self.state {
            SessionLocation::Present if self.is_held || self.link.reached().is_some() => self.release(),
            SessionLocation::Present if self.link.is_lost() => self.give_up("its worker has ended"),
            SessionLocation::WorkerLost => self.give_up("its worker has ended, and so has the supervisor of its job"),
            SessionLocation::Present | SessionLocation::Away => {}
        }
    }

    /// Obeys one supervisor until it is gone, or the program has detached.
    fn serve(&mut self, channel: &ControlChannel) {
        // Without the descriptor the next call notices the loss of a worker, and the session ends.
        let _ = self.link.enable_reconnect();
        let outcome = self.send(channel, &self.introduction()).and_then(|()| {
            loop {
                if !self.wait(channel)? {
                    continue;
                }
                let message = channel.listen()?;
                let order = ToProgram::decode(&message.bytes)?;
                let old_state = self.state;
                if let Some(answer) = self.obey(order) {
                    self.send(channel, &answer)?;
                    if matches!(answer, FromProgram::Released {} | FromProgram::Resumed {}) {
                        // Only after the answer was sent: the program may end with its next instruction.
                        self.release();
                    }
                }
                if old_state == SessionLocation::Present && self.state == SessionLocation::Away {
                    return Ok(());
                }
            }
        });
        if let Err(ControlError::Envelope(error)) = outcome {
            report(format_args!("the supervisor of this job sent what makes no sense: {error}"));
        }
    }

    fn introduction(&self) -> FromProgram {
        FromProgram::Member {
            protocol: JOB_PROTOCOL_VERSION,
            session: self.session.kind().0,
            pid: std::process::id(),
            key: self.link.key(),
            address: self.address.clone(),
            link: self.kind.0,
            state: match self.state {
                SessionLocation::Present => 0,
                SessionLocation::Away => 1,
                SessionLocation::WorkerLost => 2,
            },
            frames: self.link.frames(),
            program: program_name(),
        }
    }

    fn send(&self, channel: &ControlChannel, message: &FromProgram) -> Result<(), ControlError> {
        channel.send(&message.encode()?, &[])
    }

    /// Waits for an order, and reports events meanwhile. Returns true when an order is there.
    fn wait(&mut self, channel: &ControlChannel) -> Result<bool, ControlError> {
        let supervisor = PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN);
        let notify_fd = self.link.notify_fd().map(|notify_fd| PollFd::from_borrowed_fd(notify_fd, PollFlags::IN));
        let watched = self.link.socket().filter(|_| self.state == SessionLocation::Present);
        let worker = watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::RDHUP));
        let mut poll_fds: Vec<PollFd<'_>> = [Some(supervisor), notify_fd, worker].into_iter().flatten().collect();
        // The caller repeats an interrupted wait.
        let _ = poll(&mut poll_fds, None::<&Timespec>);
        let has_order = !poll_fds[0].revents().is_empty();
        if let Some(notify_fd) = self.link.notify_fd() {
            quiet(notify_fd);
        }
        if self.state == SessionLocation::Present && self.link.is_lost() {
            self.state = SessionLocation::WorkerLost;
            self.send(channel, &FromProgram::Lost { frames: self.link.hold() })?;
        }
        if let Some(frames) = self.link.reached() {
            self.send(channel, &FromProgram::Reached { frames })?;
        }
        Ok(has_order)
    }

    /// Carries an order out, except releasing frames. Returns the answer.
    fn obey(&mut self, order: ToProgram) -> Option<FromProgram> {
        match (order, self.state) {
            (ToProgram::Hold {}, SessionLocation::Present) => {
                self.is_held = true;
                Some(FromProgram::Held { frames: self.link.hold() })
            }
            (ToProgram::Leave {}, SessionLocation::Present) if self.is_held => Some(self.leave()),
            (ToProgram::Resume { address, key }, SessionLocation::Away | SessionLocation::WorkerLost) => Some(
                self.resume(address, key)
                    .map_or_else(|text| FromProgram::Failed { text }, |()| FromProgram::Resumed {}),
            ),
            (ToProgram::Rejoin { address, key }, SessionLocation::Away | SessionLocation::WorkerLost) => {
                let rejoined = self.resume(address, key).map(|()| self.is_held = true);
                Some(rejoined.map_or_else(|text| FromProgram::Failed { text }, |()| FromProgram::Rejoined {}))
            }
            (ToProgram::Release {}, SessionLocation::Present) => Some(FromProgram::Released {}),
            (ToProgram::GiveUp { text }, SessionLocation::Away | SessionLocation::WorkerLost) => {
                self.give_up(&text);
                None
            }
            (order, state) => {
                let text = format!("{order:?} makes no sense while the program is {state:?}, held: {}", self.is_held);
                Some(FromProgram::Failed { text })
            }
        }
    }

    /// Resumes with another worker. Frames are still held. The error says why that failed.
    fn resume(&mut self, address: String, key: SessionKey) -> Result<(), String> {
        let server = address.parse::<Address>().map_err(|error| error.to_string())?;
        // No child may get the new connection before it has replaced the old one.
        let forks = fork::hold();
        self.link.resume(&server, key, RESUME_TIMEOUT).map_err(|error| error.to_string())?;
        drop(forks);
        (self.address, self.state) = (address, SessionLocation::Present);
        self.session.resumed();
        Ok(())
    }

    fn leave(&mut self) -> FromProgram {
        let spare = match can_return(&self.job.path, &self.address).and_then(|()| SpareDescriptors::take()) {
            Ok(spare) => spare,
            Err(text) => return FromProgram::Failed { text },
        };
        self.session.leaving();
        match self.link.detach() {
            Ok(frames) => {
                (self.state, self.spare) = (SessionLocation::Away, spare);
                FromProgram::Left { frames }
            }
            Err(error) => {
                if !matches!(error, LinkError::System { .. }) {
                    self.session.note_broken("leaving the worker", &error);
                }
                FromProgram::Failed { text: error.to_string() }
            }
        }
    }

    /// Releases frames, up to the next stop.
    fn release(&mut self) {
        self.is_held = false;
        self.arm();
        self.link.release();
    }

    fn give_up(&mut self, why: &str) {
        self.session.give_up(why);
    }
}

/// Name of the job thread of a CUDA session.
pub(crate) const JOB_THREAD_NAME: &str = "katydid-job";
/// Stack of the job thread in bytes: it calls nothing of the program's.
const THREAD_STACK_BYTES: usize = 1 << 20;

/// Starts the job thread of a session.
pub fn keep(session: &'static dyn SupervisedSession, job: JobMembership, address: &Address, kind: LinkKind) {
    let Some(job_thread) = JobThread::new(session, job, address, kind) else { return };
    let name = if session.kind() == SessionKind::CUDA { JOB_THREAD_NAME } else { "katydid-job-cl" };
    if threads::start(name, THREAD_STACK_BYTES, move || job_thread.run()).is_err() {
        report("cannot start the thread that serves the job's supervisor: the job cannot be checkpointed");
    }
}

/// Connects to the supervisor whose socket is at `path`.
pub(crate) fn reach(path: &Path) -> std::io::Result<ProcessOwned<ControlChannel>> {
    path.symlink_metadata()?;
    ProcessOwned::open(|| ControlChannel::new(UnixStream::connect(path)?.into(), MAX_JOB_MESSAGE_BYTES))
}

/// Refuses to detach a program that could not come back. It may have changed its user, its root directory or its namespaces since
/// it started, or its server's socket may be gone.
fn can_return(job: &Path, server: &str) -> Result<(), String> {
    // The supervisor may hide the job socket just now, or show it again.
    let hidden = job.with_extension(HIDDEN_EXTENSION);
    reaches(&[&hidden, job, &hidden]).map_err(|error| no_way_back(job, error))?;
    match server.parse() {
        Ok(Address::Unix(path)) => reaches(&[&path]).map_err(|error| no_way_back(&path, error)),
        _ => Ok(()),
    }
}

fn no_way_back(path: &Path, error: Errno) -> String {
    format!(
        "it could not come back to its worker: {}: {error}; a program that changes its user, its root directory or its mounts \
         cannot be part of a checkpoint or a move",
        path.display()
    )
}

/// Checks that this thread may connect to one of these sockets.
fn reaches(paths: &[&Path]) -> rustix::io::Result<()> {
    let reached: Vec<rustix::io::Result<()>> = paths.iter().map(|path| may_connect(path)).collect();
    // A kernel before 5.8 cannot tell.
    if reached.iter().any(|reached| matches!(reached, Ok(()) | Err(Errno::NOSYS))) {
        return Ok(());
    }
    Err(reached.iter().find_map(|reached| reached.err().filter(|error| *error != Errno::NOENT)).unwrap_or(Errno::NOENT))
}

/// Checks that this thread may currently connect to a socket.
fn may_connect(path: &Path) -> rustix::io::Result<()> {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
}

/// Descriptors reserved while a program is detached, so that it can reconnect even if it opens as many files as its limit allows.
#[derive(Default)]
struct SpareDescriptors(Vec<OwnedFd>);

impl SpareDescriptors {
    /// Reserves as many as reconnecting needs at a time beyond those of a connected program.
    fn take() -> Result<Self, String> {
        let spare: rustix::io::Result<_> = (0..SPARE_DESCRIPTORS).map(|_| eventfd(0, EventfdFlags::CLOEXEC)).collect();
        spare.map(Self).map_err(|error| {
            format!("it has no descriptors left for its way back: {error}; raise its limit of open files (ulimit -n)")
        })
    }

    fn give_one(&mut self) {
        if let Some(fd) = self.0.pop() {
            close_if_event_fd(fd);
        }
    }
}

impl Drop for SpareDescriptors {
    fn drop(&mut self) {
        self.0.drain(..).for_each(close_if_event_fd);
    }
}

/// Closes an event descriptor, unless the program has closed it and has another file under the number.
fn close_if_event_fd(fd: OwnedFd) {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if !std::fs::read_link(link).is_ok_and(|file| file.as_os_str() == "anon_inode:[eventfd]") {
        // The number is the program's file now, which the shim must not close.
        let _ = fd.into_raw_fd();
    }
}

/// Returns whether there is no such socket, not even a hidden one.
fn is_absent(path: &Path) -> bool {
    // The socket may be shown between the two checks.
    !path.with_extension(HIDDEN_EXTENSION).exists() && !path.exists()
}

/// Returns whether no supervisor serves the job whose socket is at `path`: its folder is gone, or its lock is free.
pub(crate) fn is_abandoned(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return true };
    let Ok(lock) = File::open(folder.join("lock")) else { return !folder.exists() };
    // Closing the file releases the lock at once.
    flock(&lock, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Drains the notification, so that `notify_fd` is not readable any more.
fn quiet(notify_fd: BorrowedFd<'_>) {
    // Nothing to read there is as good.
    let _ = rustix::io::read(notify_fd, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_leaves_only_if_it_can_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shims");
        let refused = can_return(&path, "tcp://h:1").unwrap_err();
        assert!(refused.contains("shims: No such file or directory"), "{refused}");
        for name in [path.with_extension(HIDDEN_EXTENSION), path.clone()] {
            let listener = std::os::unix::net::UnixListener::bind(&name).unwrap();
            assert_eq!(can_return(&path, "tcp://h:1"), Ok(()));
            let server = format!("unix:{}", folder.path().join("server").display());
            assert!(can_return(&path, &server).is_err_and(|refused| refused.contains("server: No such file")));
            assert_eq!(can_return(&path, &format!("unix:{}", name.display())), Ok(()));
            drop(listener);
            std::fs::remove_file(name).unwrap();
        }
        let mut spare = SpareDescriptors::take().unwrap();
        spare.give_one();
        assert_eq!(spare.0.len(), SPARE_DESCRIPTORS - 1);
    }

    #[test]
    fn stops_are_ascending_numbers_from_one() {
        assert_eq!(read_stops("1, 5,5,90"), Some(vec![0, 4, 4, 89]));
        for wrong in ["", "0", "5,3", "1;2", "x", "1,,2", "-1"] {
            assert_eq!(read_stops(wrong), None, "{wrong}");
        }
    }
}
