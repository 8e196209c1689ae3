//! The packet filter's table by which CRIU keeps the connections of a dump silent: removes it, and makes one of the same name for
//! a restore.
//!
//! CRIU removes the table when the processes go on, or when this very dump is restored. If the processes are killed, the table
//! stays for the peers of their connections. If the peers were killed too, no process needs it. It would then keep processes that
//! are restored from another checkpoint from talking to each other.
//!
//! A restore needs the table again. CRIU sends the peer's FIN once more to each end that had received it, with a mark that the
//! table lets through. Without the table, the end would answer to an address that has no socket yet, and the kernel would reset
//! the connection.
//!
//! A request is a batch of netlink messages: a begin, orders, and an end. Each message has a header of 16 bytes (length, type,
//! flags, number, sender), 4 bytes about its family, and attributes. An attribute is its length and its kind, 2 bytes each, and
//! its contents, which may be attributes. Their numbers are big-endian.

use std::fs;
use std::io;
use std::path::Path;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use crate::criu::protobuf::{FieldValue, Fields};

/// The file of a dump that names its table, the bytes before its message, and the field.
const INVENTORY_FILE: &str = "inventory.img";
const INVENTORY_HEADER_BYTES: usize = 8;
const INVENTORY_RUN_ID_FIELD: u64 = 13;

/// `NFNL_MSG_BATCH_BEGIN` and `_END`; `NFNL_SUBSYS_NFTABLES`; `NFT_MSG_NEWTABLE`, `_DELTABLE`, `_NEWCHAIN`, `_NEWRULE` of that.
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NEW_TABLE_MESSAGE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const DELETE_TABLE_MESSAGE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 2;
const NEW_CHAIN_MESSAGE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 3;
const NEW_RULE_MESSAGE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 6;
/// `NFPROTO_INET`, and no family.
const NFPROTO_INET: u8 = 1;
const NFPROTO_UNSPEC: u8 = 0;
/// Flags of a message: a request, `NLM_F_REQUEST`; one that is answered, `NLM_F_ACK`; one that creates something new
/// (`NLM_F_CREATE`, `NLM_F_EXCL`), or appends it (`NLM_F_APPEND`).
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE_EXCL: u16 = 0x600;
const NLM_F_CREATE_APPEND: u16 = 0xc00;
/// The attribute of a table's name, `NFTA_TABLE_NAME`, also in messages about chains and rules.
const NFTA_TABLE_NAME: u16 = 1;
/// `NLA_F_NESTED`: the attribute holds attributes (netlink(7)).
const NLA_F_NESTED: u16 = 0x8000;
/// Chains: the name, and the number of the hook (`NF_INET_LOCAL_OUT`, `_IN`).
const CHAIN_HOOKS: [(&str, u32); 2] = [("output", 3), ("input", 1)];
/// Mark of packets that CRIU itself sends.
const CRIU_PACKET_MARK: u32 = 0xc114;
/// `NFT_META_MARK`, `NFT_META_NFPROTO`, `NFT_META_L4PROTO`; the number of TCP; `NFT_CMP_EQ` and `_NEQ`.
const NFT_META_MARK: u32 = 3;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const IPPROTO_TCP: u8 = 6;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
/// Headers of packets: `NFT_PAYLOAD_NETWORK_HEADER`, `NFT_PAYLOAD_TRANSPORT_HEADER`.
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
/// Prefix of an IPv4 address in IPv6.
const IPV4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Bytes of the name that count: CRIU 4.2 writes it into 32, with the family in front and a zero byte behind.
const MAX_TABLE_NAME_BYTES: usize = 26;
/// `ENOENT`: the table is gone already.
const ENOENT: i32 = 2;

/// Reads the name of the table from the folder of a dump.
pub(crate) fn table(folder: &Path) -> Option<String> {
    let bytes = fs::read(folder.join(INVENTORY_FILE)).ok()?;
    let run = Fields(bytes.get(INVENTORY_HEADER_BYTES..)?).find_map(|(field, value)| match value {
        FieldValue::Bytes(run) if field == INVENTORY_RUN_ID_FIELD => std::str::from_utf8(run).ok(),
        _ => None,
    });
    run.map(|run| format!("CRIU-{run}").chars().take(MAX_TABLE_NAME_BYTES).collect())
}

/// Connections that stay silent while they are restored. Dropping the value ends the silence of those that CRIU has not released
/// yet.
#[derive(Debug)]
pub(crate) struct SilencedConnections {
    table: Option<String>,
}

impl SilencedConnections {
    /// Silences the connections of the dump in a folder. `ends` has the address of each end, and of its peer, as the kernel lists
    /// them. Does nothing if the dump's own table is still there, or if this user may not make one.
    pub(crate) fn begin(folder: &Path, ends: &[(String, String)]) -> Self {
        let rules: Vec<_> =
            ends.iter().filter_map(|(local, remote)| Some((address(local)?, address(remote)?))).collect();
        let table = table(folder).filter(|table| !rules.is_empty() && make(table).is_ok());
        // From here on, dropping the value removes the table.
        let silence = Self { table };
        let Some(table) = &silence.table else { return silence };
        let all = rules.iter().try_for_each(|(local, remote)| {
            let orders = [rule(table, "output", local, remote), rule(table, "input", remote, local)];
            send_batch(&orders.map(|rule| (NEW_RULE_MESSAGE, NLM_F_CREATE_APPEND, rule)))
        });
        if all.is_ok() { silence } else { Self { table: None } }
    }
}

impl Drop for SilencedConnections {
    fn drop(&mut self) {
        if let Some(table) = &self.table {
            let _ = end(table);
        }
    }
}

/// Removes a table, if it is there.
pub(crate) fn end(table: &str) -> io::Result<()> {
    match send_batch(&[(DELETE_TABLE_MESSAGE, 0, text(NFTA_TABLE_NAME, table))]) {
        Err(error) if error.raw_os_error() == Some(ENOENT) => Ok(()),
        ended => ended,
    }
}

/// Makes a table with chains for packets that this machine sends and receives.
fn make(table: &str) -> io::Result<()> {
    let chain = |(name, hook): (&str, u32)| {
        // The name, the hook with its priority, the policy `NF_ACCEPT`, the type.
        let hook = nested(4, &[number(1, hook), number(2, 0)].concat());
        (
            NEW_CHAIN_MESSAGE,
            NLM_F_CREATE_EXCL,
            [text(NFTA_TABLE_NAME, table), text(3, name), hook, number(5, 1), text(7, "filter")].concat(),
        )
    };
    let [output, input] = CHAIN_HOOKS.map(chain);
    send_batch(&[(NEW_TABLE_MESSAGE, NLM_F_CREATE_EXCL, text(NFTA_TABLE_NAME, table)), output, input])
}

/// Sends a batch, which the kernel applies as a whole or not at all: kinds of messages, further flags, attributes.
fn send_batch(messages: &[(u16, u16, Vec<u8>)]) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
    let mut request = message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
    for (at, (kind, flags, attributes)) in messages.iter().enumerate() {
        // The kernel reports a failure in any case.
        let answered = if at + 1 == messages.len() { NLM_F_ACK } else { 0 };
        request.extend(message(*kind, NLM_F_REQUEST | flags | answered, NFPROTO_INET, 0, attributes));
    }
    request.extend(message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]));
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let code = answer.get(..length).and_then(|answer| answer.get(16..)).and_then(|rest| rest.first_chunk());
    match code.map_or(0, |code| i32::from_le_bytes(*code).saturating_neg()) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// An address and its port, as in a packet.
type PacketAddress = (Vec<u8>, [u8; 2]);

/// Reads `0100007F:A3E1`: words of the address in the machine's byte order, and the port.
fn address(text: &str) -> Option<PacketAddress> {
    let (address, port) = text.split_once(':')?;
    let words = (0..address.len()).step_by(8).map(|at| u32::from_str_radix(address.get(at..at + 8)?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.into_iter().flat_map(u32::to_le_bytes).collect();
    let port = u16::from_str_radix(port, 16).ok()?.to_be_bytes();
    match (bytes.strip_prefix(&IPV4_MAPPED_PREFIX), bytes.len()) {
        (Some(mapped), 16) => Some((mapped.to_owned(), port)),
        (_, 4 | 16) => Some((bytes, port)),
        _ => None,
    }
}

/// A rule that drops TCP packets from one address to the other, unless they have CRIU's mark.
fn rule(table: &str, chain: &str, from: &PacketAddress, to: &PacketAddress) -> Vec<u8> {
    let family = if from.0.len() == 4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let family = u8::try_from(family.as_raw()).unwrap_or(NFPROTO_UNSPEC);
    let meta = |key: u32| expression("meta", &[number(1, 1), number(2, key)].concat());
    let compared = |how: u32, with: &[u8]| {
        expression("cmp", &[number(1, 1), number(2, how), nested(3, &attribute(1, with))].concat())
    };
    let bytes = |head: u32, at: u32, count: usize| {
        let count = u32::try_from(count).unwrap_or(0);
        expression("payload", &[number(1, 1), number(2, head), number(3, at), number(4, count)].concat())
    };
    let mut expressions = vec![meta(NFT_META_MARK), compared(NFT_CMP_NEQ, &CRIU_PACKET_MARK.to_le_bytes())];
    expressions.extend([meta(NFT_META_NFPROTO), compared(NFT_CMP_EQ, &[family])]);
    expressions.extend([meta(NFT_META_L4PROTO), compared(NFT_CMP_EQ, &[IPPROTO_TCP])]);
    // Both addresses are in the header of IPv4 from byte 12 on, and in that of IPv6 from byte 8 on.
    let first = if from.0.len() == 4 { 12 } else { 8 };
    for (at, address) in [(first, &from.0), (first + from.0.len() as u32, &to.0)] {
        expressions.extend([bytes(NFT_PAYLOAD_NETWORK_HEADER, at, address.len()), compared(NFT_CMP_EQ, address)]);
    }
    let ports = [from.1, to.1].concat();
    expressions.extend([bytes(NFT_PAYLOAD_TRANSPORT_HEADER, 0, ports.len()), compared(NFT_CMP_EQ, &ports)]);
    // The verdict `NF_DROP`.
    let verdict = nested(2, &nested(2, &number(1, 0)));
    expressions.push(expression("immediate", &[number(1, 0), verdict].concat()));
    [text(NFTA_TABLE_NAME, table), text(2, chain), nested(4, &expressions.concat())].concat()
}

/// An element of a list of expressions.
fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)].concat())
}

/// A netlink message. The kernel accepts batches in which all messages have the same number.
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

/// An attribute, padded to whole words.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_le_bytes(), kind.to_le_bytes()].concat();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, attributes)
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// An attribute with a text, which ends with a zero byte.
fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
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
            .bytes(INVENTORY_RUN_ID_FIELD, b"763aaf68-5e2c-4068-813c-2220dbcb")
            .encoded();
        fs::write(folder.path().join(INVENTORY_FILE), [&[0x16, 0x31, 0x31, 0x58, 38, 0, 0, 0], &message[..]].concat())
            .unwrap();
        assert_eq!(table(folder.path()).unwrap(), "CRIU-763aaf68-5e2c-4068-81");
    }

    #[test]
    fn messages_have_whole_words_and_say_how_long_they_are() {
        let attribute = text(NFTA_TABLE_NAME, "CRIU-a");
        assert_eq!((attribute.len(), attribute[0]), (12, 11));
        let message = message(DELETE_TABLE_MESSAGE, NLM_F_REQUEST, NFPROTO_INET, 0, &attribute);
        assert_eq!((message.len(), message[0], &message[4..6]), (32, 32, &[2, 10][..]));
    }

    #[test]
    fn addresses_are_read_as_the_kernel_lists_them() {
        assert_eq!(address("0100007F:A3E1"), Some((vec![127, 0, 0, 1], [0xa3, 0xe1])));
        assert_eq!(address("0000000000000000FFFF00000100007F:0050"), Some((vec![127, 0, 0, 1], [0, 80])));
        let loopback = [[0; 15].as_slice(), &[1]].concat();
        assert_eq!(address("00000000000000000000000001000000:0001"), Some((loopback, [0, 1])));
        for text in ["0100007F", "0100:0050", "x100007F:0050", ":0050", "\u{e4}\u{e4}\u{e4}\u{e4}:0050"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn silenced_connections_receive_nothing_until_the_lock_ends() {
        use std::io::{Read as _, Write as _};
        use std::net::{TcpListener, TcpStream};
        use std::sync::PoisonError;
        use std::time::Duration;

        use crate::process::tcp;

        let _guard = tcp::TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let run = format!("{:08x}-test", std::process::id());
        let inventory =
            crate::criu::protobuf::Message::default().bytes(INVENTORY_RUN_ID_FIELD, run.as_bytes()).encoded();
        fs::write(folder.path().join(INVENTORY_FILE), [&[0; INVENTORY_HEADER_BYTES][..], &inventory].concat()).unwrap();
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut accepted = listener.accept().unwrap().0;
            let process = [crate::process::tree::Process { pid: std::process::id(), parent: 0, state: 'R' }];
            let local = stream.local_addr().unwrap().port();
            let is_its = |port: &str| u16::from_str_radix(port, 16) == Ok(local);
            let mut ends = tcp::TcpConnections::of(&process).into_addresses();
            ends.retain(|(one, other)| [one, other].iter().any(|end| end.rsplit(':').next().is_some_and(is_its)));
            assert_eq!(ends.len(), 2);
            let silence = SilencedConnections::begin(folder.path(), &ends);
            // Without the right to filter, the connections are not silent.
            if silence.table.is_some() {
                assert!(SilencedConnections::begin(folder.path(), &ends).table.is_none(), "it is there already");
                stream.write_all(b"x").unwrap();
                accepted.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                assert!(accepted.read(&mut [0]).is_err(), "{host}: it was heard");
            } else {
                stream.write_all(b"x").unwrap();
            }
            drop(silence);
            // TCP sends it again.
            accepted.set_read_timeout(None).unwrap();
            assert_eq!(accepted.read(&mut [0]).unwrap(), 1);
        }
    }
}
