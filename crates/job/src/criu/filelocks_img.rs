//! Leases that were being broken when CRIU noted them: reads them from `filelocks.img` of a dump, and writes the file without
//! them.
//!
//! | what | where |
//! |---|---|
//! | magic | two u32 |
//! | then, for each lock, length of a message | u32 |
//! | the message, in protocol buffers | `file_lock_entry`: field 1 is its kind, 2 its type, 3 the process, 4 the descriptor |

use std::io;
use std::path::Path;

use crate::criu::files_img::{bounded_if_any, messages, rewritten};
use crate::criu::protobuf::Fields;
use crate::process::descriptors::leases::BrokenLease;

/// Name of the file, and its second magic number.
pub(crate) const FILE_NAME: &str = "filelocks.img";
const FILE_LOCKS_MAGIC: [u8; 4] = [0x16, 0x36, 0x32, 0x54];
/// `file_lock_entry.flag`, `.type`, `.pid`, `.fd`.
const LOCK_KIND_FIELD: u64 = 1;
const LOCK_TYPE_FIELD: u64 = 2;
const LOCK_PROCESS_FIELD: u64 = 3;
const LOCK_DESCRIPTOR_FIELD: u64 = 4;
/// The kind of a lease, and the bit in the type of one that is being broken.
const LEASE_KIND: u64 = 8;
const LEASE_BREAKING_BIT: u64 = 4;

/// Returns the leases of a dump that are being broken.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn broken(folder: &Path) -> io::Result<Vec<BrokenLease>> {
    let locks = bounded_if_any(&folder.join(FILE_NAME))?;
    Ok(messages(&locks, FILE_LOCKS_MAGIC).filter_map(lease).collect())
}

/// Returns the file without these leases, or `None` if the file cannot be parsed to its end.
pub(crate) fn without_broken(locks: &[u8]) -> Option<Vec<u8>> {
    rewritten(locks, FILE_LOCKS_MAGIC, |message| lease(message).is_none().then(|| message.to_owned()))
}

fn lease(message: &[u8]) -> Option<BrokenLease> {
    let number = |field| Fields(message).number_in(field);
    let kind = number(LOCK_TYPE_FIELD)?;
    let is_one = number(LOCK_KIND_FIELD)? == LEASE_KIND && kind & LEASE_BREAKING_BIT != 0;
    let keeps_reading = kind & !LEASE_BREAKING_BIT == u64::from(libc::F_RDLCK.unsigned_abs());
    let (pid, number) =
        (u32::try_from(number(LOCK_PROCESS_FIELD)?).ok()?, i32::try_from(number(LOCK_DESCRIPTOR_FIELD)?).ok()?);
    is_one.then_some(BrokenLease { pid, number, keeps_reading })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criu::files_img::IMAGE_FILE_MAGIC;
    use crate::criu::protobuf::Message;

    fn file(entries: &[[u64; 4]]) -> Vec<u8> {
        let mut bytes = [IMAGE_FILE_MAGIC, FILE_LOCKS_MAGIC].concat();
        for entry in entries {
            let fields = (1..).zip(entry);
            let message = fields.fold(Message::default(), |message, (field, value)| message.number(field, *value));
            let message = message.number(5, 0).number(6, 0).encoded();
            bytes.extend((message.len() as u32).to_le_bytes());
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn broken_leases_differ_from_other_locks() {
        let (held, flock) = ([LEASE_KIND, 1, 7, 3], [2, 1, 7, 4]);
        let whole =
            file(&[held, [LEASE_KIND, LEASE_BREAKING_BIT | 2, 7, 5], flock, [LEASE_KIND, LEASE_BREAKING_BIT, 8, 6]]);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(broken(folder.path()).unwrap(), []);
        std::fs::write(folder.path().join(FILE_NAME), &whole).unwrap();
        let lease = |pid, number, keeps_reading| BrokenLease { pid, number, keeps_reading };
        assert_eq!(broken(folder.path()).unwrap(), [lease(7, 5, false), lease(8, 6, true)]);
        assert_eq!(without_broken(&whole), Some(file(&[held, flock])));
        let ends = [0, 3, 7, 8];
        for length in (0..whole.len()).filter(|length| !ends.contains(length)) {
            let cut = without_broken(&whole[..length]);
            assert!(cut.is_none_or(|cut| file(&[held]).starts_with(&cut) || cut == file(&[held, flock])), "{length}");
        }
        assert_eq!([without_broken(&whole[..7]), without_broken(&whole[..whole.len() - 1])], [None, None]);
    }
}
