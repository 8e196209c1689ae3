//! One untrusted OpenCL program: a session executes its frames one after the other, on drivers that compute nothing.
//!
//! Shared by the fuzz target `dispatch_opencl` and by the test of made-up frames. The rule it checks: whatever the frames say,
//! the worst that happens is the session's end. No driver is given an object of the other driver, or one that no longer exists
//! ([`opencl_driver`]). Every message has a form ([`FORMS`]), by which bytes become fields that a session is likely to accept.
//! One byte in some makes a field of any other value.

#![expect(unsafe_code, reason = "plays a C library")]

#[path = "opencl_driver.rs"]
mod opencl_driver;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_session_core::{Capture, Checkpointable, QuiesceError, Usage};
use katydid_session_opencl::{HostMemory, Session, SessionError};
use katydid_transport::{Frame, Hangup, LinkError, LinkEvent, OutgoingReply, Replier, Staging, WorkerLink};
use katydid_wire::codec::{Field, Message, Reply};
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::opencl::message::*;
use katydid_wire::opencl::transfer_extent::TransferExtent;
use katydid_wire::opencl::{STAGED_IN_HOST, STAGED_IN_SVM, id, kind, list};

/// Memory that the program shares with the session.
const HOST: u64 = 0x3000_0000_0000;
const HOST_BYTES: u64 = 1 << 20;
/// The most time that an answer may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A byte of this value says that the next bytes are the field itself.
const WILD: u8 = 0xee;
/// Most bytes of data in a frame.
const MAX_FUZZ_DATA_BYTES: u64 = 1 << 14;

/// Messages with the forms of their payloads, one letter for each field ([`Maker::field`]).
const FORMS: &[(u16, &str)] = &[
    (kdclPlatforms::OPCODE, ""),
    (kdclRelease::OPCODE, "o"),
    (kdclRelease::OPCODE, "v"),
    (kdclUpload::OPCODE, "UD"),
    (kdclBlob::OPCODE, "Uu"),
    (kdclInfo::OPCODE, "nooND"),
    (kdclInfo::OPCODE, "noouUD"),
    (kdclOutput::OPCODE, ""),
    (kdclSubDevices::OPCODE, "dlj"),
    (kdclTimers::OPCODE, "dbn"),
    (kdclTakesCallback::OPCODE, "ob"),
    (kdclUnloadCompiler::OPCODE, "t"),
    (kdclContext::OPCODE, "CUt0g"),
    (kdclContext::OPCODE, "CUtlg"),
    (kdclQueue::OPCODE, "Qcdfl"),
    (kdclQueueProperty::OPCODE, "qFb"),
    (kdclDefaultQueue::OPCODE, "cdq"),
    (kdclSampler::OPCODE, "Bcfl"),
    (kdclBuffer::OPCODE, "McFSzsZ"),
    (kdclBuffer::OPCODE, "McFSaZZ"),
    (kdclBuffer::OPCODE, "McFLz00D"),
    (kdclSubBuffer::OPCODE, "MmFUS"),
    (kdclImage::OPCODE, "McOFsuuuTTTTzzZZ"),
    (kdclImage::OPCODE, "McOFsuuuTTTTzzZZD"),
    (kdclPipe::OPCODE, "McFuu"),
    (kdclMemoryCallback::OPCODE, "mU"),
    (kdclSvmAlloc::OPCODE, "cFSZz"),
    (kdclSvmAlloc::OPCODE, "cFSZa"),
    (kdclSvmFree::OPCODE, "a"),
    (kdclProgram::OPCODE, "PcfsD"),
    (kdclProgram::OPCODE, "Pcfs"),
    (kdclProgram::OPCODE, "PcfsglD"),
    (kdclBuild::OPCODE, "pUsbgxH"),
    (kdclBuild::OPCODE, "pUs"),
    (kdclLink::OPCODE, "Pcbgxh"),
    (kdclSpecialize::OPCODE, "puD"),
    (kdclKernel::OPCODE, "KpD"),
    (kdclCloneKernel::OPCODE, "Kk"),
    (kdclSetArgument::OPCODE, "ku0Y"),
    (kdclSetArgument::OPCODE, "ku1Uo"),
    (kdclSetArgument::OPCODE, "ku2S"),
    (kdclSetArgument::OPCODE, "ku3Ua"),
    (kdclSetExecInfo::OPCODE, "kebY"),
    (kdclUserEvent::OPCODE, "Vc"),
    (kdclSetUserEvent::OPCODE, "vZ"),
    (kdclEventCallback::OPCODE, "vnU"),
    (kdclWait::OPCODE, "bW"),
    (kdclFlush::OPCODE, "q"),
    (kdclFinish::OPCODE, "q"),
    (kdclWaitWrite::OPCODE, "c"),
    (kdclLaunch::OPCODE, "qEknnWTTTTTTTTT"),
    (kdclWrite::OPCODE, "qEmfsbWXD"),
    (kdclWrite::OPCODE, "qEmf0bWR"),
    (kdclWrite::OPCODE, "qEmf5bWXaa"),
    (kdclWrite::OPCODE, "qEmf6bWXaUU"),
    (kdclRead::OPCODE, "qEmfUWX"),
    (kdclRead::OPCODE, "qEmfUWXa"),
    (kdclRead::OPCODE, "qEmfUWXaUU"),
    (kdclReadNow::OPCODE, "qEmfWX"),
    (kdclFetch::OPCODE, "UUun"),
    (kdclMap::OPCODE, "qEmFaWX"),
    (kdclUnmap::OPCODE, "qEmabWX"),
    (kdclCopy::OPCODE, "qEmmrWXX"),
    (kdclFill::OPCODE, "qEmf4WX4444"),
    (kdclMigrate::OPCODE, "qEFWJ"),
    (kdclMarker::OPCODE, "qEbW"),
    (kdclSvmCopy::OPCODE, "qEaaSW"),
    (kdclSvmWrite::OPCODE, "qEasWD"),
    (kdclSvmRead::OPCODE, "qEaSUW"),
    (kdclHostCopy::OPCODE, "qEUsWD"),
    (kdclSvmFill::OPCODE, "qEaS4W4"),
    (kdclSvmMap::OPCODE, "qEFaSUW"),
    (kdclSvmUnmap::OPCODE, "qEaasWD"),
    (kdclSvmMigrate::OPCODE, "qEFWI"),
];

/// Answers by sequence number: the count of answers, and the payload of the last.
#[derive(Default)]
struct Answers {
    list: Mutex<Vec<(u64, Vec<u8>)>>,
    has_come: Condvar,
}

impl Replier for Answers {
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(list.iter().all(|(sequence, _)| *sequence != answer.sequence), "a call is answered twice");
        list.push((answer.sequence, [answer.payload, answer.tail].concat()));
        self.has_come.notify_all();
        Ok(())
    }
}

impl Answers {
    /// Waits for the answer to a frame, which must come, and returns its payload.
    fn wait(&self, sequence: u64) -> Vec<u8> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |list: &mut Vec<(u64, Vec<u8>)>| list.iter().all(|(other, _)| *other != sequence);
        let (mut list, timeout) =
            self.has_come.wait_timeout_while(list, TEST_TIMEOUT, is_missing).unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "frame {sequence} is not answered");
        list.pop().map(|(_, payload)| payload).unwrap_or_default()
    }
}

/// A link that delivers one frame.
struct SingleFrameLink<'a> {
    frame: Option<(FrameHead, &'a [u8])>,
    answers: Arc<Answers>,
}

impl WorkerLink for SingleFrameLink<'_> {
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError> {
        let frame = self.frame.take().map(|(head, payload)| LinkEvent::Frame(Frame { head, payload, buffer: None }));
        Ok(frame.unwrap_or(LinkEvent::Closed))
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::clone(&self.answers) as Arc<dyn Replier>
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn hangup(&self) -> Hangup {
        unreachable!("nothing watches this link")
    }
}

/// Makes fields out of bytes.
struct Maker<'a> {
    remaining: &'a [u8],
    /// Number of objects of each kind so far.
    counts: [u32; 10],
    /// Addresses of shared virtual memory.
    addresses: Vec<u64>,
    /// How the current extent is counted, and its bytes.
    form: u32,
    moved: u64,
    /// Whether an object was made that lends the program's memory to commands.
    lends: bool,
}

impl Maker<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.remaining.split_first().map_or((0, self.remaining), |(first, rest)| (*first, rest));
        self.remaining = rest;
        first
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count.min(MAX_FUZZ_DATA_BYTES)).map(|_| self.byte()).collect()
    }

    fn wild(&mut self) -> u64 {
        let bytes: Vec<u8> = self.bytes(8);
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    /// Returns the number that `make` makes of a byte, or any number.
    fn number(&mut self, make: impl FnOnce(u64) -> u64) -> u64 {
        match self.byte() {
            WILD => self.wild(),
            byte => make(byte.into()),
        }
    }

    /// Returns an existing object, most often.
    fn old(&mut self, kind: u32) -> u32 {
        let count = u64::from(self.counts[kind as usize].max(1));
        let first = u64::from(kind > kind::DEVICE);
        self.number(|byte| id(kind, (first + byte % count) as u32).into()) as u32
    }

    fn any(&mut self) -> u32 {
        let kind = self.number(|byte| 1 + byte % 9) as u32 % 10;
        self.old(kind)
    }

    /// Returns an unused id, most often.
    fn new_id(&mut self, kind: u32) -> u32 {
        let count = &mut self.counts[kind as usize];
        let first = u32::from(kind > kind::DEVICE);
        let next = id(kind, first + *count);
        *count += 1;
        self.number(|_| next.into()) as u32
    }

    fn address(&mut self) -> u64 {
        let which = self.byte();
        let offset = self.number(|byte| [0, byte, 4096, 8 * byte][byte as usize % 4]);
        let known = self.addresses.len();
        let base = if known == 0 || which < 0x60 { HOST } else { self.addresses[usize::from(which) % known] };
        base.wrapping_add(offset)
    }

    fn size(&mut self) -> u64 {
        self.number(|byte| [byte, 64, 4096, 8 * byte, 1 << 16, 0][byte as usize % 6])
    }

    fn extent(&mut self) -> TransferExtent {
        let mut three = |make: fn(u64) -> u64| [0; 3].map(|_: u64| self.number(make));
        let (origin, mut region) = (three(|byte| if byte < 0xc0 { 0 } else { byte % 8 }), three(|byte| 1 + byte % 8));
        if self.form == 0 {
            (region[1], region[2]) = (1, 1);
        }
        let (row, slice) = (self.zero(), self.zero());
        let extent = TransferExtent { origin, region, row, slice };
        self.moved = extent.bytes(if self.form == 2 { 4 } else { 1 }).unwrap_or(0);
        extent
    }

    /// Returns 0, most often.
    fn zero(&mut self) -> u64 {
        self.number(|byte| byte.saturating_sub(0xd0))
    }

    fn list<T: Field>(&mut self, out: &mut Vec<u8>, mut make: impl FnMut(&mut Self) -> T) -> u32 {
        let count = u32::from(self.byte() % 4);
        count.put(out);
        (0..count).for_each(|_| make(self).put(out));
        count
    }

    fn data(&mut self) -> Vec<u8> {
        let length = self.byte();
        self.bytes(length.into())
    }

    /// Writes the field that a letter stands for.
    fn field(&mut self, letter: char, out: &mut Vec<u8>) {
        match letter {
            '0'..='4' => (letter as u32 - '0' as u32).put(out),
            '5' => {
                self.lends = true;
                STAGED_IN_HOST.put(out);
            }
            '6' => STAGED_IN_SVM.put(out),
            'e' => 0x11b6_u32.put(out),
            'f' => {
                self.form = self.number(|byte| byte % 3) as u32;
                self.form.put(out);
            }
            'r' => {
                self.form = 0;
                (self.number(|byte| [0, 0x11, 0x22, 0x02, 0x20][byte as usize % 5]) as u32).put(out);
            }
            'b' => (self.number(|byte| byte & 1) as u32).put(out),
            'n' => (self.number(|byte| byte % 24) as u32).put(out),
            'N' => (self.number(|byte| 0x1000 + byte % 0x200) as u32).put(out),
            's' => (self.number(|byte| if byte < 0xc0 { 0 } else { byte % 4 }) as u32).put(out),
            'u' => (self.number(|byte| byte) as u32).put(out),
            'Z' => (self.zero() as u32).put(out),
            'z' => self.zero().put(out),
            'U' => self.number(|byte| byte).put(out),
            'T' => self.number(|byte| 1 + byte % 8).put(out),
            'S' => self.size().put(out),
            'F' => self.number(|byte| 1 << (byte % 12)).put(out),
            'a' => self.address().put(out),
            'L' => 16_u64.put(out),
            _ => self.composed(letter, out),
        }
    }

    /// Writes the field that a letter for objects or lists stands for.
    fn composed(&mut self, letter: char, out: &mut Vec<u8>) {
        match letter {
            't' => self.old(kind::PLATFORM).put(out),
            'd' => self.old(kind::DEVICE).put(out),
            'c' => self.old(kind::CONTEXT).put(out),
            'q' => self.old(kind::QUEUE).put(out),
            'm' => self.old(kind::MEMORY).put(out),
            'O' => (if self.byte() < 0xc0 { 0 } else { self.old(kind::MEMORY) }).put(out),
            'p' => self.old(kind::PROGRAM).put(out),
            'k' => self.old(kind::KERNEL).put(out),
            'v' => self.old(kind::EVENT).put(out),
            'o' => self.any().put(out),
            'C' => self.new_id(kind::CONTEXT).put(out),
            'Q' => self.new_id(kind::QUEUE).put(out),
            'M' => self.new_id(kind::MEMORY).put(out),
            'B' => self.new_id(kind::SAMPLER).put(out),
            'P' => self.new_id(kind::PROGRAM).put(out),
            'K' => self.new_id(kind::KERNEL).put(out),
            'V' => self.new_id(kind::EVENT).put(out),
            'E' => (if self.byte() < 0x60 { 0 } else { self.new_id(kind::EVENT) }).put(out),
            'W' => drop(self.list(out, |maker| maker.old(kind::EVENT))),
            'J' => drop(self.list(out, |maker| maker.old(kind::MEMORY))),
            'g' => drop(self.list(out, |maker| maker.old(kind::DEVICE))),
            'h' => drop(self.list(out, |maker| maker.old(kind::PROGRAM))),
            'j' => drop(self.list(out, |maker| maker.new_id(kind::DEVICE))),
            'l' => drop(self.list(out, |maker| maker.number(|byte| byte))),
            'H' => {
                let count = self.list(out, |maker| maker.old(kind::PROGRAM));
                count.put(out);
                (0..count).for_each(|_| self.data().put(out));
            }
            'I' => {
                let count = self.list(out, Self::address);
                count.put(out);
                (0..count).for_each(|_| self.size().put(out));
            }
            'x' => self.data().put(out),
            'X' => self.extent().put(out),
            'R' => {
                self.extent().put(out);
                let data = self.bytes(self.moved);
                out.extend(data);
            }
            'Y' => {
                let data = self.data();
                (data.len() as u64).put(out);
                out.extend(data);
            }
            'D' => {
                let data = self.data();
                out.extend(data);
            }
            _ => unreachable!("no form has {letter}"),
        }
    }
}

/// A program and its session.
struct Program<'a> {
    session: Session,
    answers: Arc<Answers>,
    maker: Maker<'a>,
    sequence: u64,
}

impl<'a> Program<'a> {
    fn new(script: &'a [u8]) -> Option<Self> {
        let answers = Arc::new(Answers::default());
        let replier = Arc::clone(&answers) as Arc<dyn Replier>;
        let mut session =
            Session::new(opencl_driver::platforms(), replier, Arc::new(Usage::new(None)), Capture::default()).ok()?;
        let offer = ArenaRange { kind: ArenaKind::PINNED, base: HOST, length: HOST_BYTES };
        session.share(HostMemory::new(&offer, None).ok());
        let mut counts = [0; 10];
        (counts[kind::PLATFORM as usize], counts[kind::DEVICE as usize]) = (2, 2);
        let maker = Maker { remaining: script, counts, addresses: Vec::new(), form: 0, moved: 0, lends: false };
        Some(Self { session, answers, maker, sequence: 0 })
    }

    /// Makes an object of most kinds with the first driver, and a context and a queue with the second.
    fn begin(&mut self, has_svm: bool) -> Result<(), SessionError> {
        let object = |kind| id(kind, 1);
        for number in 0..2u32 {
            let mut arguments = Vec::new();
            id(kind::PLATFORM, number).put(&mut arguments);
            0u32.put(&mut arguments);
            list::put(&mut arguments, &[id(kind::DEVICE, number)]);
            let context = id(kind::CONTEXT, 1 + number);
            self.execute(&kdclContext { context, token: 1, arguments: &arguments })?;
            let (queue, device) = (id(kind::QUEUE, 1 + number), id(kind::DEVICE, number));
            self.execute(&kdclQueue { queue, context, device, form: 2, properties: &[0; 4] })?;
        }
        let (context, parent) = (object(kind::CONTEXT), object(kind::MEMORY));
        let (flags, size, host_address, staged, properties, data) = (1, 4096, 0, 0, 0, &[][..]);
        self.execute(&kdclBuffer { memory: parent, context, flags, size, host_address, staged, properties, data })?;
        self.execute(&kdclSubBuffer { memory: id(kind::MEMORY, 2), parent, flags, origin: 0, size: 1024 })?;
        let program = object(kind::PROGRAM);
        self.execute(&kdclProgram { program, context, form: 0, staged: 0, arguments: b"kernel void k() {}" })?;
        self.execute(&kdclKernel { kernel: object(kind::KERNEL), program, name: b"k" })?;
        self.execute(&kdclUserEvent { event: object(kind::EVENT), context })?;
        for (kind, count) in [
            (kind::CONTEXT, 2),
            (kind::QUEUE, 2),
            (kind::MEMORY, 2),
            (kind::PROGRAM, 1),
            (kind::KERNEL, 1),
            (kind::EVENT, 1),
        ] {
            self.maker.counts[kind as usize] = count;
        }
        match has_svm {
            true => self.execute(&kdclSvmAlloc { context, flags: 1, size: 8192, alignment: 0, host_address: 0 }),
            false => Ok(()),
        }
    }

    fn execute<M: Message>(&mut self, message: &M) -> Result<(), SessionError> {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        self.send((M::OPCODE, true, 1), &payload)
    }

    fn send(&mut self, (opcode, wants_reply, thread): (u16, bool, u32), payload: &[u8]) -> Result<(), SessionError> {
        self.sequence += 1;
        let head = FrameHead { opcode, wants_reply, thread, context: 0, sequence: self.sequence };
        let mut link = SingleFrameLink { frame: Some((head, payload)), answers: Arc::clone(&self.answers) };
        self.session.serve(&mut link)?;
        // Commands without a wait may still be running. The order of frames is that of the script.
        if wants_reply && !is_enqueued(opcode) {
            let answer = self.answers.wait(self.sequence);
            if opcode == kdclSvmAlloc::OPCODE
                && let Ok(reply) = kdclSvmAllocReply::decode(&answer)
            {
                self.maker.addresses.push(reply.address);
            }
        }
        Ok(())
    }

    /// Waits until lent memory is returned, since this memory ends with the session here. A worker's stays.
    fn settle(&mut self) {
        let is_lent =
            |session: &mut Session| matches!(Checkpointable::check_idle(session), Err(QuiesceError::Calls { .. }));
        for _ in 0..TEST_TIMEOUT.as_millis() {
            if !self.maker.lends || !is_lent(&mut self.session) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Executes the next frame of the script; returns `None` at its end.
    fn next(&mut self) -> Option<Result<(), SessionError>> {
        if self.maker.remaining.is_empty() {
            return None;
        }
        let [what, how] = [self.maker.byte(), self.maker.byte()];
        let (opcode, form) = FORMS[usize::from(what) % FORMS.len()];
        let mut payload = Vec::new();
        match how >> 3 {
            // Any message, with any bytes.
            0 => payload = self.maker.data(),
            _ => form.chars().for_each(|letter| self.maker.field(letter, &mut payload)),
        }
        let opcode = if how >> 3 == 0 && what == 0xff { u16::MAX } else { opcode };
        Some(self.send((opcode, how & 4 == 0 || how & 3 != 0, 1 + u32::from(how & 3)), &payload))
    }
}

/// Whether a message has no answer.
fn is_enqueued(opcode: u16) -> bool {
    matches!(opcode, kdclRelease::OPCODE | kdclUpload::OPCODE | kdclSvmFree::OPCODE | kdclFlush::OPCODE)
}

/// Has a session execute the frames that `script` describes until one ends it; returns how many were executed.
///
/// The first byte says whether there is shared virtual memory. A frame is its form, its sender and flags, and the bytes that
/// the form takes.
///
/// # Panics
///
/// Panics if a driver was given an invalid argument, or if a call was not answered exactly once.
pub(crate) fn dispatch(script: &[u8]) -> usize {
    let Some((first, script)) = script.split_first() else { return 0 };
    let Some(mut program) = Program::new(script) else { return 0 };
    let mut executed = 0;
    if program.begin(first & 1 != 0).is_ok() {
        while let Some(Ok(())) = program.next() {
            executed += 1;
        }
    }
    // A worker's process ends without releasing anything, and until then the driver may use what it was given.
    opencl_driver::finish();
    program.settle();
    drop(program);
    let faults = opencl_driver::forget();
    assert!(faults.is_empty(), "{faults:?}");
    executed
}
