//! What a session is made of, and how its calls are answered.
//!
//! What goes wrong with a message is either a code for the program or the end of the session ([`Fault`]).

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
use crate::code::module_images::ModuleImages;
use crate::code::store::ImageStore;
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

/// What a session is made of.
pub struct Setup {
    /// Driver library, after `cuInit`.
    pub driver: Arc<Driver>,
    /// The facts of the devices that the session sends the program.
    pub facts: Facts,
    /// Where the arenas lie.
    pub map: AddressMap,
    /// Device memory, its addresses reserved.
    pub device: DeviceMemory,
    /// Pinned memory, its addresses mapped; none if the two sides found no common range.
    pub host: Option<HostMemory>,
    /// Where the driver prints to.
    pub capture: Capture,
    /// Contexts that the worker retained before it had a program.
    pub warm: Vec<WarmContext>,
    /// What carries contents of memory in and out, where the driver let it be made.
    pub copy_context: Option<CopyContext>,
    /// Read by the worker's monitor.
    pub usage: Arc<Usage>,
}

impl Session {
    /// A session that nothing has happened in yet.
    pub fn new(setup: Setup, link: &dyn WorkerLink) -> Self {
        let mut session = Self::without_program(setup);
        session.connect(link);
        session
    }

    /// The program's link; once a session.
    pub fn connect(&mut self, link: &dyn WorkerLink) {
        self.shared.replies.connect(link.replier());
        self.staging = link.staging().map(StagingArea::new);
        self.use_buffers(link.buffers());
    }

    /// Memory for bulk of the link.
    pub(crate) fn use_buffers(&mut self, buffers: Option<&Arc<Buffers>>) {
        self.buffers = buffers.cloned();
        self.buffered = buffers.map(|buffers| StagingArea::of_buffers(buffers));
    }

    /// A session over whatever carries replies.
    #[cfg(test)]
    pub(crate) fn with_replier(setup: Setup, replier: Arc<dyn Replier>, staging: Option<StagingArea>) -> Self {
        let mut session = Self::without_program(setup);
        session.shared.replies.connect(replier);
        session.staging = staging;
        session
    }

    /// A session that is to be rebuilt, and whose program comes later.
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
            store: None,
            unstored: HashSet::new(),
            graphs: Graphs::default(),
            linked: HashMap::new(),
            warm: setup.warm,
            current: 0,
            entered: 0,
            greens: BTreeMap::new(),
            epoch: 1,
            thread_streams: HashMap::new(),
            synchronised: false,
            journal: Journal::default(),
            event_times: EventTimes::default(),
            replay: Replay::default(),
            snapshots: Snapshots::new(setup.copy_context),
            is_relayed: false,
            main_loop: main_loop(),
            attributes: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// What the session and others of its server want of each other.
    pub fn reclaim(&self) -> Arc<Reclaim> {
        Arc::clone(&self.shared.reclaim)
    }

    /// Has the session look for images in `store` before they are sent.
    pub fn use_store(&mut self, store: ImageStore) {
        self.store = Some(store);
    }

    /// The session of an image will export to, and import from, programs that live in the first of these generations of its job
    /// (8 bytes each).
    pub fn live_in(&mut self, generations: &[u8]) {
        self.shares.live_in(generations);
    }

    /// The program of a rebuilt session is there, with its pinned memory if that is its own.
    ///
    /// # Errors
    ///
    /// What the system refuses.
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

    /// The driver's handle of wire id `id`.
    pub(crate) fn handle<H: Resolve>(&mut self, head: &FrameHead, id: u32) -> Result<H, Fault> {
        H::resolve(self, head, id)
    }

    /// Gives `id` to an object that the driver made in the current context.
    pub(crate) fn bind<H: Resolve>(&mut self, id: u32, handle: H) -> Result<(), Fault> {
        let context = if H::IS_OF_GREEN { self.entered } else { self.current };
        let table = H::table(&mut self.tables);
        if self.replay.is_on {
            // The program minted the id before: nothing says how far from the others.
            table.resume(id);
        }
        table.set(id, handle, context)
    }

    /// The object behind `id` was ended.
    pub(crate) fn forget<H: Resolve>(&mut self, id: u32) {
        H::ended(self, id);
    }

    /// An enqueued call came to `status`.
    pub(crate) fn enqueued(&mut self, _name: &'static str, status: CUresult) {
        if self.replay.is_on {
            self.replay.outcome = status;
        } else if status != CUresult::SUCCESS {
            self.shared.replies.defer(status.0);
        }
    }

    /// A call came to `status`.
    pub(crate) fn answer(&mut self, head: &FrameHead, status: CUresult, reply: &impl Reply) -> Result<(), Fault> {
        expect_reply(head, &Cuda::MESSAGES)?;
        self.scratch.clear();
        reply.encode(&mut self.scratch);
        let synchronised = std::mem::take(&mut self.synchronised);
        if self.replay.is_on {
            self.replay.outcome = status;
            return Ok(());
        }
        Ok(self.shared.answer(head, status, [&self.scratch, reply.tail()], synchronised)?)
    }

    /// Has an executor run and answer a call that may wait, or polls it first.
    pub(crate) fn detach<R: Reply + 'static>(&mut self, head: &FrameHead, job: ExecutorCall<R>) -> Result<(), Fault> {
        let task = task(*head, job);
        expect_reply(head, &Cuda::MESSAGES)?;
        let context = self.task_context()?;
        Ok(self.main_loop.run(&self.shared, head.thread, context, task)?)
    }

    /// The current context, for an executor.
    fn task_context(&self) -> Result<TaskContext, Fault> {
        if self.entered == 0 {
            // What needs a context is refused by the driver.
            return Ok(Cuda::NO_CONTEXT);
        }
        Ok(TaskContext { context: self.tables.contexts.get(self.entered)?, epoch: self.epoch })
    }
}
