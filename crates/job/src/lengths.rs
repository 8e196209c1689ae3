//! The lengths of regular files as CRIU saw them while the processes stood still: out of `files.img` of a dump.
//!
//! | what                                                    | where                                              |
//! |---------------------------------------------------------|----------------------------------------------------|
//! | magic                                                   | two u32                                            |
//! | then, as often as there are files, length of a message  | u32                                                |
//! | the message, in protocol buffers' encoding              | `file_entry`: field 3 is the `reg_file_entry`      |
//! | in that                                                 | field 6 is the name, field 8 the length            |
//!
//! The rule: the file is CRIU's, but whoever may write the image may have changed it. Whatever is not understood ends the
//! reading; a file that is not found here is not cut back.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::protobuf::{Fields, Value};

/// Both magic numbers, as they stand in the file.
const MAGIC: [u8; 8] = [0x19, 0x43, 0x56, 0x54, 0x38, 0x31, 0x30, 0x56];
/// `file_entry.reg`.
const REGULAR: u64 = 3;
/// `reg_file_entry.name`.
const NAME: u64 = 6;
/// `reg_file_entry.size`.
const SIZE: u64 = 8;
/// Largest file that is read: entries of more files than a process can open.
const MOST: u64 = 1 << 30;

/// Names and lengths, out of the folder of a dump.
///
/// # Errors
///
/// There is no such file.
pub(crate) fn read(folder: &Path) -> io::Result<BTreeMap<String, u64>> {
    let path = folder.join("files.img");
    if fs::metadata(&path)?.len() > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "files.img is longer than any that CRIU writes"));
    }
    Ok(decode(&fs::read(path)?))
}

fn decode(bytes: &[u8]) -> BTreeMap<String, u64> {
    let mut lengths = BTreeMap::new();
    let mut rest = bytes.strip_prefix(&MAGIC).unwrap_or_default();
    while let Some((length, after)) = rest.split_first_chunk() {
        let Some((message, after)) = after.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        lengths.extend(regular(message));
        rest = after;
    }
    lengths
}

/// Name and length of a `file_entry` that is a regular file's.
fn regular(message: &[u8]) -> Option<(String, u64)> {
    let entry = Fields(message).find_map(|(number, value)| match value {
        Value::Bytes(bytes) if number == REGULAR => Some(bytes),
        _ => None,
    })?;
    let (mut name, mut size) = (None, None);
    for (number, value) in Fields(entry) {
        match (number, value) {
            (NAME, Value::Bytes(bytes)) => name = Some(std::str::from_utf8(bytes).ok()?.to_owned()),
            (SIZE, Value::Number(bytes)) => size = Some(bytes),
            _ => {}
        }
    }
    name.zip(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe, and two regular files, as CRIU 4.2.1 writes them.
    fn sample() -> Vec<u8> {
        let file = |name: &str, size: &[u8]| {
            let mut entry = vec![8, 2, 16, 0, 24, 0, 42, 10, 8, 0, 16, 0, 24, 0, 32, 0, 40, 0, 0x32, name.len() as u8];
            entry.extend(name.bytes());
            entry.extend([&[0x40], size, &[0x50, 0xed, 0x83, 0x02]].concat());
            let mut message = vec![8, 1, 16, 2, 0x1a, entry.len() as u8];
            message.extend(entry);
            message
        };
        let pipe = vec![8, 2, 16, 1, 0x92, 1, 4, 8, 1, 16, 9];
        let mut bytes = MAGIC.to_vec();
        for message in [pipe, file("/tmp/a", &[0xe0, 0x84, 0x01]), file("/b", &[0])] {
            bytes.extend((message.len() as u32).to_le_bytes());
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn names_and_lengths_are_found() {
        assert_eq!(decode(&sample()), [("/b".to_owned(), 0), ("/tmp/a".to_owned(), 0x4260)].into());
        assert!(decode(b"no image at all").is_empty() && decode(&[]).is_empty());
    }

    #[test]
    fn damage_is_survived_and_invents_no_file() {
        let sample = sample();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        for _ in 0..100_000 {
            let mut copy = sample.clone();
            let at = random() % copy.len();
            copy[at] = random() as u8;
            copy.truncate(random() % (copy.len() + 1));
            assert!(decode(&copy).len() <= 2);
        }
    }
}
