//! Primary contexts, which begin when they are first retained.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use katydid_cuda_sys::{CUdevice, CUresult};
use katydid_wire::message::kdContextRetain;

use crate::context::device;
use crate::context::record::Context;
use crate::process::session::shim;

/// The flags for how the processor waits: spin, yield or block.
pub(super) const CTX_SCHED_MASK: u32 = 7;
/// `CU_CTX_SCHED_BLOCKING_SYNC`: a waiting thread sleeps.
const CTX_SCHED_BLOCKING_SYNC: u32 = 4;

/// Retains a primary context, and begins it if it is not active. `adds_retain` is told whether it was active.
pub(super) fn retain(context: &Context, adds_retain: impl FnOnce(bool) -> bool) -> Result<(), CUresult> {
    let mut retains = context.retains.lock().unwrap_or_else(PoisonError::into_inner);
    let is_active = context.is_active();
    if !is_active {
        let flags = context.flags.load(Ordering::Relaxed);
        let message = kdContextRetain { context: context.wire(), device: context.position as i32, flags };
        context.begin(&shim()?.session.call(0, &message)?.facts)?;
        heed(flags)?;
    }
    *retains += u32::from(adds_retain(is_active));
    Ok(())
}

/// Retains the primary context of a device and returns it.
pub(crate) fn retained(ordinal: CUdevice) -> Result<Arc<Context>, CUresult> {
    let context = &device::device(ordinal)?.primary;
    retain(context, |_| true)?;
    Ok(Arc::clone(context))
}

/// Returns the first device's primary context, made active if it is not.
pub(crate) fn first() -> Result<Arc<Context>, CUresult> {
    let context = &device::device(0)?.primary;
    retain(context, |is_active| !is_active)?;
    Ok(Arc::clone(context))
}

/// Disables spinning for the whole program if one of its contexts is to wait asleep.
pub(super) fn heed(flags: u32) -> Result<(), CUresult> {
    if flags & CTX_SCHED_MASK == CTX_SCHED_BLOCKING_SYNC {
        shim()?.session.disable_spin();
    }
    Ok(())
}
