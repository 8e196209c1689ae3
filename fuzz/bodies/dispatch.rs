//! One untrusted program: a session executes its frames one after the other, on a driver that computes nothing.
//!
//! Shared by the fuzz target `dispatch` and by the test of mutated frames. The rule it checks: whatever the frames say, the
//! worst that happens is the session's end. The driver makes handles and reports success, so that the session keeps objects
//! that later frames can use.

#![expect(unsafe_code, reason = "plays a C library")]

use std::ffi::{CStr, c_void};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use katydid_arena::{AddressMap, Reservation};
use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_fatbin::ModuleImage;
use katydid_session::device_memory::DeviceMemory;
use katydid_session::{HostMemory, Session, SessionError, Setup};
use katydid_session_core::{Capture, Usage};
use katydid_transport::{Hangup, LinkError, LinkEvent, OutgoingReply, Replier, Staging, WorkerLink};
use katydid_wire::codec::Message;
use katydid_wire::facts::{DeviceFacts, Facts, PeerFacts};
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::message::{
    cuEventCreate, cuStreamCreate, kdContextRetain, kdDeviceGrow, kdHostRegister, kdModuleFunction, kdModuleLoad,
    kdUpload, message_name,
};

/// Address of device memory; nothing is mapped there.
const DEVICE: u64 = 0x2000_0000_0000;
/// Address of pinned memory.
const PINNED: u64 = 0x3000_0000_0000;
/// Bytes of a piece of device memory, and of all pinned memory.
const TEST_GRANULE_BYTES: u64 = 2 << 20;
/// Longest payload with which a message is tried to find its least length.
const LONGEST: usize = 256;

/// Messages that would wait for the GPU or the program for ever, or that write where only a driver has memory.
const LEFT_OUT: [&str; 5] = ["Synchronize", "kdUpcallNext", "kdReclaim", "kdMemorySetAccess", "kdMemoryImport"];

extern "C" fn nothing() -> CUresult {
    CUresult::SUCCESS
}

/// Writes a handle that no other object has.
extern "C" fn make(out: *mut *mut c_void) -> CUresult {
    static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);
    // SAFETY: sessions pass room for a handle.
    unsafe { out.write(without_provenance_mut(NEXT_HANDLE.fetch_add(0x10, Ordering::Relaxed))) };
    CUresult::SUCCESS
}

extern "C" fn reserve(out: *mut u64, _: usize, _: usize, address: u64, _: u64) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(address) };
    CUresult::SUCCESS
}

/// Functions whose first argument is room for a handle.
const MAKING: [&str; 24] = [
    "cuDevicePrimaryCtxRetain",
    "cuCtxCreate_v2",
    "cuCtxCreate_v4",
    "cuGreenCtxCreate",
    "cuCtxFromGreenCtx",
    "cuGreenCtxStreamCreate",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuKernelGetFunction",
    "cuGraphCreate",
    "cuGraphInstantiateWithFlags",
    "cuMemCreate",
    "cuTexObjectCreate",
    "cuSurfObjectCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayGetLevel",
];

/// Prefixes of the names of functions that write nothing.
const SILENT_PREFIXES: [&str; 22] = [
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuMemcpy",
    "cuMemset",
    "cuLaunch",
    "cuStreamWait",
    "cuStreamWriteValue",
    "cuStreamAddCallback",
    "cuEventRecord",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuFuncSet",
    "cuKernelSet",
    "cuGraphLaunch",
];

fn driver() -> Driver {
    let find = |name: &CStr| -> *mut c_void {
        let name = name.to_str().unwrap_or_default();
        let is_silent = SILENT_PREFIXES.iter().any(|start| name.starts_with(start))
            || ["Destroy", "Unload", "Synchronize", "Query"].iter().any(|part| name.contains(part));
        match name {
            "cuMemAddressReserve" => reserve as *mut c_void,
            _ if MAKING.contains(&name) || (name.starts_with("cuGraphAdd") && name.ends_with("Node")) => {
                make as *mut c_void
            }
            _ if is_silent => nothing as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    };
    // SAFETY: each function takes the arguments of the one it replaces, or fewer; all are static.
    unsafe { Driver::from_functions(find) }
}

/// A link without a listener on either side.
struct NullLink;

impl Replier for NullLink {
    fn reply(&self, _: &OutgoingReply<'_>) -> Result<(), LinkError> {
        Ok(())
    }
}

impl WorkerLink for NullLink {
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError> {
        Ok(LinkEvent::Closed)
    }

    fn replier(&self) -> Arc<dyn Replier> {
        Arc::new(Self)
    }

    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn hangup(&self) -> Hangup {
        unreachable!("nothing watches this link")
    }
}

/// A program and its session.
struct Program {
    session: Session,
    sequence: u64,
}

impl Program {
    /// Creates a program with an object of most kinds, each with the first free id.
    fn new() -> Option<Self> {
        let arena = |kind, base, length| ArenaRange { kind, base, length };
        let map = AddressMap::from_arenas(&[
            arena(ArenaKind::DEVICE, DEVICE, 1 << 40),
            arena(ArenaKind::PINNED, PINNED, TEST_GRANULE_BYTES),
        ])?;
        let pinned = Reservation::at(PINNED, TEST_GRANULE_BYTES).ok()?;
        pinned.map_private(0, TEST_GRANULE_BYTES).ok()?;
        let facts =
            Facts { devices: vec![DeviceFacts::default()], peers: vec![PeerFacts::default()], ..Facts::default() };
        let setup = Setup {
            driver: Arc::new(driver()),
            device: DeviceMemory::new(map.clone(), &facts, Some(64 * TEST_GRANULE_BYTES)),
            facts,
            map,
            host: Some(HostMemory::private(pinned)),
            capture: Capture::default(),
            warm: Vec::new(),
            copy_context: None,
            usage: Arc::new(Usage::default()),
        };
        let mut program = Self { session: Session::new(setup, &NullLink), sequence: 0 };
        program.begin().ok()?;
        Some(program)
    }

    fn begin(&mut self) -> Result<(), SessionError> {
        let image = ModuleImage::from_bytes(b".version 8.0\n").map(|image| image.encode()).unwrap_or_default();
        self.execute(0, true, &kdContextRetain { context: 1, device: 0, flags: 0 })?;
        self.execute(1, false, &cuStreamCreate { phStream: 3, Flags: 0 })?;
        self.execute(1, false, &cuEventCreate { phEvent: 1, Flags: 0 })?;
        self.execute(1, true, &kdDeviceGrow { device: 0, address: DEVICE, size: TEST_GRANULE_BYTES })?;
        self.execute(1, true, &kdHostRegister { address: PINNED, size: TEST_GRANULE_BYTES / 2, flags: 0 })?;
        self.execute(1, false, &kdUpload { total: image.len() as u64, data: &image })?;
        self.execute(1, true, &kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] })?;
        self.execute(1, true, &kdModuleFunction { function: 1, module: 1, name: b"saxpy" })
    }

    fn execute<M: Message>(&mut self, context: u32, wants_reply: bool, message: &M) -> Result<(), SessionError> {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        self.send((M::OPCODE, wants_reply, 1, context), &payload)
    }

    fn send(
        &mut self,
        (opcode, wants_reply, thread, context): (u16, bool, u32, u32),
        payload: &[u8],
    ) -> Result<(), SessionError> {
        self.sequence += 1;
        let head = FrameHead { opcode, wants_reply, thread, context, sequence: self.sequence };
        self.session.execute(&head, payload)
    }
}

/// The required form of a message's bytes.
#[derive(Clone, Copy, Default)]
struct Form {
    least: usize,
    /// Whether the message may be longer.
    is_open: bool,
}

/// The forms of all messages, by opcode; the opcode 0 names none.
fn forms() -> &'static [Form] {
    static FORMS: OnceLock<Vec<Form>> = OnceLock::new();
    FORMS.get_or_init(|| {
        let Some(mut program) = Program::new() else { return vec![Form::default()] };
        let mut fits = |opcode, length| {
            let sent = program.send((opcode, true, 1, 1), &vec![0; length]);
            !matches!(sent, Err(SessionError::Damaged(_)))
        };
        let mut form = |opcode| {
            // Messages that are left out are not tried either.
            if is_left_out(opcode) {
                return Form::default();
            }
            let least = (0..LONGEST).find(|length| fits(opcode, *length)).unwrap_or(0);
            Form { least, is_open: fits(opcode, least + 1) }
        };
        (0..u16::MAX).take_while(|opcode| *opcode == 0 || message_name(*opcode).is_some()).map(&mut form).collect()
    })
}

fn is_left_out(opcode: u16) -> bool {
    message_name(opcode).is_some_and(|name| LEFT_OUT.iter().any(|part| name.contains(part)))
}

/// Bytes of a frame in a script.
pub(crate) const FRAME: usize = 5 + 96;

/// Has a session execute the frames that `script` describes until one ends it; returns how many were executed.
///
/// A frame is the opcode (2 bytes), flags (2), the number of bytes beyond the least length (1), and 96 bytes of payload. The
/// message gets as many of these as it has, and zeros after them. The flags hold the thread, the context, whether a reply is
/// wanted, and whether a message is longer than it may be (0: it is).
pub(crate) fn dispatch(script: &[u8]) -> usize {
    let forms = forms();
    let Some(mut program) = Program::new() else { return 0 };
    let mut executed = 0;
    for frame in script.as_chunks::<FRAME>().0 {
        let [low, high, who, how, more, payload @ ..] = *frame;
        // One opcode more than there are.
        let opcode = u16::from_le_bytes([low, high]) % (forms.len() as u16 + 1);
        let Form { least, is_open } = forms.get(usize::from(opcode)).copied().unwrap_or_default();
        if is_left_out(opcode) {
            continue;
        }
        let longer = if is_open || how >> 4 == 0 { more.into() } else { 0 };
        let mut payload = payload.to_vec();
        payload.resize(least + longer, 0);
        let (thread, context) = (1 + u32::from(who & 3), u32::from(who >> 2 & 3));
        if program.send((opcode, how & 15 != 0, thread, context), &payload).is_err() {
            break;
        }
        executed += 1;
    }
    executed
}
