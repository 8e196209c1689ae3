//! Creates sessions, and answers their calls.
//!
//! A failing message returns a code to the program or ends the session ([`Fault`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use katydid_opencl_sys::Code;
use katydid_session_core::{Api as _, Capture, Uploads, Usage, expect_reply};
use katydid_transport::{Replier, WorkerLink};
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{id, kind};

use crate::calls::busy_poll::main_loop;
use crate::calls::event_poller::EventPoller;
use crate::calls::executor::{ExecutorCall, task};
use crate::calls::fault::{Fault, SessionError};
use crate::calls::session_shared::{OpenCl, OpenclSessionShared};
use crate::drivers::devices;
use crate::drivers::driver::Platform;
use crate::journal::{Journal, Replay};
use crate::memory::host::HostMemory;
use crate::memory::staged::StagingArea;
use crate::memory::svm::Svm;
use crate::memory::zero_copy_area::ZeroCopyArea;
use crate::objects::object::Object;
use crate::state::Session;

/// Most bytes of one message's data; the shim refuses larger commands.
const MAX_MESSAGE_DATA_BYTES: u64 = 16 << 30;
/// Most bytes that all unfinished uploads of a session may take together.
const MAX_PENDING_BYTES: u64 = 24 << 30;

impl Session {
    /// Makes a session over the machine's platforms. They and their devices have the first numbers, in their order.
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
        let session = Self::without_program(platforms, usage, capture, String::new());
        session.shared.replies.connect(replier);
        for (number, platform) in (0..).zip(&session.platforms) {
            let object = Object { handle: platform.handle, api: platform.api, size: 0 };
            session.shared.objects.set(id(kind::PLATFORM, number), object, Vec::new())?;
        }
        let of = |platform: &Platform| -> Vec<_> {
            platform.devices.iter().map(|device| (device.0, platform.api)).collect()
        };
        for (number, (handle, api)) in (0..).zip(session.platforms.iter().flat_map(of)) {
            session.shared.objects.set(id(kind::DEVICE, number), Object { handle, api, size: 0 }, Vec::new())?;
        }
        Ok(session)
    }

    /// Makes a session to be rebuilt, whose program connects later. `requested` are devices to use in place of the saved ones:
    /// lines of `NEW` or `OLD=NEW`.
    pub fn without_program(platforms: Vec<Platform>, usage: Arc<Usage>, capture: Capture, requested: String) -> Self {
        Self {
            shared: Arc::new(OpenclSessionShared::new(usage, capture)),
            reported_platforms: devices::describe(&platforms),
            platforms,
            uploads: Uploads::new(MAX_MESSAGE_DATA_BYTES, MAX_PENDING_BYTES),
            blobs: HashMap::new(),
            svm: Svm::default(),
            destructors: HashMap::new(),
            listeners: HashMap::new(),
            journal: Journal::default(),
            replay: Replay::default(),
            rehearsal: None,
            device_answers: BTreeMap::new(),
            event_times: HashMap::new(),
            main_loop: main_loop(),
            markers: None,
            ending: Vec::new(),
            outlasting: Vec::new(),
            taken_for_done: HashMap::new(),
            requested,
            staging: None,
            staging_states: HashMap::new(),
            zero_copy: None,
            zero_copy_known: HashMap::new(),
            in_zero_copy: HashMap::new(),
            host: None,
            images_in_place: HashMap::new(),
            is_in_host: HashSet::new(),
            mapped_in_host: HashSet::new(),
            was_in_host: HashSet::new(),
            host_maps: HashMap::new(),
            ready: Arc::default(),
            given_pipes: HashSet::new(),
            event_poller: EventPoller::default(),
        }
    }

    /// Attaches the memory that the program's link shares.
    pub fn attach(&mut self, link: &dyn WorkerLink) {
        self.staging_states.clear();
        self.staging = link.staging().map(StagingArea::new);
        self.in_zero_copy.clear();
        self.zero_copy = link.zero_copy().map(ZeroCopyArea::new);
    }

    /// Sets the memory at addresses that the program knows: its own, or to become its own when it attaches.
    pub fn share(&mut self, host: Option<HostMemory>) {
        self.host = host;
    }

    /// Answers a successful call. A thread that does not wait gets no reply: it would take it for that of its next call.
    pub(crate) fn answer(&mut self, head: &FrameHead, reply: &impl Reply) -> Result<(), Fault> {
        if head.wants_reply && !self.replay.is_on {
            self.shared.answer(head, Code::SUCCESS, reply, false).map_err(SessionError::Link)?;
        }
        Ok(())
    }

    /// Runs a call that may wait on an executor, which also answers it.
    pub(crate) fn detach<R: Reply + 'static>(&mut self, head: &FrameHead, job: ExecutorCall<R>) -> Result<(), Fault> {
        if let Err(error) = expect_reply(head, &OpenCl::MESSAGES) {
            // The driver may already use what the job holds.
            std::mem::forget(job);
            return Err(error.into());
        }
        if self.replay.is_on {
            self.replay.outcome = job(&self.shared).err().unwrap_or(Code::SUCCESS);
            return Ok(());
        }
        Ok(self.main_loop.run(&self.shared, head.thread, (), task(*head, job))?)
    }
}
