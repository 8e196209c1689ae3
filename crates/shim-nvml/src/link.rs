//! The connection to the server: made for a query, and closed soon after, however many follow.
//!
//! So a program that queries NVML has nothing open for long that would block its checkpoint, and answers are current.
//! Meanwhile it is announced to the supervisor of its job, which delays a dump until the connection is closed.
//!
//! It connects, forks and announces itself by the functions of `client`, but is not a `Session` of that crate. A session
//! keeps one link for life, leaves it for a checkpoint, takes typed messages and reports errors of earlier calls. This link
//! is made anew, carries raw bytes, and has no earlier calls.

use std::ops::{Deref, DerefMut};
use std::process;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_client::connect::open_nvml;
use katydid_client::fork::{self, NoFork};
use katydid_client::job::JobMembership;
use katydid_client::output::report;
use katydid_transport::ProgramLink;
use katydid_wire::nvml::code;

/// How long a connection is used.
const CONNECTION_LINGER: Duration = Duration::from_millis(100);

/// A connection, and its process.
struct OpenConnection {
    link: Box<dyn ProgramLink>,
    /// Announces the connection as long as this lives.
    _job: Option<JobMembership>,
    since: Instant,
    /// Its process: a child of a fork must not use its parent's.
    process: u32,
}

/// The state of the library.
struct LibraryState {
    /// Number of starts that were not ended yet.
    starts: u32,
    open: Option<OpenConnection>,
    /// The reported reason for a missing server.
    reported_error: Option<String>,
}

/// Makes children of a fork get the error.
static FORK_WATCH: Once = Once::new();
static LIBRARY_STATE: Mutex<LibraryState> = Mutex::new(LibraryState { starts: 0, open: None, reported_error: None });

/// The locked state, while no thread forks, so that a child finds it consistent.
struct LockedState {
    state: MutexGuard<'static, LibraryState>,
    _forks: NoFork,
}

impl Deref for LockedState {
    type Target = LibraryState;

    fn deref(&self) -> &LibraryState {
        &self.state
    }
}

impl DerefMut for LockedState {
    fn deref_mut(&mut self) -> &mut LibraryState {
        &mut self.state
    }
}

fn state() -> LockedState {
    let forks = fork::hold();
    LockedState { state: LIBRARY_STATE.lock().unwrap_or_else(PoisonError::into_inner), _forks: forks }
}

/// Abandons the connection in the child of a fork: it is the parent's, and ends with the parent's.
fn after_fork() {
    if let Ok(state) = LIBRARY_STATE.try_lock()
        && let Some(open) = &state.open
    {
        open.link.abandon();
    }
}

/// Starts the library: a server must answer.
pub(crate) fn start() -> u32 {
    let mut state = state();
    if state.starts == 0
        && let Err(code) = state.connected()
    {
        return code;
    }
    state.starts += 1;
    code::SUCCESS
}

/// Ends one start of the library.
pub(crate) fn end() -> u32 {
    let mut state = state();
    if state.starts == 0 {
        return code::UNINITIALIZED;
    }
    state.starts -= 1;
    code::SUCCESS
}

/// Sends a query; returns NVML's code, and the answer in `reply`. A connection that has ended meanwhile is made once more.
pub(crate) fn ask(opcode: u16, request: &[u8], reply: &mut Vec<u8>) -> u32 {
    let mut state = state();
    if state.starts == 0 {
        return code::UNINITIALIZED;
    }
    for _ in 0..2 {
        let open = match state.connected() {
            Ok(open) => open,
            Err(code) => return code,
        };
        reply.clear();
        if let Ok(head) = open.link.call(opcode, 0, &[request], reply) {
            return head.status;
        }
        state.open = None;
    }
    code::GPU_IS_LOST
}

impl LibraryState {
    /// Returns the connection, and makes it if there is none.
    fn connected(&mut self) -> Result<&mut OpenConnection, u32> {
        if let Some(open) = self.open.take_if(|open| open.process != process::id()) {
            open.link.abandon();
        }
        self.open.take_if(|open| open.since.elapsed() >= CONNECTION_LINGER);
        if self.open.is_none() {
            FORK_WATCH.call_once(|| fork::in_children(after_fork));
            let mut job = JobMembership::from_environment().ok().flatten();
            if let Some(job) = &mut job {
                job.announce();
            }
            let link = open_nvml().map_err(|error| {
                let text = error.to_string();
                if self.reported_error.as_ref() != Some(&text) {
                    report(format_args!("nvml: {text}"));
                    self.reported_error = Some(text);
                }
                code::DRIVER_NOT_LOADED
            })?;
            self.open = Some(OpenConnection { link, _job: job, since: Instant::now(), process: process::id() });
            // Without the thread it stays open, which only blocks checkpoints.
            let _ = thread::Builder::new().name("katydid-nvml".into()).spawn(close_later);
        }
        self.open.as_mut().ok_or(code::UNKNOWN)
    }
}

/// Closes the connection after its time; a newer one has its own thread.
fn close_later() {
    thread::sleep(CONNECTION_LINGER);
    state().open.take_if(|open| open.since.elapsed() >= CONNECTION_LINGER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_before_the_start() {
        assert_eq!(ask(1, &[], &mut Vec::new()), code::UNINITIALIZED);
        assert_eq!(end(), code::UNINITIALIZED);
    }
}
