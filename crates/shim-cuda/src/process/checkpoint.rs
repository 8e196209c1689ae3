//! `cuCheckpointProcess*`: locks, checkpoints, restores and unlocks another process of this machine, through the supervisor
//! of its job. That needs no session, so these functions work before `cuInit`, and on the calling process too.
#![expect(unsafe_code, reason = "reads and writes structures of C callers")]

use std::time::Duration;

use katydid_client::job::process_request::{AskError, TargetProcess};
use katydid_client::output;
use katydid_cuda_sys as sys;
use katydid_wire::job::ask;
use sys::{CUresult, Function};

/// Bytes of each structure of arguments.
const ARGUMENTS_BYTES: usize = 64;
/// Bytes of a pair of UUIDs.
const UUID_PAIR_BYTES: usize = 32;
/// Most pairs that are read: more GPUs than any server has.
const MAX_UUID_PAIRS: usize = 1024;

/// Returns the bytes of a structure of arguments, all zero for a null one.
///
/// # Safety
///
/// `arguments` is null or readable, as for all functions below.
unsafe fn argument_bytes<T>(arguments: *const T) -> [u8; ARGUMENTS_BYTES] {
    const { assert!(size_of::<T>() == ARGUMENTS_BYTES) };
    if arguments.is_null() {
        return [0; ARGUMENTS_BYTES];
    }
    // SAFETY: not null, so readable by the contract, and as large.
    unsafe { arguments.cast::<[u8; ARGUMENTS_BYTES]>().read_unaligned() }
}

/// Refuses reserved bytes that are not zero.
fn reserved(bytes: &[u8]) -> Result<(), CUresult> {
    if bytes.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Returns the program's error, and reports the reason to the user if the code alone does not tell it.
fn report<T>(function: Function, outcome: Result<T, AskError>) -> Result<T, CUresult> {
    outcome.map_err(|error| {
        let text = error.to_string();
        let is_plain = matches!(error, AskError::NoProcess(_) | AskError::WithoutCuda(_));
        if !text.is_empty() && !is_plain {
            output::report(format_args!("{}: {text}", function.name()));
        }
        error.code()
    })
}

/// # Safety
///
/// `tid` is null or writable.
pub(crate) unsafe fn restore_thread(pid: i32, tid: *mut i32) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let out = unsafe { crate::ffi::arguments::out(tid) }?;
    let outcome = TargetProcess::find(pid).and_then(|target| {
        // A process whose only session is of another API has no such state.
        target.state()?;
        target.restore_thread()
    });
    out.write(report(Function::cuCheckpointProcessGetRestoreThreadId, outcome)?);
    Ok(())
}

/// # Safety
///
/// `state` is null or writable.
pub(crate) unsafe fn state(pid: i32, state: *mut u32) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let out = unsafe { crate::ffi::arguments::out(state) }?;
    let state = TargetProcess::find(pid).and_then(|target| target.state());
    out.write(report(Function::cuCheckpointProcessGetState, state)?);
    Ok(())
}

/// # Safety
///
/// As [`argument_bytes`].
pub(crate) unsafe fn lock(pid: i32, arguments: *mut sys::CUcheckpointLockArgs) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let bytes = unsafe { argument_bytes(arguments.cast_const()) };
    let (timeout, tail) = bytes.split_at(4);
    reserved(tail)?;
    let millis = u32::from_le_bytes([timeout[0], timeout[1], timeout[2], timeout[3]]);
    let limit = (millis != 0).then(|| Duration::from_millis(millis.into()));
    let locked = TargetProcess::find(pid).and_then(|target| target.lock(limit));
    report(Function::cuCheckpointProcessLock, locked).map(drop)
}

/// # Safety
///
/// As [`argument_bytes`].
pub(crate) unsafe fn checkpoint(pid: i32, arguments: *mut sys::CUcheckpointCheckpointArgs) -> Result<(), CUresult> {
    // SAFETY: handed on.
    reserved(&unsafe { argument_bytes(arguments.cast_const()) })?;
    let result = TargetProcess::find(pid).and_then(|target| target.order(ask::CHECKPOINT, Vec::new()));
    report(Function::cuCheckpointProcessCheckpoint, result).map(drop)
}

/// # Safety
///
/// As [`argument_bytes`]; the pairs that the structure names are readable.
pub(crate) unsafe fn restore(pid: i32, arguments: *mut sys::CUcheckpointRestoreArgs) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let bytes = unsafe { argument_bytes(arguments.cast_const()) };
    reserved(&bytes[12..])?;
    let pairs = if arguments.is_null() {
        std::ptr::null()
    } else {
        // SAFETY: the structure begins with a pointer to the pairs; it is readable, and its provenance is the caller's.
        unsafe { arguments.cast_const().cast::<*const [u8; UUID_PAIR_BYTES]>().read_unaligned() }
    };
    let count = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if (pairs.is_null() && count > 0) || count > MAX_UUID_PAIRS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: as many pairs as the caller says are readable.
    let gpus: Vec<u8> = (0..count).flat_map(|at| unsafe { pairs.add(at).read_unaligned() }).collect();
    let restored = TargetProcess::find(pid).and_then(|target| target.order(ask::RESTORE, gpus));
    report(Function::cuCheckpointProcessRestore, restored).map(drop)
}

/// # Safety
///
/// As [`argument_bytes`].
pub(crate) unsafe fn unlock(pid: i32, arguments: *mut sys::CUcheckpointUnlockArgs) -> Result<(), CUresult> {
    // SAFETY: handed on.
    reserved(&unsafe { argument_bytes(arguments.cast_const()) })?;
    let unlocked = TargetProcess::find(pid).and_then(|target| target.order(ask::UNLOCK, Vec::new()));
    report(Function::cuCheckpointProcessUnlock, unlocked).map(drop)
}
