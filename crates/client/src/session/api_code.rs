//! The result codes of an API, as far as the parts of a session have to know them.

use std::fmt::Display;

use katydid_cuda_sys::CUresult;
use katydid_opencl_sys::Code;
use katydid_wire::codec::Message;
use katydid_wire::handshake::SessionKind;
use katydid_wire::message::kdOutput;
use katydid_wire::opencl::message::kdclOutput;

/// A result code of one API. What is generic over it is compiled once for each API and costs neither anything.
pub trait ApiCode: Copy + Eq + Display + Send + Sync + 'static {
    /// The session's kind in the handshake.
    const KIND: SessionKind;
    /// The API's name in messages to the user.
    const API: &'static str;
    /// Asks the worker for device output that a full reply had no room for.
    type Output: Message;

    /// What calls return that have not failed.
    const SUCCESS: Self;
    /// What calls return once the worker is gone.
    const LOST: Self;
    /// For a message of a thread that holds a lock ([`katydid_transport::with_lock_held`]): it would have had to wait, and was not
    /// sent. No worker answers this to what such threads send.
    const HELD: Self;
    /// For a call in a child of the process that made the session.
    const FORKED: Self;
    /// The worker has no memory for the call.
    const OUT_OF_MEMORY: Self;
    /// There is no answer yet: work is still under way, or there will be memory soon. None where the API has no such code.
    const NOT_READY: Option<Self>;
    /// For a message that no frame has room for; without a code, the link refuses it and the session ends.
    const TOO_LONG: Option<Self>;
    /// Whether any call that succeeds may report the failure of an earlier enqueued call. Otherwise only
    /// [`crate::session::Session::take_deferred`] does.
    const CALLS_REPORT_EARLIER: bool;

    /// The code behind a number of the wire.
    fn from_wire(number: u32) -> Self;

    /// The code's number on the wire; 0 for success.
    fn to_wire(self) -> u32;

    /// Whether an error ruins its context: every later call in it returns the same, natively as here.
    fn is_fault(self) -> bool;

    /// Whether the failure of an earlier enqueued call outranks this code.
    fn yields_to_earlier(self) -> bool {
        self == Self::SUCCESS || Some(self) == Self::NOT_READY
    }

    /// The code as a result.
    ///
    /// # Errors
    ///
    /// The code, unless it is success.
    fn check(self) -> Result<(), Self> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }
}

impl ApiCode for CUresult {
    const KIND: SessionKind = SessionKind::CUDA;
    const API: &'static str = "CUDA";
    type Output = kdOutput;

    const SUCCESS: Self = Self::SUCCESS;
    /// The driver knows no "connection lost". Of the errors that programs treat as "this GPU cannot be used any more", this is
    /// the one that does not blame a kernel.
    const LOST: Self = Self::ERROR_DEVICE_UNAVAILABLE;
    const HELD: Self = Self::ERROR_NOT_READY;
    const FORKED: Self = Self::ERROR_NOT_INITIALIZED;
    const OUT_OF_MEMORY: Self = Self::ERROR_OUT_OF_MEMORY;
    const NOT_READY: Option<Self> = Some(Self::ERROR_NOT_READY);
    const TOO_LONG: Option<Self> = None;
    const CALLS_REPORT_EARLIER: bool = true;

    fn from_wire(number: u32) -> Self {
        Self(number)
    }

    fn to_wire(self) -> u32 {
        self.0
    }

    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::ERROR_ECC_UNCORRECTABLE
                | Self::ERROR_NVLINK_UNCORRECTABLE
                | Self::ERROR_CONTAINED
                | Self::ERROR_ILLEGAL_ADDRESS
                | Self::ERROR_LAUNCH_TIMEOUT
                | Self::ERROR_ASSERT
                | Self::ERROR_HARDWARE_STACK_ERROR
                | Self::ERROR_ILLEGAL_INSTRUCTION
                | Self::ERROR_MISALIGNED_ADDRESS
                | Self::ERROR_INVALID_ADDRESS_SPACE
                | Self::ERROR_INVALID_PC
                | Self::ERROR_LAUNCH_FAILED
        )
    }
}

impl ApiCode for Code {
    const KIND: SessionKind = SessionKind::OPENCL;
    const API: &'static str = "OpenCL";
    type Output = kdclOutput;

    const SUCCESS: Self = Self::SUCCESS;
    /// The code of a lost connection: of OpenCL's codes, the one that blames neither the program nor a kernel.
    const LOST: Self = Self::DEVICE_NOT_AVAILABLE;
    const HELD: Self = Self::OUT_OF_RESOURCES;
    const FORKED: Self = Self::LOST;
    const OUT_OF_MEMORY: Self = Self::OUT_OF_HOST_MEMORY;
    const NOT_READY: Option<Self> = None;
    /// Such as a list or a name of the program's that is longer than any driver takes.
    const TOO_LONG: Option<Self> = Some(Self::OUT_OF_HOST_MEMORY);
    const CALLS_REPORT_EARLIER: bool = false;

    fn from_wire(number: u32) -> Self {
        Self(number.cast_signed())
    }

    fn to_wire(self) -> u32 {
        self.0.cast_unsigned()
    }

    fn is_fault(self) -> bool {
        false
    }
}
