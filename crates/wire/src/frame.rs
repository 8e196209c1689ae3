//! Frames: the messages between program and worker after the handshake.
//!
//! A frame is a 32-byte head and a payload; the head's first field counts both. Heads are little-endian:
//!
//! | offset | request head                   | reply head                                        |
//! |-------:|--------------------------------|---------------------------------------------------|
//! |      0 | `length` u32, head included    | `length` u32, head included                       |
//! |      4 | `opcode` u16                   | `status` u32 (`CUresult` of the call)             |
//! |      6 | `flags` u16, bit 0: reply due  |                                                   |
//! |      8 | `thread` u32, from 1           | `deferred` u32 (`CUresult` of an earlier enqueue) |
//! |     12 | `context` u32, 0: none         | `output` u32, bytes of device output at the end   |
//! |     16 | `sequence` u64                 | `thread` u32, then 4 bytes zero                   |
//! |     24 | connection of the payload u16  | `sequence` u64 of the request                     |
//! |     26 | connection of the reply u16, u32 zero |                                            |
//!
//! The rule kept here: a head is checked completely before any of its fields is used. So a length that this module returns never
//! exceeds [`MAX_PAYLOAD_BYTES`] and may size a buffer. `docs/reference/wire-protocol.md` shows the layouts.

use thiserror::Error;

/// Bytes of a request head and of a reply head.
pub const HEAD_BYTES: usize = 32;
/// Largest payload of a request, and of payload and output of a reply together.
pub const MAX_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES - HEAD_BYTES;
/// Largest frame, head included: 1 MiB of bulk data and room for its description.
pub const MAX_FRAME_BYTES: usize = (1 << 20) + 4096;
/// Largest reply, head included.
pub const MAX_REPLY_BYTES: usize = MAX_FRAME_BYTES;
/// Most bulk connections of a stream link beside its first connection. `--lanes` sets how many.
pub const MAX_BULK_CONNECTIONS: u16 = 16;
/// Bit 0 of a request's flags: the program waits for a reply.
const WANTS_REPLY_FLAG: u16 = 1;

/// Why a head was refused. The peer is at fault, except for [`FrameError::TooLarge`], where the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer's length field is below a head or above the limit.
    #[error("a frame of {length} bytes was announced; frames have {HEAD_BYTES} to {MAX_FRAME_BYTES} bytes")]
    Length {
        /// Length that the head announces.
        length: u32,
    },
    /// A bit or byte that must be zero is set; a peer of another protocol version may have done so.
    #[error("reserved bits {bits:#x} are set in the head of a frame; are both sides of one release?")]
    Reserved {
        /// Bits that are set and must be 0.
        bits: u64,
    },
    /// A bulk connection that no link has, or one for a reply that is not awaited.
    #[error(
        "a frame names bulk connection {number}; they have numbers up to {MAX_BULK_CONNECTIONS}, and carry replies that are awaited"
    )]
    Connection {
        /// Number that the head has.
        number: u16,
    },
    /// Threads are numbered from 1, so a frame of thread 0 comes from a damaged peer.
    #[error("a frame claims to come from thread 0; threads count from 1")]
    Thread,
    /// The reply's output is larger than the bytes behind its head, or its parts have impossible lengths.
    #[error("a reply announces {output} bytes of device output within {available}")]
    Output {
        /// Bytes of device output that the reply announces.
        output: u32,
        /// Bytes behind the reply's head.
        available: usize,
    },
    /// The caller's payload does not fit a frame: it must be split, or use the staging area.
    #[error("{payload} bytes do not fit one frame (at most {MAX_PAYLOAD_BYTES}); split them or stage them")]
    TooLarge {
        /// Length of the payload in bytes.
        payload: usize,
    },
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Number of the message in the payload.
    pub opcode: u16,
    /// Whether the program waits for a reply.
    pub wants_reply: bool,
    /// The program's thread, from 1.
    pub thread: u32,
    /// Wire id of the thread's current context; 0 is none.
    pub context: u32,
    /// Number of this frame in the session, from 0.
    pub sequence: u64,
}

impl FrameHead {
    /// Encodes the head of a frame that `payload` bytes follow.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`].
    #[inline]
    pub fn encode(&self, payload: usize) -> Result<[u8; HEAD_BYTES], FrameError> {
        self.encode_over(payload, FrameConnections::default())
    }

    /// Encodes the head of a frame whose `payload` bytes and whose reply go over these connections.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`].
    #[inline]
    pub fn encode_over(&self, payload: usize, connections: FrameConnections) -> Result<[u8; HEAD_BYTES], FrameError> {
        let length = frame_length(payload)?;
        let flags = if self.wants_reply { WANTS_REPLY_FLAG } else { 0 };
        // Built in words, as they are copied later: reading in larger units than were written takes longer than the writing.
        let fields = [
            u64::from(length) | u64::from(self.opcode) << 32 | u64::from(flags) << 48,
            u64::from(self.thread) | u64::from(self.context) << 32,
            self.sequence,
            u64::from(connections.payload) | u64::from(connections.reply) << 16,
        ];
        let mut head = [0; HEAD_BYTES];
        for (bytes, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *bytes = word.to_le_bytes();
        }
        Ok(head)
    }

    /// Decodes a head of a link without bulk connections. The second value is the number of payload bytes that follow, at most
    /// [`MAX_PAYLOAD_BYTES`].
    ///
    /// # Errors
    /// [`FrameError`] with the field that is wrong.
    pub fn decode(head: &[u8; HEAD_BYTES]) -> Result<(Self, usize), FrameError> {
        match Self::decode_over(head)? {
            (frame, FrameConnections { payload: 0, reply: 0 }, payload) => Ok((frame, payload)),
            _ => Err(FrameError::Reserved { bits: u64_at(head, 24) }),
        }
    }

    /// Decodes a head. The last value is the number of payload bytes, at most [`MAX_PAYLOAD_BYTES`].
    ///
    /// # Errors
    /// [`FrameError`] with the field that is wrong.
    pub fn decode_over(head: &[u8; HEAD_BYTES]) -> Result<(Self, FrameConnections, usize), FrameError> {
        let payload = payload_length(u32_at(head, 0))?;
        let flags = u16_at(head, 6);
        let unknown = u64::from(flags & !WANTS_REPLY_FLAG) | u64::from(u32_at(head, 28));
        if unknown != 0 {
            return Err(FrameError::Reserved { bits: unknown });
        }
        let connections = FrameConnections { payload: u16_at(head, 24), reply: u16_at(head, 26) };
        connections.check(flags & WANTS_REPLY_FLAG != 0)?;
        let thread = u32_at(head, 8);
        if thread == 0 {
            return Err(FrameError::Thread);
        }
        let opcode = u16_at(head, 4);
        let (context, sequence) = (u32_at(head, 12), u64_at(head, 16));
        Ok((
            Self { opcode, wants_reply: flags & WANTS_REPLY_FLAG != 0, thread, context, sequence },
            connections,
            payload,
        ))
    }
}

/// The connections of a stream link that carry a frame's payload and its reply: 0 is the first connection, other numbers are bulk
/// connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameConnections {
    /// Connection that carries the payload.
    pub payload: u16,
    /// Connection that carries the reply.
    pub reply: u16,
}

impl FrameConnections {
    fn check(self, wants_reply: bool) -> Result<(), FrameError> {
        let is_wrong = |number: u16| number > MAX_BULK_CONNECTIONS;
        match self {
            Self { payload, .. } if is_wrong(payload) => Err(FrameError::Connection { number: payload }),
            Self { reply, .. } if is_wrong(reply) || (reply != 0 && !wants_reply) => {
                Err(FrameError::Connection { number: reply })
            }
            _ => Ok(()),
        }
    }
}

/// The head of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    /// `CUresult` of the call; 0 is success.
    pub status: u32,
    /// `CUresult` of an earlier enqueued call that failed and was not reported yet; 0 is none.
    pub deferred: u32,
    /// Bytes of device output behind the payload, see [`Output`]; 0 is none.
    pub output: u32,
    /// The program's thread that waits for this reply.
    pub thread: u32,
    /// Number of the frame that this answers.
    pub sequence: u64,
}

/// The thread number of heartbeats; no program's thread has it.
const HEARTBEAT_THREAD: u32 = u32::MAX;
/// The thread number of reclaim notices; no program's thread has it.
const RECLAIM_NOTICE: u32 = u32::MAX - 1;

/// A worker's sign of life on a stream link: the head of a reply without a request, and without a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Whether the worker is executing a frame. Otherwise it waits for the next one, and owes replies.
    pub is_busy: bool,
    /// Frames that it has received completely.
    pub frames: u64,
}

impl From<Heartbeat> for ReplyHead {
    fn from(beat: Heartbeat) -> Self {
        let status = u32::from(beat.is_busy);
        Self { status, deferred: 0, output: 0, thread: HEARTBEAT_THREAD, sequence: beat.frames }
    }
}

/// The worker's request for its program's idle device memory: the head of a reply without a request, and without a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReclaimNotice {
    /// Number that the program's answer carries.
    pub number: u32,
}

impl From<ReclaimNotice> for ReplyHead {
    fn from(reclaim_notice: ReclaimNotice) -> Self {
        Self { status: reclaim_notice.number, deferred: 0, output: 0, thread: RECLAIM_NOTICE, sequence: 0 }
    }
}

impl ReplyHead {
    /// Returns the reclaim notice in this head, if it is exactly one.
    #[must_use]
    pub fn reclaim_notice(&self) -> Option<ReclaimNotice> {
        let reclaim_notice = ReclaimNotice { number: self.status };
        (*self == Self::from(reclaim_notice)).then_some(reclaim_notice)
    }

    /// Returns the heartbeat in this head, if it is exactly one.
    #[must_use]
    pub fn heartbeat(&self) -> Option<Heartbeat> {
        let beat = Heartbeat { is_busy: self.status == 1, frames: self.sequence };
        (*self == Self::from(beat)).then_some(beat)
    }

    /// Encodes the head of a reply that `body` bytes follow: payload and output.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`].
    pub fn encode(&self, body: usize) -> Result<[u8; HEAD_BYTES], FrameError> {
        let mut head = [0; HEAD_BYTES];
        head[0..4].copy_from_slice(&frame_length(body)?.to_le_bytes());
        head[4..8].copy_from_slice(&self.status.to_le_bytes());
        head[8..12].copy_from_slice(&self.deferred.to_le_bytes());
        head[12..16].copy_from_slice(&self.output.to_le_bytes());
        head[16..20].copy_from_slice(&self.thread.to_le_bytes());
        head[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        Ok(head)
    }

    /// Decodes a head. The second value is the number of bytes that follow (payload and output), at most [`MAX_PAYLOAD_BYTES`].
    ///
    /// # Errors
    /// [`FrameError`] with the field that is wrong.
    pub fn decode(head: &[u8; HEAD_BYTES]) -> Result<(Self, usize), FrameError> {
        let body = payload_length(u32_at(head, 0))?;
        let reserved = u32_at(head, 20);
        if reserved != 0 {
            return Err(FrameError::Reserved { bits: reserved.into() });
        }
        let (output, thread) = (u32_at(head, 12), u32_at(head, 16));
        if output as usize > body {
            return Err(FrameError::Output { output, available: body });
        }
        if thread == 0 {
            return Err(FrameError::Thread);
        }
        let (status, deferred, sequence) = (u32_at(head, 4), u32_at(head, 8), u64_at(head, 24));
        Ok((Self { status, deferred, output, thread, sequence }, body))
    }

    /// Divides the bytes behind the head into payload and device output.
    ///
    /// # Errors
    /// [`FrameError::Output`] if the sizes disagree.
    pub fn split<'a>(&self, body: &'a [u8]) -> Result<(&'a [u8], Output<'a>), FrameError> {
        let wrong = FrameError::Output { output: self.output, available: body.len() };
        let at = body.len().checked_sub(self.output as usize).ok_or(wrong)?;
        let (payload, output) = body.split_at(at);
        if output.is_empty() {
            return Ok((payload, Output::default()));
        }
        let (stdout_len, texts) = output.split_first_chunk().ok_or(wrong)?;
        let (stdout, stderr) = texts.split_at_checked(u32::from_le_bytes(*stdout_len) as usize).ok_or(wrong)?;
        Ok((payload, Output { stdout, stderr }))
    }
}

/// Output of device code, or of the driver, since the last reply. It follows a reply's payload: `stdout_len` u32, the bytes for
/// stdout, the bytes for stderr. Nothing is sent if both are empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Output<'a> {
    /// Bytes for the program's standard output.
    pub stdout: &'a [u8],
    /// Bytes for the program's standard error.
    pub stderr: &'a [u8],
}

impl<'a> Output<'a> {
    /// Returns its size in a reply, for [`ReplyHead::output`].
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let texts = self.stdout.len() + self.stderr.len();
        if texts == 0 { 0 } else { 4 + texts }
    }

    /// Returns the encoded length in front of the two texts.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`]: the output fits no reply.
    pub fn prefix(&self) -> Result<[u8; 4], FrameError> {
        let length =
            u32::try_from(self.stdout.len()).map_err(|_| FrameError::TooLarge { payload: self.stdout.len() })?;
        Ok(length.to_le_bytes())
    }

    /// Splits the output: as much as fits a reply beside `payload` bytes, and the rest for the next one.
    #[must_use]
    pub fn cut(self, payload: usize) -> (Self, Self) {
        let capacity = MAX_PAYLOAD_BYTES.saturating_sub(payload).saturating_sub(4);
        let (stdout, stdout_rest) = split_within(self.stdout, capacity);
        let (stderr, stderr_rest) = split_within(self.stderr, capacity - stdout.len());
        (Self { stdout, stderr }, Self { stdout: stdout_rest, stderr: stderr_rest })
    }
}

/// Returns the bytes that a frame takes in a ring, whose frames start at multiples of 8.
#[must_use]
pub const fn padded(frame: usize) -> usize {
    frame.next_multiple_of(8)
}

fn split_within(text: &[u8], capacity: usize) -> (&[u8], &[u8]) {
    text.split_at(text.len().min(capacity))
}

#[inline]
fn frame_length(payload: usize) -> Result<u32, FrameError> {
    if payload > MAX_PAYLOAD_BYTES {
        return Err(FrameError::TooLarge { payload });
    }
    u32::try_from(payload + HEAD_BYTES).map_err(|_| FrameError::TooLarge { payload })
}

fn payload_length(length: u32) -> Result<usize, FrameError> {
    let whole = length as usize;
    if !(HEAD_BYTES..=MAX_FRAME_BYTES).contains(&whole) {
        return Err(FrameError::Length { length });
    }
    Ok(whole - HEAD_BYTES)
}

fn u16_at(head: &[u8; HEAD_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([head[at], head[at + 1]])
}

fn u32_at(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn u64_at(head: &[u8; HEAD_BYTES], at: usize) -> u64 {
    u64::from(u32_at(head, at)) | u64::from(u32_at(head, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_OF_A_CALL: FrameHead =
        FrameHead { opcode: 0x1234, wants_reply: true, thread: 7, context: 3, sequence: 0x0102_0304_0506_0708 };
    const HEAD_OF_A_REPLY: ReplyHead = ReplyHead { status: 2, deferred: 700, output: 0, thread: 7, sequence: u64::MAX };

    /// A small random generator, so that a failure repeats.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn a_beat_is_told_from_replies() {
        for beat in [Heartbeat { is_busy: true, frames: 0 }, Heartbeat { is_busy: false, frames: u64::MAX }] {
            let head = ReplyHead::from(beat);
            assert_eq!(ReplyHead::decode(&head.encode(0).unwrap()).unwrap().0.heartbeat(), Some(beat));
            for almost in [
                ReplyHead { thread: 1, ..head },
                ReplyHead { status: 2, ..head },
                ReplyHead { deferred: 1, ..head },
                ReplyHead { output: 1, ..head },
            ] {
                assert_eq!(almost.heartbeat(), None);
            }
        }
    }

    #[test]
    fn a_notice_is_told_from_replies_and_beats() {
        let head = ReplyHead::from(ReclaimNotice { number: 7 });
        let read = ReplyHead::decode(&head.encode(0).unwrap()).unwrap().0;
        assert_eq!((read.reclaim_notice(), read.heartbeat()), (Some(ReclaimNotice { number: 7 }), None));
        assert_eq!(ReplyHead { sequence: 1, ..head }.reclaim_notice(), None);
        assert_eq!(ReplyHead::from(Heartbeat { is_busy: true, frames: 0 }).reclaim_notice(), None);
    }

    #[test]
    fn a_request_head_has_the_documented_bytes() {
        let bytes = HEAD_OF_A_CALL.encode(8).unwrap();
        assert_eq!(bytes[..8], [40, 0, 0, 0, 0x34, 0x12, 1, 0]);
        assert_eq!(bytes[8..16], [7, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[16..], [8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(FrameHead::decode(&bytes), Ok((HEAD_OF_A_CALL, 8)));
    }

    #[test]
    fn a_reply_head_has_the_documented_bytes() {
        let bytes = HEAD_OF_A_REPLY.encode(0).unwrap();
        assert_eq!(bytes[..16], [32, 0, 0, 0, 2, 0, 0, 0, 188, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ReplyHead::decode(&bytes), Ok((HEAD_OF_A_REPLY, 0)));
    }

    #[test]
    fn lengths_outside_the_bounds_are_refused() {
        let mut bytes = HEAD_OF_A_CALL.encode(0).unwrap();
        for length in [0, 31, MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(FrameHead::decode(&bytes), Err(FrameError::Length { length }));
        }
        assert_eq!(
            HEAD_OF_A_CALL.encode(MAX_PAYLOAD_BYTES + 1),
            Err(FrameError::TooLarge { payload: MAX_PAYLOAD_BYTES + 1 })
        );
        assert!(HEAD_OF_A_CALL.encode(MAX_PAYLOAD_BYTES).is_ok());
    }

    #[test]
    fn bits_without_a_meaning_are_refused() {
        let mut bytes = HEAD_OF_A_CALL.encode(0).unwrap();
        bytes[7] = 0x80;
        assert_eq!(FrameHead::decode(&bytes), Err(FrameError::Reserved { bits: 0x8000 }));
        let mut reply = HEAD_OF_A_REPLY.encode(0).unwrap();
        reply[20] = 1;
        assert_eq!(ReplyHead::decode(&reply), Err(FrameError::Reserved { bits: 1 }));
    }

    #[test]
    fn bulk_connections_have_their_bytes_and_their_bounds() {
        let connections = FrameConnections { payload: 1, reply: MAX_BULK_CONNECTIONS };
        let bytes = HEAD_OF_A_CALL.encode_over(9, connections).unwrap();
        assert_eq!(bytes[24..], [1, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!(FrameHead::decode_over(&bytes), Ok((HEAD_OF_A_CALL, connections, 9)));
        assert_eq!(FrameHead::decode(&bytes), Err(FrameError::Reserved { bits: 0x10_0001 }));
        let unasked = FrameHead { wants_reply: false, ..HEAD_OF_A_CALL };
        for (head, wrong, number) in [
            (
                HEAD_OF_A_CALL,
                FrameConnections { payload: MAX_BULK_CONNECTIONS + 1, reply: 0 },
                MAX_BULK_CONNECTIONS + 1,
            ),
            (HEAD_OF_A_CALL, FrameConnections { payload: 0, reply: u16::MAX }, u16::MAX),
            (unasked, FrameConnections { payload: 0, reply: 2 }, 2),
        ] {
            let bytes = head.encode_over(0, wrong).unwrap();
            assert_eq!(FrameHead::decode_over(&bytes), Err(FrameError::Connection { number }));
        }
        let mut bytes = HEAD_OF_A_CALL.encode(0).unwrap();
        bytes[31] = 1;
        assert_eq!(FrameHead::decode_over(&bytes), Err(FrameError::Reserved { bits: 0x0100_0000 }));
    }

    #[test]
    fn output_is_divided_from_the_payload() {
        let output = Output { stdout: b"out", stderr: b"error" };
        let head = ReplyHead { output: output.encoded_len() as u32, ..HEAD_OF_A_REPLY };
        let body = [&b"payload"[..], &output.prefix().unwrap(), output.stdout, output.stderr].concat();
        assert_eq!(head.split(&body), Ok((&b"payload"[..], output)));
        let lying = ReplyHead { output: body.len() as u32 + 1, ..head };
        assert!(lying.split(&body).is_err());
        assert!(ReplyHead { output: 3, ..head }.split(&body).is_err());
    }

    #[test]
    fn output_that_does_not_fit_waits_for_the_next_reply() {
        let text = vec![b'x'; MAX_PAYLOAD_BYTES];
        let (head, later) = Output { stdout: &text, stderr: b"end" }.cut(100);
        assert_eq!(100 + head.encoded_len(), MAX_PAYLOAD_BYTES);
        assert_eq!(head.stdout.len() + later.stdout.len(), text.len());
        assert_eq!((head.stderr, later.stderr), (&b""[..], &b"end"[..]));
        assert_eq!(Output { stdout: b"a", stderr: b"b" }.cut(MAX_PAYLOAD_BYTES).0, Output::default());
    }

    #[test]
    fn random_heads_never_panic_and_survive_a_round_trip() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for round in 0..200_000 {
            let mut bytes = [0; HEAD_BYTES];
            bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random(&mut state).to_le_bytes()));
            if round % 2 == 0 {
                bytes[2..4].fill(0);
                bytes[7] = 0;
                bytes[24..].fill(0);
            }
            if let Ok((head, payload)) = FrameHead::decode(&bytes) {
                assert!(payload <= MAX_PAYLOAD_BYTES);
                assert_eq!(FrameHead::decode(&head.encode(payload).unwrap()), Ok((head, payload)));
            }
            if let Ok((head, body)) = ReplyHead::decode(&bytes) {
                assert_eq!(ReplyHead::decode(&head.encode(body).unwrap()), Ok((head, body)));
            }
        }
    }
}
