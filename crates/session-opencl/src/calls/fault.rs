//! Why a message was not carried out: the driver refused, or the message breaks the protocol ([`SessionError`]).

use katydid_opencl_sys::Code;
pub use katydid_session_core::SessionError;
use katydid_session_core::UploadError;
use katydid_wire::codec::CodecError;

/// Why a message was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Code of the driver, or one in its place; the program receives it.
    #[error("the driver returned {0}")]
    Cl(Code),
    /// The message breaks the protocol, or the session cannot go on. The session ends.
    #[error(transparent)]
    Fatal(#[from] SessionError),
}

impl katydid_session_core::Fault<Code> for Fault {
    fn into_code(self) -> Result<Code, SessionError> {
        match self {
            Self::Cl(code) => Ok(code),
            Self::Fatal(error) => Err(error),
        }
    }
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
