//! Pages of host memory that the program and its worker share at agreed addresses.
#![expect(unsafe_code, reason = "advises the system about mappings")]

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;

use katydid_arena::{Reservation, ReserveError};
use rustix::mm::{Advice, madvise};

/// Maps all of a reserved range onto the shared memory. Core dumps of the program leave it out: they would walk through 256 GiB
/// of holes.
///
/// # Errors
///
/// The system refuses.
pub fn map_all(reservation: &Reservation, memory: impl AsFd) -> Result<(), ReserveError> {
    let Range { start, end } = reservation.range();
    reservation.map_shared(0, end - start, memory, 0)?;
    // A kernel without this advice only writes slow dumps.
    // SAFETY: changes what a dump contains, not the memory; the mapping was just made.
    let _ = unsafe { madvise(page_pointer(start), (end - start) as usize, Advice::LinuxDontDump) };
    Ok(())
}

/// Returns the memory of pages to the system. They stay mapped, as zeros. If that fails, pages only cost memory until the process
/// ends.
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
