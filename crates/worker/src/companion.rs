//! The worker's end of a companion connection. By it a supervisor brings the session to rest, lets its program leave, and resumes
//! it.
//!
//! The rule: a session never stays stopped. When a companion goes away, a paused session resumes. A session whose program has
//! left ends, since no other process could bring the program back. A suspended session waits two minutes for its next companion.

pub(crate) mod preparation;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod suspended;
pub(crate) mod writer;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_session_core::{CaptureOptions, Control};
use katydid_transport::Pending;
use katydid_wire::companion::{FromWorker, ToWorker};
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused};

use self::preparation::Preparation;
use self::snapshot::{CurrentSnapshot, PendingSnapshots, SnapshotOrder};
use self::store::{ImageClient, RemoteInput, RemoteOutput};
use self::suspended::Suspension;
use self::writer::{CompanionWriter, failed};
use crate::os::exit::leave;
use crate::os::log::Log;

/// The session's companion, while there is one.
#[derive(Clone, Default)]
pub(crate) struct CompanionSlot {
    writer: Arc<Mutex<Option<Arc<CompanionWriter>>>>,
    /// Whether a rebuilt session now belongs to its program. The program may know that before the worker does.
    is_taken_up: Arc<AtomicBool>,
    pub(crate) under_way: PendingSnapshots,
    pub(crate) suspension: Suspension,
}

impl CompanionSlot {
    /// Tells the companion that the program has reconnected.
    pub(crate) fn program_is_back(&self) {
        if let Some(writer) = &*self.lock() {
            // Another thread notices a companion that is gone.
            let _ = writer.send(&FromWorker::Attached {});
        }
    }

    /// Notes that the program of a rebuilt session is about to be admitted.
    pub(crate) fn take_up(&self) {
        self.is_taken_up.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<CompanionWriter>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Admits a companion, unless there is one.
pub(crate) fn admit(peer: Pending, build: &Build, ready: &Ready, slot: &CompanionSlot, control: &Control) {
    let mut current = slot.lock();
    if current.is_some() {
        let text = "the session has a companion already: another checkpoint of it may be under way";
        return peer.refuse(build, &Refused::new(RefusalCode::IN_USE, text));
    }
    let writer = peer.consent(build, ready).map_err(|error| error.to_string());
    let writer = writer.and_then(|socket| CompanionWriter::new(socket).map_err(|error| error.to_string()));
    let started = writer.and_then(|writer| {
        let writer = Arc::new(writer);
        *current = Some(Arc::clone(&writer));
        let known = Arc::new(OnceLock::from(control.clone()));
        let asker = Arc::new(ImageClient::new(Arc::clone(&writer)));
        Companion { writer, slot: slot.clone(), session: known, driver: ready.driver.clone(), asker }.start()
    });
    if let Err(reason) = started {
        *current = None;
        Log::early().line(format_args!("a companion of the session could not be let in: {reason}"));
    }
}

/// A companion, and the session that it controls.
pub(crate) struct Companion {
    pub(crate) writer: Arc<CompanionWriter>,
    pub(crate) slot: CompanionSlot,
    /// Set once a rebuilt session has its program.
    pub(crate) session: Arc<OnceLock<Control>>,
    /// The name that the driver reports.
    pub(crate) driver: String,
    pub(crate) asker: Arc<ImageClient>,
}

impl Companion {
    /// Serves the companion in a thread of its own.
    fn start(self) -> Result<(), String> {
        let serving = CompanionSession {
            companion: self,
            is_paused: false,
            preparation: None,
            has_leftovers: false,
            at_hand: CurrentSnapshot::default(),
        };
        let thread = thread::Builder::new().name("companion".into());
        thread.spawn(move || serving.serve()).map(drop).map_err(|error| error.to_string())
    }

    /// Serves the companion in this thread, which has received `first_order`, or the connection's end.
    pub(crate) fn serve_from(self, first_order: Option<(ToWorker, Option<OwnedFd>)>) {
        let mut serving = CompanionSession {
            companion: self,
            is_paused: false,
            preparation: None,
            has_leftovers: false,
            at_hand: CurrentSnapshot::default(),
        };
        if first_order.is_some_and(|(order, folder)| serving.answer(order, folder)) {
            serving.serve();
        } else {
            serving.end();
        }
    }

    /// Makes a companion that is not served yet the session's companion.
    pub(crate) fn sit_down(&self) {
        *self.slot.lock() = Some(Arc::clone(&self.writer));
    }
}

/// How often the worker tries to release memory that no snapshot has used.
const RELEASE_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A companion that is being served.
struct CompanionSession {
    companion: Companion,
    is_paused: bool,
    /// The image opened for the next snapshot.
    preparation: Option<Preparation>,
    /// Whether a precopy or a snapshot has left memory to release, or will.
    has_leftovers: bool,
    at_hand: CurrentSnapshot,
}

impl CompanionSession {
    fn serve(mut self) {
        if let Some(control) = self.companion.session.get().filter(|_| !self.companion.slot.suspension.is_on()) {
            // Gathers what a snapshot needs and can be found while the program runs.
            control.prepare();
        }
        while let Ok((message, folder)) = self.companion.writer.receive() {
            if let Some(order) = self.companion.asker.take(message)
                && !self.answer(order, folder)
            {
                break;
            }
        }
        self.end();
    }

    /// Answers an order. Returns false when the companion is gone.
    fn answer(&mut self, order: ToWorker, folder: Option<OwnedFd>) -> bool {
        let answer = match self.companion.session.get().cloned() {
            Some(control) => self.obey(&control, order, folder),
            None => Some(failed("the session waits for its program")),
        };
        answer.is_none_or(|answer| self.companion.writer.send(&answer).is_ok())
    }

    /// Carries an order out. Returns the answer, unless another thread will send it.
    fn obey(&mut self, control: &Control, order: ToWorker, folder: Option<OwnedFd>) -> Option<FromWorker> {
        if self.preparation.as_ref().is_some_and(|preparation| !preparation.is_done()) {
            return Some(failed("the session is being prepared for a snapshot"));
        }
        if self.companion.slot.suspension.is_on() {
            return self.refill(control, order, folder);
        }
        Some(match order {
            ToWorker::Pause { .. } if self.is_paused => failed("the session is paused already"),
            ToWorker::Pause { frames, timeout_ms } => {
                match control.quiesce(frames, Duration::from_millis(timeout_ms.into())) {
                    Ok(frames) => {
                        self.is_paused = true;
                        FromWorker::Paused { frames }
                    }
                    Err(error) => failed(error),
                }
            }
            ToWorker::Resume {} => {
                // A program that has left is still waited for.
                control.link_control().cancel_detach();
                self.go_on(control);
                FromWorker::Resumed {}
            }
            ToWorker::Detach {} if !self.is_paused => failed("a program may leave a session only while it is paused"),
            ToWorker::Detach {} => {
                control.link_control().detach();
                FromWorker::Detached {}
            }
            ToWorker::Snapshot { outline: 0, .. } if !self.is_paused => {
                failed("a session is kept only while it is paused")
            }
            ToWorker::Snapshot { session, device_only, full, outline } => {
                let options = CaptureOptions { device_only: device_only != 0, full: full != 0, outline: outline != 0 };
                match self.begin(control, session, options) {
                    Ok(()) => return None,
                    Err(text) => failed(text),
                }
            }
            ToWorker::Prepare { store, checkpoint, full, level } => {
                let output = RemoteOutput::open(store, folder, checkpoint, level, &self.companion.asker);
                match self.prepare(control, output, full != 0) {
                    Ok(()) => return None,
                    Err(error) => failed(format_args!("cannot start a thread: {error}")),
                }
            }
            ToWorker::Suspend {} if !self.is_paused || !control.link_control().may_leave() => {
                failed("a session is suspended only while it is paused and its program may leave")
            }
            ToWorker::Suspend {} => match self.companion.slot.suspension.begin(control) {
                Ok(()) => FromWorker::Suspended {},
                Err(text) => failed(text),
            },
            ToWorker::Cancel {} if self.at_hand.cancel() => return None,
            ToWorker::Cancel {} => failed("no snapshot is being written"),
            ToWorker::Write {} if self.at_hand.write() => return None,
            ToWorker::Write {} => failed("no snapshot waits to be written"),
            other => failed(format_args!("{other:?} makes no sense now")),
        })
    }

    /// Refills a suspended session: the only order that it takes. It was paused before, and stays paused.
    fn refill(&mut self, control: &Control, order: ToWorker, folder: Option<OwnedFd>) -> Option<FromWorker> {
        let ToWorker::Refill { store, session, checkpoint, key } = order else {
            return Some(failed("the session is suspended"));
        };
        self.is_paused = true;
        let input = RemoteInput::open(store, folder, checkpoint, &self.companion.asker);
        let result = self.companion.slot.suspension.end(control, &self.companion.writer, input, (session, &key));
        result.err().map(failed)
    }

    /// Opens the image of a checkpoint, and does the work that can precede the pause.
    fn prepare(
        &mut self,
        control: &Control,
        output: katydid_image::Result<RemoteOutput>,
        full: bool,
    ) -> io::Result<()> {
        // A session that is paused already, or has no image, gets no precopy.
        let ahead = if self.is_paused || output.is_err() { None } else { control.precopy(full) };
        self.has_leftovers |= ahead.is_some();
        self.preparation = Some(Preparation::begin(&self.companion.writer, ahead, output)?);
        Ok(())
    }

    /// Starts a thread that releases memory left by snapshots.
    fn tidy(&mut self, control: &Control) {
        if std::mem::take(&mut self.has_leftovers) {
            let control = control.clone();
            let tidy = move || {
                while !control.release_snapshot() {
                    thread::sleep(RELEASE_RETRY_INTERVAL);
                }
            };
            // Without a thread the next snapshot uses the memory.
            let _ = thread::Builder::new().name("tidy".into()).spawn(tidy);
        }
    }

    /// Begins a snapshot into the prepared image.
    fn begin(&mut self, control: &Control, session: String, options: CaptureOptions) -> Result<(), String> {
        let output =
            self.preparation.take().and_then(Preparation::end).ok_or("no image is at hand: `Prepare` comes first")?;
        let driver = self.companion.driver.clone();
        let order = SnapshotOrder { session, options, output, driver };
        snapshot::begin(&self.companion.writer, control, &self.at_hand, &self.companion.slot.under_way, order)?;
        self.has_leftovers = true;
        Ok(())
    }

    fn go_on(&mut self, control: &Control) {
        if std::mem::take(&mut self.is_paused) {
            control.resume();
        }
    }

    /// Handles the supervisor's end.
    fn end(mut self) {
        self.companion.asker.end();
        drop(self.preparation.take().map(Preparation::end));
        self.at_hand.cancel();
        *self.companion.slot.lock() = None;
        // A supervisor that closes waits for this: from here on its next companion is admitted.
        self.companion.writer.close();
        // A rebuilt session without a program now belongs to no process.
        let Some(control) = self.companion.session.get().cloned() else {
            if self.companion.slot.is_taken_up.load(Ordering::Acquire) {
                return;
            }
            leave(0)
        };
        if self.companion.slot.suspension.is_on() {
            let slot = self.companion.slot.clone();
            return self.companion.slot.suspension.wait_for_companion(move || slot.lock().is_some());
        }
        let link_control = control.link_control();
        if link_control.may_leave() && !link_control.cancel_detach() {
            leave(0);
        }
        self.go_on(&control);
        self.tidy(&control);
    }
}
