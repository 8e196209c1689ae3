//! The guard of a job: a process between the supervisor and all processes of the job, which ends them when the supervisor
//! is killed.
//!
//! ```text
//! supervisor ── guard ── program ── its children       orphans of the job fall to the guard
//! ```
//!
//! A supervisor that is killed outright can clean nothing up. Its processes may stay frozen by CRIU, or newly made by it, for
//! ever, and the kernel ends such processes only in some cases. So the guard is an ancestor: the job's processes are those below
//! it, which no id, session or group could tell as surely. The end of its link tells it that the supervisor is gone.
//!
//! The rule: the guard ends only when the supervisor releases it, or when no process is left below it. Meanwhile it holds nothing
//! open but its link. If it is killed, the kernel kills the program, and other processes below it fall to the supervisor, which
//! kills them.
//!
//! | packet | from | means |
//! |---|---|---|
//! | `started PID` | guard | the command that it was given runs |
//! | `failed ERRNO` | guard | it could not be started |
//! | `ended PID STATUS` | guard | a child of the guard was reaped; the status is `wait`'s |
//! | `restored` | supervisor | the names that files had for a restore are taken away |
//! | `release` | supervisor | the job has come to its end: processes that are left go on without a guard |
//! | `end` | supervisor | processes that are left are to be killed |
//!
//! A restore may need names of files that no process is to find later (`criu/link_remap.rs`). The guard knows these names until
//! they are removed, and removes them itself if the supervisor is killed before. Then it also undoes the changes of a restore
//! whose job has not gone on (`process/shared_memory/made_files.rs`). The rest that a killed supervisor leaves, its folder and
//! its temporary files, is abandoned from then on. The guard clears it away, as any process may (`supervisor/folder.rs`).

#![expect(unsafe_code, reason = "descriptors are taken over from, and passed to, another process by their numbers")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{
    Signal, WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, setpgid, wait,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::criu::link_remap_lock::LinkRemapLock;
use crate::process::{inherited_fds, shared_memory, tree, unix_session};
use crate::supervisor::folder;

/// The hidden command that runs [`keep`].
const GUARD_COMMAND: &str = "job-guard";
const RELEASE_ORDER: &[u8] = b"release";
const END_ORDER: &[u8] = b"end";
const RESTORED_ORDER: &[u8] = b"restored";
/// Longest order in bytes.
const MAX_ORDER_BYTES: usize = 64;
/// Interval between checks whether all processes are gone.
const GUARD_REAP_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long a process that is about to be gone may take.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(10);

/// The guards of this process that have received no end order yet.
struct Guards {
    count: usize,
    /// Whether the process is about to end, and sends no more orders.
    is_over: bool,
}

fn guards() -> MutexGuard<'static, Guards> {
    static GUARDS: Mutex<Guards> = Mutex::new(Guards { count: 0, is_over: false });
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves the jobs of this process, which a signal is about to end, to their guards, which clear away after it. Returns whether
/// there are any. A thread that is about to give a guard its last order then blocks until the process ends, since it might come
/// too late.
pub fn leave_jobs() -> bool {
    let mut guards = guards();
    guards.is_over = true;
    guards.count > 0
}

/// A job's guard. Dropping the value kills all processes of the job, and waits until they are gone.
#[derive(Debug)]
pub struct Guard {
    /// `None` once the guard was released, or is gone.
    link: Option<OwnedFd>,
    process: Child,
    first: u32,
    /// Whether it counts as a guard without an end order.
    is_counted: bool,
    /// Children of the guard that have ended, and whose status was not asked for yet.
    ended: HashMap<u32, ExitStatus>,
}

/// A message of the guard.
#[derive(Debug, PartialEq, Eq)]
enum GuardMessage {
    Started(u32),
    Failed(i32),
    Ended(u32, ExitStatus),
}

impl Guard {
    /// Starts a guard that starts `command`, with its arguments and environment, and waits until that runs. `streams` chooses the
    /// standard streams: the guard passes them on, and does not keep them. Files have `names` until `Guard::restored` is called.
    ///
    /// # Errors
    ///
    /// The system's error for the command, or for the guard itself.
    pub fn spawn(
        katydid: &Path,
        command: &Command,
        names: &[&Path],
        streams: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let (supervisor_end, guard_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut guard = Command::new(katydid);
        let number = guard_end.as_raw_fd();
        guard.args([GUARD_COMMAND, "--link", &number.to_string(), "--supervisor", &std::process::id().to_string()]);
        guard.args(names.iter().flat_map(|name| [OsStr::new("--name"), name.as_os_str()]));
        guard.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(name, value),
                None => guard.env_remove(name),
            };
        }
        streams(&mut guard);
        // SAFETY: between fork and exec it makes one system call, on a descriptor that is open in the child as here, and
        // allocates nothing.
        unsafe { guard.pre_exec(move || pass_on(number)) };
        let process = guard.spawn()?;
        guards().count += 1;
        drop(guard_end);
        let mut guard = Self { link: Some(supervisor_end), process, first: 0, is_counted: true, ended: HashMap::new() };
        // A signal to this process interrupts the wait; it is passed on later.
        let message = loop {
            if let Some(message) = guard.receive(None)? {
                break message;
            }
        };
        match message {
            GuardMessage::Started(pid) => guard.first = pid,
            GuardMessage::Failed(code) => return Err(io::Error::from_raw_os_error(code)),
            _ => return Err(io::Error::other("the guard of its processes has ended")),
        }
        Ok(guard)
    }

    /// Process id of the command that the guard started.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Process id of the guard.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Tells the guard that the names that files had for a restore are removed: others may have them from here on.
    pub(crate) fn restored(&self) {
        self.send_order(RESTORED_ORDER);
    }

    /// Sends an order. A guard that is gone needs none, and has no names.
    fn send_order(&self, order: &[u8]) {
        if let Some(link) = &self.link {
            let _ = send(link, order, SendFlags::NOSIGNAL);
        }
    }

    /// Stops counting the guard, which gets its last order now and clears nothing away after this process. Does not return in a
    /// process that has left its jobs to their guards.
    fn begin_last_order(&mut self) {
        let mut guards = guards();
        if guards.is_over {
            drop(guards);
            loop {
                thread::park();
            }
        }
        guards.count -= usize::from(self.is_counted);
        self.is_counted = false;
    }

    /// Takes the read end of the started process's standard output; `None` if it was given no pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// Takes the read end of the started process's standard error; `None` if it was given no pipe.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.process.stderr.take()
    }

    /// Waits for the end of a child of the guard. A guard that was killed took its child with it.
    ///
    /// # Errors
    ///
    /// The link cannot be read.
    pub fn wait(&mut self, pid: u32) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_until(pid, None)? {
                return Ok(status);
            }
        }
    }

    /// Waits for the end of a child until a `deadline`, if there is one. Returns `None` if the child has not ended before it.
    ///
    /// # Errors
    ///
    /// As [`Guard::wait`].
    pub(crate) fn wait_until(&mut self, pid: u32, deadline: Option<Instant>) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.ended.remove(&pid) {
                return Ok(Some(status));
            }
            if self.link.is_none() {
                return Ok(Some(ExitStatus::from_raw(Signal::KILL.as_raw())));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.receive(left)? {
                Some(GuardMessage::Ended(ended, status)) => drop(self.ended.insert(ended, status)),
                Some(_) => {}
                None if left.is_some_and(|left| left.is_zero()) => return Ok(None),
                None => {}
            }
        }
    }

    /// Ends the guard, and lets the processes that the job has left behind go on.
    pub fn release(mut self) {
        self.begin_last_order();
        self.send_order(RELEASE_ORDER);
        self.link = None;
        let _ = self.process.wait();
    }

    /// Receives the next message. Returns `None` if none comes within `limit`, and at the end of the link, which means the end of
    /// all processes.
    fn receive(&mut self, limit: Option<Duration>) -> io::Result<Option<GuardMessage>> {
        let Some(link) = &self.link else { return Err(io::Error::other("the guard of its processes has ended")) };
        let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(link, PollFlags::IN)], limit.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut packet = [0; MAX_ORDER_BYTES];
        let length = match recv(link, packet.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => length,
            // The guard ended with unread orders.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        match packet.get(..length).filter(|packet| !packet.is_empty()) {
            Some(packet) => Ok(GuardMessage::read(packet)),
            None => {
                self.link = None;
                self.has_ended();
                Ok(None)
            }
        }
    }

    /// Reaps the guard. If it was killed, its job is this process's to end.
    fn has_ended(&mut self) {
        // The kernel has made its children this process's before it can be reaped.
        if self.process.wait().is_ok_and(|status| status.signal().is_some()) {
            end_orphans();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.begin_last_order();
        self.send_order(END_ORDER);
        self.link = None;
        self.has_ended();
    }
}

/// Kills the children of this process that do not run katydid's own executable, with their descendants. Other children, such as a
/// server for the program, run it. The killed ones remain to be reaped, by their parents or with the end of this process.
fn end_orphans() {
    let us = fs::read_link(OWN_PROGRAM);
    loop {
        let children = tree::children(std::process::id()).into_iter().filter(|pid| !tree::has_ended(*pid));
        let orphans: Vec<u32> = children.filter(|pid| !us.as_ref().is_ok_and(|us| runs(*pid, us))).collect();
        if orphans.is_empty() {
            return;
        }
        for below in orphans.into_iter().filter_map(|orphan| tree::tree(orphan).ok()) {
            tree::signal(&below, Signal::KILL);
        }
        thread::sleep(GUARD_REAP_POLL_INTERVAL);
    }
}

/// Path of this process's executable.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Whether a process runs this file.
fn runs(pid: u32, file: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == file)
}

impl GuardMessage {
    fn written(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}"),
            Self::Failed(code) => format!("failed {code}"),
            Self::Ended(pid, status) => format!("ended {pid} {}", status.into_raw()),
        }
    }

    /// Parses a message; `None` for one that no guard of this release sends.
    fn read(packet: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(packet).ok()?.split(' ');
        let (kind, number) = (words.next()?, words.next()?);
        match kind {
            "started" => Some(Self::Started(number.parse().ok()?)),
            "failed" => Some(Self::Failed(number.parse().ok()?)),
            "ended" => Some(Self::Ended(number.parse().ok()?, ExitStatus::from_raw(words.next()?.parse().ok()?))),
            _ => None,
        }
    }
}

/// Keeps the link open in the child; runs between fork and exec.
fn pass_on(link: RawFd) -> io::Result<()> {
    // SAFETY: it is open, and stays so until exec.
    Ok(fcntl_setfd(unsafe { BorrowedFd::borrow_raw(link) }, FdFlags::empty())?)
}

/// Descriptors that a guard was started with: its link, and all that its command inherits.
#[derive(Debug)]
pub struct GuardDescriptors {
    link: OwnedFd,
    inherited: Vec<OwnedFd>,
}

impl GuardDescriptors {
    /// Takes over all descriptors of this process but the standard streams.
    ///
    /// # Errors
    ///
    /// `link` is not open: only a supervisor starts guards. Or `/proc` cannot be read.
    ///
    /// # Safety
    ///
    /// No other code in this process owns a descriptor.
    pub unsafe fn take(link: RawFd) -> io::Result<Self> {
        // SAFETY: the same contract.
        let (mut links, inherited): (Vec<OwnedFd>, Vec<OwnedFd>) =
            unsafe { inherited_fds::take() }?.into_iter().partition(|fd| fd.as_raw_fd() == link);
        let link =
            links.pop().ok_or_else(|| io::Error::other("`katydid run` and `katydid restore` start this command"))?;
        fcntl_setfd(&link, FdFlags::CLOEXEC)?;
        Ok(Self { link, inherited })
    }
}

/// Runs the guard of the process `supervisor`: starts `command`, reports that, and watches all its descendants. `ended` becomes
/// readable when a child ends. `names` of files are removed if the job ends before it is restored.
///
/// # Errors
///
/// The system refuses what a guard needs; then nothing runs below it.
pub fn keep(
    descriptors: GuardDescriptors,
    supervisor: u32,
    mut command: Command,
    mut names: Vec<PathBuf>,
    ended: &OwnedFd,
) -> io::Result<()> {
    let GuardDescriptors { link, inherited } = descriptors;
    // In another namespace the number may be another process's.
    let started = is_our_parent(supervisor).then(|| tree::started(supervisor)).flatten();
    set_child_subreaper(Some(getpid()))?;
    unix_session::make_own_if_outside(&mut command);
    dies_with_us(&mut command);
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return send_message(&link, &GuardMessage::Failed(error.raw_os_error().unwrap_or(EIO))),
    };
    drop((inherited, command));
    let _ = leave_group();
    // The supervisor may be gone already.
    let report = send_message(&link, &GuardMessage::Started(child.id()));
    // If /dev/null cannot be opened, readers of the program's output wait for the guard's end too. The job matters more.
    let _ = let_go_of_streams();
    let end = if report.is_ok() { follow_supervisor(&link, ended, &mut names) } else { SupervisorExit::Alone };
    if end == SupervisorExit::Released {
        return Ok(());
    }
    end_all()?;
    if end == SupervisorExit::Alone {
        take_away(&names);
        let deadline = Instant::now() + ORPHAN_TIMEOUT;
        outlive(supervisor, started, deadline);
        shared_memory::undo_after_exit(supervisor, deadline);
        folder::clear_away_after_exit(supervisor, deadline);
    }
    Ok(())
}

/// How the supervisor has left the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SupervisorExit {
    Released,
    /// The supervisor wants the job ended, and removes its own files: it may hold the link_remap lock there, and waits for the
    /// guard.
    Ended,
    /// The supervisor's process has ended.
    Alone,
}

/// Waits until the kernel has closed all descriptors of a dying process: then its children have another parent, and its last
/// thread has ended. The kernel changes the parent when the first threads end, while another one may still hold locks. Does not
/// wait for a process that was gone before, or that is in another namespace.
fn outlive(supervisor: u32, started: Option<u64>, deadline: Instant) {
    let is_known = || started.is_some() && tree::started(supervisor) == started;
    let runs = || is_our_parent(supervisor) || (is_known() && tree::has_live_thread(supervisor));
    while runs() && Instant::now() < deadline {
        thread::sleep(GUARD_REAP_POLL_INTERVAL);
    }
}

fn is_our_parent(pid: u32) -> bool {
    tree::raw(pid).is_some_and(|pid| getppid() == Some(pid))
}

/// Removes names that a restore needed. If another process holds the lock there, they stay, and its next holder removes them.
fn take_away(names: &[PathBuf]) {
    if !names.is_empty() {
        let _ = LinkRemapLock::remove(&names.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    }
}

/// Number for an error without one.
const EIO: i32 = 5;

/// Has the kernel kill the command when the guard ends, so that it also dies with a killed guard.
fn dies_with_us(command: &mut Command) {
    let us = getpid();
    let before = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The guard may have been killed before the call.
        if getppid() == Some(us) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(before) };
}

/// Leaves the supervisor's process group, so that a signal to that, as from `timeout`, does not reach the guard: CRIU's processes
/// have groups of their own. The command, which was started before, stays in the group: signals from a terminal or shell are
/// meant for it.
fn leave_group() -> io::Result<()> {
    // Fails for a session leader, which is alone in its group already.
    Ok(setpgid(None, None)?)
}

/// Replaces the guard's streams, so that a reader of the program's output waits only for the program's end.
fn let_go_of_streams() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    Ok(dup2_stderr(&nothing)?)
}

/// Reaps and reports children, until the supervisor sends its last order or is gone.
fn follow_supervisor(link: &OwnedFd, ended: &OwnedFd, names: &mut Vec<PathBuf>) -> SupervisorExit {
    loop {
        let mut either = [PollFd::new(link, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
        if poll(&mut either, None).is_err() {
            continue;
        }
        let (is_told, has_ended) = (!either[0].revents().is_empty(), !either[1].revents().is_empty());
        if is_told {
            let mut packet = [0; MAX_ORDER_BYTES];
            match receive_order(link, &mut packet) {
                Some(RESTORED_ORDER) => names.clear(),
                Some(RELEASE_ORDER) => return SupervisorExit::Released,
                Some(END_ORDER) => return SupervisorExit::Ended,
                _ => return SupervisorExit::Alone,
            }
        }
        if has_ended {
            reaped(link, ended);
        }
    }
}

/// Receives the supervisor's next order; `None` if it is gone. If it left without reading all messages, the kernel reports that
/// first, and then its order.
fn receive_order<'a>(link: &OwnedFd, packet: &'a mut [u8; MAX_ORDER_BYTES]) -> Option<&'a [u8]> {
    loop {
        match recv(link, packet.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => return packet.get(..length).filter(|packet| !packet.is_empty()),
            Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Reaps and reports children that have ended. If the supervisor does not read any more, it has sent its last order, or is gone:
/// the link tells.
fn reaped(link: &OwnedFd, ended: &OwnedFd) {
    // A byte only says that a child has ended, and one read may stand for several.
    let _ = rustix::io::read(ended, &mut [0; MAX_ORDER_BYTES][..]);
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let pid = pid.as_raw_nonzero().get().unsigned_abs();
                let _ = send_message(link, &GuardMessage::Ended(pid, ExitStatus::from_raw(status.as_raw())));
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// Kills all descendants, running or not, until none is left.
fn end_all() -> io::Result<()> {
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let processes = tree::tree(std::process::id())?;
        let Some((_, below)) = processes.split_first().filter(|(_, below)| !below.is_empty()) else { return Ok(()) };
        tree::signal(below, Signal::KILL);
        thread::sleep(GUARD_REAP_POLL_INTERVAL);
    }
}

fn send_message(link: &OwnedFd, message: &GuardMessage) -> io::Result<()> {
    send(link, message.written().as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guard's conclusion from its supervisor's last order, if the supervisor has not read the guard's message.
    fn end_of(order: &[u8]) -> SupervisorExit {
        let (supervisor_end, guard_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (ended, _tells) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        send_message(&guard_end, &GuardMessage::Ended(9, ExitStatus::from_raw(0))).unwrap();
        if !order.is_empty() {
            send(&supervisor_end, order, SendFlags::NOSIGNAL).unwrap();
        }
        drop(supervisor_end);
        follow_supervisor(&guard_end, &ended, &mut Vec::new())
    }

    #[test]
    fn the_last_order_counts_though_no_guard_listens_any_more() {
        assert_eq!(
            (end_of(RELEASE_ORDER), end_of(END_ORDER), end_of(b"")),
            (SupervisorExit::Released, SupervisorExit::Ended, SupervisorExit::Alone)
        );
    }

    #[test]
    fn a_supervisor_that_is_gone_is_not_our_parent() {
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
        assert_eq!([parent, std::process::id(), 0].map(is_our_parent), [parent != 0, false, false]);
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for message in
            [GuardMessage::Started(7), GuardMessage::Failed(2), GuardMessage::Ended(9, ExitStatus::from_raw(0x700))]
        {
            assert_eq!(GuardMessage::read(message.written().as_bytes()), Some(message));
        }
        for other in ["", "ended", "ended 9", "started x", "goodbye 1"] {
            assert_eq!(GuardMessage::read(other.as_bytes()), None, "{other}");
        }
    }
}
