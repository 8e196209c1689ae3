//! A device that runs cases.

use crate::case::Case;

/// The answer of a device to a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceAnswer {
    /// It ran; the outputs, one after the other.
    Done(Vec<u8>),
    /// The text was not loaded.
    Refused {
        /// `CUresult` of the load.
        code: u32,
        /// Log of the loader.
        log: String,
    },
    /// It was launched and failed.
    Faulted {
        /// `CUresult` of the launch.
        code: u32,
        /// Details of the failure.
        log: String,
    },
}

/// A failure of the device itself, without an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no such driver library, or no device.
    #[error(transparent)]
    Driver(#[from] katydid_driver::DriverError),
    /// A call failed for a reason outside of the case.
    #[error("{call} returned {code}")]
    Call {
        /// Name of the driver's function.
        call: &'static str,
        /// `CUresult` that it returned.
        code: u32,
    },
}

/// A device that runs PTX.
pub trait Device {
    /// Runs a case to its end.
    ///
    /// # Errors
    ///
    /// When the device fails. A case that is refused or fails is an answer.
    fn ask(&mut self, case: &Case) -> Result<DeviceAnswer, DeviceError>;
}
