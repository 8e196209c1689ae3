//! The loop that executes a program's frames.
//!
//! Frames are executed in order by one thread, which never waits for the GPU. What goes wrong with a message is either
//! a code for the program or the end of the session ([`Fault`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_arena::{AddressMap, ReserveError};
use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_session_core::{Capture, Pumped, Uploads};
#[cfg(test)]
use katydid_transport::Replier;
use katydid_transport::{Buffers, Event, Spin, WorkerLink};
use katydid_wire::codec::Reply;
use katydid_wire::facts::Facts;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::message_name;

use crate::calls::busy_poll::{BusyPoll, PendingWait};
use crate::calls::dispatch::dispatch;
use crate::calls::executor::{self, Executors, Job, TaskContext, task};
use crate::calls::fault::{Fault, SessionError};
use crate::calls::relay::{self, Relay};
use crate::calls::shared::Shared;
use crate::code::images::Images;
use crate::code::store::ImageStore;
use crate::graphs::Graphs;
use crate::handlers::uses_pieces;
use crate::journal::{EventTimes, Journal, Replay};
use crate::memory::address_check::AddressCheck;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::holdings::Holdings;
use crate::memory::host_memory::HostMemory;
use crate::memory::reclaim::Reclaim;
use crate::memory::shares::Shares;
use crate::memory::usage::Usage;
use crate::memory::virtual_memory::VirtualMemory;
use crate::objects::tables::{Resolve, Tables};
use crate::snapshot::{Carrier, Snapshots};
use crate::state::{Session, WarmContext};
use crate::transfer::staged::StagingArea;

/// What a session is made of.
pub struct Setup {
    /// The driver, initialised.
    pub driver: Arc<Driver>,
    /// What the program is told about the devices.
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
    pub carrier: Option<Carrier>,
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
        self.shared.connect(link.replier());
        self.staging = link.staging().map(StagingArea::new);
        self.use_buffers(link.buffers());
    }

    /// Memory for bulk of the link.
    pub(crate) fn use_buffers(&mut self, buffers: Option<&Arc<Buffers>>) {
        self.buffers = buffers.cloned();
        self.buffered = buffers.map(|buffers| StagingArea::of_buffers(buffers));
    }

    /// The same over whatever carries replies.
    #[cfg(test)]
    pub(crate) fn with_replier(setup: Setup, replier: Arc<dyn Replier>, staging: Option<StagingArea>) -> Self {
        let mut session = Self::without_program(setup);
        session.shared.connect(replier);
        session.staging = staging;
        session
    }

    /// A session that is to be rebuilt, and whose program comes later.
    pub fn without_program(setup: Setup) -> Self {
        let mut address_check = AddressCheck::new(&setup.map);
        if setup.host.as_ref().is_some_and(HostMemory::is_shared) {
            address_check.share_pinned();
        }
        let blocks = setup.host.as_ref().map(HostMemory::books).unwrap_or_default();
        Self {
            shared: Arc::new(Shared::new(setup.driver, setup.capture, setup.usage, blocks)),
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
            images: Images::default(),
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
            snapshots: Snapshots::new(setup.carrier),
            is_relayed: false,
            waiting_upcall: None,
            frames: 0,
            orders: None,
            busy_poll: BusyPoll::default(),
            attributes: Vec::new(),
            executors: Executors::default(),
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

    /// The session of an image will lend to, and borrow from, programs that live in the first of these incarnations of its job
    /// (8 bytes each).
    pub fn live_in(&mut self, incarnations: &[u8]) {
        self.shares.live_in(incarnations);
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

    /// Executes frames until the program closes its end.
    ///
    /// The driver copies on from and to the session's memory, graphs run on, and a thread may still read the link: so neither
    /// session nor link can be dropped afterwards. They end with the process.
    ///
    /// # Errors
    ///
    /// What the program did wrong, or why the worker cannot go on.
    pub fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        let outcome = self.execute_all(link);
        // A companion that waits for an order hears that the session has ended.
        self.orders = None;
        outcome
    }

    fn execute_all(&mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        if self.is_relayed || self.waiting_upcall.is_some() {
            return self.serve_relayed(link);
        }
        loop {
            let opcode = match link.next()? {
                Event::Frame(frame) => {
                    self.busy_poll.is_on = true;
                    self.payload_buffer = frame.buffer;
                    self.execute(&frame.head, frame.payload)?;
                    self.payload_buffer = None;
                    self.busy_poll.is_on = false;
                    frame.head.opcode
                }
                Event::Interrupted => {
                    // Without a relay there was no host function, so that nothing comes while orders are obeyed.
                    self.execute_orders(&mut |_| Ok(Pumped::Frames(0)))?;
                    continue;
                }
                Event::Closed => return Ok(()),
            };
            self.poll_pending_wait(|| link.has_pending())?;
            self.spin_for_executor(|| link.has_pending());
            if relay::begins_with(opcode) {
                return self.serve_relayed(link);
            }
        }
    }

    /// The same, with a thread between link and main loop.
    fn serve_relayed(&mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        self.is_relayed = true;
        let mut relay = Relay::start(link, Arc::clone(&self.shared), self.waiting_upcall.take())?;
        let spin = Spin::for_word();
        while let Some(item) = executor::next(&relay.frames, &spin) {
            if relay.take(self, item)? == Pumped::End {
                break;
            }
        }
        Ok(())
    }

    /// Executes one frame, whose payload may be any bytes.
    ///
    /// # Errors
    ///
    /// What the program did wrong, which ends its session.
    pub fn execute(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
        self.shared.usage.count_call();
        let executed = self.enter_for(head).and_then(|()| {
            self.busy_poll.target = self.target(head, payload);
            dispatch(self, head, payload)
        });
        match executed {
            Ok(()) => Ok(()),
            Err(Fault::Fatal(error)) => Err(error),
            Err(Fault::Cuda(code)) => self.refuse(head, code),
        }
    }

    /// The program's call comes to `code`: as its reply, or for the next one.
    fn refuse(&mut self, head: &FrameHead, code: CUresult) -> Result<(), SessionError> {
        self.synchronised = false;
        if uses_pieces(head.opcode) {
            // They are of no use any more, and must not be taken for those of the thread's next call.
            self.uploads.discard(head.thread);
        }
        if head.wants_reply {
            return Ok(self.shared.answer(head, code, [&[]; 2], false)?);
        }
        self.shared.defer(code);
        Ok(())
    }

    /// The driver.
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
        H::table(&mut self.tables).set(id, handle, context)
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
            self.shared.defer(status);
        }
    }

    /// A call came to `status`.
    pub(crate) fn answer(&mut self, head: &FrameHead, status: CUresult, reply: &impl Reply) -> Result<(), Fault> {
        expect_reply(head)?;
        self.scratch.clear();
        reply.encode(&mut self.scratch);
        let synchronised = std::mem::take(&mut self.synchronised);
        if self.replay.is_on {
            self.replay.outcome = status;
            return Ok(());
        }
        Ok(self.shared.answer(head, status, [&self.scratch, reply.tail()], synchronised)?)
    }

    /// Has a call that may wait executed elsewhere, and answered from there; or looked at first ([`Session::poll_pending_wait`]).
    pub(crate) fn detach<R: Reply + 'static>(&mut self, head: &FrameHead, job: Job<R>) -> Result<(), Fault> {
        let task = task(*head, job);
        expect_reply(head)?;
        let (place, thread) = (self.place()?, head.thread);
        if let Some(target) = self.busy_poll.target.take() {
            self.busy_poll.pending = Some(PendingWait { target, thread, place, task });
            return Ok(());
        }
        Ok(self.executors.run(&self.shared, thread, place, task)?)
    }

    /// The current context, for an executor.
    fn place(&self) -> Result<TaskContext, Fault> {
        if self.entered == 0 {
            // What needs a context is refused by the driver.
            return Ok(TaskContext::NO_CONTEXT);
        }
        Ok(TaskContext { context: self.tables.contexts.get(self.entered)?, epoch: self.epoch })
    }
}

/// No thread may be sent a reply who does not wait: it would be taken for that of the next call.
fn expect_reply(head: &FrameHead) -> Result<(), SessionError> {
    let message = message_name(head.opcode).unwrap_or("a message");
    if head.wants_reply { Ok(()) } else { Err(SessionError::NoReplyWanted { message }) }
}
