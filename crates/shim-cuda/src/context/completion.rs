//! Waits for the work of contexts, without the tables of memory.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUresult;
use katydid_wire::message::cuCtxSynchronize;

use crate::context::device;
use crate::context::record::{CONTEXTS, Context};
use crate::memory::pinned;
use crate::process::session::{Shim, shim};

/// Waits for all work of a context, unless nothing was sent since the last wait.
pub(super) fn wait(context: &Context) -> Result<(), CUresult> {
    wait_by(context, |shim| shim.session.call(context.wire(), &cuCtxSynchronize {}).map(drop))
}

/// Waits for all work of a context through `synchronize`, unless nothing was sent since the last wait.
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

/// Returns the count of messages that every active context of a device has completed; none without an active one.
pub(super) fn completed_on(device: u32) -> Result<Option<u64>, CUresult> {
    let contexts = CONTEXTS.get()?.live();
    let active = contexts.iter().filter(|context| context.device == device && context.is_active());
    Ok(active.map(|context| context.completed.load(Ordering::Acquire)).min())
}

/// Waits for all contexts of a device, without a lock on its memory: allocations call this. Returns the count of messages
/// completed then.
pub(crate) fn synchronize_device(device: u32) -> Result<u64, CUresult> {
    for context in CONTEXTS.get()?.live() {
        if context.device == device && context.is_active() {
            wait(&context)?;
        }
    }
    Ok(completed_on(device)?.unwrap_or(u64::MAX))
}

/// Waits for all contexts of a device on the shim's own behalf, and returns the count of messages completed then. A failure
/// of an earlier call is left for a call of the program.
pub(crate) fn synchronize_quietly(device: u32) -> Result<u64, CUresult> {
    for context in CONTEXTS.get()?.live() {
        if context.device == device && context.is_active() {
            wait_by(&context, |shim| shim.session.ask(context.wire(), &cuCtxSynchronize {}).map(drop))?;
        }
    }
    Ok(completed_on(device)?.unwrap_or(u64::MAX))
}

/// Waits for all contexts of all devices; returns the count of messages completed then.
pub(crate) fn synchronize_all() -> Result<u64, CUresult> {
    let mut epoch = u64::MAX;
    for device in 0..device::all()?.len() {
        epoch = epoch.min(synchronize_device(device as u32)?);
    }
    Ok(epoch)
}
