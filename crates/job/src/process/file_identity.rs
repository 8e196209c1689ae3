//! Which file it is, whatever its name.
//!
//! An inode number alone says so only for as long as the file is there: file systems give the number of a file that was removed to one
//! that is made next. So the time at which the file was made counts too, where the file system knows it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// A file among all of this machine, those that were removed included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    /// `st_dev`.
    device: u64,
    /// `st_ino`.
    inode: u64,
    /// As [`birth`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    birth: Option<u64>,
}

impl FileIdentity {
    pub(crate) fn new(stat: &Metadata) -> Self {
        Self { device: stat.dev(), inode: stat.ino(), birth: birth(stat) }
    }

    /// Of what has the name now; a symbolic link's own.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|stat| Self::new(&stat))
    }
}

/// When the file was made, in nanoseconds since 1970 (`stx_btime` of `statx`); none where the file system does not know.
pub(crate) fn birth(stat: &Metadata) -> Option<u64> {
    let since = stat.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Whether two files with one inode number can be the same file; `None` is a birth that is not known.
pub(crate) fn is_same_birth(then: Option<u64>, now: Option<u64>) -> bool {
    then.zip(now).is_none_or(|(then, now)| then == now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_follows_another_under_its_inode_number_is_another_one() {
        let file = |birth| FileIdentity { device: 1, inode: 2, birth };
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
        let first = FileIdentity::of(&one);
        assert!(first.is_some() && first == FileIdentity::of(&other) && first != FileIdentity::of(&third));
        fs::write(&one, "longer text").unwrap();
        assert_eq!(first, FileIdentity::of(&one), "what is written to it changes nothing");
    }
}
