//! The connection to the server: made when a question comes, and closed soon after, however many follow.
//!
//! So a program that asks has nothing open for long that would keep it from being checkpointed, and the answers are as
//! new. While it has, it has announced itself to the supervisor of its job, which waits with a dump until it is done.
//!
//! It connects, forks and announces itself by the functions of `client`, and is no `Session` of that crate. A session keeps one link for
//! life, leaves it for a checkpoint, takes typed messages and reports errors of earlier calls; this link is made anew, carries raw
//! bytes, and has no earlier calls.

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

/// A connection, and what it was made for.
struct OpenConnection {
    link: Box<dyn ProgramLink>,
    /// Announced as long as this is there.
    _job: Option<JobMembership>,
    since: Instant,
    /// Whose it is: a child of a fork must not use its parent's.
    process: u32,
}

/// What is known of the library's use.
struct LibraryState {
    /// How often it was started and not yet ended.
    starts: u32,
    open: Option<OpenConnection>,
    /// Why there is no server, as it was said.
    reported_error: Option<String>,
}

/// Children of a fork get the error.
static FORK_WATCH: Once = Once::new();
static LIBRARY_STATE: Mutex<LibraryState> = Mutex::new(LibraryState { starts: 0, open: None, reported_error: None });

/// The state, while no thread forks: a child finds it whole.
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

/// In the child of a fork: the connection is the parent's, and ends with the parent's.
fn after_fork() {
    if let Ok(state) = LIBRARY_STATE.try_lock()
        && let Some(open) = &state.open
    {
        open.link.abandon();
    }
}

/// Starts the library: there must be a server that answers.
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

/// Ends one start.
pub(crate) fn end() -> u32 {
    let mut state = state();
    if state.starts == 0 {
        return code::UNINITIALIZED;
    }
    state.starts -= 1;
    code::SUCCESS
}

/// Asks, and gets NVML's code; what was written replaces `reply`. A connection that has ended meanwhile is made anew once.
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
    /// The connection; a new one where there is none.
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
            // Without a thread it stays open, which hinders nothing but checkpoints.
            let _ = thread::Builder::new().name("katydid-nvml".into()).spawn(close_later);
        }
        self.open.as_mut().ok_or(code::UNKNOWN)
    }
}

/// Closes the connection when its time is over; a newer one has a thread of its own.
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
