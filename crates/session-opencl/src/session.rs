//! One program's state in the worker, and the loop that executes its frames.
//!
//! Frames are executed in order by one thread, which never waits for a device. What goes wrong with a message is either
//! a code for the program or the end of the session ([`Fault`]).

use std::collections::HashMap;
use std::sync::Arc;

use katydid_opencl_sys::Code;
use katydid_session::{Capture, Uploads};
use katydid_transport::{Event, Replier, WorkerLink};
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::message_name;
use katydid_wire::opencl::{id, kind};

use crate::dispatch::dispatch;
use crate::driver::Platform;
use crate::executor::Executors;
use crate::fault::{Fault, SessionError};
use crate::objects::Object;
use crate::shared::Shared;
use crate::svm::Svm;
use crate::usage::Usage;

/// Most bytes of one message's data; what a command moves beyond that is refused by the program's side.
const MAX_DATA: u64 = 16 << 30;
/// Bytes that all unfinished data of a session may take together.
const MAX_PENDING: u64 = 24 << 30;

/// What of a call may wait: run by an executor.
pub(crate) type Job<R> = Box<dyn FnOnce(&Arc<Shared>) -> Result<R, Code> + Send>;

/// One program's state.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) platforms: Vec<Platform>,
    pub(crate) uploads: Uploads,
    /// Long answers, by program thread, until the next one.
    pub(crate) blobs: HashMap<u32, Vec<u8>>,
    pub(crate) svm: Svm,
    /// Bytes that memory objects were counted with, by id.
    pub(crate) counted: HashMap<u32, u64>,
    executors: Executors,
}

impl Session {
    /// A session over the machine's platforms. They and their devices have the first numbers, in their order.
    ///
    /// # Errors
    ///
    /// There are more of them than ids.
    pub fn new(
        platforms: Vec<Platform>,
        replier: Arc<dyn Replier>,
        usage: Arc<Usage>,
        capture: Capture,
    ) -> Result<Self, SessionError> {
        let shared = Arc::new(Shared::new(replier, usage, capture));
        for (number, platform) in (0..).zip(&platforms) {
            let object = Object { handle: platform.handle, api: platform.api, size: 0 };
            shared.objects.set(id(kind::PLATFORM, number), object)?;
        }
        let devices =
            platforms.iter().flat_map(|platform| platform.devices.iter().map(|device| (device.0, platform.api)));
        for (number, (handle, api)) in (0..).zip(devices) {
            shared.objects.set(id(kind::DEVICE, number), Object { handle, api, size: 0 })?;
        }
        let (uploads, blobs, executors) = (Uploads::new(MAX_DATA, MAX_PENDING), HashMap::new(), Executors::default());
        Ok(Self { shared, platforms, uploads, blobs, svm: Svm::default(), counted: HashMap::new(), executors })
    }

    /// Executes frames until the program closes its end.
    ///
    /// # Errors
    ///
    /// What the program did wrong, or why the worker cannot go on.
    pub fn serve(mut self, link: &mut dyn WorkerLink) -> Result<(), SessionError> {
        loop {
            match link.next()? {
                Event::Frame(frame) => self.execute(&frame.head, frame.payload)?,
                // Nobody asks for an interruption of a session that cannot be kept.
                Event::Interrupted => {}
                Event::Closed => return Ok(()),
            }
        }
    }

    /// Executes one frame.
    pub(crate) fn execute(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
        self.shared.usage.count_call();
        match dispatch(self, head, payload) {
            Ok(()) => Ok(()),
            Err(Fault::Fatal(error)) => Err(error),
            Err(Fault::Cl(code)) if head.wants_reply => Ok(self.shared.answer(head, code, &(), false)?),
            Err(Fault::Cl(code)) => {
                self.shared.defer(code);
                Ok(())
            }
        }
    }

    /// A call succeeded. Nobody may be sent a reply who does not wait: it would be taken for that of the next call.
    pub(crate) fn answer(&mut self, head: &FrameHead, reply: &impl Reply) -> Result<(), Fault> {
        if head.wants_reply {
            self.shared.answer(head, Code::SUCCESS, reply, false).map_err(SessionError::Link)?;
        }
        Ok(())
    }

    /// Has a call that may wait executed elsewhere, and answered from there.
    pub(crate) fn detach<R: Reply + 'static>(&mut self, head: &FrameHead, job: Job<R>) -> Result<(), Fault> {
        if !head.wants_reply {
            let message = message_name(head.opcode).unwrap_or("a message");
            return Err(SessionError::NoReplyWanted { message }.into());
        }
        let head = *head;
        let task = Box::new(move |shared: &Arc<Shared>| {
            // A program that is gone needs no answer; the monitor ends the process.
            let _ = match job(shared) {
                Ok(reply) => shared.answer(&head, Code::SUCCESS, &reply, true),
                Err(code) => shared.answer(&head, code, &(), true),
            };
        });
        Ok(self.executors.run(&self.shared, head.thread, task)?)
    }
}
