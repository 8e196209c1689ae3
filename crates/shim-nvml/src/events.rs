//! Event sets, which programs make and wait for: no event ever comes here, so that every wait times out.
//!
//! Events (a fault of a device, a change of its clocks) belong to the server; a program that waits for them goes on as on a
//! machine where nothing happens.

#![expect(unsafe_code, reason = "exports C symbols")]

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_wire::nvml::code;

use crate::call;

/// The existing sets, by handle.
static EVENT_SETS: Mutex<Sets> = Mutex::new(Sets { last: 0, living: BTreeSet::new() });
/// Handles are numbers that no other handle of this library has.
const FIRST_EVENT_SET_HANDLE: usize = 0x4b44_0000;
/// Most sets of a program at a time.
const MAX_EVENT_SETS: usize = 1 << 16;

struct Sets {
    last: usize,
    living: BTreeSet<usize>,
}

fn sets() -> MutexGuard<'static, Sets> {
    EVENT_SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a handle is a set's.
fn is_set(set: usize) -> bool {
    sets().living.contains(&set)
}

/// Makes a set.
///
/// # Safety
///
/// `target` is null or an output for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(target: *mut usize) -> u32 {
    if target.is_null() {
        return code::INVALID_ARGUMENT;
    }
    let mut sets = sets();
    if sets.living.len() >= MAX_EVENT_SETS {
        return code::UNKNOWN;
    }
    sets.last += 1;
    let handle = FIRST_EVENT_SET_HANDLE + sets.last;
    sets.living.insert(handle);
    // SAFETY: not null, so the caller's output for a handle.
    unsafe { target.write_unaligned(handle) };
    code::SUCCESS
}

/// Frees a set of events.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: usize) -> u32 {
    if sets().living.remove(&set) { code::SUCCESS } else { code::INVALID_ARGUMENT }
}

/// Only checks its arguments: none of the events will come.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: usize, _kinds: u64, set: usize) -> u32 {
    let is_valid = is_set(set) && call::number(device).is_some();
    if is_valid { code::SUCCESS } else { code::INVALID_ARGUMENT }
}

/// Waits until the timeout, in milliseconds.
fn wait(set: usize, data: usize, milliseconds: u32) -> u32 {
    if data == 0 || !is_set(set) {
        return code::INVALID_ARGUMENT;
    }
    thread::sleep(Duration::from_millis(milliseconds.into()));
    code::TIMEOUT
}

/// Waits out the time and returns `NVML_ERROR_TIMEOUT`: no event comes.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait(set: usize, data: usize, milliseconds: u32) -> u32 {
    wait(set, data, milliseconds)
}

/// Waits out the time and returns `NVML_ERROR_TIMEOUT`: no event comes.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(set: usize, data: usize, milliseconds: u32) -> u32 {
    wait(set, data, milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lives_until_it_is_freed_and_every_wait_runs_out() {
        let (mut set, device) = (0, call::handle(0).unwrap());
        // SAFETY: a local, and null.
        let codes = unsafe { (nvmlEventSetCreate(&raw mut set), nvmlEventSetCreate(std::ptr::null_mut())) };
        assert_eq!(codes, (code::SUCCESS, code::INVALID_ARGUMENT));
        let data = [0_u8; 64].as_ptr().addr();
        assert_eq!((nvmlDeviceRegisterEvents(device, 8, set), nvmlDeviceRegisterEvents(5, 8, set)), (0, 2));
        assert_eq!((nvmlEventSetWait_v2(set, data, 0), nvmlEventSetWait(set, 0, 0)), (code::TIMEOUT, 2));
        assert_eq!((nvmlEventSetFree(set), nvmlEventSetFree(set)), (code::SUCCESS, code::INVALID_ARGUMENT));
        assert_eq!(nvmlEventSetWait(set, data, 0), code::INVALID_ARGUMENT);
    }
}
