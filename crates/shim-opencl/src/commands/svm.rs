//! Commands on shared virtual memory ([`crate::objects::svm`]).
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::ptr;

use katydid_opencl_sys::constant::{
    COMMAND_SVM_FREE, COMMAND_SVM_MAP, COMMAND_SVM_MEMCPY, COMMAND_SVM_MEMFILL, COMMAND_SVM_MIGRATE_MEM,
    COMMAND_SVM_UNMAP, COMPLETE, MAP_WRITE, MAP_WRITE_INVALIDATE_REGION,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_svm_free_notify, void};
use katydid_wire::opencl::list as lists;
use katydid_wire::opencl::message::{
    kdclEventCallback, kdclHostCopy, kdclSvmCopy, kdclSvmFill, kdclSvmMap, kdclSvmMigrate, kdclSvmRead, kdclSvmUnmap,
    kdclSvmWrite,
};

use crate::commands::command;
use crate::ffi::arguments::list;
use crate::host::bulk;
use crate::host::pending_reads::{self, PENDING_READS};
use crate::host::rows::Rows;
use crate::objects::event::{self, Event};
use crate::objects::pending_command::PendingCommand;
use crate::objects::svm::{self, SVM_RANGES, SvmMap};
use crate::process::session;
use crate::process::upcall::{self, CallbackCall};

/// # Safety
///
/// Lists have their stated lengths; the function may be called once with `user_data`, from any thread.
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
    // SAFETY: guaranteed by the caller.
    let (command, pointers) = unsafe {
        let command = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_FREE)?;
        (command.with_event(COMMAND_SVM_FREE)?, list(num_svm_pointers as usize, svm_pointers))
    };
    if pointers.is_empty() || pointers.iter().any(|pointer| pointer.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let addresses: Vec<usize> = pointers.iter().map(|pointer| pointer.expose_provenance()).collect();
    let (id, end, data) = (command.event(), command.held_event()?, user_data.expose_provenance());
    let token = upcall::register(CallbackCall::once(move |_| {
        // SAFETY: called once, as the contract permits.
        unsafe { free_now(pfn_free_func, &end, addresses, data) }
    }))?;
    let outcome = command::mark_with(command, || {
        let message = kdclEventCallback { event: id, type_of: COMPLETE.cast_signed(), token };
        session::call(&message).map(drop)
    });
    outcome.inspect_err(|_| upcall::forget(token))
}

/// Frees shared virtual memory once the command's event has completed: by the program's function, or directly.
///
/// # Safety
///
/// The function may be called once with `data`.
unsafe fn free_now(function: cl_svm_free_notify, event: &Event, addresses: Vec<usize>, data: usize) {
    let Some(function) = function else {
        addresses.into_iter().for_each(|address| {
            let _ = svm::free(address);
        });
        return;
    };
    let pointer = ptr::with_exposed_provenance_mut::<void>;
    let mut list: Vec<*mut void> = addresses.into_iter().map(pointer).collect();
    // SAFETY: by the contract; the list lives as long as the call.
    unsafe { function(event.queue(), list.len() as u32, list.as_mut_ptr(), pointer(data)) }
}

/// # Safety
///
/// Lists have their stated lengths; memory that is not shared is readable, or writable until the command has ended.
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
    // SAFETY: guaranteed by the caller.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MEMCPY)? };
    if dst_ptr.is_null() || src_ptr.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let command = if blocking == 0 { command } else { command.with_event(COMMAND_SVM_MEMCPY)? };
    let (to, from) = (dst_ptr.expose_provenance(), src_ptr.expose_provenance());
    let overlap = to < from.saturating_add(size) && from < to.saturating_add(size);
    if overlap && size > 0 {
        return Err(Code::MEM_COPY_OVERLAP);
    }
    let done = command.event();
    // SAFETY: guaranteed by the caller.
    unsafe { copy(&command, to, from, size)? };
    if blocking != 0 {
        event::wait_for(&[done])?;
    }
    command.publish();
    Ok(())
}

/// # Safety
///
/// As [`enqueue_svm_memcpy`].
unsafe fn copy(command: &PendingCommand, to: usize, from: usize, size: usize) -> Result<(), Code> {
    let (queue, event, mut waits) = (command.queue(), command.event(), command.arguments());
    let (destination, source, length) = (to as u64, from as u64, size as u64);
    if SVM_RANGES.overruns(to, size) || SVM_RANGES.overruns(from, size) {
        return Err(Code::INVALID_VALUE);
    }
    match (SVM_RANGES.contains(to, size), SVM_RANGES.contains(from, size)) {
        (true, true) => {
            session::call(&kdclSvmCopy { queue, event, destination, source, size: length, waits: &waits })?;
        }
        (true, false) => {
            let rows = Rows::run(from, size);
            pending_reads::wait_for_overlapping(&rows)?;
            // SAFETY: readable, by the contract.
            let bytes = unsafe { rows.gather() };
            let sent = bulk::send(&bytes)?;
            waits.extend_from_slice(sent.inline);
            session::call(&kdclSvmWrite { queue, event, destination, staged: sent.staged, waits: &waits })?;
        }
        (false, true) => {
            let read_number = PENDING_READS.number();
            session::call(&kdclSvmRead { queue, event, source, size: length, read_number, waits: &waits })?;
            // SAFETY: writable, by the contract.
            unsafe { PENDING_READS.expect(read_number, Rows::run(to, size), None) };
        }
        // The device takes no part: the present bytes come back in the command's place in the order.
        (false, false) => {
            let (rows, read_number) = (Rows::run(from, size), PENDING_READS.number());
            pending_reads::wait_for_overlapping(&rows)?;
            // SAFETY: readable, by the contract.
            let bytes = unsafe { rows.gather() };
            let sent = bulk::send(&bytes)?;
            waits.extend_from_slice(sent.inline);
            session::call(&kdclHostCopy { queue, event, read_number, staged: sent.staged, waits: &waits })?;
            // SAFETY: writable, by the contract.
            unsafe { PENDING_READS.expect(read_number, Rows::run(to, size), None) };
        }
    }
    Ok(())
}

/// # Safety
///
/// Lists have their stated lengths, the pattern is readable.
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
    // SAFETY: guaranteed by the caller.
    let (command, pattern) = unsafe {
        let command = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MEMFILL)?;
        (command, list(pattern_size.min(256), pattern.cast::<u8>()))
    };
    if svm_ptr.is_null() || pattern.is_empty() || pattern_size > 128 {
        return Err(Code::INVALID_VALUE);
    }
    let mut waits = command.arguments();
    waits.extend_from_slice(pattern);
    session::call(&kdclSvmFill {
        queue: command.queue(),
        event: command.event(),
        destination: svm_ptr.addr() as u64,
        size: size as u64,
        patternSize: pattern_size as u32,
        waits: &waits,
    })?;
    command.publish();
    Ok(())
}

/// # Safety
///
/// Lists have their stated lengths; the region is left to the command until it has ended.
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
    // SAFETY: guaranteed by the caller.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MAP)? };
    let address = svm_ptr.addr();
    if size == 0 || !SVM_RANGES.contains(address, size) {
        return Err(Code::INVALID_VALUE);
    }
    let command = if blocking == 0 { command } else { command.with_event(COMMAND_SVM_MAP)? };
    // Bytes that the program has mapped for writing, and has received, are newer than the device's.
    let has_newest =
        SVM_RANGES.written_around(address, size).is_some() && !PENDING_READS.come_to(&Rows::run(address, size));
    let is_fine = SVM_RANGES.is_fine(address, size);
    let fresh = flags & MAP_WRITE_INVALIDATE_REGION != 0 || has_newest || is_fine;
    let read_number = if fresh { 0 } else { PENDING_READS.number() };
    let (queue, done, waits) = (command.queue(), command.event(), command.arguments());
    let message = kdclSvmMap {
        queue,
        event: done,
        flags,
        address: address as u64,
        size: size as u64,
        read_number,
        waits: &waits,
    };
    session::call(&message)?;
    // Writes to fine-grained memory need no write-back.
    let writes = flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0 && !is_fine;
    SVM_RANGES.map(address, SvmMap { size, writes, read_number });
    if !fresh {
        // SAFETY: pages of the allocation, which was checked to contain the region.
        unsafe { PENDING_READS.expect(read_number, Rows::run(address, size), None) };
    }
    if blocking != 0 {
        event::wait_for(&[done])?;
    }
    command.publish();
    Ok(())
}

/// # Safety
///
/// Lists have their stated lengths; no thread uses the region any more.
pub(crate) unsafe fn enqueue_svm_unmap(
    queue: cl_command_queue,
    svm_ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_SVM_UNMAP)? };
    let address = svm_ptr.addr();
    let mut map = SVM_RANGES.unmap(address).ok_or(Code::INVALID_VALUE)?;
    // A program that unmaps a region before its bytes have arrived can have changed it only by a command.
    map.writes &= !PENDING_READS.abandon(map.read_number, &Rows::run(address, map.size));
    // When a part of an allocation is unmapped, a driver may give the whole of it to the device, and nothing afterwards. So bytes
    // that the program has written around the part are sent too.
    let around = SVM_RANGES.written_around(address, map.size);
    let around = around.filter(|(start, size)| !PENDING_READS.come_to(&Rows::run(*start, *size)));
    let (start, size) = around.unwrap_or((address, if map.writes { map.size } else { 0 }));
    // SAFETY: pages of the allocation, which contained the regions when they were mapped.
    let unmapped = unsafe { unmap(&command, address, &Rows::run(start, size)) };
    // A region whose unmap is refused stays mapped.
    unmapped.inspect_err(|_| SVM_RANGES.map(address, map))?;
    command.publish();
    Ok(())
}

/// Enqueues the unmap of an address; the bytes of `rows` go to the device first.
///
/// # Safety
///
/// The rows are readable.
unsafe fn unmap(command: &PendingCommand, address: usize, rows: &Rows) -> Result<(), Code> {
    pending_reads::wait_for_overlapping(rows)?;
    // SAFETY: by the contract.
    let bytes = unsafe { rows.gather() };
    let sent = bulk::send(&bytes)?;
    let mut waits = command.arguments();
    waits.extend_from_slice(sent.inline);
    let (queue, event, address, host_address) = (command.queue(), command.event(), address as u64, rows.start as u64);
    session::call(&kdclSvmUnmap { queue, event, address, host_address, staged: sent.staged, waits: &waits }).map(drop)
}

/// # Safety
///
/// Lists have their stated lengths.
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
    // SAFETY: guaranteed by the caller.
    let (command, pointers, sizes) = unsafe {
        let command = PendingCommand::new(queue, (count, events, event), COMMAND_SVM_MIGRATE_MEM)?;
        (command, list(number, svm_pointers), list(number, sizes))
    };
    if pointers.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let addresses: Vec<u64> = pointers.iter().map(|pointer| pointer.addr() as u64).collect();
    let sizes: Vec<u64> = (0..number).map(|at| sizes.get(at).copied().unwrap_or(0) as u64).collect();
    let mut waits = command.arguments();
    lists::put(&mut waits, &addresses);
    lists::put(&mut waits, &sizes);
    let message = kdclSvmMigrate { queue: command.queue(), event: command.event(), flags, waits: &waits };
    session::call(&message)?;
    command.publish();
    Ok(())
}
