//! The result codes of an API, as far as a session must know them.

use std::fmt::Display;

use katydid_cuda_sys::CUresult;
use katydid_opencl_sys::Code;
use katydid_wire::codec::Message;
use katydid_wire::handshake::SessionKind;
use katydid_wire::message::kdOutput;
use katydid_wire::opencl::message::kdclOutput;

/// A result code of one API. Generic code is compiled once for each API, at no cost to either.
pub trait ApiCode: Copy + Eq + Display + Send + Sync + 'static {
    /// The session's kind in the handshake.
    const KIND: SessionKind;
    /// The API's name in messages to the user.
    const API: &'static str;
    /// Asks the worker for device output that a full reply had no room for.
    type Output: Message;

    /// Result of calls that have not failed.
    const SUCCESS: Self;
    /// Result of calls once the worker is gone.
    const WORKER_LOST: Self;
    /// For a message of a thread that holds a lock ([`katydid_transport::with_lock_held`]): it would have had to wait, and was
    /// not sent. No worker returns this for messages that such threads send.
    const LOCK_HELD: Self;
    /// For a call in a child of the process that made the session.
    const FORKED_CHILD: Self;
    /// Result when the worker has no memory for the call.
    const OUT_OF_MEMORY: Self;
    /// Result when there is no answer yet: work is still under way, or memory will soon be free. None where the API has no such
    /// code.
    const NOT_READY: Option<Self>;
    /// Result for a message that fits no frame. Without a code, the link refuses it and the session ends.
    const TOO_LONG: Option<Self>;
    /// Whether any call that succeeds may report the failure of an earlier enqueued call. Otherwise only
    /// [`crate::session::Session::take_deferred`] does.
    const CALLS_REPORT_EARLIER: bool;

    /// Returns the code with a number on the wire.
    fn from_wire(number: u32) -> Self;

    /// Returns the code's number on the wire; 0 for success.
    fn to_wire(self) -> u32;

    /// Returns whether an error ruins its context: every later call in it returns the same, natively as here.
    fn is_fault(self) -> bool;

    /// Returns whether the failure of an earlier enqueued call outranks this code.
    fn yields_to_earlier(self) -> bool {
        self == Self::SUCCESS || Some(self) == Self::NOT_READY
    }

    /// Converts the code into a result.
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
    /// CUDA has no "connection lost". Of the errors that programs treat as "this GPU cannot be used any more", this is the one
    /// that does not blame a kernel.
    const WORKER_LOST: Self = Self::ERROR_DEVICE_UNAVAILABLE;
    const LOCK_HELD: Self = Self::ERROR_NOT_READY;
    const FORKED_CHILD: Self = Self::ERROR_NOT_INITIALIZED;
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
    /// Of OpenCL's codes, the one for a lost connection that blames neither the program nor a kernel.
    const WORKER_LOST: Self = Self::DEVICE_NOT_AVAILABLE;
    const LOCK_HELD: Self = Self::OUT_OF_RESOURCES;
    const FORKED_CHILD: Self = Self::WORKER_LOST;
    const OUT_OF_MEMORY: Self = Self::OUT_OF_HOST_MEMORY;
    const NOT_READY: Option<Self> = None;
    /// For instance for a list or a name of the program's that is longer than any driver accepts.
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
