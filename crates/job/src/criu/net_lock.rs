//! The packet filter's table by which CRIU keeps the connections of a dump silent, and its end.
//!
//! CRIU takes it away when the processes go on, and else when this very dump is restored. Processes that are killed leave it
//! there for their connections' other ends. Where these were killed too, no process needs it, and processes that are restored
//! from another checkpoint would be kept from talking to each other.
//!
//! A request is three messages of netlink: the begin of a batch, the order, the end of the batch. Each is a head of 16
//! bytes (length, type, flags, number, sender), 4 bytes about its family, and attributes.

use std::fs;
use std::io;
use std::path::Path;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use crate::criu::protobuf::{Fields, Value};

/// The file of a dump that names its table, what is in it before its message, and the field.
const INVENTORY_FILE: &str = "inventory.img";
const INVENTORY_HEADER_BYTES: usize = 8;
const RUN_ID_FIELD: u64 = 13;

/// `NFNL_MSG_BATCH_BEGIN` and `_END`; `NFNL_SUBSYS_NFTABLES`; `NFT_MSG_DELTABLE` of that.
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
const TABLES: u16 = 10;
const DELETE: u16 = TABLES << 8 | 2;
/// `NFPROTO_INET`, and no family.
const INET: u8 = 1;
const NONE: u8 = 0;
/// Flags of a message: a request, `NLM_F_REQUEST`, and one that is answered, `NLM_F_ACK`.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// The attribute of a table's name, `NFTA_TABLE_NAME`.
const NAME: u16 = 1;
/// As many bytes of the name count: CRIU 4.2 writes it into 32, with the family in front and a zero behind.
const MAX_NAME_BYTES: usize = 26;
/// `ENOENT`: it is gone already.
const ENOENT: i32 = 2;

/// The table's name, out of the folder of a dump.
pub(crate) fn table(folder: &Path) -> Option<String> {
    let bytes = fs::read(folder.join(INVENTORY_FILE)).ok()?;
    let run = Fields(bytes.get(INVENTORY_HEADER_BYTES..)?).find_map(|(field, value)| match value {
        Value::Bytes(run) if field == RUN_ID_FIELD => std::str::from_utf8(run).ok(),
        _ => None,
    });
    run.map(|run| format!("CRIU-{run}").chars().take(MAX_NAME_BYTES).collect())
}

/// Removes a table, if it is there.
pub(crate) fn end(table: &str) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
    let mut request = message(BEGIN, REQUEST, NONE, TABLES, &[]);
    request.extend(message(DELETE, REQUEST | ACK, INET, 0, &attribute(table)));
    request.extend(message(END, REQUEST, NONE, TABLES, &[]));
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let code = answer.get(..length).and_then(|answer| answer.get(16..)).and_then(|rest| rest.first_chunk());
    match code.map_or(0, |code| i32::from_le_bytes(*code).saturating_neg()) {
        0 | ENOENT => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// The kernel takes batches whose numbers are all the same.
fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend([kind.to_le_bytes(), flags.to_le_bytes()].concat());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

/// The name with a zero behind it, filled up to whole words.
fn attribute(name: &str) -> Vec<u8> {
    let length = u16::try_from(4 + name.len() + 1).unwrap_or(u16::MAX);
    let mut bytes = [length.to_le_bytes(), NAME.to_le_bytes()].concat();
    bytes.extend(name.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_named_by_the_run() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(table(folder.path()), None);
        let message = crate::criu::protobuf::Message::default()
            .number(1, 2)
            .bytes(RUN_ID_FIELD, b"763aaf68-5e2c-4068-813c-2220dbcb")
            .encoded();
        fs::write(folder.path().join(INVENTORY_FILE), [&[0x16, 0x31, 0x31, 0x58, 38, 0, 0, 0], &message[..]].concat())
            .unwrap();
        assert_eq!(table(folder.path()).unwrap(), "CRIU-763aaf68-5e2c-4068-81");
    }

    #[test]
    fn messages_have_whole_words_and_say_how_long_they_are() {
        let attribute = attribute("CRIU-a");
        assert_eq!((attribute.len(), attribute[0]), (12, 11));
        let message = message(DELETE, REQUEST, INET, 0, &attribute);
        assert_eq!((message.len(), message[0], &message[4..6]), (32, 32, &[2, 10][..]));
    }
}
