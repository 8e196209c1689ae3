//! A frame as a journal keeps it.

use katydid_wire::frame::FrameHead;

/// A frame as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFrame {
    /// Number of the frame in the session: frames are replayed in this order.
    pub order: u64,
    /// The program's thread: some objects are each thread's own.
    pub thread: u32,
    /// The context that was current; 0: any.
    pub context: u32,
    /// Number of the message in the session protocol.
    pub opcode: u16,
    payload: Payload,
}

/// A payload; those of small objects, which come and go by the million, need no memory of their own.
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
    /// A frame that belongs to a context, which may be another one than its head says.
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

    /// The `u32` at a place of the payload; 0 where there is none.
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
