//! Shared virtual memory. The program has pages of its own at the addresses that the device knows; they are filled when
//! it maps a region and written back when it unmaps it, which is all that coarse-grained memory promises. Fine-grained memory is
//! pages of a block that the worker has too ([`crate::process::host`]), which both sides map at those addresses: nothing is copied.
#![expect(unsafe_code, reason = "lends memory at addresses that the worker chose")]

use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::constant::{
    COMMAND_SVM_FREE, COMMAND_SVM_MAP, COMMAND_SVM_MEMCPY, COMMAND_SVM_MEMFILL, COMMAND_SVM_MIGRATE_MEM,
    COMMAND_SVM_UNMAP, COMPLETE, MAP_WRITE, MAP_WRITE_INVALIDATE_REGION, MEM_SVM_ATOMICS, MEM_SVM_FINE_GRAIN_BUFFER,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_context, cl_event, cl_svm_free_notify, void};
use katydid_wire::opencl::list as lists;
use katydid_wire::opencl::message::{
    kdclEventCallback, kdclHostCopy, kdclSvmAlloc, kdclSvmCopy, kdclSvmFill, kdclSvmFree, kdclSvmMap, kdclSvmMigrate,
    kdclSvmRead, kdclSvmUnmap, kdclSvmWrite,
};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use crate::commands::command;
use crate::commands::pending::PendingCommand;
use crate::ffi::returns::list;
use crate::objects::context::Context;
use crate::objects::event;
use crate::objects::handle::object;
use crate::process::host::Block;
use crate::process::shim::shim;
use crate::process::upcall::{self, Call};
use crate::transfers::bulk;
use crate::transfers::pending_reads;
use crate::transfers::rows::Rows;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Addresses to try when something else lies there already.
const ATTEMPTS: usize = 16;

/// Allocations by address, and what is mapped of them.
#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    /// Whether any has ever been fine-grained, to be asked without the lock.
    has_fine: AtomicBool,
    /// Whether there has ever been any.
    has_any: AtomicBool,
}

#[derive(Default)]
struct State {
    allocations: BTreeMap<usize, Allocation>,
    /// Mapped regions by address; one may be mapped again.
    maps: HashMap<usize, Vec<Map>>,
}

struct Allocation {
    /// Bytes.
    size: usize,
    /// What it is made of, if it is fine-grained.
    block: Option<Block>,
}

/// A mapped region.
struct Map {
    /// Bytes.
    size: usize,
    /// Whether the program may write it, so that its bytes are brought to the device.
    writes: bool,
    /// The number of the read that fills it ([`crate::transfers::pending_reads`]); 0: none.
    landing: u64,
}

impl State {
    fn map(&mut self, address: usize, map: Map) {
        self.maps.entry(address).or_default().push(map);
    }

    fn unmap(&mut self, address: usize) -> Option<Map> {
        let maps = self.maps.get_mut(&address)?;
        let map = maps.pop();
        if maps.is_empty() {
            self.maps.remove(&address);
        }
        map
    }

    /// Ends an allocation, and all maps of it.
    fn end(&mut self, address: usize) -> Option<Allocation> {
        let ended = self.allocations.remove(&address)?;
        self.maps.retain(|start, _| !(address..address + ended.size).contains(start));
        Some(ended)
    }

    /// The widest region that is mapped for writing of those that hold these bytes, with its own.
    fn written_around(&self, address: usize, size: usize) -> Option<(usize, usize)> {
        let all = self.maps.iter().flat_map(|(start, maps)| maps.iter().map(|map| (*start, map)));
        let holds =
            |(start, map): &(usize, &Map)| map.writes && *start <= address && address + size <= *start + map.size;
        all.filter(holds).map(|(start, map)| (start, map.size)).max_by_key(|(_, size)| *size)
    }

    /// The allocation in which all of the bytes lie.
    fn holding(&self, address: usize, size: usize) -> Option<&Allocation> {
        let (start, found) = self.allocations.range(..=address).next_back()?;
        address.checked_add(size).is_some_and(|end| end <= start + found.size).then_some(found)
    }
}

impl Ranges {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an address is shared virtual memory.
    pub(crate) fn holds(&self, address: usize) -> bool {
        address != 0 && self.lock().holding(address, 1).is_some()
    }

    /// Whether all of a range is shared virtual memory, in one allocation.
    pub(crate) fn all(&self, address: usize, size: usize) -> bool {
        self.lock().holding(address, size).is_some()
    }

    /// Whether a range begins in an allocation and ends beyond it, which no memory does that a program may name.
    pub(crate) fn overruns(&self, address: usize, size: usize) -> bool {
        self.has_any.load(Ordering::Acquire) && {
            let state = self.lock();
            state.holding(address, 1).is_some() && state.holding(address, size).is_none()
        }
    }

    /// Whether a range begins in an allocation and ends beyond its pages, where nothing can be read or written.
    pub(crate) fn leaves_pages(&self, address: usize, size: usize) -> bool {
        self.has_any.load(Ordering::Acquire)
            && self.lock().allocations.range(..=address).next_back().is_some_and(|(start, found)| {
                let end = start + found.size.next_multiple_of(PAGE);
                address < end && address.checked_add(size).is_none_or(|after| after > end)
            })
    }

    /// Whether all of a range is fine-grained, in one allocation.
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

/// Pages at an address; false if something lies there.
fn occupy(address: usize, size: usize) -> bool {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    let (place, length) = (ptr::with_exposed_provenance_mut(address), size.next_multiple_of(PAGE));
    // SAFETY: with this flag nothing that lies there is replaced.
    unsafe { mmap_anonymous(place, length, protection, flags | MapFlags::FIXED_NOREPLACE) }.is_ok()
}

/// The block's pages at an address too, in place of others of the program's there.
fn show(block: &Block, address: usize, size: usize) -> Result<(), Code> {
    let (from, to) = (ptr::with_exposed_provenance_mut(block.address), ptr::with_exposed_provenance_mut(address));
    // SAFETY: `occupy` has mapped the pages that are replaced, and no code knows of them; those of the block stay mapped where they are,
    // since none are taken from there.
    let shown = unsafe { mremap_fixed(from, 0, size.next_multiple_of(PAGE), MremapFlags::MAYMOVE, to) };
    shown.map(drop).map_err(|_| Code::OUT_OF_HOST_MEMORY)
}

fn unmap_pages(address: usize, size: usize) {
    // SAFETY: the pages were made for an allocation, which the program has given up or was not told of.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(address), size.next_multiple_of(PAGE)) };
}

/// An allocation of the worker's at an address where the program has nothing, and pages there.
fn place(context: &Context, (flags, size, alignment): (u64, usize, u32), block: Option<&Block>) -> Result<usize, Code> {
    let link = &shim()?.link;
    let (mut taken, mut found) = (Vec::new(), None);
    while found.is_none() && taken.len() < ATTEMPTS {
        let place = block.map_or(0, |block| block.address as u64);
        let message = kdclSvmAlloc { context: context.base.id, flags, size: size as u64, alignment, place };
        let address = link.call(&message)?.address as usize;
        if occupy(address, size) { found = Some(address) } else { taken.push(address) }
    }
    for address in taken {
        link.enqueue(&kdclSvmFree { address: address as u64 })?;
    }
    let address = found.ok_or(Code::OUT_OF_HOST_MEMORY)?;
    if let Err(code) = block.map_or(Ok(()), |block| show(block, address, size)) {
        unmap_pages(address, size);
        link.enqueue(&kdclSvmFree { address: address as u64 })?;
        return Err(code);
    }
    Ok(address)
}

pub(crate) fn svm_alloc(context: cl_context, flags: u64, size: usize, alignment: u32) -> Result<*mut void, Code> {
    let (context, shim) = (object::<Context>(context)?, shim()?);
    let is_fine = flags & MEM_SVM_FINE_GRAIN_BUFFER != 0;
    let has_fine = || context.devices.iter().all(|device| device.has_fine_svm());
    if size == 0 || (flags & MEM_SVM_ATOMICS != 0 && !is_fine) || (is_fine && !has_fine()) {
        return Err(Code::INVALID_VALUE);
    }
    let block =
        shim.host.as_ref().filter(|_| is_fine).map(|host| host.allocate(shim, size).ok_or(Code::OUT_OF_HOST_MEMORY));
    let block = block.transpose()?;
    match place(&context, (flags, size, alignment), block.as_ref()) {
        Ok(address) => {
            shim.ranges.add(address, Allocation { size, block });
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
    let shim = shim()?;
    let Some(Allocation { size, block }) = shim.ranges.lock().end(address) else { return Ok(()) };
    shim.link.enqueue(&kdclSvmFree { address: address as u64 })?;
    shim.pending_reads.abandon_all(address, size);
    unmap_pages(address, size);
    block.into_iter().for_each(Block::free);
    Ok(())
}

pub(crate) fn svm_free(context: cl_context, svm_pointer: *mut void) -> Result<(), Code> {
    object::<Context>(context)?;
    free(svm_pointer.addr())
}

/// # Safety
///
/// Lists are as long as said; the function may be called once with `user_data`, from any thread.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_svm_free(
    queue: cl_command_queue,
    num_svm_pointers: u32,
    svm_pointers: *mut *mut void,
    pfn_free_func: cl_svm_free_notify,
    user_data: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let (order, pointers) = unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_FREE)?;
        (order.with_event(COMMAND_SVM_FREE)?, list(num_svm_pointers as usize, svm_pointers))
    };
    if pointers.is_empty() || pointers.iter().any(|pointer| pointer.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let addresses = pointers.iter().map(|pointer| pointer.expose_provenance()).collect();
    let (id, end) = (order.event(), order.held_event()?);
    let token = upcall::register(Call::SvmFree(pfn_free_func, end, addresses, user_data.expose_provenance()))?;
    let told = command::mark_with(order, || {
        let message = kdclEventCallback { event: id, type_of: COMPLETE.cast_signed(), token };
        shim()?.link.call(&message).map(drop)
    });
    told.inspect_err(|_| upcall::forget(token))
}

/// # Safety
///
/// Lists are as long as said; memory that is not shared is readable, or writable until the command has ended.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_svm_memcpy(
    queue: cl_command_queue,
    blocking: u32,
    dst_ptr: *mut void,
    src_ptr: *const void,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MEMCPY)? };
    if dst_ptr.is_null() || src_ptr.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let order = if blocking == 0 { order } else { order.with_event(COMMAND_SVM_MEMCPY)? };
    let (to, from) = (dst_ptr.expose_provenance(), src_ptr.expose_provenance());
    let overlap = to < from.saturating_add(size) && from < to.saturating_add(size);
    if overlap && size > 0 {
        return Err(Code::MEM_COPY_OVERLAP);
    }
    let done = order.event();
    // SAFETY: handed on.
    unsafe { copy(&order, to, from, size)? };
    if blocking != 0 {
        event::wait_for(&[done])?;
    }
    order.done();
    Ok(())
}

/// # Safety
///
/// As [`enqueue_svm_memcpy`].
unsafe fn copy(order: &PendingCommand, to: usize, from: usize, size: usize) -> Result<(), Code> {
    let shim = shim()?;
    let link = &shim.link;
    let (queue, event, mut waits) = (order.queue(), order.event(), order.arguments());
    let (destination, source, length) = (to as u64, from as u64, size as u64);
    if shim.ranges.overruns(to, size) || shim.ranges.overruns(from, size) {
        return Err(Code::INVALID_VALUE);
    }
    match (shim.ranges.all(to, size), shim.ranges.all(from, size)) {
        (true, true) => {
            link.call(&kdclSvmCopy { queue, event, destination, source, size: length, waits: &waits })?;
        }
        (true, false) => {
            let rows = Rows::run(from, size);
            pending_reads::wait_for_place(&rows)?;
            // SAFETY: readable, by the contract.
            let bytes = unsafe { rows.gather() };
            let sent = bulk::send(link, &bytes)?;
            waits.extend_from_slice(sent.inline);
            link.call(&kdclSvmWrite { queue, event, destination, staged: sent.staged, waits: &waits })?;
        }
        (false, true) => {
            let landing = shim.pending_reads.number();
            link.call(&kdclSvmRead { queue, event, source, size: length, landing, waits: &waits })?;
            // SAFETY: writable, by the contract.
            unsafe { shim.pending_reads.expect(landing, Rows::run(to, size), None) };
        }
        // The device has no part in it: the bytes of now come back in the command's turn.
        (false, false) => {
            let (rows, landing) = (Rows::run(from, size), shim.pending_reads.number());
            pending_reads::wait_for_place(&rows)?;
            // SAFETY: readable, by the contract.
            let bytes = unsafe { rows.gather() };
            let sent = bulk::send(link, &bytes)?;
            waits.extend_from_slice(sent.inline);
            link.call(&kdclHostCopy { queue, event, landing, staged: sent.staged, waits: &waits })?;
            // SAFETY: writable, by the contract.
            unsafe { shim.pending_reads.expect(landing, Rows::run(to, size), None) };
        }
    }
    Ok(())
}

/// # Safety
///
/// Lists are as long as said, the pattern is readable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_svm_mem_fill(
    queue: cl_command_queue,
    svm_ptr: *mut void,
    pattern: *const void,
    pattern_size: usize,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let (order, pattern) = unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MEMFILL)?;
        (order, list(pattern_size.min(256), pattern.cast::<u8>()))
    };
    if svm_ptr.is_null() || pattern.is_empty() || pattern_size > 128 {
        return Err(Code::INVALID_VALUE);
    }
    let mut waits = order.arguments();
    waits.extend_from_slice(pattern);
    shim()?.link.call(&kdclSvmFill {
        queue: order.queue(),
        event: order.event(),
        destination: svm_ptr.addr() as u64,
        size: size as u64,
        patternSize: pattern_size as u32,
        waits: &waits,
    })?;
    order.done();
    Ok(())
}

/// # Safety
///
/// Lists are as long as said; the region is left to the command until it has ended.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_svm_map(
    queue: cl_command_queue,
    blocking: u32,
    flags: u64,
    svm_ptr: *mut void,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MAP)? };
    let shim = shim()?;
    let address = svm_ptr.addr();
    if size == 0 || !shim.ranges.all(address, size) {
        return Err(Code::INVALID_VALUE);
    }
    let order = if blocking == 0 { order } else { order.with_event(COMMAND_SVM_MAP)? };
    // What the program has mapped for writing, and has, is newer than what the device has.
    let has_newest = shim.ranges.lock().written_around(address, size).is_some()
        && !shim.pending_reads.come_to(&Rows::run(address, size));
    let is_fine = shim.ranges.is_fine(address, size);
    let fresh = flags & MAP_WRITE_INVALIDATE_REGION != 0 || has_newest || is_fine;
    let landing = if fresh { 0 } else { shim.pending_reads.number() };
    let (queue, done, waits) = (order.queue(), order.event(), order.arguments());
    let message =
        kdclSvmMap { queue, event: done, flags, address: address as u64, size: size as u64, landing, waits: &waits };
    shim.link.call(&message)?;
    // What is written to fine-grained memory is there.
    let writes = flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0 && !is_fine;
    shim.ranges.lock().map(address, Map { size, writes, landing });
    if !fresh {
        // SAFETY: pages of the allocation, which holds the region, as was checked.
        unsafe { shim.pending_reads.expect(landing, Rows::run(address, size), None) };
    }
    if blocking != 0 {
        event::wait_for(&[done])?;
    }
    order.done();
    Ok(())
}

/// # Safety
///
/// Lists are as long as said; no thread uses the region any more.
pub(crate) unsafe fn enqueue_svm_unmap(
    queue: cl_command_queue,
    svm_ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_UNMAP)? };
    let shim = shim()?;
    let address = svm_ptr.addr();
    let mut map = shim.ranges.lock().unmap(address).ok_or(Code::INVALID_VALUE)?;
    // Who gives a region back before it is known to be there cannot have changed it, unless by a command.
    map.writes &= !shim.pending_reads.abandon(map.landing, &Rows::run(address, map.size));
    // A driver may give the device all of an allocation when a part of it is unmapped, and nothing afterwards: what the program has
    // written around the part goes along.
    let around = shim.ranges.lock().written_around(address, map.size);
    let around = around.filter(|(start, size)| !shim.pending_reads.come_to(&Rows::run(*start, *size)));
    let (start, size) = around.unwrap_or((address, if map.writes { map.size } else { 0 }));
    // SAFETY: pages of the allocation, which held the regions when they were mapped.
    let unmapped = unsafe { unmap(&order, address, &Rows::run(start, size)) };
    // What is refused is mapped as before.
    unmapped.inspect_err(|_| shim.ranges.lock().map(address, map))?;
    order.done();
    Ok(())
}

/// Enqueues the end of the map of an address, before which the bytes of `rows` go to the device.
///
/// # Safety
///
/// The rows are readable.
unsafe fn unmap(order: &PendingCommand, address: usize, rows: &Rows) -> Result<(), Code> {
    let link = &shim()?.link;
    pending_reads::wait_for_place(rows)?;
    // SAFETY: by the contract.
    let bytes = unsafe { rows.gather() };
    let sent = bulk::send(link, &bytes)?;
    let mut waits = order.arguments();
    waits.extend_from_slice(sent.inline);
    let (queue, event, address, place) = (order.queue(), order.event(), address as u64, rows.start as u64);
    link.call(&kdclSvmUnmap { queue, event, address, place, staged: sent.staged, waits: &waits }).map(drop)
}

/// # Safety
///
/// Lists are as long as said.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_svm_migrate_mem(
    queue: cl_command_queue,
    num_svm_pointers: u32,
    svm_pointers: *const *const void,
    sizes: *const usize,
    flags: u64,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let number = num_svm_pointers as usize;
    // SAFETY: handed on.
    let (order, pointers, sizes) = unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MIGRATE_MEM)?;
        (order, list(number, svm_pointers), list(number, sizes))
    };
    if pointers.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let addresses: Vec<u64> = pointers.iter().map(|pointer| pointer.addr() as u64).collect();
    let sizes: Vec<u64> = (0..number).map(|at| sizes.get(at).copied().unwrap_or(0) as u64).collect();
    let mut waits = order.arguments();
    lists::put(&mut waits, &addresses);
    lists::put(&mut waits, &sizes);
    let message = kdclSvmMigrate { queue: order.queue(), event: order.event(), flags, waits: &waits };
    shim()?.link.call(&message)?;
    order.done();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_in_one_allocation() {
        let ranges = Ranges::default();
        ranges.add(8192, Allocation { size: 100, block: None });
        assert!(ranges.all(8192, 100) && ranges.holds(8291) && !ranges.holds(8292) && !ranges.holds(0));
        assert!(!ranges.all(8192, 101) && !ranges.all(8200, usize::MAX));
        assert!(ranges.overruns(8192, 101) && ranges.overruns(8291, 2) && ranges.overruns(8192, usize::MAX));
        assert!(
            !ranges.leaves_pages(8192, 4096) && ranges.leaves_pages(8192, 4097) && !ranges.leaves_pages(8191, 9000)
        );
        assert!(!ranges.overruns(8192, 100) && !ranges.overruns(8292, 100) && !ranges.overruns(8000, 200));
    }

    #[test]
    fn maps_of_one_address_end_one_by_one_and_all_with_their_allocation() {
        let mut state = State::default();
        state.allocations.insert(8192, Allocation { size: 100, block: None });
        for (address, size) in [(8192, 100), (8192, 10), (8292, 1)] {
            state.map(address, Map { size, writes: true, landing: 0 });
        }
        assert_eq!(state.unmap(8192).map(|map| map.size), Some(10));
        assert_eq!([state.end(8192), state.end(8192)].map(|ended| ended.map(|ended| ended.size)), [Some(100), None]);
        assert!(state.unmap(8192).is_none() && state.unmap(8292).is_some());
    }

    #[test]
    fn a_region_may_be_written_if_it_lies_in_one_that_is_mapped_so() {
        let mut state = State::default();
        for (address, size, writes) in [(8192, 100, true), (8192, 200, false), (8196, 60, true), (8400, 10, true)] {
            state.map(address, Map { size, writes, landing: 0 });
        }
        let widest = Some((8192, 100));
        for (address, size, around) in [(8192, 100, widest), (8200, 10, widest), (8200, 93, None), (8390, 15, None)] {
            assert_eq!(state.written_around(address, size), around, "{address} {size}");
        }
    }

    #[test]
    fn pages_never_replace_others() {
        let mine = Box::new([0u8; PAGE]);
        let page = mine.as_ptr().expose_provenance() / PAGE * PAGE;
        assert!(!occupy(page, 1));
    }
}
