//! A driver that executes code: softcuda, or what `KATYDID_TEST_DRIVER` names (`auto`: a GPU's).
//!
//! The process has one such driver, so a thread locks it for its use.

#![expect(unsafe_code, reason = "calls the driver")]

use std::env;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use katydid_cuda_sys::{CUcontext, CUmemGenericAllocationHandle};
use katydid_driver::{Driver, DriverChoice, open};
use katydid_tests::cargo::softcuda;

use super::stage::GRANULE_BYTES;
use crate::device::ask::ask;
use crate::memory::device_block;

static DRIVER_LOCK: Mutex<()> = Mutex::new(());

/// Exclusive use of the driver. Dropping it resets the context: the next user finds all addresses as the first one did.
pub(crate) struct DriverLock {
    driver: Arc<Driver>,
    _guard: MutexGuard<'static, ()>,
}

impl Drop for DriverLock {
    fn drop(&mut self) {
        // SAFETY: takes a number; no test still holds anything of the context.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxReset_v2(0) };
    }
}

/// Locks the driver, with the primary context of its first device current on this thread.
pub(crate) fn driver() -> (Arc<Driver>, DriverLock) {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    let guard = DRIVER_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Arc::clone(DRIVER.get_or_init(|| Arc::new(Driver::new(open(&choice(), None).unwrap()))));
    // The reset ends whatever an earlier test has left.
    // SAFETY: takes a number; the code that used the context has released the lock.
    let _ = unsafe { driver.cuDevicePrimaryCtxReset_v2(0) };
    retain(&driver);
    (Arc::clone(&driver), DriverLock { driver, _guard: guard })
}

/// Retains the primary context of the first device, and makes it current on this thread.
pub(crate) fn retain(driver: &Driver) -> CUcontext {
    // SAFETY: the output is a local.
    let context: CUcontext = ask(|out| unsafe { driver.cuDevicePrimaryCtxRetain(out, 0) }).unwrap();
    // SAFETY: retained above.
    unsafe { driver.cuCtxSetCurrent(context) }.ok().unwrap();
    context
}

/// Holds all memory that the first device has left.
pub(super) struct ExhaustedMemory {
    driver: Arc<Driver>,
    blocks: Vec<CUmemGenericAllocationHandle>,
}

impl ExhaustedMemory {
    pub(super) fn take(driver: &Arc<Driver>) -> Self {
        let (mut blocks, mut size) = (Vec::new(), 1 << 40);
        while size >= GRANULE_BYTES {
            match device_block::create(driver, 0, size) {
                Ok(block) => blocks.push(block),
                Err(_) => size /= 2,
            }
        }
        Self { driver: Arc::clone(driver), blocks }
    }
}

impl Drop for ExhaustedMemory {
    fn drop(&mut self) {
        for block in &self.blocks {
            // SAFETY: created by `take`, and mapped nowhere.
            let _ = unsafe { self.driver.cuMemRelease(*block) };
        }
    }
}

/// The driver of these tests.
pub(super) fn choice() -> DriverChoice {
    env::var("KATYDID_TEST_DRIVER").map_or_else(|_| DriverChoice::Path(softcuda()), |name| name.parse().unwrap())
}
