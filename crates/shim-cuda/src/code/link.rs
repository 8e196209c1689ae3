//! The linker: the shim keeps the inputs, and the worker's driver links them.
//!
//! With each input, the worker links all inputs so far without completing the image. So each refusal comes from the call
//! that it belongs to, in the driver's own words. Completing links them to the end and fetches the image. So the worker
//! keeps nothing between calls.
#![expect(unsafe_code, reason = "reads inputs and writes logs of C callers")]

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUlinkState, CUresult};
use katydid_driver_rules::code::{LinkProgress, check_input};
use katydid_wire::facts::encode_options;
use katydid_wire::message::{kdLink, kdLinkOutput, kdUpload};

use crate::code::jit::Options;
use crate::code::module_image;
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::process::session::shim;

/// Bytes of inputs in one frame, and of an image in one reply.
const LINK_FRAME_BYTES: usize = 1 << 20;
/// Largest input that is accepted, in bytes.
const MAX_LINK_INPUT_BYTES: usize = 1 << 30;

/// One linking in progress.
pub(crate) struct Link {
    pub(crate) slot: SlabSlot,
    state: Mutex<LinkerState>,
}

/// One input as the program gave it.
struct Input {
    kind: u32,
    name: Vec<u8>,
    data: Vec<u8>,
}

struct LinkerState {
    options: Options,
    inputs: Vec<Input>,
    progress: LinkProgress,
    /// The result, for the program to read until the linking is destroyed.
    image: Option<Vec<u8>>,
}

// SAFETY: the pointers in the options are the program's, which keeps them valid for whichever thread it links on.
unsafe impl Send for LinkerState {}

/// Linkings in progress, which have no wire id.
pub(crate) static LINKS: HandleTable<Link> = HandleTable::new();

impl Handle for CUlinkState {
    type Object = Link;

    fn table() -> &'static HandleTable<Link> {
        &LINKS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, LinkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkerState {
    /// Has the worker link all inputs, to the end if `complete`, and writes the logs. Returns the image's size in bytes.
    fn link(&self, complete: bool) -> Result<u64, CUresult> {
        let (context, session) = (stack::wire()?, &shim()?.session);
        let flat = self.flat();
        for data in flat.chunks(LINK_FRAME_BYTES) {
            session.enqueue(context, &kdUpload { total: flat.len() as u64, data })?;
        }
        let (info, error) = self.options.log_sizes();
        let options = encode_options(&self.options.numbers);
        let message =
            kdLink { complete: u32::from(complete), infoLogSize: info, errorLogSize: error, options: &options };
        let (status, reply) = session.call_any(context, &message)?;
        let reply = reply.ok_or(status);
        if let Ok(reply) = &reply {
            // SAFETY: the program keeps its options until the linking is destroyed.
            unsafe { self.options.write(&reply.into()) };
        }
        status.ok()?;
        reply.map(|reply| reply.size)
    }

    /// Encodes all inputs in one piece: their number, then kind, lengths, name and data of each.
    fn flat(&self) -> Vec<u8> {
        let mut flat = (self.inputs.len() as u32).to_le_bytes().to_vec();
        for input in &self.inputs {
            flat.extend(input.kind.to_le_bytes());
            flat.extend((input.name.len() as u32).to_le_bytes());
            flat.extend((input.data.len() as u64).to_le_bytes());
            flat.extend(&input.name);
            flat.extend(&input.data);
        }
        flat
    }

    /// Adds an input, unless the worker's driver refuses it.
    fn add(&mut self, input: Input) -> Result<(), CUresult> {
        self.progress.check_open()?;
        let kind = input.kind;
        self.inputs.push(input);
        self.link(false).map(drop).inspect_err(|code| {
            self.inputs.pop();
            self.progress.refuse(kind, *code);
        })
    }

    /// Links the image and fetches it.
    fn complete(&mut self) -> Result<&[u8], CUresult> {
        self.progress.check_incomplete()?;
        let size = self.link(true).inspect_err(|code| self.progress.fail(*code))?;
        let (context, session) = (stack::wire()?, &shim()?.session);
        let mut image = Vec::new();
        while (image.len() as u64) < size {
            let piece = (size - image.len() as u64).min(LINK_FRAME_BYTES as u64 / 2) as u32;
            let data = session.call(context, &kdLinkOutput { offset: image.len() as u64, size: piece })?.image;
            if data.is_empty() {
                return Err(session.broken("kdLinkOutput"));
            }
            image.extend(data);
        }
        self.progress.complete();
        Ok(self.image.insert(image))
    }
}

/// Begins a linking. Log buffers must stay until the linking is destroyed.
///
/// # Safety
///
/// The arrays are as [`Options::read`] wants them, and stay until the linking ends; `target` is null or writable.
pub(crate) unsafe fn create(
    count: u32,
    ids: *mut u32,
    values: *mut *mut c_void,
    target: *mut CUlinkState,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    stack::active()?;
    // SAFETY: handed on.
    let options = unsafe { Options::read(count, ids, values) }?;
    let state = LinkerState { options, inputs: Vec::new(), progress: LinkProgress::default(), image: None };
    // Options that the driver refuses are refused here, as the driver does.
    state.link(false)?;
    let make = |slot| Link { slot, state: Mutex::new(state) };
    let link = LINKS.get()?.insert(make).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    target.write(CUlinkState(handle(link.slot.handle)));
    Ok(())
}

/// Adds an input from memory. Options of a single input change nothing.
///
/// # Safety
///
/// `data` is null or readable for `size` bytes, `name` is null or a C string.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn add_data(
    state: CUlinkState,
    kind: u32,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    _count: u32,
    _ids: *mut u32,
    _values: *mut *mut c_void,
) -> Result<(), CUresult> {
    let link = object(state)?;
    check_input(kind, data, size, MAX_LINK_INPUT_BYTES)?;
    // SAFETY: readable for `size` bytes, by the contract.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec();
    // SAFETY: null or a C string, by the contract.
    let name = if name.is_null() { Vec::new() } else { unsafe { CStr::from_ptr(name) }.to_bytes().to_vec() };
    link.state().add(Input { kind, name, data })
}

/// Adds an input from a file, which is read here.
///
/// # Safety
///
/// `path` is null or a C string.
pub(crate) unsafe fn add_file(
    state: CUlinkState,
    kind: u32,
    path: *const c_char,
    _count: u32,
    _ids: *mut u32,
    _values: *mut *mut c_void,
) -> Result<(), CUresult> {
    let link = object(state)?;
    // SAFETY: handed on.
    let data = unsafe { module_image::read_file(path) }?;
    // SAFETY: `read_file` refuses null, so this is a C string by the contract.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
    link.state().add(Input { kind, name, data })
}

/// Completes the linking. The image stays until the linking is destroyed.
///
/// # Safety
///
/// Both outputs are null or writable.
pub(crate) unsafe fn complete(state: CUlinkState, target: *mut *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    let link = object(state)?;
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let mut state = link.state();
    let image = state.complete()?;
    target.write(image.as_ptr().cast_mut().cast());
    // SAFETY: null or writable, by the contract.
    unsafe { write_optional(size, image.len()) };
    Ok(())
}

/// Destroys the linking with its image.
pub(crate) fn destroy(state: CUlinkState) -> Result<(), CUresult> {
    LINKS.get()?.remove(state.0.addr()).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}
