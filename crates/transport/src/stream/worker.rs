//! The worker's end of a stream link.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_wire::frame::FrameHead;

use crate::inlet::Inlet;
use crate::shm::answer_head;
use crate::socket::send_all;
use crate::{Answer, Frame, Hangup, LinkError, Replier, Staging, WorkerLink};

const OUT_OF_ORDER: LinkError = LinkError::Protocol { what: "a frame does not have the number that is due" };

/// The worker's end of a stream link.
pub(crate) struct StreamWorker {
    socket: Arc<OwnedFd>,
    inlet: Inlet,
    sequence: u64,
    payload: Vec<u8>,
    replier: Arc<StreamReplier>,
}

impl StreamWorker {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(socket);
        let replier = Arc::new(StreamReplier { socket: Arc::clone(&socket), outlet: Mutex::new(()) });
        Self { socket, inlet: Inlet::new(), sequence: 0, payload: Vec::new(), replier }
    }
}

impl WorkerLink for StreamWorker {
    fn next(&mut self) -> Result<Option<Frame<'_>>, LinkError> {
        let socket = self.socket.as_fd();
        let Some(bytes) = self.inlet.head(socket)? else { return Ok(None) };
        let (head, length) = FrameHead::decode(&bytes)?;
        if head.sequence != self.sequence {
            return Err(OUT_OF_ORDER);
        }
        self.payload.clear();
        self.inlet.append_to(socket, length, &mut self.payload)?;
        self.sequence += 1;
        Ok(Some(Frame { head, payload: &self.payload }))
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.replier) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(Arc::clone(&self.socket))
    }
}

/// Writes replies, each whole.
struct StreamReplier {
    socket: Arc<OwnedFd>,
    outlet: Mutex<()>,
}

impl Replier for StreamReplier {
    fn reply(&self, answer: &Answer<'_>) -> Result<(), LinkError> {
        let (head, output) = answer_head(answer)?;
        let prefix = answer.output.prefix()?;
        let prefix = if output == 0 { &[][..] } else { &prefix };
        let parts = [&head, answer.payload, prefix, answer.output.stdout, answer.output.stderr];
        let _whole = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        send_all(self.socket.as_fd(), &mut parts.map(IoSlice::new)).map_err(|_| LinkError::Closed)
    }
}
