//! The program's end: writes frames under one short lock, waits in its own place for replies.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_wire::frame::{FrameHead, HEAD, ReplyHead, padded};

use crate::channel::{ARRIVED, ASLEEP, LENGTH, REPLY_FRAME, RingMemory, WAITING, reply_place};
use crate::descriptor::Descriptor;
use crate::ring::{Broken, Producer};
use crate::seats::Seats;
use crate::shared::Shared;
use crate::wait::{self, Spin};
use crate::{LinkError, ProgramLink, Staging};

/// What a worker cannot do unless it is damaged.
const HEAD_MOVED: LinkError = LinkError::Protocol { what: "the ring's read counter has an impossible value" };
const WRONG_REPLY: LinkError = LinkError::Protocol { what: "a reply is for another thread or request" };

/// The program's end of a shared-memory link.
pub(crate) struct ShmProgram {
    shared: Arc<Shared>,
    ring: RingMemory,
    queue: Mutex<Queue>,
    seats: Arc<Seats>,
    staging: Staging,
    socket: Arc<Descriptor>,
    spin: Spin,
    room: Spin,
}

/// The producer's side of the ring, and the number of the next frame.
#[derive(Default)]
struct Queue {
    producer: Producer,
    sequence: u64,
}

impl ShmProgram {
    /// Maps the channel. From now on it stays out of forked children.
    pub(crate) fn new(socket: OwnedFd, channel: &OwnedFd) -> Result<Self, LinkError> {
        let shared = Shared::map(channel, LENGTH).map_err(LinkError::system("map the shared memory"))?;
        shared.keep_from_children().map_err(LinkError::system("keep the shared memory from forked children"))?;
        let shared = Arc::new(shared);
        let socket = Arc::new(Descriptor::new(socket).map_err(LinkError::system("keep the connection"))?);
        Ok(Self {
            ring: RingMemory(Arc::clone(&shared)),
            queue: Mutex::default(),
            seats: Seats::new(),
            staging: Staging::new(Arc::clone(&shared), Some(Arc::clone(&socket))),
            shared,
            socket,
            spin: Spin::new(),
            room: Spin::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code under the lock panics; a poisoned queue is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame into the ring; returns its number.
    fn put(&self, mut head: FrameHead, parts: &[&[u8]]) -> Result<u64, LinkError> {
        let payload = parts.iter().map(|part| part.len()).sum();
        let length = padded(HEAD + payload) as u64;
        let mut queue = self.lock();
        head.sequence = queue.sequence;
        let bytes = head.encode(payload)?;
        self.wait_for_room(&mut queue.producer, length)?;
        queue.producer.write(&self.ring, 0, &bytes);
        let mut offset = HEAD as u64;
        for part in parts {
            queue.producer.write(&self.ring, offset, part);
            offset += part.len() as u64;
        }
        queue.producer.publish(&self.ring, length);
        queue.sequence += 1;
        Ok(head.sequence)
    }

    fn wait_for_room(&self, producer: &mut Producer, length: u64) -> Result<(), LinkError> {
        loop {
            let found = self.room.until(|| match producer.has_room(&self.ring, length) {
                Ok(false) => None,
                other => Some(other),
            });
            if let Some(has_room) = found {
                return has_room.map(|_| ()).map_err(|Broken| self.broken());
            }
            producer.sleep(&self.ring, length).map_err(|Broken| self.broken())?;
            self.socket.check()?;
        }
    }

    fn broken(&self) -> LinkError {
        self.socket.give_up();
        HEAD_MOVED
    }

    /// Waits until the reply lies in `place`.
    fn wait_for_reply(&self, place: usize) -> Result<(), LinkError> {
        let state = self.shared.word(place);
        let arrived = || (state.load(Ordering::Acquire) == ARRIVED).then_some(());
        if self.spin.until(arrived).is_some() {
            return Ok(());
        }
        loop {
            let falls_asleep = state.compare_exchange(WAITING, ASLEEP, Ordering::Acquire, Ordering::Acquire);
            if falls_asleep == Err(ARRIVED) {
                return Ok(());
            }
            wait::sleep(state, ASLEEP);
            if arrived().is_some() {
                return Ok(());
            }
            // A reply that came just before the worker ended still counts.
            self.socket.check().or_else(|closed| arrived().ok_or(closed))?;
        }
    }

    /// Copies the reply to a request, given by number and thread, out of its place.
    fn take_reply(&self, place: usize, due: (u64, u32), reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        let mut bytes = [0; HEAD];
        self.shared.copy_out(place + REPLY_FRAME, &mut bytes);
        let (head, body) = ReplyHead::decode(&bytes)?;
        if (head.sequence, head.thread) != due {
            return Err(WRONG_REPLY);
        }
        reply.clear();
        self.shared.append_to(place + REPLY_FRAME + HEAD, body, reply);
        Ok(head)
    }
}

impl ProgramLink for ShmProgram {
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.socket.get()?;
        let thread = self.seats.number()?;
        self.put(FrameHead { opcode, wants_reply: false, thread, context, sequence: 0 }, parts).map(|_| ())
    }

    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        self.socket.get()?;
        self.seats.call(|thread| {
            let place = reply_place(thread).ok_or(WRONG_REPLY)?;
            // Seen by the worker before the frame is, since publishing the frame is a release.
            self.shared.word(place).store(WAITING, Ordering::Relaxed);
            let head = FrameHead { opcode, wants_reply: true, thread, context, sequence: 0 };
            let sequence = self.put(head, parts)?;
            self.wait_for_reply(place)?;
            // A worker that gets this wrong cannot be believed any more.
            self.take_reply(place, (sequence, thread), reply).inspect_err(|_| self.socket.give_up())
        })
    }

    fn staging(&self) -> Option<&Staging> {
        Some(&self.staging)
    }

    fn abandon(&self) {
        self.socket.abandon();
        self.shared.abandon();
    }
}
