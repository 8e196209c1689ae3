//! A session whose worker is saved as a process, or was restored as one. It is paused, and has no companion for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_session_core::{Checkpointable, Control, Failure, Progress};
use katydid_transport::Pending;
use katydid_wire::companion::FromWorker;
use katydid_wire::handshake::Ready;
use katydid_wire::key::SessionKey;

use crate::companion::store::RemoteInput;
use crate::companion::writer::{CompanionWriter, failed};
use crate::os::exit::leave;

/// How long a resumed worker waits for its next companion, counted in pauses: no time passes for a process inside an image.
const COMPANION_POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_COMPANION_POLLS: u32 = 1200;
/// How often the companion gets progress of a refill.
const SUSPEND_PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the session is suspended, and the state that changes with that.
#[derive(Clone, Default)]
pub(crate) struct Suspension(Arc<SuspensionState>);

#[derive(Default)]
struct SuspensionState {
    is_on: AtomicBool,
    /// Whether a refill is under way.
    is_refilled: AtomicBool,
    /// The session's key in the server that it has moved to.
    key: Mutex<Option<SessionKey>>,
}

impl Suspension {
    /// Returns whether the session is suspended.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_on.load(SeqCst)
    }

    /// Returns the facts that connections receive, derived from those of the session's beginning.
    pub(crate) fn ready(&self, ready: &Ready) -> Ready {
        let key = *self.0.key.lock().unwrap_or_else(PoisonError::into_inner);
        Ready { key: key.unwrap_or(ready.key), ..ready.clone() }
    }

    /// Suspends a session that is paused, and whose program has left.
    pub(crate) fn begin(&self, control: &Control) -> Result<(), String> {
        if self.0.is_on.swap(true, SeqCst) {
            return Err("the session is suspended already".to_owned());
        }
        // Whatever happens to it, the program brings its memory with its next connection.
        control.link_control().forget_memory();
        let suspended = control.with(|session: &mut dyn Checkpointable| session.suspend());
        suspended.ok_or("the session has ended")?.map_err(|error| error.to_string())
    }

    /// Waits for the next companion after one has left, for a limited time. Then the process ends.
    pub(crate) fn wait_for_companion(&self, is_there: impl Fn() -> bool + Send + 'static) {
        let suspension = self.clone();
        let wait = move || {
            for _ in 0..MAX_COMPANION_POLLS {
                thread::sleep(COMPANION_POLL_INTERVAL);
                if !suspension.is_on() || is_there() {
                    return;
                }
            }
            leave(0);
        };
        // Without a thread the session ends with its server.
        let _ = thread::Builder::new().name("suspended".into()).spawn(wait);
    }

    /// Refills the session with what it gave up, in a thread of its own. The companion receives `Refilled` or `Failed`.
    pub(crate) fn end(
        &self,
        control: &Control,
        writer: &Arc<CompanionWriter>,
        input: katydid_image::Result<RemoteInput>,
        (name, key): (String, &[u8]),
    ) -> Result<(), String> {
        let key = <[u8; 16]>::try_from(key).map_err(|_| "that is not a key of a session")?;
        if !self.is_on() || self.0.is_refilled.swap(true, SeqCst) {
            return Err("the session is not suspended".to_owned());
        }
        *self.0.key.lock().unwrap_or_else(PoisonError::into_inner) = Some(SessionKey(key));
        let (suspension, control, writer) = (self.clone(), control.clone(), Arc::clone(writer));
        let work = move || {
            let refilled = input.map_err(Failure::from).and_then(|input| refill(&control, &writer, input, &name));
            suspension.0.is_refilled.store(false, SeqCst);
            let message = match refilled {
                Ok(()) => {
                    suspension.0.is_on.store(false, SeqCst);
                    FromWorker::Refilled {}
                }
                Err(error) => failed(error),
            };
            // The listening thread notices a companion that is gone.
            let _ = writer.send(&message);
        };
        let thread = thread::Builder::new().name("refill".into()).spawn(work);
        thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
    }
}

/// Lets the main loop refill the session, and reports progress.
fn refill(control: &Control, writer: &CompanionWriter, input: RemoteInput, name: &str) -> Result<(), Failure> {
    let part = input.part(name)?;
    let progress = Arc::new(Progress::default());
    let (reported_progress, (answer, answered)) = (Arc::clone(&progress), sync_channel(1));
    let control = control.clone();
    let order = move || {
        let refill = move |session: &mut dyn Checkpointable| session.refill(&part, input.source(), &progress);
        let _ = answer.send(control.with(refill).unwrap_or_else(|| Err("the session has ended".into())));
    };
    thread::Builder::new().name("refilling".into()).spawn(order)?;
    loop {
        match answered.recv_timeout(SUSPEND_PROGRESS_INTERVAL) {
            Ok(refilled) => return refilled,
            Err(RecvTimeoutError::Timeout) => {
                let message = FromWorker::Progress {
                    done: reported_progress.bytes_done(),
                    total: reported_progress.total(),
                    written: 0,
                };
                if writer.send(&message).is_err() {
                    reported_progress.cancel();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err("a thread has failed".into()),
        }
    }
}

/// Gives the session the memory of its program, which has come back after a suspension.
///
/// # Errors
///
/// Why the session cannot take the memory.
pub(crate) fn rejoin(control: &Control, program: &Pending) -> Result<(), String> {
    let pinned = program.pinned().map(|fd| fd.try_clone_to_owned()).transpose().map_err(|error| error.to_string())?;
    let rejoin = move |session: &mut dyn Checkpointable| {
        session.rejoin(pinned.as_ref().map(std::os::fd::AsFd::as_fd)).map_err(|error| error.to_string())
    };
    control.with_running(rejoin).unwrap_or_else(|| Err("the session has ended".to_owned()))
}
