//! Why a message failed: the driver returned an error, or the program broke the protocol ([`SessionError`]).

use katydid_cuda_sys::CUresult;
pub use katydid_session_core::SessionError;
use katydid_session_core::UploadError;
use katydid_transport::LinkError;
use katydid_wire::codec::CodecError;

/// Why a message failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The driver's code, or one in its place; the program gets it.
    #[error("the driver returned {}", .0.0)]
    Cuda(CUresult),
    /// The message breaks the protocol, or the session cannot go on: the session ends.
    #[error(transparent)]
    Fatal(#[from] SessionError),
}

impl katydid_session_core::Fault<CUresult> for Fault {
    fn into_code(self) -> Result<CUresult, SessionError> {
        match self {
            Self::Cuda(code) => Ok(code),
            Self::Fatal(error) => Err(error),
        }
    }
}

impl From<CUresult> for Fault {
    fn from(code: CUresult) -> Self {
        Self::Cuda(code)
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<UploadError> for Fault {
    fn from(error: UploadError) -> Self {
        Self::Fatal(error.into())
    }
}
