//! Heaps of device code on softcuda, through its functions beside the driver API (`softcuda/src/process/checkpoint_api.rs`).

#![expect(unsafe_code, reason = "calls functions of a library by name")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUcontext, CUresult};
use katydid_driver::Driver;

type VisitHeap = unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> CUresult;
type Heaps = unsafe extern "C" fn(CUcontext, Option<VisitHeap>, *mut c_void) -> CUresult;
type MakeHeap = unsafe extern "C" fn(CUcontext, *const u8, usize) -> CUresult;

/// A heap: its tables, and the address of its memory in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heap {
    pub(super) allocator_state: Vec<u8>,
    pub(super) address: u64,
    pub(super) size: u64,
}

/// Returns the heaps of a context.
pub(super) fn heaps(driver: &Driver, context: CUcontext) -> Result<Vec<Heap>, CUresult> {
    unsafe extern "C" fn keep(
        all: *mut c_void,
        allocator_state: *const u8,
        size: usize,
        memory: *mut u8,
        length: usize,
    ) -> CUresult {
        // SAFETY: `heaps` passes its list, and the tables are readable for the call.
        let (all, allocator_state) =
            unsafe { (&mut *all.cast::<Vec<Heap>>(), std::slice::from_raw_parts(allocator_state, size)) };
        let address = memory.expose_provenance() as u64;
        all.push(Heap { allocator_state: allocator_state.to_vec(), address, size: length as u64 });
        CUresult::SUCCESS
    }
    let mut all: Vec<Heap> = Vec::new();
    let symbol = driver.private(c"katydid_softcuda_heaps").ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
    // SAFETY: the symbol is softcuda's, of the build that this worker belongs to, with this signature.
    let heaps: Heaps = unsafe { std::mem::transmute(symbol) };
    // SAFETY: `keep` takes the list, which outlives the call.
    unsafe { heaps(context, Some(keep), (&raw mut all).cast()) }.ok()?;
    Ok(all)
}

/// Returns how many bytes of device memory from `address` on, at most `size`, are zeros because no thread has written to
/// them. 0 for written memory, and for any other driver.
pub(super) fn untouched(driver: &Driver, address: u64, size: u64) -> u64 {
    let Some(symbol) = driver.private(c"katydid_softcuda_untouched") else { return 0 };
    // SAFETY: as above.
    let untouched: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(symbol) };
    untouched(address, size)
}

/// Makes a heap again; its memory is zeros.
pub(super) fn make_heap(driver: &Driver, context: CUcontext, allocator_state: &[u8]) -> Result<(), CUresult> {
    let symbol = driver.private(c"katydid_softcuda_heap").ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
    // SAFETY: as above.
    let make: MakeHeap = unsafe { std::mem::transmute(symbol) };
    // SAFETY: the tables are readable for the call.
    unsafe { make(context, allocator_state.as_ptr(), allocator_state.len()) }.ok()
}
