//! Descriptors on their way through sockets of a job, read from `sk-queues.img` of a dump.
//!
//! | what                                                               | where                                          |
//! |--------------------------------------------------------------------|------------------------------------------------|
//! | magic                                                              | two u32                                        |
//! | then, for each piece of data in a socket, length of a message      | u32                                            |
//! | the message, in protocol buffers, and the piece behind it          | `sk_packet_entry`: field 2 is the bytes of the piece, 4 its descriptors |
//!
//! CRIU 4.2 notes such descriptors, but does not restore them: it fails with "Failed to send packet", or the receiver waits for
//! ever. Even a better CRIU would deliver those of a stream with the first unread byte before them, since the kernel gives both
//! at once. A program that reads that byte with `read` loses them. So no checkpoint is taken then.
//!
//! CRIU reads a queue as far as its first empty datagram, which it takes for the end (`process/descriptors/datagrams.rs`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::criu::files_img;
use crate::criu::files_img::{IMAGE_FILE_MAGIC, bounded_if_any};
use crate::criu::protobuf::Fields;

/// The second magic number.
const QUEUES_MAGIC: [u8; 4] = [0x26, 0x40, 0x26, 0x56];
/// Fields of a packet: the id of its socket, `sk_packet_entry.id_for`; its length, `.length`; and its descriptors, `.scm`.
const PACKET_SOCKET_FIELD: u64 = 1;
const PACKET_LENGTH_FIELD: u64 = 2;
const PACKET_RIGHTS_FIELD: u64 = 4;

/// Whether the dump has descriptors on their way.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn have_descriptors(folder: &Path) -> io::Result<bool> {
    Ok(has_descriptors(&bounded_if_any(&folder.join("sk-queues.img"))?))
}

/// The number of datagrams or pieces that CRIU has saved of each unix socket, by the socket's inode.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn counts(folder: &Path) -> io::Result<BTreeMap<u64, usize>> {
    let queues = bounded_if_any(&folder.join("sk-queues.img"))?;
    let mut by_id = BTreeMap::new();
    for id in messages(&queues).filter_map(|message| Fields(message).number_in(PACKET_SOCKET_FIELD)) {
        *by_id.entry(id).or_default() += 1;
    }
    let sockets = files_img::unix_sockets(folder)?;
    Ok(sockets.into_iter().map(|(inode, id)| (inode, by_id.get(&id).copied().unwrap_or(0))).collect())
}

/// The messages, up to the first incomplete piece.
fn messages(queues: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest =
        queues.strip_prefix(&IMAGE_FILE_MAGIC).and_then(|rest| rest.strip_prefix(&QUEUES_MAGIC)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (message, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after.get(usize::try_from(Fields(message).number_in(PACKET_LENGTH_FIELD)?).ok()?..)?;
        Some(message)
    })
}

fn has_descriptors(queues: &[u8]) -> bool {
    messages(queues).any(|message| Fields(message).bytes_in(PACKET_RIGHTS_FIELD).is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::criu::protobuf::Message;

    fn file(pieces: &[Vec<u8>]) -> Vec<u8> {
        [&IMAGE_FILE_MAGIC[..], &QUEUES_MAGIC, &pieces.concat()].concat()
    }

    fn piece(bytes: &[u8], has_descriptors: bool) -> Vec<u8> {
        let message =
            Message::default().number(PACKET_SOCKET_FIELD, 11).number(PACKET_LENGTH_FIELD, bytes.len() as u64);
        let message =
            if has_descriptors { message.bytes(PACKET_RIGHTS_FIELD, &[8, 1, 16, 12]) } else { message }.encoded();
        [&(message.len() as u32).to_le_bytes()[..], &message, bytes].concat()
    }

    #[test]
    fn descriptors_follow_other_control_messages() {
        assert!(has_descriptors(&file(&[piece(b"text", false), piece(b"d", true)])));
        assert!(!has_descriptors(&file(&[piece(b"text", false), piece(&piece(b"d", true), false)])));
        assert!(!has_descriptors(&file(&[])) && !has_descriptors(b"no image"));
    }

    #[test]
    fn pieces_are_counted_by_their_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let unix = |id: u64, inode: u64| {
            let socket = Message::default().number(1, id).number(2, inode).encoded();
            let entry = Message::default().number(1, 6).number(2, id).bytes(16, &socket).encoded();
            [&(entry.len() as u32).to_le_bytes()[..], &entry].concat()
        };
        let files = [&IMAGE_FILE_MAGIC[..], &files_img::FILES_MAGIC, &unix(11, 700), &unix(12, 800)].concat();
        fs::write(folder.path().join("files.img"), files).unwrap();
        assert_eq!(counts(folder.path()).unwrap(), [(700, 0), (800, 0)].into());
        fs::write(folder.path().join("sk-queues.img"), file(&[piece(b"one", false), piece(b"two", false)])).unwrap();
        assert_eq!(counts(folder.path()).unwrap(), [(700, 2), (800, 0)].into());
    }

    #[test]
    fn damage_is_survived() {
        let whole = file(&[piece(b"one", false), piece(b"d", true)]);
        for length in 0..whole.len() {
            assert!(!has_descriptors(&whole[..length]), "{length}");
        }
    }
}
