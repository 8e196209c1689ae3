//! What an OpenCL session has in flight, and how a worker saves it ([`Checkpointable`], [`Restorable`]).
//!
//! At rest, every queue is empty: a marker after everything in it has completed. Only the program's upcall thread waits in a
//! call. The event poller has delivered every callback that is due. Callbacks that no thread has fetched are saved.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_image::{ImageSource, Session as SessionPart, Sink};
use katydid_opencl_sys::{Code, cl_command_queue};
use katydid_session_core::{
    CaptureOptions, Checkpointable, Control, Failure, PendingSnapshot, Precopy, Progress, QuiesceError, Restorable,
    RestoreOptions, check_calls,
};
use katydid_transport::{LinkControl, WorkerLink};
use katydid_wire::opencl::KIND_SHIFT;

use crate::calls::marker::{Marker, mark};
use crate::memory::host::HostMemory;
use crate::memory::staged::StagingArea;
use crate::objects::held_events::HeldEvent;
use crate::objects::lifetimes::ObjectRef;
use crate::objects::object::Object;
use crate::snapshot::refuse_outline;
use crate::state::Session;

/// Returns the number of an object within its kind, for messages.
fn number(id: u32) -> u32 {
    id & ((1 << KIND_SHIFT) - 1)
}

impl Session {
    /// Enqueues a marker in every queue.
    fn enqueue_markers(&self) -> Result<Vec<Marker>, QuiesceError> {
        let mut markers = Vec::new();
        for (id, queue) in self.shared.objects.of::<cl_command_queue>() {
            let hold = self.shared.objects.hold::<cl_command_queue>(id);
            match hold.and_then(|hold| mark(&queue, &hold)) {
                Ok(event) => markers.push(Marker { queue: id, event }),
                // Kernels enqueue to this queue; its work is part of theirs.
                Err(Code::INVALID_COMMAND_QUEUE) => {}
                Err(code) => {
                    return Err(QuiesceError::Ruined {
                        what: format!("queue {}", number(id)),
                        error: code.to_string(),
                    });
                }
            }
        }
        Ok(markers)
    }

    /// Notes that the program released a queue. Its commands may still run; the session is at rest when they have ended.
    pub(crate) fn let_queue_end(&mut self, id: u32, hold: &ObjectRef) {
        self.forget_ended_queues();
        let Object { handle, api, size } = hold.object();
        let queue = Object { handle: cl_command_queue(handle), api, size };
        // If kernels enqueue to the queue, its work is part of theirs.
        self.ending.extend(mark(&queue, hold).ok().map(|event| Marker { queue: id, event }));
    }

    /// Drops the markers of queues that have ended, and with them the queues. PoCL 3.1 may still read the events of failed
    /// commands ([`Session::outlast`]).
    pub(crate) fn forget_ended_queues(&mut self) {
        self.ending.retain(|marker| marker.event.status().is_ok_and(|status| status > 0));
        self.outlasting.retain(|event| event.status().is_ok_and(|status| status != 0));
    }

    /// Keeps the event of a command that is unknown to the program, until the command has ended and the next event is kept. PoCL
    /// 3.1 reads the event of a failed command once more after releasing it. It ends the process if nothing else holds the event.
    pub(crate) fn outlast(&mut self, event: HeldEvent) {
        self.outlasting.retain(|event| event.status().is_ok_and(|status| status > 0));
        self.outlasting.push(event);
    }

    /// Returns whether a callback is due that the event poller has not found yet.
    fn awaits_callbacks(&self) -> bool {
        self.shared.callbacks.waiting().iter().any(|callback| {
            let Ok(event) = HeldEvent::of(&self.shared.objects, callback.event) else {
                // Nothing holds the event any more, so a restore could not make it again.
                return true;
            };
            event.status().is_ok_and(|status| status <= callback.state)
        })
    }
}

impl Checkpointable for Session {
    fn check_idle(&mut self) -> Result<(), QuiesceError> {
        if self.markers.is_none() {
            self.markers = Some(self.enqueue_markers()?);
        }
        for marker in self.markers.iter().flatten().chain(&self.ending) {
            let what = || format!("queue {}", number(marker.queue));
            match marker.event.status() {
                Ok(status) if status <= 0 => {}
                Ok(_) => {
                    let why = "a kernel in it runs on, or it waits for an event that the program sets later";
                    return Err(QuiesceError::Busy { what: what(), why });
                }
                Err(code) => return Err(QuiesceError::Ruined { what: what(), error: code.to_string() }),
            }
        }
        // A command that has ended returns its staging memory in a moment.
        let held = self.staging.as_ref().map_or(0, StagingArea::pieces_in_use)
            + self.host.as_ref().map_or(0, HostMemory::parts_in_use);
        let rests = check_calls(self, held as u64)
            .and_then(|()| if self.awaits_callbacks() { Err(QuiesceError::Upcall) } else { Ok(()) });
        rests.inspect_err(|_| self.event_poller.poll_now())
    }

    fn synchronize(&mut self) -> Result<(), QuiesceError> {
        // Runs before the dump of the program, which would otherwise include these pages.
        self.unshare_buffers();
        Ok(())
    }

    fn precopy(&mut self, _: bool) -> Option<Box<dyn Precopy>> {
        self.get_ready()
    }

    fn release_snapshot(&mut self) -> bool {
        self.ready.clear();
        true
    }

    fn note_frames(&mut self, frames: u64) {
        self.main_loop.frames = frames;
        // If a queue was not at rest, the commands before the marker may still fail.
        for marker in self.markers.take().into_iter().flatten() {
            if marker.event.status().is_ok_and(|status| status > 0) {
                self.outlast(marker.event);
            }
        }
    }

    fn snapshot(
        &mut self,
        name: &str,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<Box<dyn PendingSnapshot>, Failure> {
        if options.outline {
            return Ok(Box::new(self.outline(name)?));
        }
        Ok(Box::new(self.take_snapshot(name, sink, progress)?))
    }

    fn control(&mut self, link_control: LinkControl) -> Control {
        self.main_loop.control(link_control)
    }

    fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), Failure> {
        let outcome = Self::serve(self, link);
        // Dropping the channel tells a companion that waits for an order that the session has ended.
        self.main_loop.orders = None;
        Ok(outcome?)
    }
}

impl Restorable for Session {
    fn restore(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), Failure> {
        if options.rehearsal {
            return self.rehearse_snapshot(part, source);
        }
        self.restore_snapshot(part, source, progress)
    }

    fn restore_host(
        &mut self,
        pinned: Option<BorrowedFd<'_>>,
        part: &SessionPart,
        _: &dyn ImageSource,
    ) -> Result<(), Failure> {
        refuse_outline(part)?;
        if let (Some(host), Some(pinned)) = (&mut self.host, pinned) {
            host.join(pinned)?;
            self.share_program_pages(..)
                .map_err(|code| format!("the program's fine-grained shared virtual memory: {code}"))?;
            self.take_from_program()?;
        } else if self.svm.fine(..).next().is_some() {
            return Err(
                "the program has fine-grained shared virtual memory, and comes over a link without shared memory"
                    .into(),
            );
        }
        Ok(())
    }

    fn connect(&mut self, link: &dyn WorkerLink) {
        self.shared.replies.connect(link.replier());
        self.attach(link);
    }

    fn frames(&self) -> u64 {
        self.main_loop.frames
    }

    fn begin(&'static mut self) -> &'static mut dyn Checkpointable {
        self
    }
}
