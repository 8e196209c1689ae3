//! Variables of modules, and those in managed memory (`__managed__`), which the program uses at the GPU's address.
//!
//! The worker's driver chooses the address of a managed variable. The shim maps pages for the program there. Before a launch
//! it sends what the program changed; after a synchronization it fetches what the GPU changed, as [`crate::memory::pinned`]
//! does for managed blocks on a stream link. Memory that the program has at the address is never replaced.
#![expect(unsafe_code, reason = "maps memory at addresses that the worker names")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUresult, Function};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::context::record::Context;
use crate::ffi::arguments::refuse;
use crate::memory::counts::MANAGED_VARIABLES;
use crate::memory::registration::PAGE_BYTES;
use crate::memory::{pinned, pinned_sync, system_atomics};
use crate::process::session::shim;

/// Pages that were mapped for managed variables, by address.
static VARIABLE_PAGES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn pages() -> MutexGuard<'static, BTreeSet<u64>> {
    VARIABLE_PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A variable as the worker describes it.
pub(crate) struct Variable {
    pub(crate) address: u64,
    /// Size of the variable, in bytes.
    pub(crate) size: u64,
    pub(crate) is_managed: bool,
}

impl Variable {
    /// Enters it into the address map, which may have it already.
    pub(crate) fn note(&self, owner: usize, context: &Context) -> Result<(), CUresult> {
        let shim = shim()?;
        if !self.is_managed {
            let kind = RegionKind::Global { owner };
            shim.regions.insert(self.address, self.size, kind, context.device, context.slot.handle);
            return Ok(());
        }
        let (kind, mut pages) = (RegionKind::Shared { owner }, pages());
        if shim.regions.find(self.address).is_some_and(|region| region.kind == kind) {
            return Ok(());
        }
        let pinned = pinned::get().ok_or_else(address_in_use)?;
        self.map(&mut pages)?;
        let contents = pinned_sync::contents(shim, self.address, self.size)?;
        // SAFETY: the pages were mapped for this variable, no other code knows of it, and it has as many bytes.
        unsafe {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
            target.copy_from_nonoverlapping(contents.as_ptr(), contents.len());
        }
        if !shim.regions.insert(self.address, self.size, kind, context.device, context.slot.handle) {
            return Err(address_in_use());
        }
        pinned.adopt(self.address, context.wire(), contents);
        MANAGED_VARIABLES.begin();
        system_atomics::warn();
        Ok(())
    }

    /// Maps those pages of the variable that are not mapped for another one.
    fn map(&self, pages: &mut BTreeSet<u64>) -> Result<(), CUresult> {
        let end = self.address.checked_add(self.size).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
        let range = self.address / PAGE_BYTES * PAGE_BYTES..end.ok_or_else(address_in_use)?;
        for gap in missing(pages, &range) {
            map(&gap)?;
            pages.extend(gap.step_by(PAGE_BYTES as usize));
        }
        Ok(())
    }
}

/// Returns those parts of `range`, whole pages, that are not in `pages`.
fn missing(pages: &BTreeSet<u64>, range: &Range<u64>) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for page in pages.range(range.clone()) {
        if at < *page {
            gaps.push(at..*page);
        }
        at = page + PAGE_BYTES;
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

fn map(range: &Range<u64>) -> Result<(), CUresult> {
    let (flags, access) = (MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE, ProtFlags::READ | ProtFlags::WRITE);
    let (start, size) =
        (std::ptr::with_exposed_provenance_mut(range.start as usize), (range.end - range.start) as usize);
    // SAFETY: a mapping that replaces none takes memory from no owner.
    match unsafe { mmap_anonymous(start, size, access, flags) } {
        Ok(mapped) if mapped == start => Ok(()),
        // A kernel without the flag takes the address for a hint.
        Ok(elsewhere) => {
            // SAFETY: made just now, and not handed out.
            let _ = unsafe { munmap(elsewhere, size) };
            Err(address_in_use())
        }
        Err(_) => Err(address_in_use()),
    }
}

/// Refuses the call: the program has memory of its own at the address.
fn address_in_use() -> CUresult {
    refuse(Function::cuLibraryGetManaged, "has met a managed variable at an address that this program has in use")
}

/// Forgets the variables of a module or library.
pub(crate) fn forget_all(owner: usize) -> Result<(), CUresult> {
    for region in shim()?.regions.remove_all(|region| region.is_variable_of(owner)) {
        if let Some(pinned) = pinned::get().filter(|_| region.is_managed()) {
            pinned.forget(&region)?;
            forget(&region);
        }
    }
    Ok(())
}

/// Unmaps the pages of a managed variable whose region left the address map, except those that other variables need.
pub(crate) fn forget(region: &Region) {
    if !matches!(region.kind, RegionKind::Shared { .. }) {
        return;
    }
    MANAGED_VARIABLES.end();
    let Ok(shim) = shim() else { return };
    let mut pages = pages();
    let range = region.start / PAGE_BYTES * PAGE_BYTES..(region.start + region.size).next_multiple_of(PAGE_BYTES);
    for page in range.step_by(PAGE_BYTES as usize) {
        let lies_in = |other: &Region| other.start < page + PAGE_BYTES && page < other.start + other.size;
        let is_needed = |other: &Region| matches!(other.kind, RegionKind::Shared { .. }) && lies_in(other);
        if shim.regions.matching(is_needed).is_empty() && pages.remove(&page) {
            // SAFETY: the shim mapped it, and no variable lies in it any more.
            let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(page as usize), PAGE_BYTES as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_not_there_are_mapped() {
        let pages = BTreeSet::from([0x2000, 0x3000, 0x6000]);
        assert_eq!(missing(&pages, &(0x1000..0x8000)), [0x1000..0x2000, 0x4000..0x6000, 0x7000..0x8000]);
        assert!(missing(&pages, &(0x2000..0x4000)).is_empty());
        assert_eq!(missing(&BTreeSet::new(), &(0x2000..0x4000)), vec![0x2000..0x4000; 1]);
    }

    #[test]
    fn memory_of_the_program_is_never_replaced() {
        let own = vec![7_u8; 3 * PAGE_BYTES as usize];
        let start = (own.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
        assert_eq!(map(&(start..start + PAGE_BYTES)), Err(CUresult::ERROR_NOT_SUPPORTED));
        assert!(own.iter().all(|byte| *byte == 7));
    }
}
