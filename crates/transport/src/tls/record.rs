//! TLS 1.3 records (RFC 8446, section 5) in the two directions of a connection whose handshake is over.
//!
//! | offset | bytes | field                                                                          |
//! |-------:|------:|--------------------------------------------------------------------------------|
//! |      0 |     1 | 23                                                                             |
//! |      1 |     2 | 3, 3                                                                           |
//! |      3 |     2 | bytes that follow, big-endian, at most 16,640                                  |
//! |      5 |   `n` | sealed: at most 16 KiB of data, a byte that says what they are, zeros, the tag |
//!
//! Each record's nonce is its number in its direction. A direction renews its key before the key has sealed too much (section
//! 4.6.3 there); both sides can derive the next one.
//!
//! The rule: nothing of a record is used before its tag was verified.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use ring::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use rustix::net::RecvFlags;

use crate::os::socket::{receive_some, send_while};

/// Bytes in front of the sealed part.
const RECORD_HEAD_BYTES: usize = 5;
/// Most bytes of data in a record.
const MAX_PLAINTEXT_BYTES: usize = 16 * 1024;
/// Most bytes behind the head that a peer may announce.
const MAX_CIPHERTEXT_BYTES: usize = MAX_PLAINTEXT_BYTES + 256;
/// Bytes of the tag.
const TAG_BYTES: usize = 16;
/// Bytes sealed before they are sent together.
const MAX_GATHERED_BYTES: usize = 8 * (RECORD_HEAD_BYTES + MAX_PLAINTEXT_BYTES + 1 + TAG_BYTES);
/// Bytes that one read may receive beyond the requested ones.
const TLS_READ_AHEAD_BYTES: usize = 16 * (RECORD_HEAD_BYTES + MAX_CIPHERTEXT_BYTES);
/// Most records that one key seals: half of the limit of AES-GCM.
const MAX_RECORDS_PER_KEY: u64 = 1 << 23;
/// Bytes of a traffic secret.
pub(crate) const TRAFFIC_SECRET_BYTES: usize = 32;
/// Length of [`Seals::encode`]'s result in bytes.
pub(crate) const SEALS_BYTES: usize = 1 + 2 * (TRAFFIC_SECRET_BYTES + 8);

pub(crate) const DATA_RECORD: u8 = 23;
pub(crate) const HANDSHAKE_RECORD: u8 = 22;
const ALERT_RECORD: u8 = 21;
/// A `KeyUpdate` handshake message of one byte, 0: what follows is sealed with the next key.
const NEXT_KEY: [u8; 5] = [24, 0, 0, 1, 0];

/// The cipher suite that seals records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128Gcm,
    ChaCha20Poly1305,
}

impl Suite {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// The number of a TLS alert that the other side sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side ended TLS: {}", self.reason())]
pub(crate) struct Alert(pub(crate) u8);

impl Alert {
    /// Returns the reason in words. The peer complains about this side.
    pub(crate) fn reason(self) -> String {
        let reason = match self.0 {
            42 => "our certificate is not good there: is it for the name or number in the address?",
            43 => "our certificate is for another purpose",
            45 => "our certificate has expired or is not valid yet, by the clock there",
            46 => "our certificate was not accepted",
            48 => "our certificate is of another authority than the one known there",
            51 => "our signature was not accepted",
            70 => "it does not speak TLS 1.3",
            116 => "the other side requires our certificate",
            number => return format!("alert {number}"),
        };
        reason.to_owned()
    }
}

/// Keys and record counter of one direction.
struct DirectionKeys {
    suite: Suite,
    secret: [u8; TRAFFIC_SECRET_BYTES],
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// Number of the next record under this key.
    sequence: u64,
}

/// A length in bytes, for key derivation.
#[derive(Clone, Copy)]
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// Expands a secret into another one (RFC 8446, section 7.1: HKDF-Expand-Label without a context).
fn expand<const N: usize>(secret: &[u8; TRAFFIC_SECRET_BYTES], label: &[u8]) -> io::Result<[u8; N]> {
    let prk = Prk::new_less_safe(HKDF_SHA256, secret);
    let (length, label_length) = ((N as u16).to_be_bytes(), [6 + label.len() as u8]);
    let info = [&length[..], &label_length, b"tls13 ", label, &[0]];
    let mut out = [0; N];
    let filled = prk.expand(&info, Bytes(N)).and_then(|okm| okm.fill(&mut out));
    filled.map(|()| out).map_err(|_| io::Error::other("a key could not be derived"))
}

impl DirectionKeys {
    fn new(suite: Suite, secret: [u8; TRAFFIC_SECRET_BYTES], sequence: u64) -> io::Result<Self> {
        let unbound = match suite {
            Suite::Aes128Gcm => UnboundKey::new(suite.algorithm(), &expand::<16>(&secret, b"key")?),
            Suite::ChaCha20Poly1305 => UnboundKey::new(suite.algorithm(), &expand::<32>(&secret, b"key")?),
        };
        let key = LessSafeKey::new(unbound.map_err(|_| io::Error::other("a key could not be made"))?);
        let iv = expand(&secret, b"iv")?;
        Ok(Self { suite, secret, key, iv, sequence })
    }

    /// Switches to the next key.
    fn renew(&mut self) -> io::Result<()> {
        *self = Self::new(self.suite, expand(&self.secret, b"traffic upd")?, 0)?;
        Ok(())
    }

    /// Returns the nonce of the next record. Each is used once.
    fn nonce(&mut self) -> Nonce {
        let mut bytes = self.iv;
        bytes[4..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.sequence += 1;
        Nonce::assume_unique_for_key(bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.secret);
        out.extend_from_slice(&self.sequence.to_le_bytes());
    }

    fn decode(suite: Suite, bytes: &[u8]) -> Option<Self> {
        let (secret, sequence) = bytes.split_first_chunk()?;
        Self::new(suite, *secret, u64::from_le_bytes(sequence.try_into().ok()?)).ok()
    }
}

/// Encrypts what this side sends, in TLS records.
pub(crate) struct Sealer {
    half: DirectionKeys,
    pub(super) worn_after: u64,
    pub(super) out: Vec<u8>,
}

impl Sealer {
    fn new(half: DirectionKeys) -> Self {
        Self { half, worn_after: MAX_RECORDS_PER_KEY, out: Vec::new() }
    }

    /// Sends the parts, one after the other, in records of their own, like [`send_while`].
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        parts: &[IoSlice<'_>],
        is_alive: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let mut remaining = parts.iter().map(|part| &**part).filter(|part| !part.is_empty());
        let mut part = remaining.next();
        self.out.clear();
        while part.is_some() {
            let offset = self.begin()?;
            let mut capacity = MAX_PLAINTEXT_BYTES;
            while let Some(bytes) = part.filter(|_| capacity > 0) {
                let (head, later) = bytes.split_at(bytes.len().min(capacity));
                self.out.extend_from_slice(head);
                capacity -= head.len();
                part = if later.is_empty() { remaining.next() } else { Some(later) };
            }
            self.end(offset, DATA_RECORD)?;
            if part.is_none() || self.out.len() + RECORD_HEAD_BYTES + MAX_CIPHERTEXT_BYTES > MAX_GATHERED_BYTES {
                send_while(fd, &mut [IoSlice::new(&self.out)], is_alive)?;
                self.out.clear();
            }
        }
        Ok(())
    }

    /// Returns the records of a short message, for callers that send them by other means.
    pub(crate) fn seal(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        self.out.clear();
        for part in message.chunks(MAX_PLAINTEXT_BYTES) {
            let offset = self.begin()?;
            self.out.extend_from_slice(part);
            self.end(offset, DATA_RECORD)?;
        }
        Ok(std::mem::take(&mut self.out))
    }

    /// Begins a record behind those that wait to be sent. Renews the key first if it has sealed enough.
    pub(super) fn begin(&mut self) -> io::Result<usize> {
        if self.half.sequence >= self.worn_after {
            let offset = self.out.len();
            self.out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
            self.out.extend_from_slice(&NEXT_KEY);
            self.end(offset, HANDSHAKE_RECORD)?;
            self.half.renew()?;
        }
        let offset = self.out.len();
        self.out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
        Ok(offset)
    }

    /// Seals the bytes appended to the record at `offset`.
    pub(super) fn end(&mut self, offset: usize, kind: u8) -> io::Result<()> {
        self.out.push(kind);
        let length = self.out.len() - offset - RECORD_HEAD_BYTES + TAG_BYTES;
        let head = head(length);
        self.out[offset..offset + RECORD_HEAD_BYTES].copy_from_slice(&head);
        let (nonce, inner) = (self.half.nonce(), &mut self.out[offset + RECORD_HEAD_BYTES..]);
        let tag = self.half.key.seal_in_place_separate_tag(nonce, Aad::from(head), inner);
        self.out.extend_from_slice(tag.map_err(|_| io::Error::other("a record could not be sealed"))?.as_ref());
        Ok(())
    }
}

fn head(length: usize) -> [u8; RECORD_HEAD_BYTES] {
    let [high, low] = (length as u16).to_be_bytes();
    [DATA_RECORD, 3, 3, high, low]
}

/// Returns the number of bytes behind a record's head.
///
/// # Errors
/// The head is invalid.
pub(crate) fn length(head: [u8; RECORD_HEAD_BYTES]) -> io::Result<usize> {
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    let is_record = (20..=23).contains(&head[0]) && head[1] == 3 && length <= MAX_CIPHERTEXT_BYTES;
    is_record.then_some(length).ok_or_else(|| broken("what came is not a TLS record"))
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Decrypts the TLS records that this side receives.
pub(crate) struct Opener {
    half: DirectionKeys,
    /// Received records, decrypted in place.
    raw: Vec<u8>,
    /// Where the next record begins.
    start: usize,
    /// Decrypted data that was not handed out.
    open: Range<usize>,
    /// Whether reads may receive more than the current record.
    reads_ahead: bool,
}

impl Opener {
    fn new(half: DirectionKeys) -> Self {
        Self { half, raw: Vec::new(), start: 0, open: 0..0, reads_ahead: false }
    }

    /// Enables reading ahead. Before that, a whole message leaves nothing buffered, so a thread that waits for the next one may
    /// wait for the socket.
    pub(crate) fn enable_read_ahead(&mut self) {
        self.reads_ahead = true;
    }

    /// Returns whether bytes are available without the socket.
    pub(crate) fn has_some(&self) -> bool {
        !self.open.is_empty() || !matches!(self.missing(), Ok(1..))
    }

    /// Returns received data, empty at the end of the stream. [`Opener::take`] marks how much of it was used.
    pub(crate) fn fill(&mut self, fd: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<&[u8]> {
        while self.open.is_empty() {
            let missing = self.missing()?;
            if missing == 0 {
                if !self.open_next()? {
                    return Ok(&[]);
                }
                continue;
            }
            self.raw.drain(..self.start);
            self.start = 0;
            let read_limit = if self.reads_ahead { TLS_READ_AHEAD_BYTES - self.raw.len() } else { missing };
            if receive_some(fd, &mut self.raw, read_limit, flags)? == 0 {
                // The next read finds the end.
                return Ok(&[]);
            }
        }
        Ok(&self.raw[self.open.clone()])
    }

    /// Marks `bytes` bytes as used.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.open.start += bytes.min(self.open.len());
    }

    /// Returns how many bytes of the next record are still missing, as far as known.
    fn missing(&self) -> io::Result<usize> {
        let raw = &self.raw[self.start..];
        let Some(head) = raw.first_chunk() else { return Ok(RECORD_HEAD_BYTES - raw.len()) };
        Ok((RECORD_HEAD_BYTES + length(*head)?).saturating_sub(raw.len()))
    }

    /// Decrypts the next record, which is complete. Returns false for the peer's `close_notify`.
    fn open_next(&mut self) -> io::Result<bool> {
        let raw = &mut self.raw[self.start..];
        let Some((head, body)) = raw.split_first_chunk_mut::<RECORD_HEAD_BYTES>() else {
            return Err(broken("a record has no head"));
        };
        if head[0] != DATA_RECORD {
            return Err(broken("a TLS record came that is not sealed"));
        }
        let sealed = &mut body[..length(*head)?];
        let (nonce, whole) = (self.half.nonce(), RECORD_HEAD_BYTES + sealed.len());
        let inner = self.half.key.open_in_place(nonce, Aad::from(*head), sealed);
        let inner = inner.map_err(|_| broken("a TLS record was changed on its way"))?;
        let Some(last) = inner.iter().rposition(|byte| *byte != 0) else {
            return Err(broken("a TLS record does not say what it is"));
        };
        let (kind, content_offset) = (inner[last], self.start + RECORD_HEAD_BYTES);
        self.start += whole;
        match (kind, &inner[..last]) {
            (DATA_RECORD, _) => self.open = content_offset..content_offset + last,
            (HANDSHAKE_RECORD, message) if message == NEXT_KEY => self.half.renew()?,
            // `close_notify`: no more will come.
            (ALERT_RECORD, [_, 0]) => return Ok(false),
            (ALERT_RECORD, [_, number]) => {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, Alert(*number)));
            }
            _ => return Err(broken("a TLS record came that has no place here")),
        }
        Ok(true)
    }
}

/// The keys of both directions of a connection.
pub(crate) struct Seals {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl Seals {
    /// Creates the keys that a handshake has produced.
    pub(crate) fn new(
        suite: Suite,
        sending: [u8; TRAFFIC_SECRET_BYTES],
        receiving: [u8; TRAFFIC_SECRET_BYTES],
    ) -> io::Result<Self> {
        let (sending, receiving) = (DirectionKeys::new(suite, sending, 0)?, DirectionKeys::new(suite, receiving, 0)?);
        Ok(Self { sealer: Sealer::new(sending), opener: Opener::new(receiving) })
    }

    /// Encodes the keys for a process that continues the connection. Send them over a socket that no other process can read.
    pub(crate) fn encode(sealer: &Sealer, opener: &Opener) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEALS_BYTES);
        out.push(match sealer.half.suite {
            Suite::Aes128Gcm => 1,
            Suite::ChaCha20Poly1305 => 2,
        });
        sealer.half.encode(&mut out);
        opener.half.encode(&mut out);
        out
    }

    /// Decodes the result of [`Seals::encode`]; none if it names no known cipher suite.
    pub(crate) fn decode(bytes: &[u8; SEALS_BYTES]) -> Option<Self> {
        let suite = match bytes[0] {
            1 => Suite::Aes128Gcm,
            2 => Suite::ChaCha20Poly1305,
            _ => return None,
        };
        let (sending, receiving) = bytes[1..].split_at(TRAFFIC_SECRET_BYTES + 8);
        let (sending, receiving) = (DirectionKeys::decode(suite, sending)?, DirectionKeys::decode(suite, receiving)?);
        Some(Self { sealer: Sealer::new(sending), opener: Opener::new(receiving) })
    }
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Seals")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair(suite: Suite) -> (Sealer, Opener) {
        let [outward, inward] = [
            Seals::new(suite, [1; TRAFFIC_SECRET_BYTES], [2; TRAFFIC_SECRET_BYTES]),
            Seals::new(suite, [2; TRAFFIC_SECRET_BYTES], [1; TRAFFIC_SECRET_BYTES]),
        ];
        (outward.unwrap().sealer, inward.unwrap().opener)
    }

    fn read(opener: &mut Opener, from: &UnixStream, length: usize) -> io::Result<Vec<u8>> {
        let mut got = Vec::new();
        while got.len() < length {
            let some = opener.fill(from.as_fd(), RecvFlags::empty())?;
            if some.is_empty() {
                break;
            }
            let some = some[..some.len().min(length - got.len())].to_vec();
            opener.take(some.len());
            got.extend(some);
        }
        Ok(got)
    }

    /// The key schedule of RFC 8448, section 3: the server's application traffic.
    #[test]
    fn keys_are_those_of_the_published_example() {
        let secret = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let bytes: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap()).collect();
        let secret: [u8; TRAFFIC_SECRET_BYTES] = bytes.try_into().unwrap();
        let key: [u8; 16] = expand(&secret, b"key").unwrap();
        let iv: [u8; 12] = expand(&secret, b"iv").unwrap();
        assert_eq!(key, *b"\x9f\x02\x28\x3b\x6c\x9c\x07\xef\xc2\x6b\xb9\xf2\xac\x92\xe3\x56");
        assert_eq!(iv, *b"\xcf\x78\x2b\x88\xdd\x83\x54\x9a\xad\xf1\xe9\x84");
    }

    #[test]
    fn messages_of_any_length_arrive_in_any_division_and_across_keys() {
        for suite in [Suite::Aes128Gcm, Suite::ChaCha20Poly1305] {
            for reads_ahead in [false, true] {
                let ((mut sealer, mut opener), (local, peer)) = (pair(suite), UnixStream::pair().unwrap());
                sealer.worn_after = 5;
                opener.reads_ahead = reads_ahead;
                let bytes: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        for length in
                            [1, 31, MAX_PLAINTEXT_BYTES - 1, MAX_PLAINTEXT_BYTES, MAX_PLAINTEXT_BYTES + 1, 300_000]
                        {
                            let (first, second) = bytes[..length].split_at(length / 3);
                            sealer.send(local.as_fd(), &[first, &[], second].map(IoSlice::new), &mut || false).unwrap();
                        }
                    });
                    for length in
                        [1, 31, MAX_PLAINTEXT_BYTES - 1, MAX_PLAINTEXT_BYTES, MAX_PLAINTEXT_BYTES + 1, 300_000]
                    {
                        assert!(read(&mut opener, &peer, length).unwrap() == bytes[..length], "{suite:?} {length}");
                    }
                });
                assert!(sealer.half.sequence <= 5 && opener.half.sequence == sealer.half.sequence);
            }
        }
    }

    #[test]
    fn a_tampered_record_is_refused() {
        let (mut sealer, _) = pair(Suite::Aes128Gcm);
        let sealed = sealer.seal(b"a message").unwrap();
        for at in 0..sealed.len() {
            let ((_, mut opener), (mut local, peer)) = (pair(Suite::Aes128Gcm), UnixStream::pair().unwrap());
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            local.write_all(&changed).unwrap();
            drop(local);
            let got = read(&mut opener, &peer, 9);
            // A longer length makes the record incomplete.
            assert!(got.as_ref().map_or(true, Vec::is_empty), "byte {at}: {got:?}");
        }
    }

    #[test]
    fn a_record_that_comes_twice_or_out_of_order_is_refused() {
        let (mut sealer, _) = pair(Suite::Aes128Gcm);
        let (first, second) = (sealer.seal(b"one").unwrap(), sealer.seal(b"two").unwrap());
        for order in [[&first, &first], [&second, &first]] {
            let ((_, mut opener), (mut local, peer)) = (pair(Suite::Aes128Gcm), UnixStream::pair().unwrap());
            order.iter().for_each(|record| local.write_all(record).unwrap());
            assert!(read(&mut opener, &peer, 6).is_err());
        }
    }

    /// Decrypts received bytes, up to the end or an error.
    fn open_all(opener: &mut Opener, came: &[u8]) -> (Vec<u8>, Option<io::Error>) {
        let (mut local, peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            // A reader that stops early closes its end, which does not matter here.
            scope.spawn(move || drop(local.write_all(came)));
            let mut got = Vec::new();
            loop {
                match opener.fill(peer.as_fd(), RecvFlags::empty()) {
                    Ok([]) => return (got, None),
                    Ok(some) => {
                        let length = some.len();
                        got.extend_from_slice(some);
                        opener.take(length);
                    }
                    Err(error) => {
                        drop(peer);
                        return (got, Some(error));
                    }
                }
            }
        })
    }

    #[test]
    fn records_that_are_cut_short_give_nothing() {
        for suite in [Suite::Aes128Gcm, Suite::ChaCha20Poly1305] {
            let (mut sealer, _) = pair(suite);
            let (first, second) = (sealer.seal(b"first").unwrap(), sealer.seal(b"second").unwrap());
            for length in 0..second.len() {
                let (_, mut opener) = pair(suite);
                let (got, _) = open_all(&mut opener, &[&first, &second[..length]].concat());
                assert_eq!(got, b"first", "{suite:?}: {length} bytes");
                // The rest alone is no valid record either.
                let (_, mut opener) = pair(suite);
                let (got, error) = open_all(&mut opener, &[&first, &second[length + 1..]].concat());
                assert!(
                    got == b"first" && (error.is_some() || length + 1 + RECORD_HEAD_BYTES > second.len()),
                    "{suite:?}: {length}"
                );
            }
        }
    }

    #[test]
    fn records_under_another_key_or_suite_are_refused() {
        let suites = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305];
        let sealed = |suite, secret| {
            Seals::new(suite, secret, [9; TRAFFIC_SECRET_BYTES]).unwrap().sealer.seal(b"a message").unwrap()
        };
        for suite in suites {
            for other in suites {
                for secret in [[1; TRAFFIC_SECRET_BYTES], [2; TRAFFIC_SECRET_BYTES], [0; TRAFFIC_SECRET_BYTES]] {
                    let (_, mut opener) = pair(suite);
                    let (got, error) = open_all(&mut opener, &sealed(other, secret));
                    let is_ours = other == suite && secret == [1; TRAFFIC_SECRET_BYTES];
                    assert_eq!((got.is_empty(), error.is_some()), (!is_ours, !is_ours), "{suite:?} {other:?}");
                }
            }
        }
    }

    /// A record belongs to one direction: a side cannot decrypt what it has sent.
    #[test]
    fn records_that_come_back_to_their_sender_are_refused() {
        let mut both = Seals::new(Suite::Aes128Gcm, [1; TRAFFIC_SECRET_BYTES], [2; TRAFFIC_SECRET_BYTES]).unwrap();
        let sealed = both.sealer.seal(b"a message").unwrap();
        let (got, error) = open_all(&mut both.opener, &sealed);
        assert!(got.is_empty() && error.is_some());
    }

    #[test]
    fn records_beyond_the_limits_are_refused_by_their_heads() {
        for length in [MAX_CIPHERTEXT_BYTES + 1, MAX_CIPHERTEXT_BYTES + 256, 0xffff] {
            let (_, mut opener) = pair(Suite::Aes128Gcm);
            let (got, error) = open_all(&mut opener, &head(length));
            assert!(got.is_empty() && error.is_some(), "{length}");
        }
        // One too short to contain the tag, and one with nothing but padding.
        for length in 0..=TAG_BYTES {
            let (_, mut opener) = pair(Suite::Aes128Gcm);
            let (got, error) = open_all(&mut opener, &[&head(length)[..], &vec![0; length]].concat());
            assert!(got.is_empty() && error.is_some(), "{length}");
        }
        let ((mut sealer, mut opener), offset) = (pair(Suite::Aes128Gcm), 0);
        assert_eq!(sealer.begin().unwrap(), offset);
        sealer.out.extend_from_slice(&[0; 100]);
        sealer.end(offset, 0).unwrap();
        let (got, error) = open_all(&mut opener, &sealer.out);
        assert!(got.is_empty() && error.is_some());
    }

    /// Returns how often the streams below are changed: more for a long run.
    fn mutations() -> u64 {
        std::env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(3000)
    }

    /// A small random generator, so that a failure repeats.
    fn random(state: &mut u64, below: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % below as u64) as usize
    }

    /// Changes records as a network or a forger could. Returns true if they are unchanged.
    fn change(records: &mut Vec<Vec<u8>>, state: &mut u64) -> bool {
        let old_records = records.clone();
        for _ in 0..=random(state, 3) {
            let (at, other) = (random(state, records.len()), random(state, records.len()));
            match random(state, 9) {
                0 => records.swap(at, other),
                1 => records.insert(other, records[at].clone()),
                2 if records.len() > 1 => drop(records.remove(at)),
                3 => {
                    let length = random(state, records[at].len() + 1);
                    records[at].truncate(length);
                }
                4 => {
                    let bytes = (0..random(state, 40)).map(|_| random(state, 256) as u8).collect::<Vec<u8>>();
                    let at_byte = random(state, records[at].len() + 1);
                    records[at].splice(at_byte..at_byte, bytes);
                }
                5 => {
                    let (_, tail) = records[other].split_at(records[other].len() / 2);
                    let tail = tail.to_vec();
                    records[at].extend(tail);
                }
                _ if records[at].is_empty() => {}
                _ => {
                    // Mostly heads, where the lengths are.
                    let most = records[at].len();
                    let within = if random(state, 2) == 0 { most.min(RECORD_HEAD_BYTES) } else { most };
                    let at_byte = random(state, within);
                    records[at][at_byte] ^= 1 << random(state, 8);
                }
            }
        }
        old_records.concat() == records.concat()
    }

    /// Whatever happens to a stream on its way, the output is a prefix of what was sent. It is all of it only if nothing was
    /// changed, or something was appended behind its end.
    #[test]
    fn of_changed_streams_nothing_is_handed_out_but_their_beginning() {
        let state = &mut 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..mutations() {
            let suite = if round % 2 == 0 { Suite::Aes128Gcm } else { Suite::ChaCha20Poly1305 };
            let (mut sealer, mut opener) = pair(suite);
            // Renews keys on the way.
            sealer.worn_after = 2 + random(state, 4) as u64;
            opener.reads_ahead = random(state, 2) == 0;
            let sent: Vec<Vec<u8>> = (0..=random(state, 6))
                .map(|number| {
                    vec![
                        number as u8 + 1;
                        1 + random(state, if round % 50 == 0 { 2 * MAX_PLAINTEXT_BYTES } else { 100 })
                    ]
                })
                .collect();
            let mut records: Vec<Vec<u8>> = sent.iter().map(|message| sealer.seal(message).unwrap()).collect();
            let is_same = change(&mut records, state);
            let (got, error) = open_all(&mut opener, &records.concat());
            let sent = sent.concat();
            assert!(sent.starts_with(&got), "round {round}");
            assert!(!is_same || (got == sent && error.is_none()), "round {round}: {error:?}");
        }
    }

    #[test]
    fn bytes_that_start_no_record_are_refused_without_waiting() {
        for start in [b"KATYDID\0", b"GET / HT", b"\x17\x03\x03\xff\xff\0\0\0"] {
            let ((_, mut opener), (mut local, peer)) = (pair(Suite::Aes128Gcm), UnixStream::pair().unwrap());
            local.write_all(start).unwrap();
            assert!(read(&mut opener, &peer, 1).is_err());
        }
    }

    #[test]
    fn another_process_goes_on_where_the_first_one_stopped() {
        let ((mut sealer, mut opener), (local, peer)) = (pair(Suite::Aes128Gcm), UnixStream::pair().unwrap());
        sealer.send(local.as_fd(), &[IoSlice::new(b"first")], &mut || false).unwrap();
        assert_eq!(read(&mut opener, &peer, 5).unwrap(), b"first");
        let bytes: [u8; SEALS_BYTES] = Seals::encode(&sealer, &opener).try_into().unwrap();
        let mut next = Seals::decode(&bytes).unwrap();
        next.sealer.send(local.as_fd(), &[IoSlice::new(b"second")], &mut || false).unwrap();
        assert_eq!(read(&mut next.opener, &peer, 6).unwrap(), b"second");
        assert!(Seals::decode(&[9; SEALS_BYTES]).is_none());
    }

    #[test]
    fn an_alert_is_told_in_words_and_the_end_is_an_end() {
        for (alert, is_end) in [([1, 0], true), ([2, 45], false)] {
            let ((mut sealer, mut opener), (mut local, mut peer)) =
                (pair(Suite::Aes128Gcm), UnixStream::pair().unwrap());
            let offset = sealer.begin().unwrap();
            sealer.out.extend_from_slice(&alert);
            sealer.end(offset, ALERT_RECORD).unwrap();
            local.write_all(&sealer.out).unwrap();
            match read(&mut opener, &peer, 1) {
                Ok(got) => assert!(is_end && got.is_empty()),
                Err(error) => assert!(!is_end && error.to_string().contains("expired"), "{error}"),
            }
            drop(local);
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        }
    }
}
