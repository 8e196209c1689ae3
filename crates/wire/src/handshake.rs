//! The handshake: the program's [`Hello`], the worker's [`Ready`], or a [`Refused`] with a reason.
//!
//! Every message starts with the same 72 bytes, which no later version may change. So two builds that understand nothing else of
//! each other can still tell their users what to install. Little-endian:
//!
//! | offset | bytes | field                                                        |
//! |-------:|------:|--------------------------------------------------------------|
//! |      0 |     8 | magic, `KATYDID` and a zero byte                             |
//! |      8 |     4 | `length` of the whole message, at most [`MAX_HANDSHAKE_BYTES`]       |
//! |     12 |     4 | `kind`: 1 hello, 2 ready, 3 refused                          |
//! |     16 |     4 | `protocol` version                                           |
//! |     20 |     4 | zero                                                         |
//! |     24 |    32 | `spec_hash`, hash of the API description both were made from |
//! |     56 |    16 | `release`, text padded with zeros                            |
//!
//! `docs/reference/wire-protocol.md` shows the bodies. The rule kept here: nothing is read past `length`, no count sizes a buffer
//! before it is bounded, and a message with extra bytes is refused.

use std::fmt;

use thiserror::Error;

use crate::key::SessionKey;
use crate::printable::printable;

/// First bytes of every handshake message.
pub const HANDSHAKE_MAGIC: [u8; 8] = *b"KATYDID\0";
/// Version of frames, handshake bodies and shared-memory layout. Any change of them increments it.
pub const PROTOCOL_VERSION: u32 = 7;
/// Bytes common to all handshake messages.
pub const PREFIX_BYTES: usize = 72;
/// Largest handshake message, prefix included.
pub const MAX_HANDSHAKE_BYTES: usize = 64 * 1024;
/// Most arenas one message may name.
pub const MAX_HANDSHAKE_ARENAS: usize = 64;
/// Longest text in a message, in bytes.
pub const MAX_HELLO_TEXT_BYTES: usize = 4096;
/// Softcuda's name in [`Ready::driver`].
pub const SOFTCUDA_DRIVER: &str = "softcuda";
/// Seconds of silence after which a link counts as broken, unless the program sets another limit.
pub const LINK_TIMEOUT_SECONDS: u32 = 60;

/// Why a handshake message was refused, sorted by who can fix it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer is not Katydid: a process connected to a wrong address.
    #[error("the peer does not speak Katydid's protocol (it began with {start:02x?}); is the address right?")]
    NotKatydid {
        /// First eight bytes that the peer sent, where the magic belongs.
        start: [u8; 8],
    },
    /// Both sides are Katydid, but of incompatible builds.
    #[error("this side is {local}, the peer is {peer}: use the same release on both sides")]
    OtherBuild {
        /// The build that refuses.
        local: Box<Build>,
        /// The build that is refused.
        peer: Box<Build>,
    },
    /// The peer answered, and refused.
    #[error(transparent)]
    Refused(Refused),
    /// The peer's message breaks the format.
    #[error("damaged handshake: {what}")]
    Damaged {
        /// What is wrong with the message.
        what: &'static str,
    },
    /// The caller's own message is beyond a limit of the format.
    #[error("{what} does not fit a handshake message (limit {limit})")]
    TooLarge {
        /// Name of the field, or `the message`.
        what: &'static str,
        /// Most bytes or entries of the field.
        limit: usize,
    },
}

/// What must be equal on both sides, and the release for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Version of frames and layouts.
    pub protocol: u32,
    /// Hash of the API description that messages were generated from.
    pub spec_hash: [u8; 32],
    /// Release, such as `0.1.0`; for display only.
    pub release: String,
}

impl Build {
    /// Returns this build, given the hash of its API description.
    #[must_use]
    pub fn current(spec_hash: [u8; 32]) -> Self {
        Self { protocol: PROTOCOL_VERSION, spec_hash, release: env!("CARGO_PKG_VERSION").to_owned() }
    }

    fn understands(&self, other: &Self) -> bool {
        self.protocol == other.protocol && self.spec_hash == other.spec_hash
    }
}

impl fmt::Display for Build {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.spec_hash;
        write!(out, "katydid {} (protocol {}, interface {a:02x}{b:02x}{c:02x}{d:02x})", self.release, self.protocol)
    }
}

/// The kind of a handshake message. Unknown values pass through; the reader of the message refuses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageKind(pub u32);

impl MessageKind {
    /// Program to server: the request for a session.
    pub const HELLO: Self = Self(1);
    /// Worker to program: the session begins.
    pub const READY: Self = Self(2);
    /// Server or worker to program: there will be no session.
    pub const REFUSED: Self = Self(3);
}

/// The kind of link that carries frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkKind(pub u32);

impl LinkKind {
    /// Through shared memory, whose descriptors come with the hello.
    pub const SHM: Self = Self(1);
    /// Through the connection itself.
    pub const STREAM: Self = Self(2);
}

/// The service that the program requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKind(pub u32);

impl SessionKind {
    /// The CUDA driver API.
    pub const CUDA: Self = Self(1);
    /// The OpenCL API.
    pub const OPENCL: Self = Self(2);
    /// NVML of the server's machine.
    pub const NVML: Self = Self(3);
}

/// Purpose of a connection, which its first side states in the hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRole(pub u32);

impl ConnectionRole {
    /// A program, for its frames.
    pub const PROGRAM: Self = Self(1);
    /// A supervisor, for the companion protocol ([`companion`](crate::companion)).
    pub const COMPANION: Self = Self(2);
    /// A program of a stream link, for a bulk connection. Its number takes the place of a reconnecting program's frames.
    pub const BULK: Self = Self(3);
    /// A process that asks for the server's driver. The answer names it, and begins no session.
    pub const INQUIRY: Self = Self(4);
    /// A supervisor, for the server's process that saves a session's worker, or with no key restores one
    /// ([`companion`](crate::companion)).
    pub const KEEPER: Self = Self(5);
    /// A process that is about to start a program. A slot for its session is reserved as long as the connection lasts, and the
    /// answer has the key of the reservation.
    pub const RESERVATION: Self = Self(6);
}

/// Session that a connection is for, and the purpose of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionClaim {
    /// Purpose of the connection.
    pub role: ConnectionRole,
    /// The session; [`SessionKey::NONE`] is a new one.
    pub key: SessionKey,
    /// For a program that reconnects: frames it has sent, which the worker must have executed or find in the ring.
    pub frames: u64,
}

impl SessionClaim {
    /// A program that requests a new session.
    pub const NEW: Self = Self { role: ConnectionRole::PROGRAM, key: SessionKey::NONE, frames: 0 };
}

/// The kind of memory in an arena of the address map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaKind(pub u32);

impl ArenaKind {
    /// Device memory, 1 TiB for each GPU.
    pub const DEVICE: Self = Self(1);
    /// Pinned host memory (`cuMemHostAlloc`).
    pub const PINNED: Self = Self(2);
    /// Managed memory (`cuMemAllocManaged`).
    pub const MANAGED: Self = Self(3);
}

/// A range of addresses that the program holds free for an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRange {
    /// Kind of memory that the range is for.
    pub kind: ArenaKind,
    /// First address of the range.
    pub base: u64,
    /// Length of the range in bytes.
    pub length: u64,
}

/// The program's request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// API of the session.
    pub session: SessionKind,
    /// Purpose of the connection, and the session that it attaches to.
    pub claim: SessionClaim,
    /// Kind of link that will carry frames.
    pub link: LinkKind,
    /// The program's process id, in its own namespace.
    pub pid: u32,
    /// Most device memory of the session, in bytes; none is no limit, which is 0 in the message.
    pub memory_limit: Option<u64>,
    /// File name of the program.
    pub program: String,
    /// Name that the user gave the session; empty if none.
    pub name: String,
    /// Ranges the program could reserve, best first for each kind.
    pub arenas: Vec<ArenaRange>,
    /// Seconds without a sign of life after which either side treats the link as broken; 0 is no limit. A hello that ends before
    /// this field means [`LINK_TIMEOUT_SECONDS`].
    pub link_timeout: u32,
    /// The key of a reservation for the session ([`ConnectionRole::RESERVATION`]). A hello that ends before this field means
    /// [`SessionKey::NONE`]: none. An unknown or expired key counts as none.
    pub reservation: SessionKey,
}

/// The server's answer that accepts a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// Process id of the session's worker, in the server's namespace.
    pub worker_pid: u32,
    /// Key that names the session for a process that attaches to it later.
    pub key: SessionKey,
    /// The name that the driver reports, such as `NVIDIA 580.159.04` or `softcuda`.
    pub driver: String,
    /// Chosen range of each kind of memory, out of the hello's.
    pub arenas: Vec<ArenaRange>,
}

/// Why there will be no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalCode(pub u32);

impl RefusalCode {
    /// The builds are incompatible.
    pub const OTHER_BUILD: Self = Self(1);
    /// The hello broke the format.
    pub const BAD_HELLO: Self = Self(2);
    /// No worker is available now: a limit of the server.
    pub const BUSY: Self = Self(3);
    /// The worker could not open its driver.
    pub const DRIVER: Self = Self(4);
    /// No range suits both sides.
    pub const NO_ARENA: Self = Self(5);
    /// The peer may not use this server.
    pub const NOT_ALLOWED: Self = Self(6);
    /// The server itself failed.
    pub const INTERNAL: Self = Self(7);
    /// No session here has that key, or its state does not let this peer attach.
    pub const NO_SESSION: Self = Self(8);
    /// Too many connections at this moment. The peer should try again at once, and then at growing intervals.
    pub const CROWDED: Self = Self(9);
    /// The session takes no connection of that kind now: it has one, or waits for its program.
    pub const IN_USE: Self = Self(10);
}

/// A refusal with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the server refused the session: {text}")]
pub struct Refused {
    /// Reason, as a number that programs can act on.
    pub code: RefusalCode,
    /// Reason and remedy, as text for the user.
    pub text: String,
}

/// The common prefix of all messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the whole message.
    pub length: usize,
    /// Which message of the handshake follows.
    pub kind: MessageKind,
    /// Build of the side that sent the message.
    pub build: Build,
}

impl Prefix {
    /// Reads the common prefix of a message of any build.
    ///
    /// # Errors
    /// [`HandshakeError::NotKatydid`], or [`HandshakeError::Damaged`] if the length is out of bounds.
    pub fn decode(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, HandshakeError> {
        let mut fields = Fields { unread: bytes };
        let start = fields.array()?;
        if start != HANDSHAKE_MAGIC {
            return Err(HandshakeError::NotKatydid { start });
        }
        let length = fields.u32()? as usize;
        if !(PREFIX_BYTES..=MAX_HANDSHAKE_BYTES).contains(&length) {
            return Err(HandshakeError::Damaged { what: "its length is out of bounds" });
        }
        let kind = MessageKind(fields.u32()?);
        let protocol = fields.u32()?;
        fields.u32()?;
        let spec_hash = fields.array()?;
        let release: [u8; 16] = fields.array()?;
        Ok(Self { length, kind, build: Build { protocol, spec_hash, release: release_text(&release) } })
    }
}

impl Hello {
    /// Encodes the message, to be sent with the link's descriptors.
    ///
    /// # Errors
    /// [`HandshakeError::TooLarge`].
    pub fn encode(&self, build: &Build) -> Result<Vec<u8>, HandshakeError> {
        let mut message = start(MessageKind::HELLO, build);
        put_u32(&mut message, self.session.0);
        put_u32(&mut message, self.link.0);
        put_u32(&mut message, self.pid);
        put_u32(&mut message, self.claim.role.0);
        message.extend_from_slice(&self.memory_limit.unwrap_or(0).to_le_bytes());
        message.extend_from_slice(&self.claim.key.0);
        message.extend_from_slice(&self.claim.frames.to_le_bytes());
        put_text(&mut message, "the program's name", &self.program)?;
        put_text(&mut message, "the session's name", &self.name)?;
        put_arenas(&mut message, &self.arenas)?;
        put_u32(&mut message, self.link_timeout);
        if !self.reservation.is_none() {
            message.extend_from_slice(&self.reservation.0);
        }
        finish(message)
    }

    /// Decodes a hello of the same build.
    ///
    /// # Errors
    /// [`HandshakeError::OtherBuild`], which is worth sending back, or what is wrong with the bytes.
    pub fn decode(bytes: &[u8], build: &Build) -> Result<Self, HandshakeError> {
        let mut fields = body(bytes, MessageKind::HELLO, build)?;
        let session = SessionKind(fields.u32()?);
        let link = LinkKind(fields.u32()?);
        let pid = fields.u32()?;
        let role = ConnectionRole(fields.u32()?);
        let memory_limit = Some(fields.u64()?).filter(|limit| *limit != 0);
        let claim = SessionClaim { role, key: SessionKey(fields.array()?), frames: fields.u64()? };
        let (program, name) = (fields.text()?, fields.text()?);
        let arenas = fields.arenas()?;
        let link_timeout = if fields.is_empty() { LINK_TIMEOUT_SECONDS } else { fields.u32()? };
        let reservation = if fields.is_empty() { SessionKey::NONE } else { SessionKey(fields.array()?) };
        fields.end()?;
        Ok(Self { session, claim, link, pid, memory_limit, program, name, arenas, link_timeout, reservation })
    }
}

impl Ready {
    /// Encodes the message.
    ///
    /// # Errors
    /// [`HandshakeError::TooLarge`].
    pub fn encode(&self, build: &Build) -> Result<Vec<u8>, HandshakeError> {
        let mut message = start(MessageKind::READY, build);
        put_u32(&mut message, self.worker_pid);
        put_u32(&mut message, 0);
        message.extend_from_slice(&self.key.0);
        put_text(&mut message, "the driver's name", &self.driver)?;
        put_arenas(&mut message, &self.arenas)?;
        finish(message)
    }

    /// Decodes the answer to a hello.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`] if that was the answer, or what is wrong with the bytes.
    pub fn decode(bytes: &[u8], build: &Build) -> Result<Self, HandshakeError> {
        if prefix_of(bytes)?.kind == MessageKind::REFUSED {
            return Err(HandshakeError::Refused(Refused::decode(bytes)?));
        }
        let mut fields = body(bytes, MessageKind::READY, build)?;
        let worker_pid = fields.u32()?;
        fields.zero()?;
        let key = SessionKey(fields.array()?);
        let driver = fields.text()?;
        let arenas = fields.arenas()?;
        fields.end()?;
        Ok(Self { worker_pid, key, driver, arenas })
    }
}

impl Refused {
    /// Creates a refusal. A text beyond the limit is cut.
    #[must_use]
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        text.truncate(text.floor_char_boundary(MAX_HELLO_TEXT_BYTES));
        Self { code, text }
    }

    /// Encodes the message. Its body never changes either, so every build can read it.
    ///
    /// # Errors
    /// [`HandshakeError::TooLarge`], never for a refusal made by [`Refused::new`].
    pub fn encode(&self, build: &Build) -> Result<Vec<u8>, HandshakeError> {
        let mut message = start(MessageKind::REFUSED, build);
        put_u32(&mut message, self.code.0);
        put_u32(&mut message, 0);
        put_text(&mut message, "the reason", &self.text)?;
        finish(message)
    }

    /// Decodes a refusal of any build. Its text is made printable, as it is the server's and goes to the user's terminal.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let prefix = prefix_of(bytes)?;
        let mut fields = body(bytes, MessageKind::REFUSED, &prefix.build)?;
        let code = RefusalCode(fields.u32()?);
        fields.zero()?;
        let text = printable(&fields.text()?);
        Ok(Self { code, text })
    }
}

impl From<&HandshakeError> for Refused {
    /// Returns the answer to a peer whose hello failed like this.
    fn from(error: &HandshakeError) -> Self {
        let code = match error {
            HandshakeError::OtherBuild { .. } => RefusalCode::OTHER_BUILD,
            _ => RefusalCode::BAD_HELLO,
        };
        Self::new(code, error.to_string())
    }
}

/// The unread rest of a message.
struct Fields<'a> {
    unread: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], HandshakeError> {
        let (field, unread) =
            self.unread.split_at_checked(bytes).ok_or(HandshakeError::Damaged { what: "it ends within a field" })?;
        self.unread = unread;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, HandshakeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn zero(&mut self) -> Result<(), HandshakeError> {
        if self.u32()? == 0 { Ok(()) } else { Err(HandshakeError::Damaged { what: "a reserved field is not zero" }) }
    }

    fn text(&mut self) -> Result<String, HandshakeError> {
        let length = self.u32()? as usize;
        if length > MAX_HELLO_TEXT_BYTES {
            return Err(HandshakeError::Damaged { what: "a text is longer than 4096 bytes" });
        }
        let text = str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| HandshakeError::Damaged { what: "a text is not UTF-8" })
    }

    fn arenas(&mut self) -> Result<Vec<ArenaRange>, HandshakeError> {
        let count = self.u32()? as usize;
        if count > MAX_HANDSHAKE_ARENAS {
            return Err(HandshakeError::Damaged { what: "it names more than 64 arenas" });
        }
        (0..count).map(|_| self.arena()).collect()
    }

    fn arena(&mut self) -> Result<ArenaRange, HandshakeError> {
        let kind = ArenaKind(self.u32()?);
        self.zero()?;
        let (base, length) = (self.u64()?, self.u64()?);
        if length == 0 || base.checked_add(length).is_none() {
            return Err(HandshakeError::Damaged { what: "an arena is empty or passes the end of the address space" });
        }
        Ok(ArenaRange { kind, base, length })
    }

    fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    fn end(&self) -> Result<(), HandshakeError> {
        if self.is_empty() { Ok(()) } else { Err(HandshakeError::Damaged { what: "bytes are left over" }) }
    }
}

fn prefix_of(bytes: &[u8]) -> Result<Prefix, HandshakeError> {
    let prefix = bytes.first_chunk().ok_or(HandshakeError::Damaged { what: "it is shorter than its prefix" })?;
    Prefix::decode(prefix)
}

/// Returns the body of a message of the given kind and build. Another build is the first error that it reports.
fn body<'a>(bytes: &'a [u8], kind: MessageKind, local: &Build) -> Result<Fields<'a>, HandshakeError> {
    let prefix = prefix_of(bytes)?;
    if !local.understands(&prefix.build) {
        return Err(HandshakeError::OtherBuild { local: Box::new(local.clone()), peer: Box::new(prefix.build) });
    }
    if prefix.kind != kind {
        return Err(HandshakeError::Damaged { what: "it is not the message that is expected now" });
    }
    if prefix.length != bytes.len() {
        return Err(HandshakeError::Damaged { what: "its length field disagrees with its length" });
    }
    Ok(Fields { unread: &bytes[PREFIX_BYTES..] })
}

/// Returns the text of a release, made printable: it is a peer's.
fn release_text(padded: &[u8; 16]) -> String {
    let text = padded.split(|&byte| byte == 0).next().unwrap_or_default();
    printable(&String::from_utf8_lossy(text))
}

fn start(kind: MessageKind, build: &Build) -> Vec<u8> {
    let mut message = HANDSHAKE_MAGIC.to_vec();
    put_u32(&mut message, 0);
    put_u32(&mut message, kind.0);
    put_u32(&mut message, build.protocol);
    put_u32(&mut message, 0);
    message.extend_from_slice(&build.spec_hash);
    let release = &build.release.as_bytes()[..build.release.floor_char_boundary(16)];
    message.extend_from_slice(release);
    message.resize(PREFIX_BYTES, 0);
    message
}

fn finish(mut message: Vec<u8>) -> Result<Vec<u8>, HandshakeError> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if length as usize > MAX_HANDSHAKE_BYTES {
        return Err(HandshakeError::TooLarge { what: "the message", limit: MAX_HANDSHAKE_BYTES });
    }
    message[8..12].copy_from_slice(&length.to_le_bytes());
    Ok(message)
}

fn put_u32(message: &mut Vec<u8>, value: u32) {
    message.extend_from_slice(&value.to_le_bytes());
}

fn put_text(message: &mut Vec<u8>, what: &'static str, text: &str) -> Result<(), HandshakeError> {
    if text.len() > MAX_HELLO_TEXT_BYTES {
        return Err(HandshakeError::TooLarge { what, limit: MAX_HELLO_TEXT_BYTES });
    }
    put_u32(message, u32::try_from(text.len()).unwrap_or(u32::MAX));
    message.extend_from_slice(text.as_bytes());
    Ok(())
}

fn put_arenas(message: &mut Vec<u8>, arenas: &[ArenaRange]) -> Result<(), HandshakeError> {
    if arenas.len() > MAX_HANDSHAKE_ARENAS {
        return Err(HandshakeError::TooLarge { what: "the list of arenas", limit: MAX_HANDSHAKE_ARENAS });
    }
    put_u32(message, u32::try_from(arenas.len()).unwrap_or(u32::MAX));
    for arena in arenas {
        put_u32(message, arena.kind.0);
        put_u32(message, 0);
        message.extend_from_slice(&arena.base.to_le_bytes());
        message.extend_from_slice(&arena.length.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build() -> Build {
        Build::current([0xab; 32])
    }

    fn hello() -> Hello {
        Hello {
            session: SessionKind::CUDA,
            claim: SessionClaim { role: ConnectionRole::COMPANION, key: SessionKey([0x11; 16]), frames: 9 },
            link: LinkKind::SHM,
            pid: 4711,
            memory_limit: Some(1 << 30),
            program: "train".into(),
            name: "nächtlich".into(),
            arenas: vec![ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: 1 << 40 }],
            link_timeout: 7,
            reservation: SessionKey([0x33; 16]),
        }
    }

    fn ready() -> Ready {
        Ready { worker_pid: 12, key: SessionKey([0x22; 16]), driver: "softcuda".into(), arenas: hello().arenas }
    }

    /// Damages one place at a time; every byte of a message has its turn.
    fn damaged(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let flips = [0x01, 0x80, 0xff];
        (0..message.len()).flat_map(move |at| {
            flips.map(|flip| {
                let mut copy = message.to_vec();
                copy[at] ^= flip;
                copy
            })
        })
    }

    #[test]
    fn messages_survive_a_round_trip() {
        assert_eq!(Hello::decode(&hello().encode(&build()).unwrap(), &build()), Ok(hello()));
        let without_reservation = Hello { reservation: SessionKey::NONE, ..hello() };
        assert_eq!(Hello::decode(&without_reservation.encode(&build()).unwrap(), &build()), Ok(without_reservation));
        assert_eq!(Ready::decode(&ready().encode(&build()).unwrap(), &build()), Ok(ready()));
        let refused = Refused::new(RefusalCode::BUSY, "all 8 workers are taken");
        assert_eq!(Refused::decode(&refused.encode(&build()).unwrap()), Ok(refused.clone()));
        let answer = Ready::decode(&refused.encode(&build()).unwrap(), &build());
        assert_eq!(answer, Err(HandshakeError::Refused(refused)));
    }

    #[test]
    fn the_prefix_has_the_documented_bytes() {
        let message = hello().encode(&build()).unwrap();
        assert_eq!(message[..8], *b"KATYDID\0");
        assert_eq!(message[8..12], (message.len() as u32).to_le_bytes());
        assert_eq!(message[12..24], [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(message[24..56], [0xab; 32]);
        let release = env!("CARGO_PKG_VERSION").as_bytes();
        assert!(message[56..72].starts_with(release) && message[56 + release.len()..72].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn two_builds_refuse_each_other_and_name_both() {
        let other = Build { protocol: 9, spec_hash: [0xcd; 32], release: "2.0.0".into() };
        let error = Hello::decode(&hello().encode(&other).unwrap(), &build()).unwrap_err();
        let text = error.to_string();
        let local = concat!("katydid ", env!("CARGO_PKG_VERSION"), " (protocol 7, interface abababab)");
        assert!(text.contains(local), "{text}");
        assert!(text.contains("katydid 2.0.0 (protocol 9, interface cdcdcdcd)"), "{text}");
        let answer = Refused::from(&error).encode(&build()).unwrap();
        let Err(HandshakeError::Refused(refused)) = Ready::decode(&answer, &other) else { panic!("no refusal") };
        assert_eq!((refused.code, refused.text), (RefusalCode::OTHER_BUILD, text));
    }

    #[test]
    fn another_protocol_is_told_apart_from_a_damaged_peer() {
        let mut http = b"GET / HTTP/1.1\r\n".to_vec();
        http.resize(PREFIX_BYTES, b'x');
        let error = Hello::decode(&http, &build()).unwrap_err();
        assert_eq!(error, HandshakeError::NotKatydid { start: *b"GET / HT" });
    }

    #[test]
    fn limits_hold_when_writing() {
        let long = Hello { program: "x".repeat(MAX_HELLO_TEXT_BYTES + 1), ..hello() };
        assert!(matches!(long.encode(&build()), Err(HandshakeError::TooLarge { limit: MAX_HELLO_TEXT_BYTES, .. })));
        let many = Hello { arenas: vec![hello().arenas[0]; MAX_HANDSHAKE_ARENAS + 1], ..hello() };
        assert!(matches!(many.encode(&build()), Err(HandshakeError::TooLarge { limit: MAX_HANDSHAKE_ARENAS, .. })));
        assert_eq!(Refused::new(RefusalCode::BUSY, "ü".repeat(MAX_HELLO_TEXT_BYTES)).text.len(), MAX_HELLO_TEXT_BYTES);
    }

    #[test]
    fn no_damage_panics_and_no_cut_is_accepted() {
        let messages = [
            hello().encode(&build()).unwrap(),
            ready().encode(&build()).unwrap(),
            Refused::new(RefusalCode::BUSY, "no").encode(&build()).unwrap(),
        ];
        for message in &messages {
            for copy in damaged(message) {
                let _ = (Hello::decode(&copy, &build()), Ready::decode(&copy, &build()), Refused::decode(&copy));
            }
            for end in 0..message.len() {
                let cut = &message[..end];
                assert!(Hello::decode(cut, &build()).is_err() && Ready::decode(cut, &build()).is_err());
            }
        }
    }

    #[test]
    fn a_huge_count_is_refused_before_it_sizes_anything() {
        let mut message = Hello { arenas: vec![], reservation: SessionKey::NONE, ..hello() }.encode(&build()).unwrap();
        // The link timeout follows the count of arenas, which is zero.
        let at = message.len() - 8;
        message[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = Hello::decode(&message, &build()).unwrap_err();
        assert_eq!(error, HandshakeError::Damaged { what: "it names more than 64 arenas" });
    }
}
