//! What can go wrong with a message: the driver says no, or the program is no honest one.
//!
//! A [`Fault::Cl`] goes back to the program as the code of its call. A [`SessionError`] ends the session with one line
//! in the server's log; what the program sent is never repaired or guessed.

use katydid_opencl_sys::Code;
use katydid_session_core::UploadError;
use katydid_transport::LinkError;
use katydid_wire::codec::CodecError;

/// Why a session ended before its program closed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The opcode names no message of this build.
    #[error("the program sent opcode {opcode}, which names no message")]
    UnknownOpcode {
        /// As found in the frame.
        opcode: u16,
    },
    /// A message's bytes do not hold what its description says.
    #[error("the program sent a damaged message: {0}")]
    Damaged(#[from] CodecError),
    /// A part of a message with a layout of its own is damaged.
    #[error("the program sent {message} with damaged {part}")]
    DamagedPart {
        /// Name of the message.
        message: &'static str,
        /// Which part.
        part: &'static str,
    },
    /// An id beyond every id that an honest program could give, or one that is taken.
    #[error("the program gave a new object the id {id}, which {why}")]
    BadId {
        /// The id.
        id: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A waiting message came without the wish for a reply.
    #[error("the program sent {message} without waiting for its reply")]
    NoReplyWanted {
        /// Name of the message.
        message: &'static str,
    },
    /// More program threads than a program has.
    #[error("the program uses more than {most} threads")]
    TooManyThreads {
        /// The bound.
        most: usize,
    },
    /// A thread sent on while its blocking calls were being executed.
    #[error("the program's thread {thread} does not wait for its replies")]
    Impatient {
        /// The program's thread.
        thread: u32,
    },
    /// Data did not come as announced.
    #[error("the program sent data wrongly: {0}")]
    Upload(#[from] UploadError),
    /// The link broke or carried bytes that are no frame.
    #[error("the link to the program failed: {0}")]
    Link(#[from] LinkError),
    /// The worker's own system failed it.
    #[error("the worker cannot {what}: {reason}")]
    System {
        /// What it tried.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
}

/// Why a message was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The driver's answer, or one in its place; the program gets it.
    #[error("the driver returned {0}")]
    Cl(Code),
    /// The session ends.
    #[error(transparent)]
    Fatal(#[from] SessionError),
}

impl From<Code> for Fault {
    fn from(code: Code) -> Self {
        Self::Cl(code)
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<UploadError> for Fault {
    fn from(error: UploadError) -> Self {
        Self::Fatal(error.into())
    }
}
