//! Files that a user names and we read whole: a pipe or a device in the place of one, which may never end, is refused.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a file of text.
///
/// # Errors
///
/// What the system said; or it is no file.
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
