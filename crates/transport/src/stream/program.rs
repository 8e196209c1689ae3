//! The program's end of a stream link. No thread of ours: one of the waiting threads reads for all.

use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use katydid_wire::frame::{FrameHead, ReplyHead};

use crate::descriptor::Descriptor;
use crate::inlet::Inlet;
use crate::seats::Seats;
use crate::socket::send_all;
use crate::{LinkError, ProgramLink, Staging};

const UNASKED: LinkError = LinkError::Protocol { what: "a reply came that nobody waits for" };

/// The program's end of a stream link.
pub(crate) struct StreamProgram {
    socket: Descriptor,
    /// Number of the next frame; held while one is written.
    outlet: Mutex<u64>,
    desk: Mutex<Desk>,
    seats: Arc<Seats>,
}

/// Where replies are handed out.
struct Desk {
    /// The reading half; none while a thread reads.
    inlet: Option<Inlet>,
    /// Threads that wait, by the number of their request.
    waiting: HashMap<u64, Waiter>,
}

/// A thread that waits.
struct Waiter {
    reply: Option<(ReplyHead, Vec<u8>)>,
    bell: Arc<Condvar>,
}

impl Desk {
    /// Makes one of those who still wait look up: to read on, or to find that there is nothing to read any more.
    fn ring_next(&self) {
        if let Some(waiter) = self.waiting.values().find(|waiter| waiter.reply.is_none()) {
            waiter.bell.notify_one();
        }
    }
}

impl StreamProgram {
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, LinkError> {
        Ok(Self {
            socket: Descriptor::new(socket).map_err(LinkError::system("keep the connection"))?,
            outlet: Mutex::new(0),
            desk: Mutex::new(Desk { inlet: Some(Inlet::new()), waiting: HashMap::new() }),
            seats: Seats::new(),
        })
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // No code under this lock panics.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a frame. `before` runs with its number while no later frame, and no reply to this one, can come.
    fn put(&self, mut head: FrameHead, parts: &[&[u8]], before: impl FnOnce(u64)) -> Result<u64, LinkError> {
        let payload = parts.iter().map(|part| part.len()).sum();
        let mut sequence = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        head.sequence = *sequence;
        let bytes = head.encode(payload)?;
        before(head.sequence);
        *sequence += 1;
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(&bytes));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        if send_all(self.socket.get()?, &mut slices).is_err() {
            // A part of the frame may be out: nothing can follow it.
            self.socket.give_up();
            return Err(LinkError::Closed);
        }
        Ok(head.sequence)
    }

    /// Waits for the reply to a request, reading for all if nobody does.
    fn wait(&self, sequence: u64, bell: &Condvar, reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        let mut desk = self.desk();
        loop {
            if let Some((head, body)) = desk.waiting.get_mut(&sequence).and_then(|waiter| waiter.reply.take()) {
                *reply = body;
                return Ok(head);
            }
            self.socket.get()?;
            let Some(mut inlet) = desk.inlet.take() else {
                desk = bell.wait(desk).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(desk);
            let result = self.read_until(&mut inlet, sequence, reply);
            if result.is_err() {
                self.socket.give_up();
            }
            self.desk().inlet = Some(inlet);
            return result;
        }
    }

    /// Reads replies and hands them out, up to the one for this thread.
    fn read_until(&self, inlet: &mut Inlet, sequence: u64, reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        loop {
            let socket = self.socket.get()?;
            let bytes = inlet.head(socket)?.ok_or(LinkError::Closed)?;
            let (head, length) = ReplyHead::decode(&bytes)?;
            if head.sequence == sequence {
                reply.clear();
                inlet.append_to(socket, length, reply)?;
                return Ok(head);
            }
            let mut body = Vec::new();
            inlet.append_to(socket, length, &mut body)?;
            let mut desk = self.desk();
            let waiter = desk.waiting.get_mut(&head.sequence).filter(|waiter| waiter.reply.is_none()).ok_or(UNASKED)?;
            waiter.reply = Some((head, body));
            waiter.bell.notify_one();
        }
    }

    fn exchange(&self, head: FrameHead, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        let bell = Arc::new(Condvar::new());
        let mut registered = None;
        let result = self.put(head, parts, |sequence| {
            registered = Some(sequence);
            self.desk().waiting.insert(sequence, Waiter { reply: None, bell: Arc::clone(&bell) });
        });
        let result = result.and_then(|sequence| self.wait(sequence, &bell, reply));
        if let Some(sequence) = registered {
            let mut desk = self.desk();
            desk.waiting.remove(&sequence);
            desk.ring_next();
        }
        result
    }
}

impl ProgramLink for StreamProgram {
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.socket.get()?;
        let thread = self.seats.number()?;
        let head = FrameHead { opcode, wants_reply: false, thread, context, sequence: 0 };
        self.put(head, parts, |_| {}).map(|_| ())
    }

    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        self.socket.get()?;
        self.seats.call(|thread| {
            let head = FrameHead { opcode, wants_reply: true, thread, context, sequence: 0 };
            self.exchange(head, parts, reply)
        })
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn abandon(&self) {
        self.socket.abandon();
    }
}
