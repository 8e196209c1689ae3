//! State that the main loop, the executors, the event poller and the drivers' callbacks of a session share.

use std::sync::Arc;

use katydid_opencl_sys::{Code, cl_program};
use katydid_session_core::{Api, Calls, Capture, Messages, Replies, Usage};
use katydid_transport::LinkError;
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::{message_layout, message_name};

use crate::calls::callbacks::Callbacks;
use crate::calls::pending_reads::PendingReads;
use crate::calls::upcalls::Upcalls;
use crate::memory::charge::{MemoryCharges, MemoryKind};
use crate::memory::programs;
use crate::objects::object::Object;
use crate::objects::table::Objects;

/// State that all threads of a session share.
pub struct OpenclSessionShared {
    /// OpenCL objects of the session, by wire id.
    pub(crate) objects: Objects,
    /// Callbacks that are due.
    pub(crate) upcalls: Upcalls,
    /// Data that was read and not yet fetched.
    pub(crate) pending_reads: PendingReads,
    /// Resources that the session uses.
    pub(crate) usage: Arc<Usage>,
    /// The part of the usage that is memory.
    pub(crate) charges: Arc<MemoryCharges>,
    /// Callbacks of events that have not fired.
    pub(crate) callbacks: Callbacks,
    /// Calls that run outside of the main loop.
    pub(crate) calls: Calls,
    /// The link's direction to the program.
    pub(crate) replies: Replies,
}

/// The API that this crate's sessions speak.
#[derive(Debug)]
pub enum OpenCl {}

impl Api for OpenCl {
    type Code = Code;
    type SessionShared = OpenclSessionShared;
    /// Objects name their contexts.
    type Context = ();

    const SUCCESS: Code = Code::SUCCESS;
    const NO_CONTEXT: () = ();
    const EXECUTORS_SPIN: bool = false;
    const MESSAGES: Messages = Messages { name: message_name, layout: message_layout };

    fn to_wire(code: Code) -> u32 {
        code.0.cast_unsigned()
    }

    fn brings_output(_: Code) -> bool {
        false
    }

    fn calls(shared: &OpenclSessionShared) -> &Calls {
        &shared.calls
    }

    fn usage(shared: &OpenclSessionShared) -> &Usage {
        &shared.usage
    }

    fn replies(shared: &OpenclSessionShared) -> &Replies {
        &shared.replies
    }

    fn enter(_: &OpenclSessionShared, (): ()) {}
}

impl OpenclSessionShared {
    /// Charges the present memory of a program to the session.
    ///
    /// # Errors
    ///
    /// `CL_OUT_OF_RESOURCES`: the memory exceeds the limit.
    pub(crate) fn count_program(&self, id: u32, program: &Object<cl_program>) -> Result<(), Code> {
        let bytes = programs::bytes(program);
        // The program may have been released while it was built.
        let Ok(held) = self.objects.hold::<cl_program>(id) else { return Ok(()) };
        held.set_charge(None);
        let allowed = self.charges.charge(MemoryKind::Machine, bytes);
        let is_allowed = allowed.is_some();
        held.set_charge(Some(allowed.unwrap_or_else(|| self.charges.charge_anyway(MemoryKind::Machine, bytes))));
        if is_allowed { Ok(()) } else { Err(Code::OUT_OF_RESOURCES) }
    }

    pub(crate) fn new(usage: Arc<Usage>, capture: Capture) -> Self {
        Self {
            objects: Objects::default(),
            upcalls: Upcalls::default(),
            pending_reads: PendingReads::default(),
            charges: MemoryCharges::new(&usage),
            usage,
            callbacks: Callbacks::default(),
            calls: Calls::default(),
            replies: Replies::new(capture, OpenCl::to_wire(Code::OUT_OF_RESOURCES)),
        }
    }

    /// Answers a call. With `waited`, the output that kernels printed meanwhile goes with it.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub(crate) fn answer(
        &self,
        head: &FrameHead,
        code: Code,
        reply: &impl Reply,
        waited: bool,
    ) -> Result<(), LinkError> {
        let mut payload = Vec::new();
        if code == Code::SUCCESS {
            reply.encode(&mut payload);
        }
        let tail = if code == Code::SUCCESS { reply.tail() } else { &[] };
        self.replies.send(head, OpenCl::to_wire(code), [&payload, tail], waited)
    }
}
