//! Descriptors on their way through sockets of a job, as CRIU noted them: out of `sk-queues.img` of a dump.
//!
//! | what                                                               | where                                          |
//! |--------------------------------------------------------------------|------------------------------------------------|
//! | magic                                                              | two u32                                        |
//! | then, for each piece of what is in a socket, length of a message   | u32                                            |
//! | the message, in protocol buffers, and the piece behind it          | `sk_packet_entry`: field 2 is the bytes of the piece, 4 its descriptors |
//!
//! CRIU 4.2 notes them, and does not bring them back: it fails with "Failed to send packet", or the receiver waits for ever.
//! Were it better, those of a stream would come with the first byte before them that was not read, since the kernel
//! gives both at once; a program that reads that byte with `read` loses them. So there is no checkpoint then.

use std::io;
use std::path::Path;

use crate::noted::{MAGIC, bounded_if_any};
use crate::protobuf::Fields;

/// The second magic number.
const QUEUES: [u8; 4] = [0x26, 0x40, 0x26, 0x56];
/// `sk_packet_entry.length`, `.scm`.
const LENGTH: u64 = 2;
const RIGHTS: u64 = 4;

/// Whether there are any.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn have_descriptors(folder: &Path) -> io::Result<bool> {
    Ok(has_descriptors(&bounded_if_any(&folder.join("sk-queues.img"))?))
}

/// Reads as far as a piece is whole.
fn has_descriptors(queues: &[u8]) -> bool {
    let mut rest = queues.strip_prefix(&MAGIC).and_then(|rest| rest.strip_prefix(&QUEUES)).unwrap_or_default();
    let mut messages = std::iter::from_fn(|| {
        let (length, after) = rest.split_first_chunk()?;
        let (message, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after.get(usize::try_from(Fields(message).number_in(LENGTH)?).ok()?..)?;
        Some(message)
    });
    messages.any(|message| Fields(message).bytes_in(RIGHTS).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Message;

    fn file(pieces: &[Vec<u8>]) -> Vec<u8> {
        [&MAGIC[..], &QUEUES, &pieces.concat()].concat()
    }

    fn piece(bytes: &[u8], has_descriptors: bool) -> Vec<u8> {
        let message = Message::default().number(1, 11).number(LENGTH, bytes.len() as u64);
        let message = if has_descriptors { message.bytes(RIGHTS, &[8, 1, 16, 12]) } else { message }.encoded();
        [&(message.len() as u32).to_le_bytes()[..], &message, bytes].concat()
    }

    #[test]
    fn descriptors_are_found_behind_other_pieces_and_bytes_are_none() {
        assert!(has_descriptors(&file(&[piece(b"text", false), piece(b"d", true)])));
        assert!(!has_descriptors(&file(&[piece(b"text", false), piece(&piece(b"d", true), false)])));
        assert!(!has_descriptors(&file(&[])) && !has_descriptors(b"no image"));
    }

    #[test]
    fn damage_is_survived() {
        let whole = file(&[piece(b"one", false), piece(b"d", true)]);
        for length in 0..whole.len() {
            assert!(!has_descriptors(&whole[..length]), "{length}");
        }
    }
}
