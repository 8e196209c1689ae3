//! The worker's end of a stream link.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::LinkKind;

use crate::ipc::connection::Line;
use crate::link::error::LinkError;
use crate::link::link_control::{Reading, Signals, Switch};
use crate::link::pending::Hangup;
use crate::link::worker::{Answer, Event, Frame, Replier, WorkerLink, answer_head};
use crate::shm::staging::Staging;
use crate::stream::bulk::Buffers;
use crate::stream::frame_reader::{Found, Inlet};
use crate::stream::joined::Payload;

const OUT_OF_ORDER: LinkError = LinkError::Protocol { what: "a frame does not have the number that is due" };

/// The worker's end of a stream link.
pub(crate) struct StreamWorker {
    switch: Switch,
    inlet: Inlet,
    sequence: u64,
    /// Of the frame that was handed out, if it came over the first connection.
    payload: Vec<u8>,
    /// The same, if it came over a lane.
    bulk: Option<Payload>,
    replier: Arc<StreamReplier>,
}

impl StreamWorker {
    /// The next frame is number `sequence`.
    pub(crate) fn new(socket: Line, sequence: u64) -> Result<Self, LinkError> {
        let switch =
            Switch::new(LinkKind::STREAM, socket, &[], None, Signals { nudge: Box::new(|| ()), appeal: None })?;
        switch.count(sequence);
        let replier = Arc::new(StreamReplier { switch: switch.clone() });
        Ok(Self { switch, inlet: Inlet::new(), sequence, payload: Vec::new(), bulk: None, replier })
    }
}

impl Drop for StreamWorker {
    /// Nobody asks for what comes any more: whoever sends it, or waits for an answer, is to hear of that.
    fn drop(&mut self) {
        self.switch.lanes().clear();
    }
}

impl WorkerLink for StreamWorker {
    fn next(&mut self) -> Result<Event<'_>, LinkError> {
        self.bulk = None;
        self.switch.set_reading(Reading::Next);
        loop {
            if self.switch.take_interrupt(self.sequence) {
                self.switch.set_reading(Reading::Not);
                return Ok(Event::Interrupted);
            }
            let Some(socket) = self.switch.wait_for_program(self.sequence) else { continue };
            if let Some(opener) = socket.take_opener() {
                self.inlet.turn_to(Some(opener));
            }
            let bytes = match self.inlet.head_or_wake(socket.as_fd(), Some(self.switch.wake()))? {
                Found::Head(bytes) => bytes,
                Found::Woken => {
                    self.switch.has_looked_up();
                    continue;
                }
                Found::End if self.switch.ended(&socket) => continue,
                Found::End => return Ok(Event::Closed),
            };
            let (head, lanes, length) = FrameHead::decode_over(&bytes)?;
            if head.sequence != self.sequence {
                return Err(OUT_OF_ORDER);
            }
            self.switch.set_reading(Reading::Rest);
            if lanes.payload == 0 {
                self.payload.clear();
                self.inlet.append_to(socket.as_fd(), length, &mut self.payload)?;
            } else {
                self.bulk = Some(self.switch.lanes().take(lanes.payload, &bytes)?);
            }
            self.sequence += 1;
            self.switch.count(self.sequence);
            self.switch.set_reading(Reading::Not);
            if head.wants_reply {
                self.switch.owe();
            }
            if lanes.reply != 0 {
                self.switch.lanes().owe(head.sequence, lanes.reply)?;
            }
            let payload = self.bulk.as_ref().map_or(&self.payload[..], Payload::bytes);
            return Ok(Event::Frame(Frame { head, payload, buffer: self.bulk.as_ref().and_then(Payload::number) }));
        }
    }

    /// A program that is away is news as well: whoever waits for it need not look.
    fn has_news(&mut self) -> bool {
        let is_due = self.switch.is_due(self.sequence);
        is_due || self.switch.socket().is_none_or(|socket| self.inlet.has_bytes(socket.as_fd()))
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.replier) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.switch.lanes().buffers()
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(self.switch.wait_for_socket())
    }

    fn switch(&self) -> Option<Switch> {
        Some(self.switch.clone())
    }
}

/// Writes replies, each whole, on the connections that their requests have named.
struct StreamReplier {
    switch: Switch,
}

impl Replier for StreamReplier {
    /// A program that is away gets its reply when it is back.
    fn reply(&self, answer: &Answer<'_>) -> Result<(), LinkError> {
        let (head, output) = answer_head(answer)?;
        let prefix = answer.output.prefix()?;
        let prefix = if output == 0 { &[][..] } else { &prefix };
        let parts = [&head, answer.payload, answer.tail, prefix, answer.output.stdout, answer.output.stderr];
        self.switch.reply(answer.sequence, &mut parts.map(IoSlice::new)).map_err(|_| LinkError::Closed)
    }
}
