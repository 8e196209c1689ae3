//! Shared virtual memory. The program has its own pages at the device's addresses. A map fills them and an unmap writes them
//! back, which is all that coarse-grained memory promises. Fine-grained memory consists of pages of a block shared with the
//! worker ([`crate::host::arena`]). Both sides map it at those addresses: nothing is copied.
#![expect(unsafe_code, reason = "lends memory at addresses that the worker chose")]

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::constant::{MEM_SVM_ATOMICS, MEM_SVM_FINE_GRAIN_BUFFER};
use katydid_opencl_sys::{Code, cl_context, void};
use katydid_wire::PAGE_BYTES;
use katydid_wire::opencl::message::{kdclSvmAlloc, kdclSvmFree};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use crate::host::arena::{self, Block};
use crate::host::pending_reads::PENDING_READS;
use crate::objects::context::Context;
use crate::objects::handle::object;
use crate::process::session;

/// How many addresses to try if something else lies there already.
const ADDRESS_ATTEMPTS: usize = 16;

/// All shared virtual memory of the process.
pub(crate) static SVM_RANGES: Ranges = Ranges::new();

/// Allocations by address, and their mapped regions.
pub(crate) struct Ranges {
    state: Mutex<SvmState>,
    /// Whether any has ever been fine-grained; read without the lock.
    has_fine: AtomicBool,
    /// Whether there has ever been any; read without the lock.
    has_any: AtomicBool,
}

struct SvmState {
    allocations: BTreeMap<usize, Allocation>,
    /// Mapped regions by address; a region may be mapped several times.
    maps: BTreeMap<usize, Vec<SvmMap>>,
}

struct Allocation {
    /// Bytes that the program requested.
    size: usize,
    /// The block of a fine-grained allocation.
    block: Option<Block>,
}

/// A region of shared virtual memory that the program has mapped.
pub(crate) struct SvmMap {
    /// Bytes that are mapped.
    pub(crate) size: usize,
    /// Whether the program may write it, so that its bytes go back to the device.
    pub(crate) writes: bool,
    /// The number of the read that fills it ([`crate::host::pending_reads`]); 0: none.
    pub(crate) read_number: u64,
}

impl SvmState {
    const fn new() -> Self {
        Self { allocations: BTreeMap::new(), maps: BTreeMap::new() }
    }

    fn map(&mut self, address: usize, map: SvmMap) {
        self.maps.entry(address).or_default().push(map);
    }

    fn unmap(&mut self, address: usize) -> Option<SvmMap> {
        let maps = self.maps.get_mut(&address)?;
        let map = maps.pop();
        if maps.is_empty() {
            self.maps.remove(&address);
        }
        map
    }

    /// Removes an allocation, and all its maps.
    fn end(&mut self, address: usize) -> Option<Allocation> {
        let ended = self.allocations.remove(&address)?;
        self.maps.retain(|start, _| !(address..address + ended.size).contains(start));
        Some(ended)
    }

    /// Returns the widest region mapped for writing that contains these bytes: its address and size.
    fn written_around(&self, address: usize, size: usize) -> Option<(usize, usize)> {
        let maps = self.maps.iter().flat_map(|(start, maps)| maps.iter().map(|map| (*start, map)));
        let holds =
            |(start, map): &(usize, &SvmMap)| map.writes && *start <= address && address + size <= *start + map.size;
        maps.filter(holds).map(|(start, map)| (start, map.size)).max_by_key(|(_, size)| *size)
    }

    /// Returns the allocation that contains all of the bytes.
    fn holding(&self, address: usize, size: usize) -> Option<&Allocation> {
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        address.checked_add(size).is_some_and(|end| end <= start + allocation.size).then_some(allocation)
    }
}

impl Ranges {
    const fn new() -> Self {
        let (has_fine, has_any) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { state: Mutex::new(SvmState::new()), has_fine, has_any }
    }

    /// Adds a mapped region.
    pub(crate) fn map(&self, address: usize, map: SvmMap) {
        self.lock().map(address, map);
    }

    /// Removes and returns the region at an address that was mapped last.
    pub(crate) fn unmap(&self, address: usize) -> Option<SvmMap> {
        self.lock().unmap(address)
    }

    /// Returns the widest region mapped for writing that contains these bytes: its address and size.
    pub(crate) fn written_around(&self, address: usize, size: usize) -> Option<(usize, usize)> {
        self.lock().written_around(address, size)
    }

    fn lock(&self) -> MutexGuard<'_, SvmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether an address is shared virtual memory.
    pub(crate) fn holds(&self, address: usize) -> bool {
        address != 0 && self.lock().holding(address, 1).is_some()
    }

    /// Returns whether a whole range lies in one allocation of shared virtual memory.
    pub(crate) fn contains(&self, address: usize, size: usize) -> bool {
        self.lock().holding(address, size).is_some()
    }

    /// Returns whether a range begins in an allocation and ends past it: no such memory is valid.
    pub(crate) fn overruns(&self, address: usize, size: usize) -> bool {
        self.has_any.load(Ordering::Acquire) && {
            let state = self.lock();
            state.holding(address, 1).is_some() && state.holding(address, size).is_none()
        }
    }

    /// Returns whether a range begins in an allocation and ends past its pages, where nothing can be read or written.
    pub(crate) fn leaves_pages(&self, address: usize, size: usize) -> bool {
        self.has_any.load(Ordering::Acquire)
            && self.lock().allocations.range(..=address).next_back().is_some_and(|(start, found)| {
                let end = start + found.size.next_multiple_of(PAGE_BYTES);
                address < end && address.checked_add(size).is_none_or(|after| after > end)
            })
    }

    /// Returns whether a whole range lies in one fine-grained allocation.
    pub(crate) fn is_fine(&self, address: usize, size: usize) -> bool {
        self.has_fine.load(Ordering::Acquire)
            && self.lock().holding(address, size).is_some_and(|found| found.block.is_some())
    }

    fn add(&self, address: usize, allocation: Allocation) {
        if allocation.block.is_some() {
            self.has_fine.store(true, Ordering::Release);
        }
        self.has_any.store(true, Ordering::Release);
        self.lock().allocations.insert(address, allocation);
    }
}

/// Maps pages at an address; returns false if something lies there.
fn occupy(address: usize, size: usize) -> bool {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    let (start, length) = (ptr::with_exposed_provenance_mut(address), size.next_multiple_of(PAGE_BYTES));
    // SAFETY: with this flag, no existing mapping is replaced.
    unsafe { mmap_anonymous(start, length, protection, flags | MapFlags::FIXED_NOREPLACE) }.is_ok()
}

/// Maps the block's pages at a further address, in place of the program's pages there.
fn show(block: &Block, address: usize, size: usize) -> Result<(), Code> {
    let (from, to) = (ptr::with_exposed_provenance_mut(block.address), ptr::with_exposed_provenance_mut(address));
    // SAFETY: `occupy` has mapped the replaced pages, and no code knows of them. The block's own pages stay mapped, since an old
    // size of 0 moves none.
    let shown = unsafe { mremap_fixed(from, 0, size.next_multiple_of(PAGE_BYTES), MremapFlags::MAYMOVE, to) };
    shown.map(drop).map_err(|_| Code::OUT_OF_HOST_MEMORY)
}

fn unmap_pages(address: usize, size: usize) {
    // SAFETY: the pages were made for an allocation, which the program has freed or never got.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(address), size.next_multiple_of(PAGE_BYTES)) };
}

/// Allocates memory at the worker at an address that is free in the program, and maps pages there.
fn allocate_mapped(
    context: &Context,
    (flags, size, alignment): (u64, usize, u32),
    block: Option<&Block>,
) -> Result<usize, Code> {
    let (mut taken_addresses, mut free_address) = (Vec::new(), None);
    while free_address.is_none() && taken_addresses.len() < ADDRESS_ATTEMPTS {
        let host_address = block.map_or(0, |block| block.address as u64);
        let message = kdclSvmAlloc { context: context.base.id, flags, size: size as u64, alignment, host_address };
        let address = session::call(&message)?.address as usize;
        if occupy(address, size) { free_address = Some(address) } else { taken_addresses.push(address) }
    }
    for address in taken_addresses {
        session::enqueue(&kdclSvmFree { address: address as u64 })?;
    }
    let address = free_address.ok_or(Code::OUT_OF_HOST_MEMORY)?;
    if let Err(code) = block.map_or(Ok(()), |block| show(block, address, size)) {
        unmap_pages(address, size);
        session::enqueue(&kdclSvmFree { address: address as u64 })?;
        return Err(code);
    }
    Ok(address)
}

pub(crate) fn svm_alloc(context: cl_context, flags: u64, size: usize, alignment: u32) -> Result<*mut void, Code> {
    let context = object::<Context>(context)?;
    let is_fine = flags & MEM_SVM_FINE_GRAIN_BUFFER != 0;
    let has_fine = || context.devices.iter().all(|device| device.has_fine_svm());
    if size == 0 || (flags & MEM_SVM_ATOMICS != 0 && !is_fine) || (is_fine && !has_fine()) {
        return Err(Code::INVALID_VALUE);
    }
    let block = is_fine.then(|| arena::allocate(size).ok_or(Code::OUT_OF_HOST_MEMORY)).transpose()?;
    match allocate_mapped(&context, (flags, size, alignment), block.as_ref()) {
        Ok(address) => {
            SVM_RANGES.add(address, Allocation { size, block });
            Ok(ptr::with_exposed_provenance_mut(address))
        }
        Err(code) => {
            block.into_iter().for_each(Block::free);
            Err(code)
        }
    }
}

/// Frees an allocation; null frees nothing.
pub(crate) fn free(address: usize) -> Result<(), Code> {
    let Some(Allocation { size, block }) = SVM_RANGES.lock().end(address) else { return Ok(()) };
    session::enqueue(&kdclSvmFree { address: address as u64 })?;
    PENDING_READS.abandon_all(address, size);
    unmap_pages(address, size);
    block.into_iter().for_each(Block::free);
    Ok(())
}

pub(crate) fn svm_free(context: cl_context, svm_pointer: *mut void) -> Result<(), Code> {
    object::<Context>(context)?;
    free(svm_pointer.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_in_one_allocation() {
        let ranges = Ranges::new();
        ranges.add(8192, Allocation { size: 100, block: None });
        assert!(ranges.contains(8192, 100) && ranges.holds(8291) && !ranges.holds(8292) && !ranges.holds(0));
        assert!(!ranges.contains(8192, 101) && !ranges.contains(8200, usize::MAX));
        assert!(ranges.overruns(8192, 101) && ranges.overruns(8291, 2) && ranges.overruns(8192, usize::MAX));
        assert!(
            !ranges.leaves_pages(8192, 4096) && ranges.leaves_pages(8192, 4097) && !ranges.leaves_pages(8191, 9000)
        );
        assert!(!ranges.overruns(8192, 100) && !ranges.overruns(8292, 100) && !ranges.overruns(8000, 200));
    }

    #[test]
    fn maps_of_one_address_end_one_by_one_and_all_with_their_allocation() {
        let mut state = SvmState::new();
        state.allocations.insert(8192, Allocation { size: 100, block: None });
        for (address, size) in [(8192, 100), (8192, 10), (8292, 1)] {
            state.map(address, SvmMap { size, writes: true, read_number: 0 });
        }
        assert_eq!(state.unmap(8192).map(|map| map.size), Some(10));
        assert_eq!([state.end(8192), state.end(8192)].map(|ended| ended.map(|ended| ended.size)), [Some(100), None]);
        assert!(state.unmap(8192).is_none() && state.unmap(8292).is_some());
    }

    #[test]
    fn a_region_may_be_written_if_it_lies_in_one_that_is_mapped_so() {
        let mut state = SvmState::new();
        for (address, size, writes) in [(8192, 100, true), (8192, 200, false), (8196, 60, true), (8400, 10, true)] {
            state.map(address, SvmMap { size, writes, read_number: 0 });
        }
        let widest = Some((8192, 100));
        for (address, size, around) in [(8192, 100, widest), (8200, 10, widest), (8200, 93, None), (8390, 15, None)] {
            assert_eq!(state.written_around(address, size), around, "{address} {size}");
        }
    }

    #[test]
    fn pages_never_replace_others() {
        let own_page = Box::new([0u8; PAGE_BYTES]);
        let page = own_page.as_ptr().expose_provenance() / PAGE_BYTES * PAGE_BYTES;
        assert!(!occupy(page, 1));
    }
}
