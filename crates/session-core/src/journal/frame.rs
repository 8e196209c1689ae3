//! A frame as a journal stores it.

use katydid_wire::frame::FrameHead;

/// A stored frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFrame {
    /// Number of the frame in the session: frames are replayed in this order.
    pub order: u64,
    /// The program's thread: some objects belong to one thread.
    pub thread: u32,
    /// The context that was current; 0: any.
    pub context: u32,
    /// Number of the message in the session protocol.
    pub opcode: u16,
    payload: Payload,
}

/// A payload; small objects are made by the million, so theirs are stored inline.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Payload {
    Short(u8, [u8; Payload::INLINE_BYTES]),
    Long(Box<[u8]>),
}

impl Payload {
    const INLINE_BYTES: usize = 22;

    fn new(bytes: &[u8]) -> Self {
        let mut short = [0; Self::INLINE_BYTES];
        match short.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self::Short(bytes.len() as u8, short)
            }
            None => Self::Long(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl JournalFrame {
    /// Makes a frame in a context, which may differ from that in its head.
    #[must_use]
    pub fn new(head: &FrameHead, context: u32, payload: &[u8]) -> Self {
        let FrameHead { sequence: order, thread, opcode, .. } = *head;
        Self { order, thread, context, opcode, payload: Payload::new(payload) }
    }

    /// Encoded message, without its frame head.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    /// Returns the `u32` at an offset of the payload; 0 if there is none.
    #[must_use]
    pub fn word(&self, at: usize) -> u32 {
        self.payload().get(at..).and_then(|quiesce| quiesce.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_any_length_come_back() {
        let head = FrameHead { opcode: 7, wants_reply: true, thread: 2, context: 3, sequence: 9 };
        for length in [0, 1, 22, 23, 1000] {
            let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let frame = JournalFrame::new(&head, 5, &payload);
            assert_eq!(frame.payload(), payload);
            assert_eq!((frame.order, frame.thread, frame.context, frame.opcode), (9, 2, 5, 7));
        }
        assert_eq!(JournalFrame::new(&head, 0, &[1, 2, 0, 0, 0]).word(1), 2);
        assert_eq!(JournalFrame::new(&head, 0, &[1, 2, 0]).word(0), 0);
    }
}
