//! The worker's end: reads frames out of the ring, puts replies into the threads' slots.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_wire::frame::{FrameHead, HEAD_BYTES, MAX_FRAME_BYTES, padded};
use katydid_wire::handshake::LinkKind;
use rustix::event::Timespec;

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::link::link_control::{LinkControl, Signals};
use crate::link::pending::Hangup;
use crate::link::worker::{Frame, LinkEvent, OUT_OF_ORDER, OutgoingReply, Replier, WorkerLink, answer_head};
use crate::os::descriptor::is_hung_up;
use crate::shm::channel::{ReplyWords, RingMemory, create, reply_slot};
use crate::shm::layout::{
    CHANNEL_ADDRESS, CHANNEL_BYTES, RECLAIM_NOTICES_OFFSET, REPLY_FRAME_OFFSET, RING_BYTES, STAGING_BYTES,
};
use crate::shm::reply;
use crate::shm::ring::{Consumer, InvalidCounter, Memory as _, RingSide};
use crate::shm::shared_mapping::SharedMapping;
use crate::shm::staging::{Staging, ZeroCopyMemory};
use crate::shm::staging_map::StagingMap;
use crate::sync::wait;
use crate::sync::wait::Spin;

const TAIL_MOVED: LinkError = LinkError::Protocol { what: "the ring's write counter has an impossible value" };
const TRUNCATED_RING_FRAME: LinkError = LinkError::Protocol { what: "a frame in the ring is not whole" };
const NO_REPLY_SLOT: LinkError = LinkError::Protocol { what: "a frame comes from a thread beyond the limit" };

const _: () = assert!(MAX_FRAME_BYTES.next_multiple_of(8) <= RING_BYTES);

/// The worker's end of a shared-memory link.
pub(crate) struct ShmWorker {
    ring: RingMemory,
    consumer: Consumer,
    sequence: u64,
    head: Vec<u8>,
    payload: Vec<u8>,
    replier: Arc<ShmReplier>,
    staging: Staging,
    link_control: LinkControl,
    spin: Spin,
}

/// How a wait for frames ended.
enum FrameWait {
    /// This many bytes are in the ring.
    Bytes(u64),
    /// The reader must check for orders.
    Interrupted,
    /// The program is gone and the ring is empty.
    End,
}

/// Wakes the program's thread that listens for reclaim notices. Returns this notice's number.
fn reclaim_notice(shared: &SharedMapping) -> u32 {
    let word = shared.word(RECLAIM_NOTICES_OFFSET);
    let number = word.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    wait::wake(word);
    number
}

/// Maps another channel, a copy of the current one, in its place. A thread that sleeps in the old one wakes and reads the new
/// one.
fn adopt(shared: &Arc<SharedMapping>, fds: &[OwnedFd]) -> io::Result<()> {
    let channel = fds.first().ok_or(io::ErrorKind::InvalidInput)?;
    let old_view = shared.second_view()?;
    shared.restore(channel)?;
    let ring = RingMemory::new(Arc::clone(shared));
    ring.announce_barriers();
    RingMemory::new(Arc::new(old_view)).wake_all();
    Ok(())
}

impl ShmWorker {
    /// Maps a checked channel, the first of `fds`. The next frame in it has number `sequence`.
    pub(crate) fn new(socket: Connection, fds: &[OwnedFd], sequence: u64) -> Result<Self, LinkError> {
        let channel = fds.first().ok_or(LinkError::Protocol { what: "shared memory without a channel" })?;
        let failed = LinkError::system("map the program's shared memory");
        let shared = SharedMapping::map(channel, CHANNEL_BYTES, CHANNEL_ADDRESS).map_err(failed)?;
        let (pieces, map) = make_pieces().map_err(LinkError::system("make memory for copies"))?;
        let shared = Arc::new(shared);
        let ring = RingMemory::new(Arc::clone(&shared));
        ring.announce_barriers();
        let nudged = RingMemory::new(Arc::clone(&shared));
        let notified = Arc::clone(&shared);
        let adopting = Arc::clone(&shared);
        let signals = Signals {
            wake_reader: Box::new(move || nudged.wake(RingSide::Consumer)),
            reclaim_notice: Some(Box::new(move || reclaim_notice(&notified))),
            adopt: Box::new(move |fds| adopt(&adopting, fds)),
        };
        let link_control = LinkControl::new(LinkKind::SHM, socket, fds, Some(pieces), signals)?;
        link_control.count(sequence);
        Ok(Self {
            consumer: Consumer::resume(&ring).map_err(|InvalidCounter| TAIL_MOVED)?,
            ring,
            sequence,
            head: Vec::with_capacity(HEAD_BYTES),
            payload: Vec::new(),
            replier: Arc::new(ShmReplier { shared: Arc::clone(&shared) }),
            staging: Staging::new(shared, map, None),
            link_control,
            spin: Spin::new(wait::MAX_MEMORY_SPIN_NS),
        })
    }

    /// Waits for bytes in the ring.
    fn wait(&mut self) -> Result<FrameWait, LinkError> {
        loop {
            let (consumer, ring) = (&mut self.consumer, &self.ring);
            let available = self.spin.until(|| match consumer.available(ring) {
                Ok(0) => None,
                other => Some(other),
            });
            if let Some(available) = available {
                return available.map(FrameWait::Bytes).map_err(|InvalidCounter| TAIL_MOVED);
            }
            let (link_control, sequence) = (&self.link_control, self.sequence);
            consumer.sleep(ring, || link_control.needs_interrupt(sequence)).map_err(|InvalidCounter| TAIL_MOVED)?;
            let Some(socket) = link_control.wait_for_program(sequence) else { return Ok(FrameWait::Interrupted) };
            if link_control.needs_interrupt(sequence) {
                return Ok(FrameWait::Interrupted);
            }
            // The order matters: frames published before the program ended are read first.
            let gone = is_hung_up(socket.as_fd(), Some(&Timespec::default()));
            if gone && self.consumer.available(&self.ring) == Ok(0) && !self.link_control.ended(&socket) {
                return Ok(FrameWait::End);
            }
        }
    }

    /// Copies the next frame out and gives its room back. Skips a gap of the program, and returns none then.
    fn take(&mut self, available: u64) -> Result<Option<FrameHead>, LinkError> {
        let head_length = HEAD_BYTES as u64;
        self.head.clear();
        self.consumer.append_to(&self.ring, 0, head_length.min(available), &mut self.head);
        let first = self.head.first_chunk().ok_or(TRUNCATED_RING_FRAME)?;
        if let Some(gap) = self.consumer.gap(&self.ring, *first) {
            if gap > available {
                return Err(TRUNCATED_RING_FRAME);
            }
            self.consumer.consume(&self.ring, gap);
            return Ok(None);
        }
        let bytes = self.head.first_chunk().ok_or(TRUNCATED_RING_FRAME)?;
        let (head, payload) = FrameHead::decode(bytes)?;
        let length = padded(HEAD_BYTES + payload) as u64;
        if length > available {
            return Err(TRUNCATED_RING_FRAME);
        }
        self.payload.clear();
        self.consumer.append_to(&self.ring, head_length, payload as u64, &mut self.payload);
        self.consumer.consume(&self.ring, length);
        Ok(Some(head))
    }

    /// Returns the frame that was taken, if its number is the expected one.
    fn admit(&mut self, head: FrameHead) -> Result<Frame<'_>, LinkError> {
        if head.sequence != self.sequence {
            return Err(OUT_OF_ORDER);
        }
        if reply_slot(head.thread).is_none() {
            return Err(NO_REPLY_SLOT);
        }
        self.sequence += 1;
        self.link_control.count(self.sequence);
        Ok(Frame { head, payload: &self.payload, buffer: None })
    }

    /// Returns the next frame if there is one: [`WorkerLink::next`] without its waits.
    pub(crate) fn next_ready(&mut self) -> Result<Option<Frame<'_>>, LinkError> {
        loop {
            let available = self.consumer.available(&self.ring).map_err(|InvalidCounter| TAIL_MOVED)?;
            if available == 0 {
                return Ok(None);
            }
            if let Some(head) = self.take(available)? {
                return self.admit(head).map(Some);
            }
        }
    }
}

/// Creates the memory of the staging pieces, which has no pages yet, and maps it.
fn make_pieces() -> io::Result<(OwnedFd, StagingMap)> {
    let pieces = create("katydid-staging", STAGING_BYTES as u64)?;
    let map = StagingMap::new(&pieces)?;
    Ok((pieces, map))
}

impl WorkerLink for ShmWorker {
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError> {
        let head = loop {
            if self.link_control.take_interrupt(self.sequence) {
                return Ok(LinkEvent::Interrupted);
            }
            let available = match self.wait()? {
                FrameWait::Bytes(available) => available,
                FrameWait::Interrupted => {
                    self.link_control.take_interrupt(self.sequence);
                    return Ok(LinkEvent::Interrupted);
                }
                FrameWait::End => return Ok(LinkEvent::Closed),
            };
            if let Some(head) = self.take(available)? {
                break head;
            }
        };
        self.admit(head).map(LinkEvent::Frame)
    }

    fn has_pending(&mut self) -> bool {
        self.link_control.needs_interrupt(self.sequence) || self.consumer.available(&self.ring) != Ok(0)
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.replier) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        Some(&self.staging)
    }

    fn zero_copy(&self) -> Option<ZeroCopyMemory> {
        // Without a further descriptor, there is no zero copy: the program reads what it is sent.
        let file = self.link_control.pieces()?.try_clone_to_owned().ok()?;
        Some(self.staging.zero_copy(file))
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(self.link_control.wait_for_socket())
    }

    fn link_control(&self) -> Option<LinkControl> {
        Some(self.link_control.clone())
    }
}

/// Writes replies into the slots of the threads that wait.
struct ShmReplier {
    shared: Arc<SharedMapping>,
}

impl Replier for ShmReplier {
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
        let slot = reply_slot(answer.thread).ok_or(NO_REPLY_SLOT)?;
        let (head, output) = (answer_head(answer)?, answer.output);
        let prefix = output.prefix()?;
        let prefix = if head.1 == 0 { &[][..] } else { &prefix };
        let mut at = slot + REPLY_FRAME_OFFSET;
        for part in [&head.0, answer.payload, answer.tail, prefix, output.stdout, output.stderr] {
            self.shared.copy_in(at, part);
            at += part.len();
        }
        reply::announce(&ReplyWords::new(&self.shared, slot));
        Ok(())
    }
}
