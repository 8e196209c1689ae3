//! Which file it is, whatever its name.
//!
//! An inode number alone says so only for as long as the file is there: file systems give the number of a file that was removed to one
//! that is made next. So the time at which the file was made counts too, where the file system knows it.

use std::fs::Metadata;
use std::time::UNIX_EPOCH;

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
        assert!(!is_same_birth(Some(3), Some(4)));
        assert!(is_same_birth(Some(3), Some(3)) && is_same_birth(None, Some(3)) && is_same_birth(Some(3), None));
    }
}
