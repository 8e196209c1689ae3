//! Settings that follow from a request for a checkpoint.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use katydid_image::{Compression, Options};

use crate::checkpoint::error::CheckpointError;
use crate::supervisor::view::Request;

/// The folder of CRIU's files in a checkpoint.
pub(crate) const CRIU_FOLDER: &str = "criu";

/// Whether the program stays stopped after the dump, to be killed once the checkpoint is complete.
pub(crate) fn keeps_stopped(request: &Request) -> bool {
    !request.leave_running && !request.device_only
}

pub(crate) fn options(request: &Request) -> Options {
    let compression = match request.level {
        None => Compression::default(),
        Some(0) => Compression::None,
        Some(level) => Compression::Zstd(i32::try_from(level).unwrap_or(i32::MAX)),
    };
    Options { compression, ..Options::default() }
}

/// Returns the location of the image that a request names.
pub(crate) fn image_of(request: &Request) -> Result<&Path, CheckpointError> {
    if request.image.is_absolute() || katydid_image::is_address(&request.image) {
        Ok(&request.image)
    } else {
        Err(CheckpointError::Relative(request.image.clone()))
    }
}

/// Current time, in milliseconds since 1970.
pub(crate) fn millis_since_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
