//! Bytes that no shim of ours would send: they end the session they came in, with a message, and no other.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::places::{Places, driver_under_test};
use katydid_tests::program::Running;
use katydid_tests::server::Server;
use katydid_tests::watch::{PATIENCE, until};
use katydid_tests::way::Way;
use katydid_wire::SPEC_HASH;
use katydid_wire::frame::{FrameHead, HEAD, MAX_FRAME};
use katydid_wire::handshake::{
    ArenaKind, ArenaRange, Build, Claim, Hello, LINK_TIMEOUT, LinkKind, MessageKind, PREFIX, Prefix, Ready,
    RefusalCode, Refused, SessionKind,
};

trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// A server with a session that must outlive what the test does.
struct Target {
    server: Server,
    bystander: Running,
}

impl Target {
    fn new() -> Result<Self> {
        let places = Places::of_this_test()?;
        let server = Server::start(&places, &driver_under_test(), &[])?;
        let [way, _] = Way::through(&server);
        let mut command = way.command(&places, &places.program("fixture", Variant::Static));
        let mut bystander = Running::start(command.arg("idle"), Stdio::piped())?;
        bystander.wait_for("ready", PATIENCE)?;
        Ok(Self { server, bystander })
    }

    /// A connection on each kind of socket.
    fn connections(&self) -> Result<[Box<dyn Socket>; 2]> {
        let address = self.server.tcp().strip_prefix("tcp://").context("no TCP address")?;
        let tcp = TcpStream::connect(address)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let path = self.server.unix();
        let unix = UnixStream::connect(path.strip_prefix("unix:").context("no path")?)?;
        unix.set_read_timeout(Some(PATIENCE))?;
        Ok([Box::new(tcp), Box::new(unix)])
    }

    /// The bystander goes on, and there is no session but its own.
    fn end_unharmed(mut self) -> Result<()> {
        self.server.workers_of(1)?;
        self.bystander.close_input();
        let outcome = self.bystander.finish(PATIENCE)?;
        ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
        self.server.workers_of(0)?;
        Ok(())
    }
}

fn build() -> Build {
    Build::current(SPEC_HASH)
}

fn hello() -> Hello {
    let range = |kind, base, length| ArenaRange { kind, base, length };
    Hello {
        session: SessionKind::CUDA,
        claim: Claim::NEW,
        link: LinkKind::STREAM,
        pid: std::process::id(),
        memory_quota: 0,
        program: "hostile".to_owned(),
        name: "hostile".to_owned(),
        arenas: vec![
            range(ArenaKind::DEVICE, 0x2000_0000_0000, 16 << 40),
            range(ArenaKind::PINNED, 0x3000_0000_0000, 256 << 30),
        ],
        link_timeout: LINK_TIMEOUT,
    }
}

/// One whole handshake message.
fn message(socket: &mut dyn Socket) -> Result<(MessageKind, Vec<u8>)> {
    let mut bytes = vec![0; PREFIX];
    socket.read_exact(&mut bytes)?;
    let prefix = Prefix::decode(bytes[..].try_into()?)?;
    bytes.resize(prefix.length, 0);
    socket.read_exact(&mut bytes[PREFIX..])?;
    Ok((prefix.kind, bytes))
}

/// Opens a session as a shim does.
fn session(socket: &mut dyn Socket) -> Result<()> {
    socket.write_all(&hello().encode(&build())?)?;
    let (kind, bytes) = message(socket)?;
    match kind {
        MessageKind::READY => Ready::decode(&bytes, &build()).map(drop).map_err(Into::into),
        MessageKind::REFUSED => bail!("refused: {}", Refused::decode(&bytes)?.text),
        other => bail!("a message of kind {other:?}"),
    }
}

/// Sends what may already find the other side gone.
fn send(socket: &mut dyn Socket, bytes: &[u8]) -> Result<()> {
    match socket.write_all(bytes) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Err(error).context("cannot send")
        }
        _ => Ok(()),
    }
}

/// The other side closes; what it says before is given back.
fn closes(socket: &mut dyn Socket) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    match socket.read_to_end(&mut said) {
        Ok(_) => Ok(said),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(said),
        Err(error) => Err(error).context("the connection stays open"),
    }
}

/// Sends `bytes` instead of a hello, to both sockets; both are closed.
fn instead_of_hello(bytes: &[u8]) -> Result<()> {
    let target = Target::new()?;
    for mut socket in target.connections()? {
        send(&mut socket, bytes)?;
        closes(&mut socket)?;
    }
    target.end_unharmed()
}

/// Opens a session on both sockets and sends `bytes` in it; both are closed, and their workers are gone.
fn in_a_session(bytes: &[u8]) -> Result<()> {
    let target = Target::new()?;
    for mut socket in target.connections()? {
        session(&mut socket)?;
        send(&mut socket, bytes)?;
        closes(&mut socket)?;
    }
    target.end_unharmed()
}

fn frame(opcode: u16, wants_reply: bool, payload: &[u8]) -> Result<Vec<u8>> {
    let head = FrameHead { opcode, wants_reply, thread: 1, context: 0, sequence: 0 }.encode(payload.len())?;
    Ok([&head[..], payload].concat())
}

#[test]
fn something_else_than_a_hello_closes_the_connection() -> Result<()> {
    instead_of_hello(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n and so on, for longer than any prefix of a message is")
}

#[test]
fn a_hello_that_claims_a_huge_length_closes_the_connection() -> Result<()> {
    let mut bytes = hello().encode(&build())?;
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    instead_of_hello(&bytes)
}

#[test]
fn a_hello_whose_inside_is_damaged_closes_the_connection() -> Result<()> {
    let mut bytes = hello().encode(&build())?;
    let length = bytes.len();
    bytes[PREFIX..length].fill(0xff);
    instead_of_hello(&bytes)
}

#[test]
fn a_connection_closed_in_the_middle_of_a_hello_harms_nobody() -> Result<()> {
    let target = Target::new()?;
    let bytes = hello().encode(&build())?;
    for length in [0, 1, PREFIX - 1, PREFIX, bytes.len() - 1] {
        for mut socket in target.connections()? {
            send(&mut socket, &bytes[..length])?;
        }
    }
    target.end_unharmed()
}

#[test]
fn a_program_of_another_build_is_refused_with_a_text() -> Result<()> {
    let target = Target::new()?;
    let strangers =
        [Build { protocol: 999, ..build() }, Build { spec_hash: [7; 32], release: "0.0.9".to_owned(), ..build() }];
    for stranger in strangers {
        for mut socket in target.connections()? {
            send(&mut socket, &hello().encode(&stranger)?)?;
            let (kind, bytes) = message(&mut socket)?;
            ensure!(kind == MessageKind::REFUSED, "a message of kind {kind:?}");
            let refused = Refused::decode(&bytes)?;
            ensure!(refused.code == RefusalCode::OTHER_BUILD && refused.text.len() > 20, "{refused:?}");
            closes(&mut socket)?;
        }
    }
    target.end_unharmed()
}

#[test]
fn an_unknown_opcode_ends_its_session() -> Result<()> {
    in_a_session(&frame(0xfffe, true, &[1, 2, 3, 4, 5, 6, 7, 8])?)
}

#[test]
fn a_payload_that_is_no_message_ends_its_session() -> Result<()> {
    // Whatever the first opcodes mean, none of them takes this many bytes of this kind.
    let frames = (0..64).map(|opcode| frame(opcode, false, &[0xff; 4099])).collect::<Result<Vec<_>>>()?;
    in_a_session(&frames.concat())
}

#[test]
fn a_frame_longer_than_the_limit_ends_its_session() -> Result<()> {
    let mut bytes = frame(1, true, &[0; 64])?;
    let too_long = u32::try_from(MAX_FRAME + 1)?;
    bytes[..4].copy_from_slice(&too_long.to_le_bytes());
    in_a_session(&bytes)
}

#[test]
fn a_frame_shorter_than_its_head_ends_its_session() -> Result<()> {
    let mut bytes = frame(1, true, &[0; 64])?;
    bytes[..4].copy_from_slice(&u32::try_from(HEAD - 1)?.to_le_bytes());
    in_a_session(&bytes)
}

#[test]
fn a_stream_of_noise_ends_its_session() -> Result<()> {
    let mut state = 12345u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    })
    .take(100_000)
    .collect();
    in_a_session(&noise)
}

#[test]
fn a_session_closed_in_the_middle_of_a_frame_is_cleaned_up() -> Result<()> {
    let target = Target::new()?;
    for mut socket in target.connections()? {
        session(&mut socket)?;
        target.server.workers_of(2)?;
        send(&mut socket, &frame(1, true, &[0; 64])?[..40])?;
        drop(socket);
        target.server.workers_of(1)?;
    }
    target.end_unharmed()
}

#[test]
fn the_server_says_on_standard_error_why_it_ended_a_session() -> Result<()> {
    let target = Target::new()?;
    let [mut tcp, _] = target.connections()?;
    session(&mut tcp)?;
    let before = target.server.log().len();
    send(&mut tcp, &frame(0xfffe, true, &[])?)?;
    closes(&mut tcp)?;
    until("a line about it", || target.server.log().len() > before)?;
    target.end_unharmed()
}
