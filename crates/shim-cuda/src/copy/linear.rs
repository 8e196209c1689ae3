//! Copies: where the two sides lie decides the way, and what the program called decides which sides are allowed.
//!
//! Both ranges are checked as a whole before anything moves: a range that leaves its block is refused with 1, as
//! NVIDIA's driver does, so a copy is never silently partial.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::c_void;

use katydid_client::regions::{Place, Region};
use katydid_cuda_sys::{CUcontext, CUdeviceptr, CUresult, CUstream};
use katydid_wire::message::kdCopy;

use crate::context::stack;
use crate::copy::transfer::{INLINE_OUT, Way, copy_in, copy_out};
use crate::ffi::handle::object;
use crate::graph::{capture, operation};
use crate::launch::backpressure;
use crate::memory::pinned;
use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// What the program says of a side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Memory that the GPU reaches.
    Device,
    /// Memory that the processor reaches; unified addressing lets it be the GPU's as well.
    Host,
    /// Whatever the address is.
    Any,
}

/// Where a side of a copy lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Only the worker reaches it.
    Gpu(u64),
    /// Both reach it: pinned memory on a shared-memory link.
    Shared(u64),
    /// Only the program reaches it: its own memory, registered or not; on a stream link, pinned memory too.
    Own(u64),
}

impl Side {
    fn as_ptr(address: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
}

/// Finds a side and checks that all of its `size` bytes are one block's.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn locate(claim: Claim, address: u64, size: u64) -> Result<Side, CUresult> {
    let shim = shim()?;
    let mut region = shim.regions.find(address);
    if let Some(mapped) = region.as_mut().filter(|region| region.place == Place::Mapped && !region.holds(address, size))
        && shim.regions.is_mapped(address, size)
    {
        mapped.size = address - mapped.start + size;
    }
    let shared = shim.pinned.as_ref().is_some_and(|pinned| pinned.is_shared);
    place(claim, address, size, region, shared, is_arena(shim, address))
}

/// Whether an address lies where only blocks of ours can be.
fn is_arena(shim: &Shim, address: u64) -> bool {
    shim.arenas.map.device_of(address).is_some() || shim.arenas.map.is_pinned(address)
}

fn place(
    claim: Claim,
    address: u64,
    size: u64,
    region: Option<Region>,
    shared: bool,
    arena: bool,
) -> Result<Side, CUresult> {
    // A variable's address was chosen in the worker, where the program may have memory of its own.
    let region = region.filter(|region| claim != Claim::Host || !matches!(region.place, Place::Global { .. }));
    match region {
        Some(region) if !region.holds(address, size) => Err(CUresult::ERROR_INVALID_VALUE),
        Some(region) if !region.is_host() => Ok(Side::Gpu(address)),
        Some(region) if shared && (region.is_pinned() || region.is_managed_block()) => Ok(Side::Shared(address)),
        Some(_) => Ok(Side::Own(address)),
        None if claim == Claim::Device || arena || address == 0 => Err(CUresult::ERROR_INVALID_VALUE),
        None => Ok(Side::Own(address)),
    }
}

/// Whether the program may go on before the copy is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    No,
}

/// Copies between two sides that were located.
///
/// # Safety
///
/// A side that is the program's own is valid for its part of the copy.
pub(crate) unsafe fn run(way: Way, target: Side, source: Side, size: u64, wait: Wait) -> Result<(), CUresult> {
    match (target, source) {
        (Side::Gpu(target), Side::Own(source)) => {
            pinned::prepare(source, way)?;
            // SAFETY: the source is readable, by the contract.
            unsafe { copy_in(way, target, Side::as_ptr(source), size) }?;
            if wait == Wait::Yes { stream::settle_copy(way.stream) } else { Ok(()) }
        }
        (Side::Own(target), Side::Gpu(source)) => {
            pinned::prepare(target, way)?;
            // SAFETY: the target is writable, by the contract.
            let copy = || unsafe { copy_out(way, Side::as_ptr(target), source, size) };
            // Of a small copy the worker waits for the whole stream, as the program would.
            if size <= INLINE_OUT { stream::empties(way, copy) } else { stream::waits_in(way.stream, copy) }
        }
        (Side::Gpu(target), Side::Gpu(source)) => between(way, target, source, size),
        (Side::Gpu(target), Side::Shared(source))
        | (Side::Shared(target), Side::Gpu(source) | Side::Shared(source)) => {
            between(way, target, source, size)?;
            if wait == Wait::Yes { stream::synchronize_wire(way.stream) } else { Ok(()) }
        }
        (Side::Own(target), Side::Own(source) | Side::Shared(source)) | (Side::Shared(target), Side::Own(source)) => {
            // The processor can do it, in its turn.
            stream::synchronize_all_before(way.context, way.stream)?;
            // SAFETY: both sides are readable and writable, by the contract, or blocks of the pinned arena.
            unsafe { Side::as_ptr(target).copy_from(Side::as_ptr(source), size as usize) };
            Ok(())
        }
    }
}

fn between(way: Way, destination: u64, source: u64, size: u64) -> Result<(), CUresult> {
    shim()?.session.enqueue(way.context, &kdCopy { destination, source, size, stream: way.stream })
}

/// One-dimensional copies of all kinds.
///
/// # Safety
///
/// A side that is the program's own is valid for `size` bytes.
unsafe fn copy(
    target: (Claim, u64),
    source: (Claim, u64),
    size: usize,
    stream: CUstream,
    wait: Wait,
) -> Result<(), CUresult> {
    let context = stream::asked_in(stream)?;
    let is_given = || -> Result<bool, CUresult> {
        Ok(capture::copy(stream, target, source, size)? || operation::copy(stream, target, source, size)?)
    };
    if size == 0 || (wait == Wait::No && is_given()?) {
        return Ok(());
    }
    backpressure::take_place(stream)?;
    let way = Way { context, stream: stream::wire(stream)? };
    let size = size as u64;
    let (target, source) = (locate(target.0, target.1, size)?, locate(source.0, source.1, size)?);
    // SAFETY: handed on.
    unsafe { run(way, target, source, size, wait) }
}

/// # Safety
///
/// Where an address is of the program's own memory, it is valid for `size` bytes; this holds for every function below.
pub(crate) unsafe fn any(target: CUdeviceptr, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((Claim::Any, target), (Claim::Any, source), size, CUstream::NULL, Wait::Yes) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn any_async(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((Claim::Any, target), (Claim::Any, source), size, stream, Wait::No) }
}

/// Does a synchronous copy between contexts: after all that they were given before, and before all that they will be.
/// In the current context's default stream alone it would be in order with nothing of the others.
pub(crate) fn among(contexts: [CUcontext; 2], copy: impl FnOnce() -> Result<(), CUresult>) -> Result<(), CUresult> {
    let Some(current) = stack::get() else { return copy() };
    let mut others = Vec::new();
    for context in contexts.into_iter().filter(|context| !context.is_null()) {
        let context = object(context)?;
        if context.slot != current.slot && context.is_active() {
            others.push(context);
        }
    }
    if others.is_empty() {
        return copy();
    }
    others.iter().try_for_each(|other| other.synchronize())?;
    current.synchronize()?;
    copy()?;
    current.synchronize()
}

/// Contexts say nothing that the addresses do not, but what the copy is in order with; wrong ones are refused. No driver
/// takes such copies into graphs.
///
/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn peer(
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    size: usize,
) -> Result<(), CUresult> {
    let stream = CUstream::NULL;
    // SAFETY: handed on.
    let copy = || unsafe { peer_async(target, target_context, source, source_context, size, stream) };
    among([target_context, source_context], copy)
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn peer_async(
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    for context in [target_context, source_context] {
        if !context.is_null() {
            object(context)?;
        }
    }
    if size > 0 {
        capture::refuse(stream)?;
    }
    // SAFETY: handed on.
    unsafe { copy((Claim::Device, target), (Claim::Device, source), size, stream, Wait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn host_to_device(target: CUdeviceptr, source: *const c_void, size: usize) -> Result<(), CUresult> {
    let source = source.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((Claim::Device, target), (Claim::Host, source), size, CUstream::NULL, Wait::Yes) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn host_to_device_async(
    target: CUdeviceptr,
    source: *const c_void,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let source = source.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((Claim::Device, target), (Claim::Host, source), size, stream, Wait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_host(target: *mut c_void, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let target = target.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((Claim::Host, target), (Claim::Device, source), size, CUstream::NULL, Wait::Yes) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_host_async(
    target: *mut c_void,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let target = target.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((Claim::Host, target), (Claim::Device, source), size, stream, Wait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_device(target: CUdeviceptr, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((Claim::Device, target), (Claim::Device, source), size, CUstream::NULL, Wait::Yes) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_device_async(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((Claim::Device, target), (Claim::Device, source), size, stream, Wait::No) }
}

pub(crate) use crate::copy::rows::{of_peers_async as peers_async, of_peers_now as peers};
pub(crate) use crate::copy::rows::{
    three_dimensional, three_dimensional_async, two_dimensional, two_dimensional_async,
};

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: Result<Side, CUresult> = Err(CUresult::ERROR_INVALID_VALUE);

    fn region(place: Place) -> Option<Region> {
        Some(Region { start: 0x1000, size: 1000, place, device: 0, context: 1, id: 1 })
    }

    #[test]
    fn a_range_that_leaves_its_block_is_refused() {
        let device = region(Place::Device);
        assert_eq!(place(Claim::Device, 0x1000, 1000, device, true, true), Ok(Side::Gpu(0x1000)));
        assert_eq!(place(Claim::Device, 0x1000, 1001, device, true, true), WRONG);
        assert_eq!(place(Claim::Any, 0x1000 + 990, 11, device, true, true), WRONG);
    }

    #[test]
    fn memory_of_the_program_is_no_device_memory() {
        assert_eq!(place(Claim::Device, 0x5555, 4, None, true, false), WRONG);
        assert_eq!(place(Claim::Host, 0x5555, 4, None, true, false), Ok(Side::Own(0x5555)));
        assert_eq!(place(Claim::Any, 0x5555, 4, None, true, false), Ok(Side::Own(0x5555)));
        assert_eq!(place(Claim::Host, 0, 4, None, true, false), WRONG);
    }

    #[test]
    fn freed_blocks_have_no_owner() {
        for claim in [Claim::Device, Claim::Host, Claim::Any] {
            assert_eq!(place(claim, 0x2000_0000_0000, 4, None, true, true), WRONG);
        }
    }

    #[test]
    fn pinned_memory_is_shared_or_the_programs() {
        let host = region(Place::Host { flags: 2 });
        assert_eq!(place(Claim::Host, 0x1000, 4, host, true, true), Ok(Side::Shared(0x1000)));
        assert_eq!(place(Claim::Device, 0x1000, 4, host, false, true), Ok(Side::Own(0x1000)));
        let registered = region(Place::Registered { flags: 2 });
        assert_eq!(place(Claim::Device, 0x1000, 4, registered, true, false), Ok(Side::Own(0x1000)));
    }

    #[test]
    fn a_host_address_that_equals_a_variables_is_the_hosts() {
        let global = region(Place::Global { owner: 1 });
        assert_eq!(place(Claim::Host, 0x1000, 4, global, true, false), Ok(Side::Own(0x1000)));
        assert_eq!(place(Claim::Device, 0x1000, 4, global, true, false), Ok(Side::Gpu(0x1000)));
    }
}
