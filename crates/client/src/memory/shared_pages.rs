//! Pages of host memory that the program and its worker share at agreed addresses.
#![expect(unsafe_code, reason = "advises the system about mappings")]

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;

use katydid_arena::{Reservation, ReserveError};
use rustix::mm::{Advice, madvise};

/// Maps all of a reserved range onto the shared memory. Cores of the program leave it out: they would walk through 256 GiB of holes.
///
/// # Errors
///
/// The system refuses.
pub fn map_all(reservation: &Reservation, memory: impl AsFd) -> Result<(), ReserveError> {
    let Range { start, end } = reservation.range();
    reservation.map_shared(0, end - start, memory, 0)?;
    // A kernel without this advice writes slow dumps, no more.
    // SAFETY: changes what a dump holds, not what the memory does; the mapping was just made.
    let _ = unsafe { madvise(page_pointer(start), (end - start) as usize, Advice::LinuxDontDump) };
    Ok(())
}

/// Gives the memory of pages back to the system; they stay mapped, as zeros. Pages that stay cost memory until the process ends,
/// and nothing else.
///
/// # Safety
///
/// No code refers to a byte of the range, which is mapped by [`map_all`].
pub unsafe fn remove(range: &Range<u64>) {
    // SAFETY: by the contract.
    let _ = unsafe { madvise(page_pointer(range.start), (range.end - range.start) as usize, Advice::LinuxRemove) };
}

fn page_pointer(address: u64) -> *mut std::ffi::c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}
