//! A session under test: a program's frames in, replies out.

use std::sync::{Arc, Condvar, Mutex};

use katydid_arena::{AddressMap, Reservation};
use katydid_driver::Driver;
use katydid_session_core::{Capture, Usage};
use katydid_transport::{
    Buffer, Buffers, Frame, Hangup, LinkError, LinkEvent, OutgoingReply, Replier, Staging, WorkerLink,
};
use katydid_wire::codec::{Message, Reply};
use katydid_wire::facts::{DeviceFacts, Facts, PeerFacts};
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::message::{kdContextRetain, kdModuleFunction, kdModuleLoad, kdUpload};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::fake;
use crate::calls::fault::SessionError;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::host_memory::HostMemory;
use crate::session::Setup;
use crate::snapshot::CopyContext;
use crate::state::Session;

/// Start of the device arena: one GPU.
pub(super) const DEVICE: u64 = 0x2000_0000_0000;
/// A granule of device memory.
pub(super) const GRANULE_BYTES: u64 = 2 << 20;

/// A reply as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) sequence: u64,
    pub(super) status: u32,
    pub(super) deferred: u32,
    pub(super) payload: Vec<u8>,
}

/// Replies so far, for the thread that waits.
#[derive(Default)]
struct Replies {
    sent: Mutex<Vec<Sent>>,
    changed: Condvar,
}

impl Replies {
    fn wait(&self, sequence: u64) -> Sent {
        let mut sent = self.sent.lock().unwrap();
        loop {
            if let Some(at) = sent.iter().position(|reply| reply.sequence == sequence) {
                return sent.swap_remove(at);
            }
            sent = self.changed.wait(sent).unwrap();
        }
    }
}

impl Replier for Replies {
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
        let OutgoingReply { sequence, status, deferred, payload, tail, .. } = *answer;
        self.sent.lock().unwrap().push(Sent { sequence, status, deferred, payload: [payload, tail].concat() });
        self.changed.notify_all();
        Ok(())
    }
}

/// A program and its session.
pub(super) struct Stage {
    pub(super) session: Session,
    replies: Arc<Replies>,
    sequence: u64,
    /// The thread that the program sends from.
    pub(super) thread: u32,
    /// Wire id of the thread's current context.
    pub(super) context: u32,
}

impl Stage {
    /// A session with one device, at most 64 granules, and no context.
    pub(super) fn bare() -> Self {
        let arenas = [ArenaRange { kind: ArenaKind::DEVICE, base: DEVICE, length: 1 << 40 }];
        Self::with(&arenas, None)
    }

    /// A session with one device, and with pinned memory at an address of the system's choice. If it is shared, the program
    /// has made half of it.
    pub(super) fn with_host_memory(base: u64, length: u64, is_shared: bool) -> Self {
        let arenas = [
            ArenaRange { kind: ArenaKind::DEVICE, base: DEVICE, length: 1 << 40 },
            ArenaRange { kind: ArenaKind::PINNED, base, length },
        ];
        let arena = Reservation::at(base, length).unwrap();
        if !is_shared {
            arena.map_private(0, length).unwrap();
            return Self::with(&arenas, Some(HostMemory::private(arena)));
        }
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, length / 2).unwrap();
        arena.map_shared(0, length, &memory, 0).unwrap();
        Self::with(&arenas, Some(HostMemory::shared(arena, memory)))
    }

    fn with(arenas: &[ArenaRange], host: Option<HostMemory>) -> Self {
        let map = AddressMap::from_arenas(arenas).unwrap();
        let facts =
            Facts { devices: vec![DeviceFacts::default()], peers: vec![PeerFacts::default()], ..Facts::default() };
        let driver = Arc::new(fake::driver());
        Self::of(driver, facts, map, host, None)
    }

    /// A session on the given driver.
    pub(super) fn on(driver: Driver, facts: Facts, map: AddressMap, host: Option<HostMemory>) -> Self {
        Self::of(Arc::new(driver), facts, map, host, None)
    }

    /// A session with all parts given.
    pub(super) fn of(
        driver: Arc<Driver>,
        facts: Facts,
        map: AddressMap,
        host: Option<HostMemory>,
        copy_context: Option<CopyContext>,
    ) -> Self {
        let setup = Setup {
            copy_context,
            driver,
            device: DeviceMemory::new(map.clone(), &facts, Some(64 * GRANULE_BYTES)),
            facts,
            map,
            host,
            capture: Capture::default(),
            warm: Vec::new(),
            usage: Arc::new(Usage::default()),
        };
        let replies = Arc::new(Replies::default());
        let replier = Arc::clone(&replies);
        Self { session: Session::with_replier(setup, replier, None), replies, sequence: 0, thread: 1, context: 0 }
    }

    /// A session with context 1, and no recorded calls.
    pub(super) fn new() -> Self {
        let mut stage = Self::bare();
        stage.retain(1);
        fake::calls();
        stage
    }

    /// Makes context `id` and enters it.
    pub(super) fn retain(&mut self, id: u32) {
        assert_eq!(self.call(&kdContextRetain { context: id, device: 0, flags: 0 }).status, 0);
        self.context = id;
    }

    /// Loads module 1, and finds its function 1.
    pub(super) fn load(&mut self) {
        let image = katydid_fatbin::ModuleImage::from_bytes(b".version 8.0\n").unwrap().encode();
        self.enqueue(&kdUpload { total: image.len() as u64, data: &image });
        let load = kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
        assert_eq!(self.call(&load).status, 0);
        assert_eq!(self.call(&kdModuleFunction { function: 1, module: 1, name: b"saxpy" }).status, 0);
        fake::calls();
    }

    /// Gives the session buffers for bulk data, as a link without shared memory does.
    pub(super) fn lend_buffers(&mut self) -> Arc<Buffers> {
        let buffers = Buffers::new().unwrap();
        self.session.use_buffers(Some(&buffers));
        buffers
    }

    /// Sends a message whose payload arrived in `buffer`.
    pub(super) fn enqueue_from<M: Message>(&mut self, buffer: &mut Buffer, message: &M) {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        let length = payload.len();
        buffer.resized(length).unwrap().copy_from_slice(&payload);
        self.session.payload_buffer = Some(buffer.number());
        self.send(M::OPCODE, false, buffer.bytes()).unwrap();
        self.session.payload_buffer = None;
    }

    /// Makes a frame's head with the next sequence number.
    fn head(&mut self, opcode: u16, wants_reply: bool) -> FrameHead {
        self.sequence += 1;
        FrameHead { opcode, wants_reply, thread: self.thread, context: self.context, sequence: self.sequence }
    }

    /// Sends raw bytes.
    pub(super) fn send(&mut self, opcode: u16, wants_reply: bool, payload: &[u8]) -> Result<u64, SessionError> {
        let head = self.head(opcode, wants_reply);
        self.session.execute(&head, payload).map(|()| head.sequence)
    }

    /// Sends a message. Returns its number, or why the session ended.
    pub(super) fn try_send<M: Message>(&mut self, message: &M, wants_reply: bool) -> Result<u64, SessionError> {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        self.send(M::OPCODE, wants_reply, &payload)
    }

    /// Sends an honest message without a reply.
    pub(super) fn enqueue<M: Message>(&mut self, message: &M) {
        self.try_send(message, false).unwrap();
    }

    /// Sends an honest call without waiting.
    pub(super) fn begin<M: Message>(&mut self, message: &M) -> u64 {
        self.try_send(message, true).unwrap()
    }

    /// Waits for a reply.
    pub(super) fn wait(&self, sequence: u64) -> Sent {
        self.replies.wait(sequence)
    }

    /// Whether the reply was sent.
    pub(super) fn is_answered(&self, sequence: u64) -> bool {
        self.replies.sent.lock().unwrap().iter().any(|reply| reply.sequence == sequence)
    }

    /// Sends an honest call and waits for its reply.
    pub(super) fn call<M: Message>(&mut self, message: &M) -> Sent {
        let sequence = self.begin(message);
        self.wait(sequence)
    }

    /// Returns the reply of a call that succeeds.
    pub(super) fn reply<M: Message>(&mut self, message: &M) -> M::Reply {
        let sent = self.call(message);
        assert_eq!(sent.status, 0, "{}", M::NAME);
        M::Reply::decode(&sent.payload).unwrap()
    }
}

/// A frame of a script, and the number of the reply that the program awaits before it sends the frame.
pub(super) type Line = (FrameHead, Vec<u8>, Option<u64>);

/// A link whose program follows a script, then closes.
struct Script {
    lines: std::vec::IntoIter<Line>,
    now: Vec<u8>,
    replies: Arc<Replies>,
}

impl WorkerLink for Script {
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError> {
        let Some((head, payload, after)) = self.lines.next() else { return Ok(LinkEvent::Closed) };
        after.map(|sequence| self.replies.wait(sequence));
        self.now = payload;
        Ok(LinkEvent::Frame(Frame { head, payload: &self.now, buffer: None }))
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.replies) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn hangup(&self) -> Hangup {
        unreachable!("these tests watch no program")
    }
}

impl Stage {
    /// Makes a line of a script.
    pub(super) fn line<M: Message>(&mut self, message: &M, wants_reply: bool, after: Option<u64>) -> Line {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        (self.head(M::OPCODE, wants_reply), payload, after)
    }

    /// Serves a program that follows a script.
    pub(super) fn serve(self, lines: Vec<Line>) -> Result<(), SessionError> {
        let link = Script { lines: lines.into_iter(), now: Vec::new(), replies: self.replies };
        Box::leak(Box::new(self.session)).serve(Box::leak(Box::new(link)))
    }
}
