//! Primary contexts: begun when they are first retained.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use katydid_cuda_sys::{CUdevice, CUresult};
use katydid_wire::message::kdContextRetain;

use crate::context::device;
use crate::context::record::Context;
use crate::process::session::shim;

/// How the processor waits: spin, yield or block.
pub(super) const CTX_SCHED_MASK: u32 = 7;
/// `CU_CTX_SCHED_BLOCKING_SYNC`: the processor waits asleep.
const CTX_SCHED_BLOCKING_SYNC: u32 = 4;

/// Retains a primary context, which begins it if it is not active; `adds_retain` gets whether it is.
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

/// The primary context of a device, retained.
pub(crate) fn retained(ordinal: CUdevice) -> Result<Arc<Context>, CUresult> {
    let context = &device::device(ordinal)?.primary;
    retain(context, |_| true)?;
    Ok(Arc::clone(context))
}

/// The first device's primary context, made active if it is not.
pub(crate) fn first() -> Result<Arc<Context>, CUresult> {
    let context = &device::device(0)?.primary;
    retain(context, |is_active| !is_active)?;
    Ok(Arc::clone(context))
}

/// A program of which one context is to wait asleep does so in all of them.
pub(super) fn heed(flags: u32) -> Result<(), CUresult> {
    if flags & CTX_SCHED_MASK == CTX_SCHED_BLOCKING_SYNC {
        shim()?.session.disable_spin();
    }
    Ok(())
}
