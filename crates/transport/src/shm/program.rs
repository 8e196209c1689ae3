//! The program's end: threads write frames under one short lock, and each waits for its reply in its own slot.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_wire::frame::{FrameHead, HEAD_BYTES, ReplyHead, padded};
use katydid_wire::key::SessionKey;
use rustix::fs::ftruncate;

use crate::link::address::Address;
use crate::link::batch::{FrameInfo, OrderingRules, StreamKey};
use crate::link::error::{ConnectError, LinkError};
use crate::link::gate::{LinkGate, NotifyFd, QuiesceGate, may_wait};
use crate::link::program::{BatchLink, CallLink, QuiesceLink, ReclaimLink};
use crate::link::reconnect::{LINK_CLOSE_TIMEOUT, Reconnect, borrowed};
use crate::link::thread_ids::ThreadIds;
use crate::os::descriptor::{Descriptor, Placeholder, above_standard};
use crate::shm::channel::{ReplyWords, RingMemory, reply_slot};
use crate::shm::layout::{
    CHANNEL_ADDRESS, CHANNEL_BYTES, INITIAL_PINNED_BYTES, RECLAIM_NOTICES_OFFSET, REPLY_FRAME_OFFSET, REPLY_SLOT_BYTES,
    REPLY_SLOTS_OFFSET, RING_OFFSET, RING_WINDOW_BYTES,
};
use crate::shm::mapped_fd::MappedFd;
use crate::shm::reply;
use crate::shm::reply::ReplyCell as _;
use crate::shm::ring::{InvalidCounter, Producer};
use crate::shm::shared_mapping::SharedMapping;
use crate::shm::staging::Staging;
use crate::shm::staging_map::StagingMap;
use crate::sync::biased_lock::{BiasedLock, BiasedLockGuard};
use crate::sync::wait::Spin;
use crate::sync::{barrier, wait};

/// Errors of a worker that is damaged.
const HEAD_MOVED: LinkError = LinkError::Protocol { what: "the ring's read counter has an impossible value" };
const WRONG_REPLY: LinkError = LinkError::Protocol { what: "a reply is for another thread or request" };
/// How often a thread retries whose frame finds no room in a ring that no worker reads.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The program's end of a shared-memory link.
pub(crate) struct ShmProgram {
    shared: Arc<SharedMapping>,
    ring: RingMemory,
    queue: BiasedLock<FrameQueue>,
    /// The count of [`CallLink::enqueued`]; written under the lock of `queue`, by plain instructions.
    enqueued: AtomicU64,
    /// Notified when the limit has moved, or the worker is back or gone for good. Waiting threads then check the queue under its
    /// lock.
    opened: Condvar,
    waiting: Mutex<()>,
    notify_fd: NotifyFd,
    thread_ids: Arc<ThreadIds>,
    staging: Staging,
    socket: Arc<Descriptor>,
    spin: Spin,
    space_spin: Spin,
    reconnect: Reconnect,
    /// The channel and, if the sides share one, the pinned memory.
    memory: Vec<MappedFd>,
    /// Bytes of the pinned memory.
    pinned_length: Mutex<u64>,
    /// Whether [`CallLink::enable_fast_path`] was called.
    is_fast_path: AtomicBool,
    /// The word of reclaim notices as last read.
    notices_heard: AtomicU32,
    /// Number of accessible reply slots, which are the first ones. The others are inaccessible, since `mlockall` fills accessible
    /// pages.
    open_reply_slots: AtomicU32,
}

/// The producer's side of the ring, the number of the next frame, and the gate.
#[derive(Default)]
struct FrameQueue {
    producer: Producer,
    sequence: u64,
    gate: LinkGate,
}

impl ShmProgram {
    /// Maps the channel and the staging pieces, and keeps both out of forked children.
    pub(crate) fn new(
        socket: OwnedFd,
        channel: OwnedFd,
        pinned: Option<OwnedFd>,
        pieces: &OwnedFd,
        reconnect: Reconnect,
    ) -> Result<Self, LinkError> {
        let failed = LinkError::system("map the shared memory");
        let mapped = SharedMapping::map(&channel, CHANNEL_BYTES, CHANNEL_ADDRESS)
            .and_then(|shared| Ok((shared, StagingMap::new(pieces)?)));
        let (shared, map) = mapped.map_err(failed)?;
        for memory in [&shared, map.memory()] {
            memory.keep_from_children().map_err(LinkError::system("keep the shared memory from forked children"))?;
        }
        shared
            .set_access(REPLY_SLOTS_OFFSET, CHANNEL_BYTES - REPLY_SLOTS_OFFSET, false)
            .map_err(LinkError::system("close the slots for replies"))?;
        shared.populate(RING_OFFSET, RING_WINDOW_BYTES);
        map.close_zero_copy().map_err(LinkError::system("close the zero-copy area"))?;
        let shared = Arc::new(shared);
        let socket = Arc::new(Descriptor::new(socket).map_err(LinkError::system("keep the connection"))?);
        let keep = |fd, name, address| Ok(MappedFd::new(above_standard(fd)?, name, address));
        let mut memory = vec![keep(channel, "channel", shared.pointer(0).addr() as u64)];
        memory.extend(pinned.zip(reconnect.pinned_base()).map(|(fd, base)| keep(fd, "pinned memory", base)));
        let memory = memory.into_iter().collect::<io::Result<_>>();
        let pinned_length = Mutex::new(INITIAL_PINNED_BYTES);
        Ok(Self {
            ring: RingMemory::new(Arc::clone(&shared)),
            queue: BiasedLock::new(FrameQueue::default()),
            enqueued: AtomicU64::new(0),
            opened: Condvar::new(),
            waiting: Mutex::default(),
            notify_fd: NotifyFd::default(),
            thread_ids: ThreadIds::new(),
            staging: Staging::new(Arc::clone(&shared), map, Some(Arc::clone(&socket))),
            shared,
            socket,
            spin: Spin::for_work(),
            space_spin: Spin::new(wait::MAX_MEMORY_SPIN_NS),
            reconnect,
            memory: memory.map_err(LinkError::system("keep the shared memory"))?,
            pinned_length,
            is_fast_path: AtomicBool::new(false),
            notices_heard: AtomicU32::new(0),
            open_reply_slots: AtomicU32::new(0),
        })
    }

    /// Locks the queue, for a thread that sends nothing.
    fn lock(&self) -> BiasedLockGuard<'_, FrameQueue> {
        self.queue.take(0)
    }

    /// Locks the queue once this frame may go into it.
    #[inline]
    fn admitted(&self, head: &FrameHead, parts: &[&[u8]]) -> Result<BiasedLockGuard<'_, FrameQueue>, LinkError> {
        let queue = self.queue.take(head.thread);
        if queue.gate.is_open(queue.sequence) && self.socket.is_connected() {
            return Ok(queue);
        }
        drop(queue);
        self.wait_for_admission(head, parts)
    }

    #[cold]
    fn wait_for_admission(
        &self,
        head: &FrameHead,
        parts: &[&[u8]],
    ) -> Result<BiasedLockGuard<'_, FrameQueue>, LinkError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut queue = self.queue.take(head.thread);
            let number = queue.sequence;
            if queue.gate.admit(number, FrameInfo::of(head, parts)) && self.socket.is_connected() {
                return Ok(queue);
            }
            self.socket.get()?;
            if queue.gate.note_waiting(number) {
                self.notify_fd.notify();
            }
            drop(queue);
            may_wait()?;
            waiting = self.opened.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes all threads that wait for admission check again.
    fn wake_waiters(&self) {
        // A thread that has just found the gate closed is waiting by now.
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.opened.notify_all();
    }

    /// Passes on the outcome of a thread's use of the link. If that found the link closed, wakes waiting threads, also those that
    /// wait for another worker or the end of a hold. Not for a thread that holds the queue, since woken threads lock it.
    fn wake_if_closed<T>(&self, outcome: Result<T, LinkError>) -> Result<T, LinkError> {
        // A forked child has no other thread to tell, and locks may be held for ever.
        if outcome.is_err() && matches!(self.socket.get(), Err(LinkError::Closed)) {
            self.wake_all();
        }
        outcome
    }

    #[cold]
    fn wake_all(&self) {
        self.staging.give_up();
        self.wake_waiters();
        let reclaim_notices = self.shared.word(RECLAIM_NOTICES_OFFSET);
        // A thread that is about to sleep on the word then does not.
        reclaim_notices.fetch_add(1, Ordering::Release);
        wait::wake(reclaim_notices);
    }

    /// Puts a frame into the ring and returns its number. Unless `is_lazy`, wakes a worker that sleeps.
    #[inline]
    fn put(&self, mut head: FrameHead, parts: &[&[u8]], is_lazy: bool) -> Result<u64, LinkError> {
        let payload = parts.iter().map(|part| part.len()).sum();
        let length = padded(HEAD_BYTES + payload) as u64;
        let mut queue = loop {
            let mut queue = self.admitted(&head, parts)?;
            queue.producer.wrap_early(&self.ring).map_err(|InvalidCounter| self.broken())?;
            let has_space = queue.producer.has_space(&self.ring, length).map_err(|InvalidCounter| self.broken())?;
            if has_space || self.wait_for_space(&mut queue.producer, length)? {
                break queue;
            }
            // The thread that handles the loss needs the queue.
            drop(queue);
            thread::sleep(CLOSE_POLL_INTERVAL);
        };
        head.sequence = queue.sequence;
        let bytes = head.encode(payload)?;
        queue.producer.write(&self.ring, 0, &bytes);
        let mut offset = HEAD_BYTES as u64;
        for part in parts {
            queue.producer.write(&self.ring, offset, part);
            offset += part.len() as u64;
        }
        if !head.wants_reply {
            self.enqueued.store(self.enqueued.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        if is_lazy {
            queue.producer.publish_lazily(&self.ring, length);
        } else {
            queue.producer.publish(&self.ring, length);
        }
        queue.sequence += 1;
        Ok(head.sequence)
    }

    /// Queues a frame that no thread waits for.
    #[inline]
    fn send(&self, opcode: u16, context: u32, parts: &[&[u8]], is_lazy: bool) -> Result<(), LinkError> {
        self.socket.get()?;
        self.wake_if_closed(self.thread_ids.send(|thread| {
            let head = FrameHead { opcode, wants_reply: false, thread, context, sequence: 0 };
            self.put(head, parts, is_lazy).map(|_| ())
        }))
    }

    /// Waits for room in the ring. Returns false if the worker was lost meanwhile, and may be replaced.
    #[cold]
    fn wait_for_space(&self, producer: &mut Producer, length: u64) -> Result<bool, LinkError> {
        loop {
            let has_space = self.space_spin.until(|| match producer.has_space(&self.ring, length) {
                Ok(false) => None,
                other => Some(other),
            });
            if let Some(has_space) = has_space {
                return has_space.map_err(|InvalidCounter| self.broken());
            }
            producer.sleep(&self.ring, length).map_err(|InvalidCounter| self.broken())?;
            self.socket.check()?;
            if !self.socket.is_connected() {
                return Ok(false);
            }
        }
    }

    fn broken(&self) -> LinkError {
        self.socket.give_up();
        HEAD_MOVED
    }

    /// Returns a thread's reply slot, and makes it accessible.
    fn open_slot(&self, thread: u32) -> Result<usize, LinkError> {
        let slot = reply_slot(thread).ok_or(WRONG_REPLY)?;
        if self.open_reply_slots.load(Ordering::Acquire) < thread {
            self.open_slots_up_to(thread)?;
        }
        Ok(slot)
    }

    /// Makes the slots up to this thread's accessible. Threads have the lowest free numbers, so those before it are in use as
    /// well.
    #[cold]
    fn open_slots_up_to(&self, thread: u32) -> Result<(), LinkError> {
        let opened = self.shared.set_access(REPLY_SLOTS_OFFSET, thread as usize * REPLY_SLOT_BYTES, true);
        opened.map_err(LinkError::system("open a slot for replies"))?;
        self.open_reply_slots.fetch_max(thread, Ordering::AcqRel);
        Ok(())
    }

    /// Waits until the reply is in `slot`.
    fn wait_for_reply(&self, slot: usize) -> Result<(), LinkError> {
        let cell = ReplyWords::new(&self.shared, slot);
        let arrived = || cell.has_arrived().then_some(());
        if self.spin.until(arrived).is_some() {
            return Ok(());
        }
        loop {
            reply::sleep(&cell);
            if arrived().is_some() {
                return Ok(());
            }
            // A reply that came just before the worker ended still counts.
            self.socket.check().or_else(|closed| arrived().ok_or(closed))?;
        }
    }

    /// Copies the reply to a request, given by number and thread, out of its slot.
    fn take_reply(&self, slot: usize, expected: (u64, u32), reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        let mut bytes = [0; HEAD_BYTES];
        self.shared.copy_out(slot + REPLY_FRAME_OFFSET, &mut bytes);
        let (head, body) = ReplyHead::decode(&bytes)?;
        if (head.sequence, head.thread) != expected {
            return Err(WRONG_REPLY);
        }
        reply.clear();
        self.shared.append_to(slot + REPLY_FRAME_OFFSET + HEAD_BYTES, body, reply);
        Ok(head)
    }
}

impl CallLink for ShmProgram {
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.send(opcode, context, parts, false)
    }

    fn enqueue_lazily(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.send(opcode, context, parts, true)
    }

    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        self.socket.get()?;
        let is_over = |thread| reply_slot(thread).is_some_and(|slot| ReplyWords::new(&self.shared, slot).has_arrived());
        self.wake_if_closed(self.thread_ids.call(is_over, |thread| {
            let slot = self.open_slot(thread)?;
            ReplyWords::new(&self.shared, slot).clear();
            let head = FrameHead { opcode, wants_reply: true, thread, context, sequence: 0 };
            let sequence = self.put(head, parts, false)?;
            self.wait_for_reply(slot)?;
            // A worker that sends a wrong reply can no longer be trusted.
            self.take_reply(slot, (sequence, thread), reply).inspect_err(|_| self.socket.give_up())
        }))
    }

    fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    fn disable_spin(&self) {
        self.spin.disable_spin();
    }

    fn is_multithreaded(&self) -> bool {
        self.thread_ids.are_several()
    }

    fn enable_fast_path(&self) {
        self.is_fast_path.store(true, Ordering::Relaxed);
        let is_registered = barrier::register();
        self.ring.set_registered(is_registered);
        if is_registered {
            self.queue.enable_bias();
        }
    }
}

impl BatchLink for ShmProgram {
    fn staging(&self) -> Option<&Staging> {
        Some(&self.staging)
    }

    fn begin_batch(&self, stream_key: StreamKey, rules: OrderingRules) -> Result<u64, LinkError> {
        self.thread_ids.send(|thread| {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(number) = self.queue.take(thread).gate.begin_batch(stream_key, rules) {
                    return Ok(number);
                }
                self.socket.get()?;
                waiting = self.opened.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        })
    }

    fn end_batch(&self, number: u64) {
        let end = |thread| self.queue.take(thread).gate.end_batch(number);
        // If all thread ids are taken, several threads use 0.
        if self.thread_ids.send(|thread| Ok(end(thread))).unwrap_or_else(|_| end(0)) {
            self.wake_waiters();
        }
    }
}

impl QuiesceLink for ShmProgram {
    fn wait_until_open(&self) -> Result<(), LinkError> {
        let head = FrameHead { opcode: 0, wants_reply: false, thread: 0, context: 0, sequence: 0 };
        self.admitted(&head, &[]).map(drop)
    }

    fn abandon(&self) {
        self.socket.abandon();
        self.shared.abandon();
        self.staging.abandon();
    }

    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        Some(self)
    }
}

impl ReclaimLink for ShmProgram {
    fn lengthen_pinned(&self, length: u64) -> io::Result<()> {
        let mut pinned_length = self.pinned_length.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pinned) = self.memory.get(1).filter(|_| length > *pinned_length) else { return Ok(()) };
        let longer = length.checked_next_power_of_two().ok_or(io::ErrorKind::InvalidInput)?;
        ftruncate(pinned.get()?, longer)?;
        *pinned_length = longer;
        Ok(())
    }

    fn next_reclaim_notice(&self) -> Result<u32, LinkError> {
        let word = self.shared.word(RECLAIM_NOTICES_OFFSET);
        loop {
            self.socket.get()?;
            let number = word.load(Ordering::Acquire);
            if self.notices_heard.swap(number, Ordering::Relaxed) != number {
                return Ok(number);
            }
            wait::sleep_on(word, number);
        }
    }
}

impl QuiesceGate for ShmProgram {
    fn hold(&self) -> u64 {
        let mut queue = self.lock();
        queue.gate.hold();
        queue.sequence
    }

    fn release(&self) {
        self.lock().gate.open();
        self.wake_waiters();
        // After a restore this process must be registered again. Registering twice does no harm.
        if self.is_fast_path.load(Ordering::Relaxed) {
            self.enable_fast_path();
        }
    }

    fn set_stop_at(&self, frame: u64) -> io::Result<()> {
        self.notify_fd.install()?;
        self.lock().gate.set_stop_at(frame);
        Ok(())
    }

    fn reached(&self) -> Option<u64> {
        self.lock().gate.take_reached()
    }

    /// Ring and replies stay as they are, and their memory stays open for the next worker. The pieces' memory is the worker's, so
    /// their contents are saved.
    fn detach(&self) -> Result<u64, LinkError> {
        let usable = self.memory.iter().try_for_each(|memory| memory.get().map(|_| ()));
        usable.map_err(LinkError::system("keep the session's memory"))?;
        let placeholder = Placeholder::new().map_err(LinkError::system("make an event descriptor"))?;
        self.staging.suspend().map_err(LinkError::system("put the memory of copies away"))?;
        let frames = {
            let mut queue = self.lock();
            queue.gate.close();
            queue.sequence
        };
        if !self.socket.expect_end() {
            // A lost worker may be replaced, so the link waits for one.
            self.socket.get().inspect_err(|_| self.staging.give_up())?;
            return Err(LinkError::Closed);
        }
        // A child that was made without `fork` has a copy of the connection. CRIU could not dump the child while the worker's end
        // is open.
        self.socket.part(LINK_CLOSE_TIMEOUT);
        self.socket.close(&placeholder).map_err(LinkError::system("close the connection"))?;
        Ok(frames)
    }

    fn resume(&self, address: &Address, key: SessionKey, timeout: Duration) -> Result<(), ConnectError> {
        let failed = |source| ConnectError::Link { address: address.clone(), source };
        // A restored process may have lost its registration.
        self.ring.set_registered(false);
        let memory: io::Result<Vec<_>> = self.memory.iter().map(MappedFd::get).collect();
        let memory = memory.map_err(LinkError::system("pass the session's memory on")).map_err(failed)?;
        // A lost worker left its pieces here.
        self.staging.suspend().map_err(LinkError::system("put the memory of copies away")).map_err(failed)?;
        let consent = self.reconnect.reconnect(address, key, self.frames(), &borrowed(memory), timeout)?;
        let back = consent.pieces.map_or(Ok(()), |pieces| self.staging.bring_back(pieces));
        back.map_err(LinkError::system("map the memory of copies")).map_err(failed)?;
        self.socket
            .replace(&consent.connection.into_parts().0)
            .map_err(LinkError::system("keep the connection"))
            .map_err(failed)?;
        self.lock().gate.hold();
        Ok(())
    }

    fn enable_reconnect(&self) -> io::Result<()> {
        self.notify_fd.install()?;
        self.socket.keep();
        Ok(())
    }

    fn is_lost(&self) -> bool {
        let _ = self.socket.check();
        self.socket.is_lost()
    }

    fn give_up(&self) {
        self.socket.give_up();
        self.release();
        self.wake_all();
    }

    fn key(&self) -> SessionKey {
        self.reconnect.key()
    }

    fn frames(&self) -> u64 {
        self.lock().sequence
    }

    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.notify_fd.fd()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.get().ok()
    }
}
