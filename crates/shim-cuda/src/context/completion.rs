//! Waiting for the work of contexts, without a look at the tables of memory.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUresult;
use katydid_wire::message::cuCtxSynchronize;

use crate::context::device;
use crate::context::record::{CONTEXTS, Context};
use crate::memory::pinned;
use crate::process::session::{Shim, shim};

/// Waits for everything that a context was given, unless nothing was sent since the last time.
pub(super) fn wait(context: &Context) -> Result<(), CUresult> {
    wait_by(context, |shim| shim.session.call(context.wire(), &cuCtxSynchronize {}).map(drop))
}

/// Waits for everything that a context was given, by `synchronize`, unless nothing was sent since the last time.
fn wait_by(context: &Context, synchronize: impl FnOnce(&Shim) -> Result<(), CUresult>) -> Result<(), CUresult> {
    let shim = shim()?;
    let sent = shim.session.enqueued();
    // A program may spin on this; natively it is 0.3 µs.
    if context.completed.load(Ordering::Acquire) == sent && sent > 0 && !shim.session.is_lost() {
        return Ok(());
    }
    synchronize(shim)?;
    pinned::pull_all()?;
    context.completed.fetch_max(sent, Ordering::AcqRel);
    Ok(())
}

/// The count of messages that every active context of a device has passed; none without an active one.
pub(super) fn completed_on(device: u32) -> Result<Option<u64>, CUresult> {
    let contexts = CONTEXTS.get()?.live();
    let active = contexts.iter().filter(|context| context.device == device && context.is_active());
    Ok(active.map(|context| context.completed.load(Ordering::Acquire)).min())
}

/// Waits for all contexts of a device, and touches no book of its memory: allocations call this. Returns the count of messages that is behind it then.
pub(crate) fn synchronize_device(device: u32) -> Result<u64, CUresult> {
    for context in CONTEXTS.get()?.live() {
        if context.device == device && context.is_active() {
            wait(&context)?;
        }
    }
    Ok(completed_on(device)?.unwrap_or(u64::MAX))
}

/// Waits for all contexts of a device for what the library does by itself, and returns the count of messages behind it
/// then. A call of the program's own reports the failure of an earlier call.
pub(crate) fn synchronize_quietly(device: u32) -> Result<u64, CUresult> {
    for context in CONTEXTS.get()?.live() {
        if context.device == device && context.is_active() {
            wait_by(&context, |shim| shim.session.ask(context.wire(), &cuCtxSynchronize {}).map(drop))?;
        }
    }
    Ok(completed_on(device)?.unwrap_or(u64::MAX))
}

/// Waits for all contexts of all devices; returns the count of messages that is behind them then.
pub(crate) fn synchronize_all() -> Result<u64, CUresult> {
    let mut epoch = u64::MAX;
    for device in 0..device::all()?.len() {
        epoch = epoch.min(synchronize_device(device as u32)?);
    }
    Ok(epoch)
}
