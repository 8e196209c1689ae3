//! Errors of opening a driver library. Every text names the file and says what to do.

use std::path::PathBuf;

use katydid_cuda_sys::CUresult;

/// Why a [`crate::DriverChoice`] gave no working library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The dynamic loader refused the file.
    #[error("{path}: cannot be loaded as a driver library ({reason}); give --driver the path of a libcuda.so.1")]
    Load {
        /// The name or path given to the loader.
        path: PathBuf,
        /// The loader's error message.
        reason: String,
    },
    /// Katydid's own library for programs was about to be opened as the driver: calls would run in a circle.
    #[error(
        "{path}: this is Katydid's own libcuda.so.1 for programs, not a driver; \
         take its folder out of LD_LIBRARY_PATH of the server, or give --driver another path"
    )]
    OwnShim {
        /// The library with the marker.
        path: PathBuf,
    },
    /// The library lacks an essential function.
    #[error("{path}: has no function {function}, so it is not a CUDA driver library; give --driver another path")]
    NotADriver {
        /// Path of the library.
        path: PathBuf,
        /// The missing symbol.
        function: &'static str,
    },
    /// The library was loaded, but its `cuInit` or device count failed.
    #[error("{path}: {function} returned {}; check the GPU with nvidia-smi, or use --driver soft", CUresult(*code))]
    Init {
        /// Path of the library.
        path: PathBuf,
        /// The call that failed.
        function: &'static str,
        /// `CUresult` that the call returned.
        code: u32,
    },
    /// The library's driver lacks functions that every session needs.
    #[error(
        "{path}: is the driver of CUDA {}.{}, and Katydid needs one of CUDA {}.{} or later: install NVIDIA's driver 525 or \
         later, or use --driver soft",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    TooOld {
        /// Path of the library.
        path: PathBuf,
        /// Version from `cuDriverGetVersion`, such as 11080 for 11.8.
        found: i32,
        /// Oldest version that Katydid supports, such as 11080 for 11.8.
        needed: i32,
    },
    /// The library works, but shows no GPU.
    #[error("{path}: shows no device; check CUDA_VISIBLE_DEVICES and nvidia-smi, or use --driver soft")]
    NoDevice {
        /// Path of the library.
        path: PathBuf,
    },
    /// `auto` searched for a GPU's driver, and the loader found softcuda under its name.
    #[error("{path}: is softcuda, not the driver of a GPU; say --driver soft if that is meant")]
    IsSoft {
        /// Path of the library.
        path: PathBuf,
    },
    /// `auto` was requested, but NVIDIA's library does not work here, and softcuda is not installed.
    #[error("no GPU driver works here ({gpu}), and softcuda does not either ({soft})")]
    Neither {
        /// The error of NVIDIA's library.
        gpu: Box<DriverError>,
        /// Why softcuda cannot be used.
        soft: Box<DriverError>,
    },
    /// softcuda was requested, but the caller knows no folder in which it is installed.
    #[error(
        "softcuda is not installed; run `cargo xtask dist`, or set KATYDID_LIB to the folder that holds soft/libcuda.so.1"
    )]
    NoSoft,
}

impl DriverError {
    /// Returns whether a GPU's driver was found but does not work.
    pub(crate) fn is_of_a_driver(&self) -> bool {
        matches!(self, Self::Init { .. } | Self::TooOld { .. } | Self::NoDevice { .. })
    }
}
