//! Reads whole files that a user names. A pipe or device instead of a file is refused, since it may never end.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a text file.
///
/// # Errors
///
/// The system's error; or the path is not a regular file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}
