//! Shared virtual memory. The program has its own memory at the same addresses, so a map copies bytes there, and an unmap copies
//! them back.

#![expect(unsafe_code, reason = "calls the driver and copies into mapped memory")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ops::RangeBounds;
use std::ptr;
use std::sync::Arc;

use katydid_opencl_sys::constant::{MEM_SVM_ATOMICS, MEM_SVM_FINE_GRAIN_BUFFER};
use katydid_opencl_sys::{Code, cl_context, void};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message;

use crate::calls::arguments::Arguments;
use crate::calls::fault::Fault;
use crate::calls::pending_reads::{CommandEnd, PendingRead, ReadBuffer, ReadLocation};
use crate::drivers::call::driver;
use crate::handlers::command::Command;
use crate::memory::address::pointer;
use crate::memory::host::replace_by_private_pages;
use crate::memory::svm::PAGE_BYTES;
use crate::memory::svm_placement::{HEAP_BLOCK_BYTES, in_zone, with_mappings};
use crate::objects::object::Object;
use crate::state::Session;

/// Most attempts to get memory in the zone from a driver.
const MAX_SVM_ATTEMPTS: usize = 4;

/// Returns how many bytes to request from a driver for `size`: whole pages, one more for alignment, and at least a heap block.
pub(crate) fn driver_bytes(size: u64) -> Option<u64> {
    Some(size.checked_next_multiple_of(PAGE_BYTES)?.checked_add(PAGE_BYTES)?.max(HEAP_BLOCK_BYTES))
}

/// Allocates whole pages, so that the program can map the same ones.
pub(crate) fn kdclSvmAlloc(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmAlloc,
) -> Result<message::kdclSvmAllocReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let alloc = context.api.clSVMAlloc.ok_or(Code::INVALID_OPERATION)?;
    let is_fine = message.flags & (MEM_SVM_FINE_GRAIN_BUFFER | MEM_SVM_ATOMICS) != 0;
    if u64::from(message.alignment) > PAGE_BYTES || message.size == 0 || is_fine != (message.host_address != 0) {
        return Err(Code::INVALID_VALUE.into());
    }
    if is_fine {
        session.check_fine(&message)?;
    }
    let driver_bytes = driver_bytes(message.size).ok_or(Code::OUT_OF_RESOURCES)?;
    let charge = session.shared.charges.charge(session.memory_kind(message.context), driver_bytes);
    let charge = charge.ok_or(Code::OUT_OF_RESOURCES)?;
    if message.alignment != 0 && !takes_alignment(&context, &message) {
        return Err(Code::OUT_OF_RESOURCES.into());
    }
    let driver_bytes = usize::try_from(driver_bytes).map_err(|_| Code::OUT_OF_RESOURCES)?;
    let allocate = |end| {
        with_mappings(driver_bytes, end, move || {
            let Object { handle, .. } = { context };
            // SAFETY: the context is alive.
            unsafe { alloc(handle, message.flags, driver_bytes, 0) }.expose_provenance() as u64
        })
    };
    let end =
        if session.replay.is_on { session.replay.svm_end } else { Some(session.svm.end_of_next(driver_bytes as u64)) };
    let give_back = |raw| {
        if let Some(free) = context.api.clSVMFree {
            // SAFETY: from the driver, given back once, and unknown to all other code.
            unsafe { free(context.handle, pointer(raw)) };
        }
    };
    let tries = if session.replay.is_on { 1 } else { MAX_SVM_ATTEMPTS };
    let raw_in_zone = in_zone(driver_bytes, tries, || allocate(end).filter(|raw| *raw != 0), give_back);
    // A driver may want addresses of its own that the limit excludes.
    let raw = raw_in_zone.or_else(|| allocate(None)).filter(|raw| *raw != 0).ok_or(Code::OUT_OF_RESOURCES)?;
    let held = session.shared.objects.hold::<cl_context>(message.context)?;
    let address = session.svm.add(raw, (message.size, message.host_address), held);
    session.svm.hold(address, message.size)?.set_charge(Some(charge));
    if let Err(code) = session.share_program_pages(address..=address) {
        session.free_svm(address)?;
        return Err(code.into());
    }
    Ok(message::kdclSvmAllocReply { address })
}

/// Tests whether the driver allocates with such an alignment. The program's memory itself begins at a page.
fn takes_alignment(context: &Object<cl_context>, message: &message::kdclSvmAlloc) -> bool {
    let (Some(alloc), Some(free)) = (context.api.clSVMAlloc, context.api.clSVMFree) else { return false };
    // SAFETY: the context is alive, and what is allocated is freed at once.
    unsafe {
        let mapped = alloc(context.handle, message.flags, message.size.min(PAGE_BYTES) as usize, message.alignment);
        free(context.handle, mapped);
        !mapped.is_null()
    }
}

impl Session {
    /// Checks that the program's memory can also be the driver's. The driver itself reports whether it has fine-grained memory.
    fn check_fine(&self, message: &message::kdclSvmAlloc) -> Result<(), Code> {
        let bytes = message.size.checked_next_multiple_of(PAGE_BYTES).ok_or(Code::INVALID_VALUE)?;
        let host = self.host.as_ref().filter(|_| self.is_of_processors(message.context)).ok_or(Code::INVALID_VALUE)?;
        host.pointer_to(message.host_address, bytes)?;
        if host.is_unshared(message.host_address) || !message.host_address.is_multiple_of(PAGE_BYTES) {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// Maps the program's memory at the fine-grained memory that begins at these addresses, once the program exists.
    ///
    /// # Errors
    ///
    /// The program lacks the memory that it had, or the system refuses.
    pub(crate) fn share_program_pages(&self, addresses: impl RangeBounds<u64>) -> Result<(), Code> {
        let Some(host) = &self.host else { return Ok(()) };
        self.svm.fine(addresses).try_for_each(|(address, allocation)| {
            // SAFETY: whole pages of the driver's allocation, which is for the program, and which no command uses yet.
            unsafe { host.share_program_pages(allocation.shared_address, address, allocation.pages()) }
        })
    }

    /// Frees an allocation.
    fn free_svm(&mut self, address: u64) -> Result<(), Code> {
        let found = self.svm.remove(address).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: pages of the allocation, which the program has given up.
        let is_own = found.shared_address == 0 || unsafe { replace_by_private_pages(address, found.pages()) }.is_ok();
        self.shared.pending_reads.forget_svm(address..address + found.size);
        // A driver writes notes into free memory. They would land in the program's memory if its pages could not be replaced.
        if is_own {
            drop(found.into_memory());
        }
        Ok(())
    }
}

/// Frees shared virtual memory (`clSVMFree`).
pub(crate) fn kdclSvmFree(session: &mut Session, _: &FrameHead, message: message::kdclSvmFree) -> Result<(), Fault> {
    Ok(session.free_svm(message.address)?)
}

/// Copies within shared virtual memory.
pub(crate) fn kdclSvmCopy(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmCopy<'_>,
) -> Result<message::kdclSvmCopyReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmCopy", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    session.svm.check(message.destination, message.size)?;
    session.svm.check(message.source, message.size)?;
    command.run(session, |count, waits, event| {
        copy(&command, pointer(message.destination), pointer(message.source), message.size, (count, waits, event))
    })?;
    Ok(message::kdclSvmCopyReply {})
}

type WaitList = (u32, *const katydid_opencl_sys::cl_event, *mut katydid_opencl_sys::cl_event);

fn copy(command: &Command, to: *mut void, from: *const void, size: u64, (count, waits, event): WaitList) -> Code {
    let queue = command.queue.handle;
    driver!(command.api(), clEnqueueSVMMemcpy(queue, 0, to, from, size as usize, count, waits, event))
}

/// Writes the program's bytes to shared virtual memory.
pub(crate) fn kdclSvmWrite(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclSvmWrite<'_>,
) -> Result<message::kdclSvmWriteReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmWrite", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments);
    let bytes = session.bytes(head, message.staged, arguments.remaining())?.into_owned();
    let command = command?;
    let size = bytes.len() as u64;
    session.svm.check(message.destination, size)?;
    let event = command.run_held(session, |count, waits, event| {
        copy(&command, pointer(message.destination), bytes.as_ptr().cast(), size, (count, waits, event))
    })?;
    session.event_poller.keep_until(event, bytes)?;
    Ok(message::kdclSvmWriteReply {})
}

/// Reads shared virtual memory for the program.
pub(crate) fn kdclSvmRead(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmRead<'_>,
) -> Result<message::kdclSvmReadReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmRead", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    session.svm.check(message.source, message.size)?;
    let target = Arc::new(ReadBuffer::new(message.size)?);
    let event = command.run_held(session, |count, waits, event| {
        copy(&command, target.pointer(), pointer(message.source), message.size, (count, waits, event))
    })?;
    session
        .shared
        .pending_reads
        .add(message.read_number, PendingRead { location: ReadLocation::Own(target), end: CommandEnd::Awaited(event) });
    Ok(message::kdclSvmReadReply {})
}

/// Copies within the program's memory: enqueues a marker in the copy's place, and the bytes are fetched at its end.
pub(crate) fn kdclHostCopy(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclHostCopy<'_>,
) -> Result<message::kdclHostCopyReply, Fault> {
    let mut arguments = Arguments::new("kdclHostCopy", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments);
    let bytes = session.bytes(head, message.staged, arguments.remaining())?.into_owned();
    let (command, target) = (command?, Arc::new(ReadBuffer::from(bytes)));
    let (api, queue) = (command.api(), command.queue.handle);
    let event = command.run_held(session, |count, waits, event| {
        // The driver decides whether a copy of no bytes exists. It accesses no memory for it.
        if target.len() == 0 {
            let (to, from) = ([0u8; 64], [0u8; 64]);
            return copy(&command, to.as_ptr().cast_mut().cast(), from.as_ptr().cast(), 0, (count, waits, event));
        }
        driver!(api, clEnqueueMarkerWithWaitList(queue, count, waits, event))
    })?;
    session
        .shared
        .pending_reads
        .add(message.read_number, PendingRead { location: ReadLocation::Own(target), end: CommandEnd::Awaited(event) });
    Ok(message::kdclHostCopyReply {})
}

/// Fills a range with a pattern.
pub(crate) fn kdclSvmFill(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmFill<'_>,
) -> Result<message::kdclSvmFillReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmFill", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let pattern = arguments.remaining();
    session.svm.check(message.destination, message.size)?;
    if pattern.len() != message.patternSize as usize {
        return Err(Code::INVALID_VALUE.into());
    }
    let (queue, bytes, size) = (command.queue.handle, pattern.as_ptr().cast(), message.size as usize);
    command.run(session, |count, waits, event| {
        let to = pointer(message.destination);
        driver!(command.api(), clEnqueueSVMMemFill(queue, to, bytes, pattern.len(), size, count, waits, event))
    })?;
    Ok(message::kdclSvmFillReply {})
}

/// Maps a range for the host; the program fetches the bytes from there. With `read_number` 0 the program will overwrite them all.
pub(crate) fn kdclSvmMap(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmMap<'_>,
) -> Result<message::kdclSvmMapReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmMap", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    session.svm.check(message.address, message.size)?;
    let (queue, mapped, size) = (command.queue.handle, pointer(message.address), message.size as usize);
    let event = command.run_held(session, |count, waits, event| {
        driver!(command.api(), clEnqueueSVMMap(queue, 0, message.flags, mapped, size, count, waits, event))
    })?;
    if message.read_number != 0 {
        let memory = session.svm.hold(message.address, message.size)?;
        let read = PendingRead {
            location: ReadLocation::Svm(message.address, message.size, memory),
            end: CommandEnd::Awaited(event),
        };
        session.shared.pending_reads.add(message.read_number, read);
    }
    session.svm.map(message.address, message.size, message.flags);
    Ok(message::kdclSvmMapReply {})
}

/// Unmaps a range. What the program wrote, if it could, is stored first: at `host_address`, the start of the region, or a wider
/// region mapped for writing.
pub(crate) fn kdclSvmUnmap(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclSvmUnmap<'_>,
) -> Result<message::kdclSvmUnmapReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmUnmap", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments);
    let bytes = session.bytes(head, message.staged, arguments.remaining())?;
    let command = command?;
    session.svm.check(message.host_address, bytes.len() as u64)?;
    // SAFETY: inside an allocation that the program has mapped, so no kernel may use it; the bytes lie elsewhere.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(message.host_address).cast::<u8>(), bytes.len()) };
    let (queue, mapped) = (command.queue.handle, pointer(message.address));
    command.run(session, |count, waits, event| {
        driver!(command.api(), clEnqueueSVMUnmap(queue, mapped, count, waits, event))
    })?;
    session.svm.unmap(message.address);
    Ok(message::kdclSvmUnmapReply {})
}

/// Migrates ranges to a device: addresses, sizes.
pub(crate) fn kdclSvmMigrate(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSvmMigrate<'_>,
) -> Result<message::kdclSvmMigrateReply, Fault> {
    let mut arguments = Arguments::new("kdclSvmMigrate", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let (addresses, sizes): (Vec<u64>, Vec<u64>) = (arguments.list("addresses")?, arguments.list("sizes")?);
    if addresses.len() != sizes.len() {
        return Err(Code::INVALID_VALUE.into());
    }
    for (address, size) in addresses.iter().zip(&sizes) {
        session.svm.check(*address, *size)?;
    }
    let pointers: Vec<*const void> = addresses.iter().map(|address| pointer(*address).cast_const()).collect();
    let sizes: Vec<usize> = sizes.iter().map(|size| *size as usize).collect();
    let (queue, number, flags) = (command.queue.handle, pointers.len() as u32, message.flags);
    command.run(session, |count, waits, event| {
        let (pointers, sizes) = (pointers.as_ptr(), sizes.as_ptr());
        driver!(command.api(), clEnqueueSVMMigrateMem(queue, number, pointers, sizes, flags, count, waits, event))
    })?;
    Ok(message::kdclSvmMigrateReply {})
}
