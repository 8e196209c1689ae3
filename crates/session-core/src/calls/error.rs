//! Errors of messages: the driver returns an error, or the program breaks the protocol.
//!
//! A driver's code goes back to the program as the result of its call. A [`SessionError`] ends the session with one line in
//! the server's log; the program's data is never repaired or guessed.

use katydid_transport::LinkError;
use katydid_wire::codec::CodecError;
use katydid_wire::frame::FrameHead;

use crate::journal::record::Messages;
use crate::uploads::UploadError;

/// Why a session ended before its program closed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The opcode names no message of this build.
    #[error("the program sent opcode {opcode}, which names no message")]
    UnknownOpcode {
        /// The opcode in the frame.
        opcode: u16,
    },
    /// A message's bytes do not match its layout.
    #[error("the program sent a damaged message: {0}")]
    Damaged(#[from] CodecError),
    /// A part of a message with a layout of its own is damaged.
    #[error("the program sent {message} with damaged {part}: {reason}")]
    DamagedPart {
        /// Name of the message.
        message: &'static str,
        /// Name of the part, such as `steps` or `inputs`.
        part: &'static str,
        /// The reason why it is malformed.
        reason: String,
    },
    /// A part of a message is cut short, or names an absent entry.
    #[error("the program sent {message} with damaged {part}")]
    BadPart {
        /// Name of the message.
        message: &'static str,
        /// Name of the part that is cut short or names an absent entry.
        part: &'static str,
    },
    /// An id beyond every id that a correct program could have assigned.
    #[error("the program named {kind} {id}, but only {issued_ids} are known")]
    BadId {
        /// Kind of object, such as a stream or an event.
        kind: &'static str,
        /// Wire id that the program sent.
        id: u32,
        /// Ids assigned so far.
        issued_ids: usize,
    },
    /// An id for a new object that no correct program could assign, or one that is taken.
    #[error("the program gave a new object the id {id}, which {why}")]
    BadNewId {
        /// Wire id that the program chose.
        id: u32,
        /// Why the id cannot be taken, as the end of a sentence.
        why: &'static str,
    },
    /// A message with a reply came without a request for one.
    #[error("the program sent {message} without waiting for its reply")]
    NoReplyWanted {
        /// Name of the message.
        message: &'static str,
    },
    /// A range of memory that the program may not name.
    #[error("the program named {size} bytes at {address:#x} as {what}, which lie outside of it")]
    BadRange {
        /// The memory that should have contained the range.
        what: &'static str,
        /// First address, or offset.
        address: u64,
        /// Length of the range in bytes.
        size: u64,
    },
    /// The program sends from more threads than a session serves.
    #[error("the program uses more than {most} threads")]
    TooManyThreads {
        /// Most threads of a program that a session serves; each has an executor.
        most: usize,
    },
    /// A thread sent further frames while its blocking calls were being executed.
    #[error("the program's thread {thread} does not wait for its replies")]
    Impatient {
        /// Thread that sent the frame, as numbered in frame heads (from 1).
        thread: u32,
    },
    /// An upload differed from its announcement.
    #[error("the program sent invalid data: {0}")]
    Upload(#[from] UploadError),
    /// The link broke, or carried bytes that are no frame.
    #[error("the link to the program failed: {0}")]
    Link(#[from] LinkError),
    /// The worker's own system returned an error.
    #[error("the worker cannot {what}: {reason}")]
    System {
        /// Operation that failed, in the infinitive, such as "start a thread".
        what: &'static str,
        /// Text of the operating system's error.
        reason: String,
    },
}

/// Why a message was not executed. Each API has its own type, into which `?` converts its driver's codes.
pub trait Fault<Code>: From<SessionError> {
    /// Returns the code for the program.
    ///
    /// # Errors
    ///
    /// The error that ends the session.
    fn into_code(self) -> Result<Code, SessionError>;
}

/// Refuses a frame with a reply that does not request it. A reply to a thread that does not wait would be taken for that of
/// its next call.
///
/// # Errors
///
/// [`SessionError::NoReplyWanted`].
pub fn expect_reply(head: &FrameHead, messages: &Messages) -> Result<(), SessionError> {
    if head.wants_reply {
        return Ok(());
    }
    Err(SessionError::NoReplyWanted { message: messages.name_of(head.opcode) })
}
