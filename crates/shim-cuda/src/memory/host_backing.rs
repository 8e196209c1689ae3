//! The memory behind the pinned arena: registered with the worker's driver, and returned to the system.
#![expect(unsafe_code, reason = "gives pages of the arena back to the system")]

use std::ops::Range;

use katydid_client::memory::Backing;
use katydid_client::memory::shared_pages;
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdHostRegister, kdHostUnregister};

use crate::context::record::CONTEXTS;
use crate::context::{completion, stack};
use crate::memory::pinned::{self, PinnedArena};
use crate::process::session::shim;

/// The backing of the pinned arena.
pub(crate) struct HostBacking;

impl Backing for HostBacking {
    type Code = CUresult;

    fn grow(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (shim, size) = (shim()?, range.end - range.start);
        if arena()?.is_shared {
            let lengthened = shim.session.lengthen_pinned(range.end - arena()?.start);
            lengthened.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
            let message = kdHostRegister { address: range.start, size, flags: 0 };
            return shim.session.call(stack::wire()?, &message).map(drop);
        }
        let offset = range.start - arena()?.start;
        let reservation = shim.arenas.pinned.as_ref().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        reservation.map_private(offset, size).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (shim, size) = (shim()?, range.end - range.start);
        if !arena()?.is_shared {
            let reservation = shim.arenas.pinned.as_ref().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
            let offset = range.start - arena()?.start;
            return reservation.unmap(offset, size).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM);
        }
        shim.session.call(pinned::any_context(), &kdHostUnregister { address: range.start, size })?;
        // SAFETY: a whole piece of the pinned arena's mapping; no block lies in it and no code refers to it.
        unsafe { shared_pages::remove(range) };
        Ok(())
    }

    fn synchronize(&self) -> Result<u64, CUresult> {
        completion::synchronize_all()
    }
}

fn arena() -> Result<&'static PinnedArena, CUresult> {
    pinned::get().ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Returns large unused pieces to the system, once the GPU is done with them.
pub(crate) fn give_back(pinned: &PinnedArena) -> Result<(), CUresult> {
    pinned.arena.release_until(completion::synchronize_all()?);
    pinned.arena.trim(&HostBacking);
    Ok(())
}

/// Registers the arena's memory again after a context ended, and with it the registrations made in it, in another context.
pub(crate) fn register_again() -> Result<(), CUresult> {
    let shim = shim()?;
    let Some(pinned) = pinned::get() else { return Ok(()) };
    if !pinned.is_shared {
        return Ok(());
    }
    let active = CONTEXTS.get()?.live().into_iter().find(|context| context.is_active());
    for range in pinned.arena.grown() {
        let Some(context) = &active else { break };
        let message = kdHostRegister { address: range.start, size: range.end - range.start, flags: 0 };
        match shim.session.call(context.wire(), &message) {
            Ok(_) | Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {}
            Err(code) => return Err(code),
        }
    }
    Ok(())
}
