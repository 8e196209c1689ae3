//! A snapshot for a companion. The main loop takes it, and a thread of its own writes it and reports progress.
//!
//! Writing uses all processors, so it begins only on the companion's order: when the program runs again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_image::Session as SessionPart;
use katydid_session_core::{CaptureOptions, Checkpointable, Control, Failure, PendingSnapshot, Progress};
use katydid_wire::companion::FromWorker;

use crate::companion::store::RemoteOutput;
use crate::companion::writer::CompanionWriter;

/// How often the companion gets progress.
const SNAPSHOT_PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// The current snapshot.
#[derive(Clone, Default)]
pub(crate) struct CurrentSnapshot(Arc<Mutex<Option<SnapshotInProgress>>>);

struct SnapshotInProgress {
    progress: Arc<Progress>,
    /// Sends the order to write. None once that was sent, or the snapshot was canceled.
    write: Option<Sender<()>>,
}

impl CurrentSnapshot {
    fn lock(&self) -> MutexGuard<'_, Option<SnapshotInProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a snapshot, unless there is one. The receiver gets the order to write, or learns that it never comes.
    fn take(&self, progress: &Arc<Progress>) -> Option<Receiver<()>> {
        let mut current = self.lock();
        let (write, ordered) = channel();
        let is_free = current.is_none();
        is_free.then(|| *current = Some(SnapshotInProgress { progress: Arc::clone(progress), write: Some(write) }))?;
        Some(ordered)
    }

    fn free(&self) {
        *self.lock() = None;
    }

    /// Cancels the snapshot. Returns false when there is none.
    pub(crate) fn cancel(&self) -> bool {
        let mut current = self.lock();
        let Some(hand) = current.as_mut() else { return false };
        hand.progress.cancel();
        hand.write = None;
        true
    }

    /// Orders the snapshot written. Returns false when none waits for that.
    pub(crate) fn write(&self) -> bool {
        let order = self.lock().as_mut().and_then(|hand| hand.write.take());
        order.is_some_and(|order| order.send(()).is_ok())
    }
}

/// The snapshots of a session that are being taken or written. The worker does not exit before they are done: they are complete
/// without the program, which may have ended meanwhile.
#[derive(Clone, Default)]
pub(crate) struct PendingSnapshots(Arc<(Mutex<usize>, Condvar)>);

/// Counts one of them while it lasts.
struct PendingGuard(PendingSnapshots);

impl PendingSnapshots {
    fn begin(&self) -> PendingGuard {
        *self.count() += 1;
        PendingGuard(self.clone())
    }

    /// Waits until there are none.
    pub(crate) fn wait_until_released(&self) {
        drop(self.0.1.wait_while(self.count(), |count| *count > 0).unwrap_or_else(PoisonError::into_inner));
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.0.1.notify_all();
    }
}

/// The snapshot to take, and its destination.
pub(crate) struct SnapshotOrder {
    pub(crate) session: String,
    pub(crate) options: CaptureOptions,
    pub(crate) output: RemoteOutput,
    /// The name that the driver reports.
    pub(crate) driver: String,
}

/// Takes a snapshot and reports to the companion: `Captured` or `Failed`, then, once writing is ordered, `Written` or
/// `Unwritten`.
pub(crate) fn begin(
    writer: &Arc<CompanionWriter>,
    control: &Control,
    at_hand: &CurrentSnapshot,
    under_way: &PendingSnapshots,
    order: SnapshotOrder,
) -> Result<(), String> {
    let progress = Arc::new(Progress::default());
    let ordered = at_hand.take(&progress).ok_or("a snapshot of the session is being written already")?;
    let work =
        SnapshotWork { writer: Arc::clone(writer), control: control.clone(), at_hand: at_hand.clone(), progress };
    let guard = under_way.begin();
    let started = thread::Builder::new().name("snapshot".into()).spawn(move || {
        work.run(order, &ordered);
        drop(guard);
    });
    started.map(drop).map_err(|error| {
        at_hand.free();
        format!("cannot start a thread: {error}")
    })
}

struct SnapshotWork {
    writer: Arc<CompanionWriter>,
    control: Control,
    at_hand: CurrentSnapshot,
    progress: Arc<Progress>,
}

impl SnapshotWork {
    fn run(self, order: SnapshotOrder, ordered: &Receiver<()>) {
        let SnapshotOrder { session, options, output, driver } = order;
        let output = Arc::new(output);
        let mut snapshot = match self.take(session, options, &output) {
            Ok(snapshot) => snapshot,
            Err(text) => {
                // The companion may begin the next checkpoint of the same image as soon as it hears of this.
                drop(output);
                self.at_hand.free();
                let _ = self.writer.send(&FromWorker::Failed { text });
                return;
            }
        };
        let (bytes, changed, sharing) = (snapshot.bytes(), snapshot.changed(), snapshot.sharing().encode());
        // A companion that is gone has canceled the snapshot.
        if self.writer.send(&FromWorker::Captured { bytes, changed, sharing }).is_err() {
            self.at_hand.free();
            return;
        }
        let ordered = ordered.recv().map_err(|_| "it was cancelled".to_owned());
        let written = ordered.and_then(|()| self.write(&mut *snapshot, &output));
        let finished = written.and_then(|part| {
            let output = Arc::into_inner(output).ok_or("the image is still being written")?;
            output.finish(SessionPart { driver, ..part }).map_err(|error| error.to_string())
        });
        self.at_hand.free();
        let _ = self.writer.send(&match finished {
            Ok(part) => FromWorker::Written { part },
            Err(text) => FromWorker::Unwritten { text },
        });
        // Dropped only now, as that may have to wait for the program.
        drop(snapshot);
    }

    /// Lets the main loop take the snapshot.
    fn take(
        &self,
        session: String,
        options: CaptureOptions,
        output: &Arc<RemoteOutput>,
    ) -> Result<Box<dyn PendingSnapshot>, String> {
        let (output, progress) = (Arc::clone(output), Arc::clone(&self.progress));
        let take = move |it: &mut dyn Checkpointable| it.snapshot(&session, options, output.sink(), &progress);
        let snapshot = if options.outline { self.control.with_running(take) } else { self.control.with(take) };
        snapshot.ok_or("the session has ended")?.map_err(|error| error.to_string())
    }

    /// Writes the snapshot in another thread, and reports progress meanwhile.
    fn write(&self, snapshot: &mut dyn PendingSnapshot, output: &Arc<RemoteOutput>) -> Result<SessionPart, String> {
        thread::scope(|scope| {
            let (answer, answered) = sync_channel::<Result<SessionPart, Failure>>(1);
            let writer = thread::Builder::new().name("write".into()).spawn_scoped(scope, move || {
                // The receiver waits until this is sent.
                let _ = answer.send(snapshot.write(output.sink()));
            });
            writer.map_err(|error| format!("cannot start a thread: {error}"))?;
            loop {
                match answered.recv_timeout(SNAPSHOT_PROGRESS_INTERVAL) {
                    Ok(written) => return written.map_err(|error| error.to_string()),
                    Err(RecvTimeoutError::Timeout) => self.report_progress(output),
                    Err(RecvTimeoutError::Disconnected) => return Err("a thread has failed".to_owned()),
                }
            }
        })
    }

    fn report_progress(&self, output: &RemoteOutput) {
        let (done, total) = (self.progress.bytes_done(), self.progress.total());
        if self.writer.send(&FromWorker::Progress { done, total, written: output.written() }).is_err() {
            // No process will commit the snapshot.
            self.progress.cancel();
        }
    }
}
