//! The worker's end of a stream link.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::LinkKind;

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::link::link_control::{LinkControl, ReaderState, Signals};
use crate::link::pending::Hangup;
use crate::link::worker::{Frame, LinkEvent, OUT_OF_ORDER, OutgoingReply, Replier, WorkerLink, answer_head};
use crate::shm::staging::Staging;
use crate::stream::bulk::Buffers;
use crate::stream::frame_reader::{FrameReader, StreamEvent};
use crate::stream::joined_connections::Payload;

/// The worker's end of a stream link.
pub(crate) struct StreamWorker {
    link_control: LinkControl,
    frames: FrameReader,
    sequence: u64,
    /// The payload of the current frame, if it came over the first connection.
    payload: Vec<u8>,
    /// The payload of the current frame, if it came over a bulk connection.
    bulk: Option<Payload>,
    replier: Arc<StreamReplier>,
}

impl StreamWorker {
    /// Creates the end; the next frame has number `sequence`.
    pub(crate) fn new(socket: Connection, sequence: u64) -> Result<Self, LinkError> {
        let link_control = LinkControl::new(
            LinkKind::STREAM,
            socket,
            &[],
            None,
            Signals { wake_reader: Box::new(|| ()), reclaim_notice: None, adopt: Box::new(|_| Ok(())) },
        )?;
        link_control.count(sequence);
        let replier = Arc::new(StreamReplier { link_control: link_control.clone() });
        Ok(Self { link_control, frames: FrameReader::new(), sequence, payload: Vec::new(), bulk: None, replier })
    }
}

impl Drop for StreamWorker {
    /// Closes the connections: no thread reads any more, and a peer that sends or waits has to learn of that.
    fn drop(&mut self) {
        self.link_control.joined().clear();
    }
}

impl WorkerLink for StreamWorker {
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError> {
        self.bulk = None;
        self.link_control.set_reading(ReaderState::Idle);
        loop {
            if self.link_control.take_interrupt(self.sequence) {
                self.link_control.set_reading(ReaderState::Busy);
                return Ok(LinkEvent::Interrupted);
            }
            let Some(socket) = self.link_control.wait_for_program(self.sequence) else { continue };
            if let Some(opener) = socket.take_opener() {
                self.frames.read_from(Some(opener));
            }
            let bytes = match self.frames.head_or_wake(socket.as_fd(), Some(self.link_control.wake()))? {
                StreamEvent::Head(bytes) => bytes,
                StreamEvent::Woken => {
                    self.link_control.has_looked_up();
                    continue;
                }
                StreamEvent::End if self.link_control.ended(&socket) => continue,
                StreamEvent::End => return Ok(LinkEvent::Closed),
            };
            let (head, connections, length) = FrameHead::decode_over(&bytes)?;
            if head.sequence != self.sequence {
                return Err(OUT_OF_ORDER);
            }
            self.link_control.set_reading(ReaderState::InFrame);
            if connections.payload == 0 {
                self.payload.clear();
                self.frames.append_to(socket.as_fd(), length, &mut self.payload)?;
            } else {
                self.bulk = Some(self.link_control.joined().take(connections.payload, &bytes)?);
            }
            self.sequence += 1;
            self.link_control.count(self.sequence);
            self.link_control.set_reading(ReaderState::Busy);
            if head.wants_reply {
                self.link_control.expect_reply();
            }
            if connections.reply != 0 {
                self.link_control.joined().expect_reply(head.sequence, connections.reply)?;
            }
            let payload = self.bulk.as_ref().map_or(&self.payload[..], Payload::bytes);
            return Ok(LinkEvent::Frame(Frame { head, payload, buffer: self.bulk.as_ref().and_then(Payload::number) }));
        }
    }

    /// Returns true also while the program is away: the thread that waits then need not poll.
    fn has_pending(&mut self) -> bool {
        let needs_interrupt = self.link_control.needs_interrupt(self.sequence);
        needs_interrupt || self.link_control.socket().is_none_or(|socket| self.frames.has_bytes(socket.as_fd()))
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.replier) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.link_control.joined().buffers()
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(self.link_control.wait_for_socket())
    }

    fn link_control(&self) -> Option<LinkControl> {
        Some(self.link_control.clone())
    }
}

/// Writes whole replies, each on the connection that its request named.
struct StreamReplier {
    link_control: LinkControl,
}

impl Replier for StreamReplier {
    /// Sends a reply. A program that is away gets it when it is back.
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
        let (head, output) = answer_head(answer)?;
        let prefix = answer.output.prefix()?;
        let prefix = if output == 0 { &[][..] } else { &prefix };
        let parts = [&head, answer.payload, answer.tail, prefix, answer.output.stdout, answer.output.stderr];
        self.link_control.reply(answer.sequence, &mut parts.map(IoSlice::new)).map_err(|_| LinkError::Closed)
    }
}
