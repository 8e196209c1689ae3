//! Clients send bytes that no shim of Katydid would send. Such bytes end their own session with a message, and no other
//! session. Other programs ask for more than they are allowed.

#![allow(non_snake_case, reason = "fields carry the names of CUDA's parameters")]

#[path = "support/peer.rs"]
mod peer;
#[path = "../../fuzz/bodies/random.rs"]
mod random;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use katydid_fatbin::ModuleImage;
use katydid_tests::catalog::Variant;
use katydid_tests::deadline::PatientStream;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, tree, until};
use katydid_tests::way::Way;
use katydid_wire::codec::Message;
use katydid_wire::frame::{FrameHead, HEAD_BYTES, MAX_FRAME_BYTES, ReplyHead};
use katydid_wire::handshake::{
    ArenaKind, Build, Hello, MessageKind, PREFIX_BYTES, Prefix, Ready, RefusalCode, Refused, SessionClaim, SessionKind,
};
use katydid_wire::message::{
    cuCtxSynchronize, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventSynchronize, cuModuleUnload,
    cuStreamCreate, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent, kdAddressReserve,
    kdArrayCreate, kdArrayDestroy, kdContextRelease, kdContextReset, kdContextRetain, kdCopy, kdCopyIn, kdCopyOut,
    kdDeviceGrow, kdDeviceShrink, kdElapsedTime, kdFill, kdHostFunction, kdHostPull, kdHostPush, kdHostRegister,
    kdHostUnregister, kdLaunch, kdModuleFunction, kdModuleLoad, kdRowsIn, kdRowsOut, kdStreamCallback, kdUpcallNext,
    kdUpload,
};
use katydid_wire::ranges;
use random::Random;

use crate::peer::Connection;

/// A server with a session that must survive the test.
struct Target {
    server: Server,
    bystander: Running,
}

impl Target {
    fn new() -> Result<Self> {
        let paths = Paths::of_this_test()?;
        let server = Server::start(&paths, &driver_under_test(), &[])?;
        let [way, _] = Way::through(&server);
        let mut command = way.command(&paths, &paths.program("fixture", Variant::Static));
        let mut bystander = Running::start(command.arg("idle"), Stdio::piped())?;
        bystander.wait_for("ready", WAIT_TIMEOUT)?;
        Ok(Self { server, bystander })
    }

    /// Opens a connection on each kind of socket, one at a time. A server waits only seconds for a hello, and the worker of the
    /// previous connection may take as long.
    fn connections(&self) -> impl Iterator<Item = Result<Box<dyn Connection>>> {
        [self.server.tcp().to_owned(), self.server.unix()].into_iter().map(|address| Ok(peer::connect(&address)?))
    }

    /// Checks that the bystander goes on, and that no session but its own is left.
    fn end_unharmed(mut self) -> Result<()> {
        self.server.workers_of(1)?;
        self.bystander.close_input();
        let outcome = self.bystander.finish(WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
        self.server.workers_of(0)?;
        Ok(())
    }
}

/// Returns a hello with the name by which the server's log tells these sessions from others.
fn hello() -> Hello {
    let name = || "hostile".to_owned();
    Hello { program: name(), name: name(), ..peer::hello(SessionKind::CUDA, SessionClaim::NEW) }
}

/// Reads one whole handshake message.
fn message(socket: &mut dyn Connection) -> Result<(MessageKind, Vec<u8>)> {
    let mut bytes = vec![0; PREFIX_BYTES];
    socket.read_exact(&mut bytes)?;
    let prefix = Prefix::decode(bytes[..].try_into()?)?;
    bytes.resize(prefix.length, 0);
    socket.read_exact(&mut bytes[PREFIX_BYTES..])?;
    Ok((prefix.kind, bytes))
}

/// Opens a session as a shim does.
fn session(socket: &mut dyn Connection) -> Result<Ready> {
    socket.write_all(&hello().encode(&peer::build())?)?;
    let (kind, bytes) = message(socket)?;
    match kind {
        MessageKind::READY => Ready::decode(&bytes, &peer::build()).map_err(Into::into),
        MessageKind::REFUSED => bail!("refused: {}", Refused::decode(&bytes)?.text),
        other => bail!("a message of kind {other:?}"),
    }
}

/// Sends bytes to a peer that may already be gone.
fn send(socket: &mut dyn Connection, bytes: &[u8]) -> Result<()> {
    match socket.write_all(bytes) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Err(error).context("cannot send")
        }
        _ => Ok(()),
    }
}

/// Reads until the peer closes, and returns what it sent.
fn closes(socket: &mut dyn Connection) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(bytes),
        Err(error) => Err(error).context("the connection stays open"),
    }
}

/// Sends `bytes` instead of a hello on both sockets, and checks that the server closes both.
fn instead_of_hello(bytes: &[u8]) -> Result<()> {
    let target = Target::new()?;
    for socket in target.connections() {
        let mut socket = socket?;
        send(&mut socket, bytes)?;
        closes(&mut socket)?;
    }
    target.end_unharmed()
}

/// Opens a session on both sockets and sends `bytes` in it. The server must close both, and their workers must end.
fn in_a_session(bytes: &[u8]) -> Result<()> {
    let target = Target::new()?;
    for socket in target.connections() {
        let mut socket = socket?;
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

/// A program that keeps to the protocol until it breaks it.
struct Program {
    socket: PatientStream<TcpStream>,
    sequence: u64,
    context: u32,
    /// Start addresses of its device memory and its pinned memory.
    device: u64,
    pinned: u64,
}

impl Program {
    /// Opens a session with a context and `size` bytes of registered pinned memory.
    fn with_pinned(target: &Target, size: u64) -> Result<Self> {
        let address = target.server.tcp().strip_prefix("tcp://").context("no TCP address")?;
        let mut socket = PatientStream::new(TcpStream::connect(address)?, WAIT_TIMEOUT)?;
        let ready = session(&mut socket)?;
        let base = |kind| ready.arenas.iter().find(|range| range.kind == kind).map(|range| range.base);
        let (device, pinned) = (base(ArenaKind::DEVICE), base(ArenaKind::PINNED));
        let (device, pinned) = device.zip(pinned).context("an arena is missing")?;
        let mut program = Self { socket, sequence: 0, context: 0, device, pinned };
        program.call(&kdContextRetain { context: 1, device: 0, flags: 0 })?;
        program.context = 1;
        program.call(&kdHostRegister { address: pinned, size, flags: 0 })?;
        Ok(program)
    }

    fn send(&mut self, opcode: u16, wants_reply: bool, payload: &[u8]) -> Result<()> {
        let head = FrameHead { opcode, wants_reply, thread: 1, context: self.context, sequence: self.sequence };
        self.sequence += 1;
        send(&mut self.socket, &[&head.encode(payload.len())?[..], payload].concat())
    }

    /// Sends a message without waiting for an answer.
    fn enqueue<M: Message>(&mut self, message: &M) -> Result<()> {
        self.send(M::OPCODE, false, &payload(message))
    }

    /// Makes a call that succeeds.
    fn call<M: Message>(&mut self, message: &M) -> Result<()> {
        let sequence = self.sequence;
        self.send(M::OPCODE, true, &payload(message))?;
        loop {
            let mut head = [0; HEAD_BYTES];
            self.socket.read_exact(&mut head)?;
            let (head, length) = ReplyHead::decode(&head)?;
            self.socket.read_exact(&mut vec![0; length])?;
            // Heartbeats arrive as well.
            if head.heartbeat().is_none() {
                ensure!((head.sequence, head.status) == (sequence, 0), "{}: {head:?}", M::NAME);
                return Ok(());
            }
        }
    }

    /// Sends a message of another thread, and reads no reply. Returns false when the peer takes no more bytes.
    fn throw(&mut self, thread: u32, (opcode, wants_reply, payload): &(u16, bool, Vec<u8>)) -> Result<bool> {
        let (opcode, wants_reply) = (*opcode, *wants_reply);
        let head = FrameHead { opcode, wants_reply, thread, context: 1, sequence: self.sequence };
        self.sequence += 1;
        Ok(self.socket.write_all(&[&head.encode(payload.len())?[..], payload].concat()).is_ok())
    }

    /// Sends an invalid message.
    fn break_off(&mut self) -> Result<()> {
        self.send(0xfffe, false, &[])
    }
}

fn payload<M: Message>(message: &M) -> Vec<u8> {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    payload.extend_from_slice(message.tail());
    payload
}

/// The number of the first stream that a program makes; lower numbers are those of default streams.
const STREAM_LINK: u32 = 3;
/// How often a session is replayed, each time with a worker that has to survive until it exits by itself.
const REPLAY_COUNT: usize = 16;
/// Bytes of pinned memory of these sessions: enough that freeing it takes a while.
const PINNED_BYTES: u64 = 64 << 20;

/// Repeatedly has `break_it` end a session by a protocol breach. Each worker must exit as at the end of any session, and not
/// die of a signal.
fn workers_exit_by_themselves(break_it: impl Fn(&mut Program) -> Result<()>) -> Result<()> {
    let target = Target::new()?;
    for _ in 0..REPLAY_COUNT {
        let mut program = Program::with_pinned(&target, PINNED_BYTES)?;
        break_it(&mut program)?;
        closes(&mut program.socket)?;
    }
    for line in ends(&target, REPLAY_COUNT)? {
        ensure!(line.contains("exit status: 1"), "{line}");
    }
    target.end_unharmed()
}

/// Returns the server's messages about the ends of hostile sessions, once there are `count` of them.
fn ends(target: &Target, count: usize) -> Result<Vec<String>> {
    let ended = || {
        let log = target.server.log();
        log.lines().filter(|line| line.contains("(hostile) ended")).map(str::to_owned).collect::<Vec<_>>()
    };
    until("a line about the end of each session", || ended().len() >= count)?;
    Ok(ended())
}

/// From a program's first host function on, a separate thread of the worker reads the link and writes what the program pushes.
/// That thread goes on when the main loop finds a breach.
#[test]
fn pushes_after_a_protocol_breach_reach_mapped_memory() -> Result<()> {
    let bytes = vec![7; 1 << 20];
    let push_all = |program: &mut Program| {
        let begin = program.pinned;
        let mut addresses = (begin..begin + PINNED_BYTES).step_by(bytes.len());
        addresses.try_for_each(|address| program.enqueue(&kdHostPush { address, data: &bytes }))
    };
    workers_exit_by_themselves(|program| {
        push_all(program)?;
        program.enqueue(&kdHostFunction { stream: 0, token: 1 })?;
        program.break_off()?;
        push_all(program)
    })
}

#[test]
fn memory_of_running_copies_stays_mapped_when_a_session_breaks() -> Result<()> {
    workers_exit_by_themselves(|program| {
        let (destination, source) = (program.device, program.pinned);
        program.call(&kdDeviceGrow { device: 0, address: destination, size: PINNED_BYTES })?;
        program.enqueue(&cuStreamCreate { phStream: STREAM_LINK, Flags: 1 })?;
        program.enqueue(&kdHostFunction { stream: 0, token: 1 })?;
        program.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 })?;
        let copy = kdCopy { destination, source, size: PINNED_BYTES, stream: STREAM_LINK };
        program.enqueue(&copy)?;
        program.enqueue(&cuEventRecord { hEvent: 1, hStream: STREAM_LINK })?;
        (0..32).try_for_each(|_| program.enqueue(&copy))?;
        // The first copy is done, and the driver goes on copying.
        program.call(&cuEventSynchronize { hEvent: 1 })?;
        program.break_off()
    })
}

/// Number of sessions of made-up frames, unless `KATYDID_MUTATIONS` sets it.
const MADE_UP: usize = 40;
/// How long such a session waits for its worker to read again.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// Frames of each session.
const FRAME_COUNT: usize = 60;
/// A kernel that reads and writes at the address in its parameter.
const KERNEL: &[u8] = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {\n\
    .reg .u64 %a; .reg .u32 %v;\n ld.param.u64 %a, [p];\n ld.global.u32 %v, [%a];\n st.global.u32 [%a+4], %v;\n ret;\n}\n";

impl Random {
    /// Returns an id of an object that exists, or that could.
    fn id(&mut self) -> u32 {
        self.below(u64::from(STREAM_LINK) + 2) as u32
    }

    /// Returns a size, most often a small one or one of whole pages.
    fn size(&mut self) -> u64 {
        match self.below(8) {
            0..3 => self.below(2048),
            3..6 => self.below(64) << 12,
            6 => 2 << 20,
            _ => self.below(1 << 23),
        }
    }

    /// Returns an address in the program's memory, or near its end.
    fn address(&mut self, program: &Program) -> u64 {
        let base = if self.below(2) == 0 { program.device } else { program.pinned };
        match self.below(8) {
            0..4 => base + (self.below(512) << 12),
            4..6 => base + self.below(2 << 20),
            6 => base + (2 << 20) - self.below(64),
            _ => self.0 >> self.below(64),
        }
    }
}

/// Returns a message, and whether it wants a reply.
fn encoded_message<M: Message>(is_call: bool, message: &M) -> (u16, bool, Vec<u8>) {
    (M::OPCODE, is_call, payload(message))
}

/// Returns a message with made-up fields, which a worker is likely to accept.
fn made_up(random: &mut Random, program: &Program) -> (u16, bool, Vec<u8>) {
    match random.below(3) {
        0 => made_up_copy(random, program),
        1 => made_up_memory(random, program),
        _ => made_up_object(random, program),
    }
}

fn made_up_copy(random: &mut Random, program: &Program) -> (u16, bool, Vec<u8>) {
    let data = &vec![3; random.size().min(1 << 20) as usize];
    let (stream, array, size, pitch, height) =
        (random.id(), random.id(), random.size(), random.size(), random.below(9));
    let (destination, source) = (random.address(program), random.address(program));
    match random.below(7) {
        0 => encoded_message(false, &kdCopy { destination, source, size, stream }),
        1 | 2 => encoded_message(false, &kdCopyIn { destination, stream, data }),
        3 => encoded_message(true, &kdCopyOut { source, size: size as u32, stream }),
        4 => {
            let elementSize = 1 << random.below(3);
            encoded_message(false, &kdFill { destination, pitch, value: 7, elementSize, width: size, height, stream })
        }
        5 => {
            let (x, y, z, width) = (destination, 0, 0, data.len() as u64);
            encoded_message(false, &kdRowsIn { array, stream, x, y, z, pitch, width, height: 1, data })
        }
        _ => encoded_message(true, &kdRowsOut { array, stream, x: source, y: 0, z: 0, pitch, width: size, height }),
    }
}

fn made_up_memory(random: &mut Random, program: &Program) -> (u16, bool, Vec<u8>) {
    let data = &vec![3; random.size().min(1 << 20) as usize];
    let (address, other, array, size) = (random.address(program), random.address(program), random.id(), random.size());
    let granule = program.device + (random.below(4) << 21);
    match random.below(9) {
        0 => encoded_message(false, &kdHostPush { address, data }),
        1 => encoded_message(true, &kdHostPull { ranges: &ranges::encode(&[(address, size as u32), (other, 64)]) }),
        2 => encoded_message(true, &kdHostRegister { address, size: size & !4095, flags: 0 }),
        3 => encoded_message(true, &kdHostUnregister { address: program.pinned, size: PINNED_BYTES }),
        4 => encoded_message(true, &kdDeviceGrow { device: 0, address: granule, size: 2 << 20 }),
        5 => encoded_message(true, &kdDeviceShrink { device: 0, address: granule, size: 2 << 20 }),
        6 => {
            let (width, height, depth, format, channels, flags) = (size, random.below(9), 0, 1, 1, 0);
            encoded_message(true, &kdArrayCreate { array, width, height, depth, format, channels, flags })
        }
        7 => encoded_message(true, &kdArrayDestroy { array }),
        _ => encoded_message(true, &kdAddressReserve { address, size: 2 << 20 }),
    }
}

fn made_up_object(random: &mut Random, program: &Program) -> (u16, bool, Vec<u8>) {
    let (stream, event, token) = (random.id(), random.id(), random.below(3));
    match random.below(18) {
        0 => encoded_message(false, &cuStreamCreate { phStream: stream, Flags: random.below(2) as u32 }),
        1 => encoded_message(false, &cuStreamDestroy_v2 { hStream: stream }),
        2 => encoded_message(false, &cuEventCreate { phEvent: event, Flags: 0 }),
        3 => encoded_message(false, &cuEventRecord { hEvent: event, hStream: stream }),
        4 => encoded_message(false, &cuEventDestroy_v2 { hEvent: event }),
        5 => encoded_message(false, &cuStreamWaitEvent { hStream: stream, hEvent: event, Flags: 0 }),
        6 => encoded_message(true, &cuStreamQuery { hStream: stream }),
        7 => encoded_message(true, &cuStreamSynchronize { hStream: stream }),
        8 => encoded_message(true, &cuCtxSynchronize {}),
        9 => encoded_message(false, &kdHostFunction { stream, token }),
        10 => encoded_message(false, &kdStreamCallback { stream, token }),
        11 => encoded_message(true, &kdUpcallNext { done: token }),
        12 | 13 => launch(stream, 1 + random.id(), random.address(program)),
        _ => match random.below(8) {
            0 => encoded_message(true, &kdContextReset { context: 1, device: 0 }),
            1 => encoded_message(true, &kdContextRelease { context: 1, device: 0 }),
            2 => encoded_message(false, &cuModuleUnload { hmod: 1 }),
            3 => encoded_message(true, &kdContextRetain { context: 1 + random.id(), device: 0, flags: 0 }),
            _ => encoded_message(true, &kdElapsedTime { start: event, end: random.id(), version: 2 }),
        },
    }
}

/// Launches the kernel with an address.
fn launch(stream: u32, gridX: u32, address: u64) -> (u16, bool, Vec<u8>) {
    let (gridY, gridZ, blockX, blockY, blockZ) = (1, 1, 32, 1, 1);
    let (function, kernel, sharedSize, attributeCount) = (1, 0, 0, 0);
    let attributesAndParams = &address.to_le_bytes();
    let launch = kdLaunch {
        function,
        kernel,
        gridX,
        gridY,
        gridZ,
        blockX,
        blockY,
        blockZ,
        sharedSize,
        stream,
        attributeCount,
        attributesAndParams,
    };
    encoded_message(false, &launch)
}

/// Sessions send made-up messages, in an order in which no program would, about objects that may exist. However these sessions
/// end, their workers neither die of a signal nor report an internal error.
#[test]
fn made_up_messages_end_sessions_and_their_workers_by_no_fault() -> Result<()> {
    let count = std::env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MADE_UP);
    let target = Target::new()?;
    let image = ModuleImage::from_bytes(KERNEL)?.encode();
    for seed in 1..=count {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed as u64) << 20);
        let mut program = Program::with_pinned(&target, PINNED_BYTES)?;
        program.call(&kdDeviceGrow { device: 0, address: program.device, size: 2 << 20 })?;
        program.enqueue(&cuStreamCreate { phStream: STREAM_LINK, Flags: 1 })?;
        program.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 })?;
        program.enqueue(&kdUpload { total: image.len() as u64, data: &image })?;
        program.call(&kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] })?;
        program.call(&kdModuleFunction { function: 1, module: 1, name: b"k" })?;
        // The test reads and drops replies. It gives up a worker that waits for this program while the program waits for it.
        let socket = program.socket.socket().try_clone()?;
        let mut replies = PatientStream::new(socket.try_clone()?, WAIT_TIMEOUT)?;
        socket.set_write_timeout(Some(GIVEN_UP))?;
        let reader = thread::spawn(move || io::copy(&mut replies, &mut io::sink()));
        for thread in (1..=FRAME_COUNT as u32).map(|frame| frame * 7 % 40 + 1) {
            let message = made_up(&mut random, &program);
            if !program.throw(thread, &message)? {
                break;
            }
        }
        // Half of the sessions end by a breach of the protocol, unless they have broken it before; the others leave.
        if seed % 2 == 0 {
            let _ = program.throw(1, &(0xfffe, false, Vec::new()))?;
        }
        let _ = socket.shutdown(Shutdown::Both);
        let _ = reader.join();
    }
    for line in ends(&target, count)? {
        ensure!(!line.contains("signal") && !line.contains("exit status: 70"), "{line}\n{}", target.server.log());
    }
    target.end_unharmed()
}

#[test]
fn something_else_than_a_hello_closes_the_connection() -> Result<()> {
    instead_of_hello(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n and so on, for longer than any prefix of a message is")
}

#[test]
fn a_hello_that_claims_a_huge_length_closes_the_connection() -> Result<()> {
    let mut bytes = hello().encode(&peer::build())?;
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    instead_of_hello(&bytes)
}

#[test]
fn a_hello_whose_inside_is_damaged_closes_the_connection() -> Result<()> {
    let mut bytes = hello().encode(&peer::build())?;
    let length = bytes.len();
    bytes[PREFIX_BYTES..length].fill(0xff);
    instead_of_hello(&bytes)
}

#[test]
fn a_connection_closed_in_the_middle_of_a_hello_harms_no_other() -> Result<()> {
    let target = Target::new()?;
    let bytes = hello().encode(&peer::build())?;
    for length in [0, 1, PREFIX_BYTES - 1, PREFIX_BYTES, bytes.len() - 1] {
        for socket in target.connections() {
            let mut socket = socket?;
            send(&mut socket, &bytes[..length])?;
        }
    }
    target.end_unharmed()
}

#[test]
fn a_program_of_another_build_is_refused_with_a_text() -> Result<()> {
    let target = Target::new()?;
    let builds = [
        Build { protocol: 999, ..peer::build() },
        Build { spec_hash: [7; 32], release: "0.0.9".to_owned(), ..peer::build() },
    ];
    for build in builds {
        for socket in target.connections() {
            let mut socket = socket?;
            send(&mut socket, &hello().encode(&build)?)?;
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
fn malformed_payload_ends_its_session() -> Result<()> {
    // Whatever the first opcodes mean, none of them accepts this many bytes of this kind.
    let frames = (0..64).map(|opcode| frame(opcode, false, &[0xff; 4099])).collect::<Result<Vec<_>>>()?;
    in_a_session(&frames.concat())
}

#[test]
fn a_frame_longer_than_the_limit_ends_its_session() -> Result<()> {
    let mut bytes = frame(1, true, &[0; 64])?;
    let too_long = u32::try_from(MAX_FRAME_BYTES + 1)?;
    bytes[..4].copy_from_slice(&too_long.to_le_bytes());
    in_a_session(&bytes)
}

#[test]
fn a_frame_shorter_than_its_head_ends_its_session() -> Result<()> {
    let mut bytes = frame(1, true, &[0; 64])?;
    bytes[..4].copy_from_slice(&u32::try_from(HEAD_BYTES - 1)?.to_le_bytes());
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
    for socket in target.connections() {
        let mut socket = socket?;
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
    let mut tcp = peer::connect(target.server.tcp())?;
    session(&mut tcp)?;
    let before = target.server.log().len();
    send(&mut tcp, &frame(0xfffe, true, &[])?)?;
    closes(&mut tcp)?;
    until("a line about it", || target.server.log().len() > before)?;
    target.end_unharmed()
}

/// The limit that the program `memory_limit` expects.
const MEMORY_LIMIT_ARGUMENTS: [&str; 2] = ["--memory", "64M"];

#[test]
fn every_byte_counts_against_a_limit_of_device_memory() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &[])?;
    let program = paths.program("memory_limit", Variant::Static);
    for way in Way::through(&server) {
        let outcome = program::run(way.job(&paths, &MEMORY_LIMIT_ARGUMENTS, &program).arg("counts"), WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{way}: {}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    // The server's own limit counts as well.
    let strict = Server::start(&paths, &driver_under_test(), &["--session-memory", "64M"])?;
    let [way, _] = Way::through(&strict);
    let outcome = program::run(way.command(&paths, &program).arg("counts"), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    Ok(())
}

#[test]
fn server_reports_the_memory_that_a_program_holds() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &[])?;
    for way in Way::through(&server) {
        let mut command = way.job(&paths, &MEMORY_LIMIT_ARGUMENTS, &paths.program("memory_limit", Variant::Static));
        let mut running = Running::start(command.arg("holds"), Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        let output = running.output_so_far()?;
        let held: u64 = output.trim().rsplit(' ').next().context("no number")?.parse()?;
        // The program holds a block of 16 MiB, 2 managed, a variable of 5 and a heap of 9, and few variables of its own code.
        ensure!(held >> 20 == 32, "it holds {held} bytes");
        until("the same number in the server's view", || {
            let sessions = server.sessions().unwrap_or_default();
            sessions.iter().any(|session| session["device_memory"].as_u64() == Some(held))
        })?;
        running.close_input();
        ensure!(running.finish(WAIT_TIMEOUT)?.status.success(), "{way}: it did not end well");
    }
    Ok(())
}

/// Returns a field of a process's status in `/proc`.
fn status(pid: u32, line: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(":\t"));
    found.map(str::to_owned).with_context(|| format!("no line {line}"))
}

/// Whether every user can reach the binaries.
fn is_open(paths: &Paths) -> bool {
    let may_enter = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.mode() & 0o001 != 0);
    paths.shim().ancestors().all(may_enter)
}

#[test]
fn workers_have_given_up_what_they_do_not_need() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let program = paths.program("fixture", Variant::Static);
    let is_root = rustix::process::geteuid().is_root();
    // A separate user or another one, where this user may switch and the other can reach the libraries; otherwise this user.
    let (daemon, root): (&[&str], &[&str]) = (&["--worker-user", "daemon"], &["--worker-user", "root"]);
    let sandboxed = [&[], daemon, root].into_iter().take(if is_root { 3 } else { 1 }).map(|further| (further, true));
    for (further, has_sandbox) in sandboxed.chain([(&["--no-sandbox"][..], false)]) {
        let server = Server::start(&paths, "soft", further)?;
        for way in Way::through(&server) {
            let mut running = Running::start(way.command(&paths, &program).arg("idle"), Stdio::piped())?;
            running.wait_for("ready", WAIT_TIMEOUT)?;
            let [worker] = server.workers_of(1)?[..] else { bail!("another number of workers") };
            let flags = [status(worker, "NoNewPrivs")?, status(worker, "Seccomp")?];
            let own = std::process::id();
            let expected = [status(own, "NoNewPrivs")?, status(own, "Seccomp")?];
            ensure!(flags == if has_sandbox { ["1", "2"].map(str::to_owned) } else { expected }, "{way}: {flags:?}");
            if has_sandbox {
                let capabilities = status(worker, "CapEff")?;
                ensure!(u64::from_str_radix(&capabilities, 16)? == 0, "{way}: {capabilities}");
                let is_roots = status(worker, "Uid")?.split('\t').next() == Some("0");
                let stays_root = further == root || (further.is_empty() && !is_open(&paths));
                ensure!(is_roots == stays_root, "{way}: {further:?}: it runs as {}", status(worker, "Uid")?);
            }
            running.close_input();
            let outcome = running.finish(WAIT_TIMEOUT)?;
            ensure!(outcome.status.success(), "{way}: {}\n{}", outcome.text(), outcome.errors());
        }
    }
    Ok(())
}

/// Whether a user may act on a process by a command and its arguments.
fn may(user: (u32, u32), command: &[&str]) -> Result<bool> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    let mut started = Command::new(program);
    started.args(arguments).uid(user.0).gid(user.1).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(started.status()?.success())
}

/// Workers of a server that runs as root have users of their own. The test acts as one worker's user, without its sandbox, to
/// try what that worker could do to another.
#[test]
fn workers_of_two_clients_are_two_users_that_cannot_reach_each_other() -> Result<()> {
    let paths = Paths::of_this_test()?;
    if !rustix::process::geteuid().is_root() || !is_open(&paths) {
        return Ok(());
    }
    let server = Server::start(&paths, "soft", &[])?;
    let program = paths.program("fixture", Variant::Static);
    let [shm, tcp] = Way::through(&server);
    let mut running = Vec::new();
    for way in [tcp.clone(), tcp, shm] {
        let mut started = Running::start(way.command(&paths, &program).arg("idle"), Stdio::piped())?;
        started.wait_for("ready", WAIT_TIMEOUT)?;
        running.push(started);
    }
    let workers = server.workers_of(3)?;
    let id = |worker: u32, line: &str| -> Result<u32> {
        let numbers = status(worker, line)?.split('\t').map(str::to_owned).collect::<Vec<_>>();
        ensure!(numbers.iter().all(|number| *number == numbers[0]), "{line}: {numbers:?}");
        Ok(numbers[0].parse()?)
    };
    let users =
        workers.iter().map(|worker| Ok((id(*worker, "Uid")?, id(*worker, "Gid")?))).collect::<Result<Vec<_>>>()?;
    ensure!(users.iter().all(|(user, group)| (61184..=65519).contains(user) && *group == users[0].1), "{users:?}");
    for (worker, user) in workers.iter().zip(&users) {
        for other in &users {
            let environment = may(*other, &["cat", &format!("/proc/{worker}/environ")])?;
            let signal = may(*other, &["sh", "-c", &format!("kill -0 {worker}")])?;
            ensure!((environment, signal) == (user == other, user == other), "{other:?} to {user:?}");
        }
    }
    for mut running in running {
        running.close_input();
        ensure!(running.finish(WAIT_TIMEOUT)?.status.success(), "it did not end well");
    }
    Ok(())
}

#[test]
fn a_worker_of_its_own_user_gives_up_privileges_too() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let way = Way::Private { driver: "soft".to_owned() };
    let program = paths.program("fixture", Variant::Static);
    let mut running = Running::start(way.command(&paths, &program).arg("idle"), Stdio::piped())?;
    running.wait_for("ready", WAIT_TIMEOUT)?;
    let is_worker = |pid: &u32| status(*pid, "Name").is_ok_and(|name| name == "katydid-worker");
    let workers: Vec<u32> = tree(running.pid()).into_iter().filter(is_worker).collect();
    ensure!(!workers.is_empty(), "no worker");
    for worker in workers {
        // A worker that is kept ready may be about to start.
        until("a worker has given up its privileges", || {
            let fields = ["NoNewPrivs", "Seccomp", "CapEff"].map(|name| status(worker, name).unwrap_or_default());
            fields[0] == "1" && fields[1] == "2" && u64::from_str_radix(&fields[2], 16) == Ok(0)
        })?;
    }
    running.close_input();
    ensure!(running.finish(WAIT_TIMEOUT)?.status.success(), "it did not end well");
    Ok(())
}
