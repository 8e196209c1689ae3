//! Which file it is, whatever its name.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// Bits of the minor number in a device as the kernel has it.
const KERNEL_MINOR_BITS: u32 = 20;

/// Device and inode of a file. It is saved as the two numbers, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub(crate) struct FileId {
    /// As `stat` tells it.
    pub(crate) device: u64,
    /// Number of the inode on that device.
    pub(crate) inode: u64,
}

impl FileId {
    /// The file that has this metadata.
    pub(crate) fn of(stat: &Metadata) -> Self {
        Self { device: stat.dev(), inode: stat.ino() }
    }

    /// The file with a device in the kernel's own form, which `fdinfo` and CRIU's images have: the major number above 20 bits of
    /// the minor one.
    pub(crate) fn of_kernel(device: u64, inode: u64) -> Self {
        let minor = device & ((1 << KERNEL_MINOR_BITS) - 1);
        Self { device: rustix::fs::makedev((device >> KERNEL_MINOR_BITS) as u32, minor as u32), inode }
    }
}

impl From<(u64, u64)> for FileId {
    fn from((device, inode): (u64, u64)) -> Self {
        Self { device, inode }
    }
}

impl From<FileId> for (u64, u64) {
    fn from(id: FileId) -> Self {
        (id.device, id.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_form_of_a_device_is_that_of_stat() {
        assert_eq!(FileId::of_kernel(0x80_0001, 7), FileId { device: rustix::fs::makedev(8, 1), inode: 7 });
        assert_eq!(FileId::of_kernel(0x1a, 7), FileId { device: rustix::fs::makedev(0, 0x1a), inode: 7 });
    }

    #[test]
    fn a_file_is_saved_as_two_numbers() {
        let id = FileId { device: 5, inode: 9 };
        assert_eq!(serde_json::to_string(&id).unwrap(), "[5,9]");
        assert_eq!(serde_json::from_str::<FileId>("[5,9]").unwrap(), id);
    }
}
