//! The linker: it makes one image of several inputs.
//!
//! Codes are those of driver 580: 218 for wrong PTX, 200 for bytes of no known form, 300 for a name that is defined twice or
//! nowhere, 221 for LTO code, 301 for a file that cannot be read.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use katydid_cuda_sys::{CUjit_option, CUlinkState, CUresult};
use katydid_driver_rules::code::check_input;
use katydid_fatbin::Compilation;

use crate::code::jit::Options;
use crate::code::linker::{self, Input, Linker, resolve};
use crate::context::stack;
use crate::ffi::{MaybeOut, Out, Outcome, Text, api};
use crate::process::state;

/// Largest accepted input of a link.
const MAX_SOFT_LINK_INPUT_BYTES: usize = 1 << 32;

/// Options of the live links, by handle. Their logs are written whenever an input is added.
static LINK_OPTIONS: Mutex<Option<HashMap<usize, (Options, Instant)>>> = Mutex::new(None);

/// Runs `body` on a link, then writes its messages into the program's buffers.
fn with_logs<T>(linker: &Linker, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let outcome = body();
    let options = LINK_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((options, start)) = options.as_ref().and_then(|all| all.get(&linker.handle)) {
        options.answer_time(start.elapsed());
        options.answer_logs("", &linker.errors());
    }
    outcome
}

/// Starts a link with options.
///
/// # Safety
///
/// The option arrays have `count` entries and stay valid until the link is destroyed, as the driver API demands.
unsafe fn create(count: u32, kinds: *mut CUjit_option, values: *mut *mut c_void, state: &Out<CUlinkState>) -> Outcome {
    stack::usable()?;
    // SAFETY: the contract.
    let options = unsafe { Options::new(count, kinds, values) }?;
    let linker = linker::create(options.compilation());
    let mut options_of = LINK_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    options_of.get_or_insert_default().insert(linker.handle, (options, Instant::now()));
    state.set(CUlinkState(std::ptr::without_provenance_mut(linker.handle)));
    Ok(())
}

/// Returns the name of an input for messages; programs may omit it.
///
/// # Safety
///
/// Null, or NUL-terminated.
unsafe fn label<'a>(name: *const c_char) -> std::borrow::Cow<'a, str> {
    if name.is_null() {
        return "<unnamed>".into();
    }
    // SAFETY: not null, so NUL-terminated by the contract.
    unsafe { CStr::from_ptr(name) }.to_string_lossy()
}

/// Options of one input, as a call passes them: count, kinds and values.
type RawJitOptions = (u32, *mut CUjit_option, *mut *mut c_void);

/// Reads the register limit from the options of one input; the others are hints.
///
/// # Safety
///
/// The arrays have as many entries as the number says.
unsafe fn compilation((count, kinds, values): RawJitOptions) -> Outcome<Compilation> {
    // SAFETY: the contract.
    Ok(unsafe { Options::new(count, kinds, values) }?.compilation())
}

/// Adds bytes of the program.
///
/// # Safety
///
/// `data` is null or readable for `size` bytes; `name` is null or a text; the options are complete.
unsafe fn add(
    state: CUlinkState,
    kind: u32,
    (data, size): (*const c_void, usize),
    name: *const c_char,
    options: RawJitOptions,
) -> Outcome {
    let linker = resolve(state)?;
    // SAFETY: the contract.
    let compilation = unsafe { compilation(options) }?;
    check_input(kind, data, size, MAX_SOFT_LINK_INPUT_BYTES)?;
    // SAFETY: the contract.
    let (data, name) = unsafe { (std::slice::from_raw_parts(data.cast::<u8>(), size), label(name)) };
    with_logs(&linker, || linker.add(kind, &Input { data, name: &name, compilation }))
}

/// Adds the contents of a file.
///
/// # Safety
///
/// The options are complete.
unsafe fn add_file(state: CUlinkState, kind: u32, path: &Text<'_>, options: RawJitOptions) -> Outcome {
    let linker = resolve(state)?;
    // SAFETY: the contract.
    let compilation = unsafe { compilation(options) }?;
    let path = std::str::from_utf8(path.bytes()).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    let bytes = std::fs::read(path).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    with_logs(&linker, || linker.add(kind, &Input { data: &bytes, name: path, compilation }))
}

api! {
    /// Starts a link. Log buffers must stay valid until it is destroyed.
    fn cuLinkCreate(count: u32, kinds: *mut CUjit_option, values: *mut *mut c_void, state: Out<CUlinkState>) {
        // SAFETY: the caller's promise for its options.
        unsafe { create(count, kinds, values, &state) }?;
    }

    /// Starts a link. Log buffers must stay valid until it is destroyed.
    fn cuLinkCreate_v2(count: u32, kinds: *mut CUjit_option, values: *mut *mut c_void, state: Out<CUlinkState>) {
        // SAFETY: the caller's promise for its options.
        unsafe { create(count, kinds, values, &state) }?;
    }

    /// Adds bytes. Of the options of an input, only the register limit counts.
    fn cuLinkAddData(
        state: CUlinkState,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: u32,
        kinds: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller's bytes, name and options.
        unsafe { add(state, kind, (data, size), name, (count, kinds, values)) }?;
    }

    /// Adds bytes. Of the options of an input, only the register limit counts.
    fn cuLinkAddData_v2(
        state: CUlinkState,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: u32,
        kinds: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller's bytes, name and options.
        unsafe { add(state, kind, (data, size), name, (count, kinds, values)) }?;
    }

    /// Adds a file. Fails with 301 if it cannot be read.
    fn cuLinkAddFile(
        state: CUlinkState,
        kind: u32,
        path: Text<'_>,
        count: u32,
        kinds: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller's options.
        unsafe { add_file(state, kind, &path, (count, kinds, values)) }?;
    }

    /// Adds a file. Fails with 301 if it cannot be read.
    fn cuLinkAddFile_v2(
        state: CUlinkState,
        kind: u32,
        path: Text<'_>,
        count: u32,
        kinds: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller's options.
        unsafe { add_file(state, kind, &path, (count, kinds, values)) }?;
    }

    /// Completes the link. The image lives until the link is destroyed.
    fn cuLinkComplete(state: CUlinkState, image: Out<*mut c_void>, size: MaybeOut<usize>) {
        let linker = resolve(state)?;
        let (start, length) = with_logs(&linker, || linker.complete())?;
        image.set(start.cast_mut().cast());
        size.set(length);
    }

    /// Destroys a link and its image.
    fn cuLinkDestroy(state: CUlinkState) {
        state::ready()?;
        linker::destroy(state)?;
        LINK_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&(state.address() as usize));
    }
}
