//! Settings of GPU core dumps (`cuCoredumpGetAttribute`, `cuCoredumpSetAttribute`): stored and returned.
//!
//! No core is ever dumped: a fault of the GPU ends the session's context, and the program's own core has no GPU memory.
//! Sizes and codes are those of driver 580: a number has exactly its size, a text at least its length.

use std::collections::HashMap;
use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUresult;

use crate::caller;
use crate::outcome::{Outcome, check};

/// Attributes of a core dump, each a `CUcoredumpSettings`.
const ENABLE_ON_EXCEPTION: u32 = 1;
const TRIGGER_HOST: u32 = 2;
const COREDUMP_LIGHTWEIGHT: u32 = 3;
const ENABLE_USER_TRIGGER: u32 = 4;
const COREDUMP_FILE: u32 = 5;
const COREDUMP_PIPE: u32 = 6;
const GENERATION_FLAGS: u32 = 7;
/// Most bytes of a text, including its NUL.
const MAX_COREDUMP_PATH_BYTES: usize = 1024;

/// The settings; context 0 is for all contexts without their own.
static COREDUMP_SETTINGS: Mutex<Option<CoredumpSettings>> = Mutex::new(None);

/// Values by context and attribute.
type CoredumpSettings = HashMap<(usize, u32), Vec<u8>>;

fn settings() -> MutexGuard<'static, Option<CoredumpSettings>> {
    COREDUMP_SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes of an attribute that is a number; none for a text.
fn width(attribute: u32) -> Option<usize> {
    match attribute {
        ENABLE_ON_EXCEPTION | TRIGGER_HOST | COREDUMP_LIGHTWEIGHT | ENABLE_USER_TRIGGER => Some(1),
        GENERATION_FLAGS => Some(4),
        _ => None,
    }
}

/// Refuses invalid attributes of a context (0: of the process).
fn check_attribute(context: usize, attribute: u32) -> Result<(), CUresult> {
    let of_process_only = matches!(attribute, ENABLE_USER_TRIGGER | COREDUMP_PIPE);
    let is_valid = (ENABLE_ON_EXCEPTION..=GENERATION_FLAGS).contains(&attribute) && (context == 0 || !of_process_only);
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Returns the value of an attribute before it is set.
fn first(attribute: u32, variable: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let is_on = |name: &str| variable(name).is_some_and(|value| value == b"1");
    match attribute {
        ENABLE_ON_EXCEPTION => vec![u8::from(is_on("CUDA_ENABLE_COREDUMP_ON_EXCEPTION"))],
        TRIGGER_HOST => vec![u8::from(variable("CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION").is_none_or(|it| it != b"0"))],
        COREDUMP_LIGHTWEIGHT => vec![u8::from(is_on("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP"))],
        ENABLE_USER_TRIGGER => vec![u8::from(is_on("CUDA_ENABLE_USER_TRIGGERED_COREDUMP"))],
        COREDUMP_FILE => variable("CUDA_COREDUMP_FILE").unwrap_or_default(),
        COREDUMP_PIPE => variable("CUDA_COREDUMP_PIPE").unwrap_or_default(),
        _ => vec![0; 4],
    }
}

/// Returns the value for a buffer of `capacity` bytes; `context` is a handle, or 0. Texts end with a NUL.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for an invalid attribute, and for a wrong size.
pub fn get(context: usize, attribute: u32, capacity: usize) -> Result<Vec<u8>, CUresult> {
    check_attribute(context, attribute)?;
    let environment = |name: &str| std::env::var_os(name).map(|value| OsStr::as_bytes(&value).to_vec());
    let settings = settings();
    let of = |context| settings.as_ref().and_then(|settings| settings.get(&(context, attribute)).cloned());
    let mut value = of(context).or_else(|| of(0)).unwrap_or_else(|| first(attribute, environment));
    if width(attribute).is_none() {
        value.push(0);
    }
    let fits = width(attribute).map_or(value.len() <= capacity, |width| width == capacity);
    if fits { Ok(value) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Sets an attribute of a context, or with 0 of all later contexts.
///
/// # Errors
///
/// As [`get`].
pub fn set(context: usize, attribute: u32, value: &[u8]) -> Result<(), CUresult> {
    check_attribute(context, attribute)?;
    let value = match width(attribute) {
        Some(width) if value.len() != width => return Err(CUresult::ERROR_INVALID_VALUE),
        Some(_) => value,
        None if value.len() > MAX_COREDUMP_PATH_BYTES => return Err(CUresult::ERROR_INVALID_VALUE),
        // Up to the NUL, if there is one.
        None => value.split(|byte| *byte == 0).next().unwrap_or_default(),
    };
    settings().get_or_insert_default().insert((context, attribute), value.to_vec());
    Ok(())
}

/// Answers `cuCoredumpGetAttribute` into a buffer of the caller.
///
/// # Errors
///
/// As [`get`].
///
/// # Safety
///
/// `size` is null or readable, `value` null or as long as it says.
#[expect(unsafe_code, reason = "writes buffers of C callers")]
pub unsafe fn write(context: usize, attribute: u32, value: *mut c_void, size: *const usize) -> Outcome {
    check(!value.is_null())?;
    // SAFETY: by the contract; the answer is no longer than the buffer.
    unsafe {
        let found = get(context, attribute, caller::read(size)?)?;
        value.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len());
    }
    Ok(())
}

/// Answers `cuCoredumpSetAttribute` from a buffer of the caller.
///
/// # Errors
///
/// As [`set`].
///
/// # Safety
///
/// `size` is null or readable, `value` null or as long as it says.
#[expect(unsafe_code, reason = "reads buffers of C callers")]
pub unsafe fn read(context: usize, attribute: u32, value: *const c_void, size: *const usize) -> Outcome {
    check(!value.is_null())?;
    // SAFETY: by the contract.
    let bytes =
        unsafe { std::slice::from_raw_parts(value.cast::<u8>(), caller::read(size)?.min(2 * MAX_COREDUMP_PATH_BYTES)) };
    set(context, attribute, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

    #[test]
    fn sizes_are_exact_for_numbers_and_enough_for_texts() {
        assert_eq!(get(0, TRIGGER_HOST, 1), Ok(vec![1]));
        for (attribute, capacity) in
            [(TRIGGER_HOST, 1024), (GENERATION_FLAGS, 1024), (COREDUMP_FILE, 0), (8, 4), (0, 1)]
        {
            assert_eq!(get(0, attribute, capacity), Err(INVALID_VALUE), "{attribute}");
        }
        assert_eq!(get(5, COREDUMP_FILE, 1024), Ok(vec![0]));
        assert_eq!(
            (get(5, COREDUMP_PIPE, 1024), get(5, ENABLE_USER_TRIGGER, 1)),
            (Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
    }

    #[test]
    fn a_context_has_what_was_set_on_it_or_for_all() {
        set(0, COREDUMP_LIGHTWEIGHT, &[1]).unwrap();
        set(77, COREDUMP_LIGHTWEIGHT, &[0]).unwrap();
        assert_eq!(
            (get(0, COREDUMP_LIGHTWEIGHT, 1), get(77, COREDUMP_LIGHTWEIGHT, 1), get(78, COREDUMP_LIGHTWEIGHT, 1)),
            (Ok(vec![1]), Ok(vec![0]), Ok(vec![1]))
        );
        set(77, COREDUMP_FILE, b"core.%p\0rest").unwrap();
        assert_eq!(get(77, COREDUMP_FILE, 8), Ok(b"core.%p\0".to_vec()));
        assert_eq!(
            (set(77, COREDUMP_FILE, &[1; 1025]), set(77, COREDUMP_LIGHTWEIGHT, &[0; 4])),
            (Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
    }

    #[test]
    fn the_environment_says_what_is_on_at_first() {
        let variable = |name: &str| (name == "CUDA_ENABLE_COREDUMP_ON_EXCEPTION").then(|| b"1".to_vec());
        assert_eq!((first(ENABLE_ON_EXCEPTION, variable), first(COREDUMP_LIGHTWEIGHT, variable)), (vec![1], vec![0]));
    }
}
