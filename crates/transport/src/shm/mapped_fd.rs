//! Checks that a descriptor still is the memory that is mapped at an address.
//!
//! A program may close every descriptor it does not know and open files of its own under the numbers. So before this module
//! passes memory on by its descriptor, it asks the system what is behind both. The rule: device and inode of the descriptor are
//! those of the mapping, as they are now. (They are never remembered, since a restored program has other inodes than the one that
//! was dumped.)

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{fstat, major, minor};

/// Memory that a link shares with its worker, kept open so that another worker can get it.
#[derive(Debug)]
pub(crate) struct MappedFd {
    fd: OwnedFd,
    /// What the memory is, for messages.
    name: &'static str,
    /// Its address in this process.
    address: u64,
}

impl MappedFd {
    pub(crate) fn new(fd: OwnedFd, name: &'static str, address: u64) -> Self {
        Self { fd, name, address }
    }

    /// Returns the descriptor, if it still is the mapped memory.
    ///
    /// # Errors
    ///
    /// The descriptor was closed or replaced, or the system refused.
    pub(crate) fn get(&self) -> io::Result<&OwnedFd> {
        if is_mapped_from(&self.fd, self.address)? {
            return Ok(&self.fd);
        }
        Err(io::Error::other(format!(
            "the program has closed the descriptor of its {}, which it did not open",
            self.name
        )))
    }
}

/// Returns whether `fd` is the file that is mapped at `address`.
fn is_mapped_from(fd: impl AsFd, address: u64) -> io::Result<bool> {
    // A number that was closed, and not used again, is not an error here.
    let Ok(stat) = fstat(fd) else { return Ok(false) };
    let device = format!("{:02x}:{:02x}", major(stat.st_dev), minor(stat.st_dev));
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().any(|line| mapping(line, address) == Some((&device, stat.st_ino))))
}

/// Returns device and inode of a line of `/proc/self/maps`, if its range contains `address`.
fn mapping(line: &str, address: u64) -> Option<(&str, u64)> {
    let mut columns = line.split_ascii_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let (device, inode) = (columns.nth(2)?, columns.next()?);
    range.contains(&address).then_some((device, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::channel::create;
    use crate::shm::layout::CHANNEL_ADDRESS;
    use crate::shm::shared_mapping::SharedMapping;

    #[test]
    fn a_mapping_is_recognized_by_its_file() {
        let (one, other) = (create("one", 8192).unwrap(), create("other", 8192).unwrap());
        let shared = SharedMapping::map(&one, 8192, CHANNEL_ADDRESS).unwrap();
        let address = shared.pointer(4096).addr() as u64;
        assert!(is_mapped_from(&one, address).unwrap() && !is_mapped_from(&other, address).unwrap());
        assert!(is_mapped_from(one.try_clone().unwrap(), address).unwrap());
        assert!(MappedFd::new(one, "memory", address).get().is_ok());
        let text = MappedFd::new(other, "channel", address).get().unwrap_err().to_string();
        assert!(text.contains("closed the descriptor of its channel"), "{text}");
    }

    #[test]
    fn lines_of_other_ranges_and_damaged_lines_are_skipped() {
        let line = "7f0000000000-7f0000002000 rw-s 00000000 00:01 1027   /memfd:katydid-channel (deleted)";
        assert_eq!(mapping(line, 0x7f00_0000_1fff), Some(("00:01", 1027)));
        assert_eq!(mapping(line, 0x7f00_0000_2000), None);
        for line in ["", "7f-", "x-y rw-s 0 00:01 1", "0-ffffffffffffffff rw-s 0", "0-10 r 0 0:1 x"] {
            assert_eq!(mapping(line, 0), None, "{line}");
        }
    }
}
