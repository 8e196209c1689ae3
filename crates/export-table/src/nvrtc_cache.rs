//! The table NVRTC_CACHE (7 words): NVRTC 13 asks the driver for earlier compilations, and stores its new ones.
//!
//! One entry is one compilation: its key is everything that determines the output (the intermediate code, the options, the
//! compiler's build). NVRTC opens an entry, looks it up, stores the output after a miss, and closes it. The answers are
//! those of driver 580.159.04 on an H100 (2026-11-28): 500 for a miss, 3 for an open while the cache is off. Slot 5 was
//! never called.

#![expect(unsafe_code, reason = "reads keys and writes outputs of a C caller")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::catalogue;
use crate::compile_cache::{Cache, Key};
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<7> = WordTable::sized::<{ catalogue::NVRTC_CACHE_INDEX }>(
    &[
        (1, open as *const () as Word),
        (2, close as *const () as Word),
        (3, look_up as *const () as Word),
        (4, store as *const () as Word),
        (6, release as *const () as Word),
    ],
    &[],
);

/// The entries and outputs that NVRTC has.
#[derive(Default)]
struct NvrtcCacheState {
    /// Open entries by their handles, which are never null and never reused.
    entries: HashMap<usize, Key>,
    last: usize,
    /// Outputs that NVRTC holds, by their addresses.
    outputs: HashMap<usize, Box<[u8]>>,
}

static CACHE_STATE: LazyLock<Mutex<NvrtcCacheState>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, NvrtcCacheState> {
    CACHE_STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cache of the environment; none while `CUDA_CACHE_DISABLE` is set.
static COMPILE_CACHE: LazyLock<Option<Cache>> = LazyLock::new(Cache::of_environment);

fn cache() -> Result<&'static Cache, Status> {
    COMPILE_CACHE.as_ref().ok_or(status::NOT_INITIALIZED)
}

/// Returns the bytes of a string of the caller; empty for null.
///
/// # Safety
///
/// `text` is null, or a string that ends with 0.
unsafe fn bytes_of<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: by the contract; null is checked.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Opens the entry of one compilation. `kind` is 1 for machine code, 2 for PTX; `arch` is the number of the architecture.
unsafe extern "C" fn open(
    out: *mut usize,
    kind: u32,
    code: *const u8,
    size: usize,
    options: *const c_char,
    host: *const c_char,
    build: *const c_char,
    arch: u32,
    flag: u32,
) -> Status {
    guard(|| {
        cache()?;
        if out.is_null() || code.is_null() || isize::try_from(size).is_err() {
            return Err(status::INVALID_VALUE);
        }
        let numbers = [kind, arch, flag];
        // SAFETY: NVRTC gives `size` readable bytes, and strings that end with 0.
        let key = unsafe {
            let code = std::slice::from_raw_parts(code, size);
            Key::of(numbers, [code, bytes_of(options), bytes_of(host), bytes_of(build)])
        };
        let mut held = state();
        held.last += 1;
        let handle = held.last;
        held.entries.insert(handle, key);
        // SAFETY: writable, as the caller promises; null was refused above.
        unsafe { out.write(handle) };
        Ok(())
    })
}

extern "C" fn close(handle: usize) -> Status {
    guard(|| state().entries.remove(&handle).map(drop).ok_or(status::INVALID_VALUE))
}

fn key_of(handle: usize) -> Result<Key, Status> {
    state().entries.get(&handle).copied().ok_or(status::INVALID_VALUE)
}

/// Returns the output of an open entry, in memory that `release` frees.
unsafe extern "C" fn look_up(handle: usize, _reserved: usize, data: *mut *const c_void, size: *mut u32) -> Status {
    guard(|| {
        if data.is_null() || size.is_null() {
            return Err(status::INVALID_VALUE);
        }
        let output = cache()?.read(&key_of(handle)?).ok_or(status::NOT_FOUND)?;
        let length = u32::try_from(output.len()).map_err(|_| status::NOT_FOUND)?;
        let address = output.as_ptr();
        state().outputs.insert(address.addr(), output);
        // SAFETY: writable, as the caller promises; null was refused above. The output stays until it is released.
        unsafe {
            data.write(address.cast());
            size.write(length);
        }
        Ok(())
    })
}

/// Stores an output. A failure to write is ignored: the caller has its output.
unsafe extern "C" fn store(handle: usize, _reserved: usize, data: *const u8, size: usize) -> Status {
    guard(|| {
        let key = key_of(handle)?;
        if data.is_null() || isize::try_from(size).is_err() {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: NVRTC gives `size` readable bytes.
        cache()?.write(&key, unsafe { std::slice::from_raw_parts(data, size) });
        Ok(())
    })
}

extern "C" fn release(data: *const c_void) -> Status {
    guard(|| state().outputs.remove(&data.addr()).map(drop).ok_or(status::INVALID_VALUE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handles_are_refused() {
        assert_eq!([close(0), close(77), release(std::ptr::null())], [status::INVALID_VALUE; 3]);
        assert_eq!(key_of(77).err(), Some(status::INVALID_VALUE));
    }

    #[test]
    fn an_output_is_handed_out_until_it_is_released() {
        let output: Box<[u8]> = Box::from(*b"cubin");
        let address: *const c_void = output.as_ptr().cast();
        state().outputs.insert(address.addr(), output);
        assert_eq!([release(address), release(address)], [status::SUCCESS, status::INVALID_VALUE]);
    }
}
