//! Identifies a file, whatever its name.
//!
//! An inode number identifies a file only while that exists: file systems give the number of a removed file to a new one. So the
//! creation time counts too, if the file system knows it and the other file may be gone.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// Bits of the minor number in the kernel's form of a device number.
const KERNEL_MINOR_BITS: u32 = 20;

/// Device and inode of a file. It is saved as the two numbers, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub(crate) struct FileId {
    /// Device number, `st_dev`.
    pub(crate) device: u64,
    /// Number of the inode on that device.
    pub(crate) inode: u64,
}

impl FileId {
    /// The id of the file with this metadata.
    pub(crate) fn of(stat: &Metadata) -> Self {
        Self { device: stat.dev(), inode: stat.ino() }
    }

    /// The id of a file whose device is in the kernel's own form, as in `fdinfo` and CRIU's images: the major number above 20
    /// bits of the minor one.
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

/// Identifies a file among all of this machine, even removed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatedFileId {
    id: FileId,
    /// Creation time, as [`birth`] returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    birth: Option<u64>,
}

impl DatedFileId {
    pub(crate) fn new(stat: &Metadata) -> Self {
        Self { id: FileId::of(stat), birth: birth(stat) }
    }

    /// The id of the file that has the name now; for a symbolic link, the link's own.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|stat| Self::new(&stat))
    }
}

/// Creation time of a file, in nanoseconds since 1970 (`stx_btime` of `statx`); `None` if the file system does not know it.
pub(crate) fn birth(stat: &Metadata) -> Option<u64> {
    let since = stat.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Whether two files with the same inode number can be the same file; `None` is an unknown creation time.
pub(crate) fn is_same_birth(then: Option<u64>, now: Option<u64>) -> bool {
    then.zip(now).is_none_or(|(then, now)| then == now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_device_numbers_match_stat() {
        assert_eq!(FileId::of_kernel(0x80_0001, 7), FileId { device: rustix::fs::makedev(8, 1), inode: 7 });
        assert_eq!(FileId::of_kernel(0x1a, 7), FileId { device: rustix::fs::makedev(0, 0x1a), inode: 7 });
    }

    #[test]
    fn a_file_is_saved_as_two_numbers() {
        let id = FileId { device: 5, inode: 9 };
        assert_eq!(serde_json::to_string(&id).unwrap(), "[5,9]");
        assert_eq!(serde_json::from_str::<FileId>("[5,9]").unwrap(), id);
    }

    #[test]
    fn a_file_that_follows_another_under_its_inode_number_is_another_one() {
        let file = |birth| DatedFileId { id: FileId { device: 1, inode: 2 }, birth };
        assert_ne!(file(Some(3)), file(Some(4)));
        assert!(!is_same_birth(Some(3), Some(4)));
        assert!(is_same_birth(Some(3), Some(3)) && is_same_birth(None, Some(3)) && is_same_birth(Some(3), None));
    }

    #[test]
    fn a_file_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, third] = ["one", "other", "third"].map(|name| folder.path().join(name));
        fs::write(&one, "text").unwrap();
        fs::hard_link(&one, &other).unwrap();
        fs::write(&third, "text").unwrap();
        let first = DatedFileId::of(&one);
        assert!(first.is_some() && first == DatedFileId::of(&other) && first != DatedFileId::of(&third));
        fs::write(&one, "longer text").unwrap();
        assert_eq!(first, DatedFileId::of(&one), "what is written to it changes nothing");
    }
}
