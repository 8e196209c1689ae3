//! What can be asked a question.

use crate::case::Case;

/// What a device made of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceAnswer {
    /// It ran; the outputs, one after the other.
    Done(Vec<u8>),
    /// The text was not loaded.
    Refused {
        /// `CUresult` of the load.
        code: u32,
        /// What the loader said.
        log: String,
    },
    /// It was launched and failed.
    Faulted {
        /// `CUresult` of the launch.
        code: u32,
        /// What is known of it.
        log: String,
    },
}

/// The device itself failed: no answer can be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no such driver library, or no device.
    #[error(transparent)]
    Driver(#[from] katydid_driver::DriverError),
    /// A call that has nothing to do with the case failed.
    #[error("{call} returned {code}")]
    Call {
        /// Name of the driver's function.
        call: &'static str,
        /// `CUresult` that it returned.
        code: u32,
    },
}

/// Something that runs PTX.
pub trait Device {
    /// Runs a case to its end.
    ///
    /// # Errors
    ///
    /// When the device is at fault; a case that is refused or fails is an answer.
    fn ask(&mut self, case: &Case) -> Result<DeviceAnswer, DeviceError>;
}
