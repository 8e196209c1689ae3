//! The setup of a session, and the replies to its calls.
//!
//! A failed message gives either a code for the program or the end of the session ([`Fault`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_arena::{AddressMap, ReserveError};
use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_session_core::{Api as _, Capture, Uploads, Usage, expect_reply};
#[cfg(test)]
use katydid_transport::Replier;
use katydid_transport::{Buffers, WorkerLink};
use katydid_wire::codec::Reply;
use katydid_wire::facts::Facts;
use katydid_wire::frame::FrameHead;

use crate::calls::busy_poll::main_loop;
use crate::calls::executor::{ExecutorCall, task};
use crate::calls::fault::Fault;
use crate::calls::session_shared::{Cuda, CudaSessionShared, TaskContext};
use crate::code::module_cache::ModuleCache;
use crate::code::module_images::ModuleImages;
use crate::graphs::Graphs;
use crate::journal::{EventTimes, Journal, Replay};
use crate::memory::address_check::AddressCheck;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::holdings::Holdings;
use crate::memory::host_memory::HostMemory;
use crate::memory::reclaim::Reclaim;
use crate::memory::shares::Shares;
use crate::memory::virtual_memory::VirtualMemory;
use crate::objects::resolve::Resolve;
use crate::objects::tables::Tables;
use crate::snapshot::{CopyContext, Snapshots};
use crate::state::{Session, WarmContext};
use crate::transfer::staged::StagingArea;

/// The parts of a new session.
pub struct Setup {
    /// Driver library, after `cuInit`.
    pub driver: Arc<Driver>,
    /// The facts of the devices that the session sends the program.
    pub facts: Facts,
    /// The map of the arenas.
    pub map: AddressMap,
    /// Device memory, its addresses reserved.
    pub device: DeviceMemory,
    /// Pinned memory, its addresses mapped; none if the two sides found no common range.
    pub host: Option<HostMemory>,
    /// The driver's printed output.
    pub capture: Capture,
    /// Contexts that the worker retained before it had a program.
    pub warm: Vec<WarmContext>,
    /// Streams and kernel for contents of memory, if the driver could make them.
    pub copy_context: Option<CopyContext>,
    /// Read by the worker's monitor.
    pub usage: Arc<Usage>,
}

impl Session {
    /// Makes a new session.
    pub fn new(setup: Setup, link: &dyn WorkerLink) -> Self {
        let mut session = Self::without_program(setup);
        session.connect(link);
        session
    }

    /// Connects the program's link; once a session.
    pub fn connect(&mut self, link: &dyn WorkerLink) {
        self.shared.replies.connect(link.replier());
        self.staging = link.staging().map(StagingArea::new);
        self.use_buffers(link.buffers());
    }

    /// Sets the buffers for bulk of the link.
    pub(crate) fn use_buffers(&mut self, buffers: Option<&Arc<Buffers>>) {
        self.buffers = buffers.cloned();
        self.buffered = buffers.map(|buffers| StagingArea::of_buffers(buffers));
    }

    /// Makes a session over any replier.
    #[cfg(test)]
    pub(crate) fn with_replier(setup: Setup, replier: Arc<dyn Replier>, staging: Option<StagingArea>) -> Self {
        let mut session = Self::without_program(setup);
        session.shared.replies.connect(replier);
        session.staging = staging;
        session
    }

    /// Makes a session that is to be rebuilt, and whose program comes later.
    pub fn without_program(setup: Setup) -> Self {
        let mut address_check = AddressCheck::new(&setup.map);
        if setup.host.as_ref().is_some_and(HostMemory::is_shared) {
            address_check.share_pinned();
        }
        let blocks = setup.host.as_ref().map(HostMemory::shared_blocks).unwrap_or_default();
        Self {
            shared: Arc::new(CudaSessionShared::new(setup.driver, setup.capture, setup.usage, blocks)),
            tables: Tables::default(),
            facts: setup.facts,
            address_check,
            device: setup.device,
            virtual_memory: VirtualMemory::default(),
            holdings: Holdings::default(),
            shares: Shares::default(),
            host: setup.host,
            staging: None,
            buffers: None,
            buffered: None,
            payload_buffer: None,
            packer: Arc::default(),
            uploads: Uploads::of_images(),
            images: ModuleImages::default(),
            module_cache: None,
            unstored: HashSet::new(),
            graphs: Graphs::default(),
            linked: HashMap::new(),
            warm: setup.warm,
            current: 0,
            entered: 0,
            green_contexts: BTreeMap::new(),
            epoch: 1,
            thread_streams: HashMap::new(),
            synchronized: false,
            journal: Journal::default(),
            event_times: EventTimes::default(),
            replay: Replay::default(),
            snapshots: Snapshots::new(setup.copy_context),
            is_relayed: false,
            main_loop: main_loop(),
            attributes: Vec::new(),
            reply_payload: Vec::new(),
        }
    }

    /// Returns the reclaim state of the session.
    pub fn reclaim(&self) -> Arc<Reclaim> {
        Arc::clone(&self.shared.reclaim)
    }

    /// Has the session look for images in `module_cache` before programs send them.
    pub fn use_module_cache(&mut self, module_cache: ModuleCache) {
        self.module_cache = Some(module_cache);
    }

    /// Sets the generations of its job (8 bytes each): the session exports to, and imports from, programs that live in the
    /// first of them.
    pub fn live_in(&mut self, generations: &[u8]) {
        self.shares.live_in(generations);
    }

    /// Joins the program of a rebuilt session, with its pinned memory if that is the program's own.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn join_host(&mut self, shared: Option<BorrowedFd<'_>>) -> Result<(), ReserveError> {
        if shared.is_some() {
            self.address_check.share_pinned();
        }
        self.host.as_mut().map_or(Ok(()), |host| host.join(shared))
    }

    /// The CUDA driver that the session's calls go to.
    pub(crate) fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    /// Returns the driver's handle of wire id `id`.
    pub(crate) fn handle<H: Resolve>(&mut self, head: &FrameHead, id: u32) -> Result<H, Fault> {
        H::resolve(self, head, id)
    }

    /// Gives `id` to an object that the driver made in the current context.
    pub(crate) fn bind<H: Resolve>(&mut self, id: u32, handle: H) -> Result<(), Fault> {
        let context = if H::IS_OF_GREEN { self.entered } else { self.current };
        let table = H::table(&mut self.tables);
        if self.replay.is_on {
            // The program assigned the id before: there is no rule for its distance from the others.
            table.resume(id);
        }
        table.set(id, handle, context)
    }

    /// Forgets the ended object of `id`.
    pub(crate) fn forget<H: Resolve>(&mut self, id: u32) {
        H::ended(self, id);
    }

    /// Notes the status of an enqueued call.
    pub(crate) fn enqueued(&mut self, _name: &'static str, status: CUresult) {
        if self.replay.is_on {
            self.replay.outcome = status;
        } else if status != CUresult::SUCCESS {
            self.shared.replies.defer(status.0);
        }
    }

    /// Answers a call with its status and reply.
    pub(crate) fn answer(&mut self, head: &FrameHead, status: CUresult, reply: &impl Reply) -> Result<(), Fault> {
        expect_reply(head, &Cuda::MESSAGES)?;
        self.reply_payload.clear();
        reply.encode(&mut self.reply_payload);
        let synchronized = std::mem::take(&mut self.synchronized);
        if self.replay.is_on {
            self.replay.outcome = status;
            return Ok(());
        }
        Ok(self.shared.answer(head, status, [&self.reply_payload, reply.tail()], synchronized)?)
    }

    /// Has an executor run and answer a call that may wait, or polls it first.
    pub(crate) fn detach<R: Reply + 'static>(&mut self, head: &FrameHead, job: ExecutorCall<R>) -> Result<(), Fault> {
        let task = task(*head, job);
        expect_reply(head, &Cuda::MESSAGES)?;
        let context = self.task_context()?;
        Ok(self.main_loop.run(&self.shared, head.thread, context, task)?)
    }

    /// Returns the current context, for an executor.
    fn task_context(&self) -> Result<TaskContext, Fault> {
        if self.entered == 0 {
            // The driver refuses calls that need a context.
            return Ok(Cuda::NO_CONTEXT);
        }
        Ok(TaskContext { context: self.tables.contexts.get(self.entered)?, epoch: self.epoch })
    }
}
