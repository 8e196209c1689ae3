//! Waits for the work of a context, after which memory that was freed before can be used again.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUresult;

use crate::context::record::{Context, are_several};
use crate::context::{completion, device};
use crate::memory::{pinned, pool};

/// Waits for all work of a context; memory freed before can be used then.
pub(crate) fn synchronize(context: &Context) -> Result<(), CUresult> {
    completion::wait(context)?;
    // The only context speaks for its device.
    let epoch = if are_several() {
        completion::completed_on(context.device)?
    } else {
        Some(context.completed.load(Ordering::Acquire))
    };
    if let Some(epoch) = epoch {
        pool::completed(context.device, epoch)?;
        device::all()?[context.device as usize].memory.release_until(epoch);
        pinned::completed(epoch)?;
    }
    Ok(())
}
