//! NVIDIA's own checkpoint of the same program on the same GPU: `cuCheckpointProcess*`, called from another process.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use katydid_cuda_sys::CUresult;
use katydid_driver::{Driver, DriverChoice, open};
use serde::{Deserialize, Serialize};

/// Durations of its parts, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Native {
    /// Lock and checkpoint: the program stops when they begin.
    pub(super) out_us: u64,
    /// Restore and unlock: the program goes on when they end.
    pub(super) in_us: u64,
}

/// Takes the process's device memory away and returns it.
pub(super) fn measure(choice: &DriverChoice, pid: u32) -> Result<Native, String> {
    let library = open(choice, None).map_err(|error| error.to_string())?;
    let driver = Driver::new(library);
    if driver.is_soft() {
        return Err("softcuda has no checkpoint of its own".to_owned());
    }
    let pid = i32::try_from(pid).map_err(|error| error.to_string())?;
    let step = |name: &str, code: CUresult| match code {
        CUresult::SUCCESS => Ok(()),
        code => Err(format!("{name}: {}", code.0)),
    };
    let began = Instant::now();
    // SAFETY: takes a number; without arguments the defaults hold.
    step("cuCheckpointProcessLock", unsafe { driver.cuCheckpointProcessLock(pid, null_mut()) })?;
    // SAFETY: as above.
    let out = step("cuCheckpointProcessCheckpoint", unsafe { driver.cuCheckpointProcessCheckpoint(pid, null_mut()) });
    let out_us = micros(began.elapsed());
    let began = Instant::now();
    let back = out.and_then(|()| {
        // SAFETY: as above.
        step("cuCheckpointProcessRestore", unsafe { driver.cuCheckpointProcessRestore(pid, null_mut()) })
    });
    // SAFETY: as above; also after a failure, so that the program can end.
    let unlocked = step("cuCheckpointProcessUnlock", unsafe { driver.cuCheckpointProcessUnlock(pid, null_mut()) });
    back.and(unlocked)?;
    Ok(Native { out_us, in_us: micros(began.elapsed()) })
}

/// Returns a time in microseconds, as reports have it.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
