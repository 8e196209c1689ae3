//! Ends an NVML process that is idle: the server bounds their number. A program with another question connects again.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::os::exit::leave;

/// How long the process may be idle. The programs' library hangs up much earlier.
const NVML_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one program may use one connection, and how long one answer may take.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Time between two checks whether the service is idle.
const NVML_IDLE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The state of the process: answering or idle.
#[derive(Debug)]
struct IdleState {
    started: Instant,
    is_answering: bool,
    /// Start of the current state.
    since: Instant,
}

impl IdleState {
    fn is_over(&self, now: Instant) -> bool {
        let (this, all) = (now.duration_since(self.since), now.duration_since(self.started));
        if self.is_answering {
            this >= MAX_CONNECTION_TIME
        } else {
            this >= NVML_IDLE_TIMEOUT || all >= MAX_CONNECTION_TIME
        }
    }
}

/// Notes when an answer begins and ends.
#[derive(Debug, Clone)]
pub(super) struct NvmlActivity(Arc<Mutex<IdleState>>);

/// Marks an answer in progress until dropped.
pub(super) struct AnswerGuard(NvmlActivity);

/// Starts the thread that ends the process in time.
///
/// # Errors
///
/// The system refuses a thread.
pub(super) fn start() -> io::Result<NvmlActivity> {
    let now = Instant::now();
    let activity = NvmlActivity(Arc::new(Mutex::new(IdleState { started: now, is_answering: false, since: now })));
    let watched = activity.clone();
    let thread = thread::Builder::new().name("idle-timeout".into()).stack_size(64 << 10);
    thread.spawn(move || {
        while !watched.lock().is_over(Instant::now()) {
            thread::sleep(NVML_IDLE_POLL_INTERVAL);
        }
        leave(0);
    })?;
    Ok(activity)
}

impl NvmlActivity {
    /// Notes that a call is being answered, until the value is dropped.
    pub(super) fn begin(&self) -> AnswerGuard {
        self.set_answering(true);
        AnswerGuard(self.clone())
    }

    fn set_answering(&self, is_answering: bool) {
        let mut state = self.lock();
        (state.is_answering, state.since) = (is_answering, Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, IdleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.set_answering(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_overlong_connections_are_closed() {
        let started = Instant::now();
        let state = |is_answering, since| IdleState { started, is_answering, since: started + since };
        let is_over = |state: IdleState, at| state.is_over(started + at);
        let second = Duration::from_secs(1);
        assert!(!is_over(state(false, second), NVML_IDLE_TIMEOUT));
        assert!(is_over(state(false, second), NVML_IDLE_TIMEOUT + second));
        assert!(!is_over(state(true, second), MAX_CONNECTION_TIME));
        assert!(is_over(state(true, second), MAX_CONNECTION_TIME + second));
        assert!(is_over(state(false, MAX_CONNECTION_TIME), MAX_CONNECTION_TIME), "between two questions");
    }
}
