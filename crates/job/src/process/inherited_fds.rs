//! Descriptors that a process was started with, besides its standard streams.

#![expect(unsafe_code, reason = "descriptors are taken over by their numbers")]

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_getfd;

/// Takes over all descriptors of this process but the standard streams.
///
/// # Errors
///
/// `/proc` cannot be read.
///
/// # Safety
///
/// No other code in this process owns a descriptor.
pub unsafe fn take() -> io::Result<Vec<OwnedFd>> {
    let list = fs::read_dir("/proc/self/fd")?;
    let numbers: Vec<RawFd> = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: the descriptors are only queried. The folder that was read is closed by now.
    let is_open = |number: &RawFd| fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok();
    let open = numbers.into_iter().filter(|number| *number > 2).filter(is_open);
    // SAFETY: they are open, and the caller guarantees that no other code owns them.
    Ok(open.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}
