//! `katydid driver-checkpoint`, hidden: NVIDIA's own checkpoint of a worker, for a keeper (`katydid_job::keeper`). A separate
//! process opens the driver, since a process keeps it open for as long as it lives.

#![expect(unsafe_code, reason = "calls the driver")]

use std::process::ExitCode;
use std::ptr::null_mut;

use katydid_cuda_sys::{CUresult, CUuuid};
use katydid_driver::{Driver, DriverChoice, open};

use crate::args::flags::{DriverAction, DriverCheckpointFlags};
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// How long the driver may wait for calls of the process, in milliseconds; the process makes none.
const LOCK_TIMEOUT_MS: u32 = 30_000;

/// `CUcheckpointLockArgs`, the argument of `cuCheckpointProcessLock`.
#[repr(C)]
struct LockArguments {
    timeout_ms: u32,
    reserved: [u32; 15],
}

/// `CUcheckpointRestoreArgs`, the argument of `cuCheckpointProcessRestore`.
#[repr(C)]
struct RestoreArguments {
    pairs: *mut GpuPair,
    count: u32,
    reserved: [u32; 13],
}

/// `CUcheckpointGpuPair`: UUIDs of the old and the new device.
#[repr(C)]
struct GpuPair {
    old: CUuuid,
    new: CUuuid,
}

const _: () = assert!(size_of::<LockArguments>() == 64 && size_of::<RestoreArguments>() == 64);

/// Runs the hidden `katydid driver-checkpoint`.
pub(crate) fn main(flags: &DriverCheckpointFlags) -> Outcome {
    let choice: DriverChoice = flags.driver.parse().unwrap_or_default();
    let soft = Layout::find().ok().map(|layout| layout.soft()).filter(|path| path.is_file());
    let library = open(&choice, soft.as_deref()).map_err(Failure::work)?;
    let driver = Driver::new(library);
    match flags.action {
        DriverAction::Checkpoint => checkpoint(&driver, flags.pid)?,
        DriverAction::Restore => restore(&driver, flags.pid, &flags.devices)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn checkpoint(driver: &Driver, pid: i32) -> Result<(), Failure> {
    let mut arguments = LockArguments { timeout_ms: LOCK_TIMEOUT_MS, reserved: [0; 15] };
    let arguments = (&raw mut arguments).cast();
    // SAFETY: takes a number, and arguments that live as long as the call and are laid out as its own.
    step("cuCheckpointProcessLock", unsafe { driver.cuCheckpointProcessLock(pid, arguments) })?;
    // SAFETY: takes a number; without arguments the defaults hold.
    let result = unsafe { driver.cuCheckpointProcessCheckpoint(pid, null_mut()) };
    if result != CUresult::SUCCESS {
        // SAFETY: as above. A failure here shows in the checkpoint's error.
        let _ = unsafe { driver.cuCheckpointProcessUnlock(pid, null_mut()) };
    }
    step("cuCheckpointProcessCheckpoint", result)
}

fn restore(driver: &Driver, pid: i32, devices: &[String]) -> Result<(), Failure> {
    let mut pairs = pairs(driver, devices)?;
    let count = u32::try_from(pairs.len()).unwrap_or(0);
    let mut arguments = RestoreArguments { pairs: pairs.as_mut_ptr(), count, reserved: [0; 13] };
    let arguments = if pairs.is_empty() { null_mut() } else { (&raw mut arguments).cast() };
    // SAFETY: takes a number, and arguments that live as long as the call and are laid out as its own, as the pairs do.
    step("cuCheckpointProcessRestore", unsafe { driver.cuCheckpointProcessRestore(pid, arguments) })?;
    // SAFETY: takes a number.
    step("cuCheckpointProcessUnlock", unsafe { driver.cuCheckpointProcessUnlock(pid, null_mut()) })
}

/// Pairs of old and new devices; empty if all old ones are present.
fn pairs(driver: &Driver, devices: &[String]) -> Result<Vec<GpuPair>, Failure> {
    let chosen: Vec<CUuuid> = devices.iter().map(|device| uuid(device)).collect::<Result<_, _>>()?;
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let uuids = uuids_of_devices(driver)?;
    if chosen.iter().all(|device| uuids.iter().any(|other| other.bytes == device.bytes)) {
        return Ok(Vec::new());
    }
    if uuids.len() < chosen.len() {
        return Err(Failure::work(format!("the worker had {} GPUs, and here are {}", chosen.len(), uuids.len())));
    }
    let pair = |(old, new)| GpuPair { old, new };
    Ok(chosen.into_iter().zip(uuids).map(pair).collect())
}

/// UUIDs of this machine's devices, in the driver's order.
fn uuids_of_devices(driver: &Driver) -> Result<Vec<CUuuid>, Failure> {
    // SAFETY: takes no pointer.
    step("cuInit", unsafe { driver.cuInit(0) })?;
    let mut count = 0;
    // SAFETY: the output is a local.
    step("cuDeviceGetCount", unsafe { driver.cuDeviceGetCount(&raw mut count) })?;
    let one = |device| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above; a device's ordinal is its handle.
        step("cuDeviceGetUuid", unsafe { driver.cuDeviceGetUuid_v2(&raw mut uuid, device) }).map(|()| uuid)
    };
    (0..count).map(one).collect()
}

fn uuid(digits: &str) -> Result<CUuuid, Failure> {
    let bytes = (0..16).map(|at| digits.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()));
    let bytes = bytes.collect::<Option<Vec<u8>>>().filter(|_| digits.len() == 32);
    let bytes = bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    Ok(CUuuid { bytes: bytes.ok_or_else(|| Failure::usage(format!("{digits} is not a UUID")))? })
}

fn step(name: &str, code: CUresult) -> Result<(), Failure> {
    if code == CUresult::SUCCESS {
        return Ok(());
    }
    let error = code.name().map_or_else(|| code.0.to_string(), |name| name.to_string_lossy().into_owned());
    Err(Failure::work(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_32_digits() {
        assert_eq!(uuid("000102030405060708090a0b0c0d0e0f").unwrap().bytes[15], 15);
        for wrong in ["", "00", "000102030405060708090a0b0c0d0e0g", "000102030405060708090a0b0c0d0e0f00"] {
            assert!(uuid(wrong).is_err(), "{wrong}");
        }
    }
}
