//! Maps of buffers in memory that is shared with the program ([`crate::memory::host`]).
//!
//! The driver maps a buffer that was made over this memory, and copies nothing if the buffer lies there. For any other buffer,
//! such as one after a restore, commands copy the region. The same holds for images; for an image that lies in this memory, a map
//! only takes its place in the queue's order.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ptr;

use katydid_opencl_sys::constant::MAP_WRITE_INVALIDATE_REGION;
use katydid_opencl_sys::{Code, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::{self, kdclImage};
use katydid_wire::opencl::transfer_extent::{IMAGE_BOX, TransferExtent};

use crate::calls::arguments::Arguments;
use crate::calls::fault::{Fault, SessionError};
use crate::drivers::call::driver;
use crate::handlers::command::Command;
use crate::handlers::transfer::{Host, Transfer};
use crate::objects::object::Object;
use crate::state::Session;

/// A region of a buffer, and its location in shared memory.
struct Region {
    command: Command,
    memory: Object<cl_mem>,
    pointer: *mut void,
    offset: usize,
    size: usize,
}

impl Region {
    fn read(
        session: &Session,
        (queue, event, memory): (u32, u32, u32),
        address: u64,
        mut arguments: Arguments<'_>,
    ) -> Result<Self, Fault> {
        let command = Command::read(session, queue, event, &mut arguments)?;
        let extent: TransferExtent = arguments.take("extent")?;
        let memory = session.shared.objects.get_of(command.api(), memory)?;
        let host = session.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        let pointer = host.pointer_to(address, extent.region[0])?;
        Ok(Self { command, memory, pointer, offset: extent.origin[0] as usize, size: extent.region[0] as usize })
    }

    /// Enqueues a command that moves nothing, in its place among the others.
    fn mark(&self, session: &Session) -> Result<(), Fault> {
        mark(session, &self.command)
    }

    /// Maps the region with the driver. A map at another address is undone: such a driver copies.
    fn map(&self, session: &Session, flags: u64) -> Result<(), Fault> {
        let (api, queue, memory) = (self.command.api(), self.command.queue.handle, self.memory.handle);
        let map = api.clEnqueueMapBuffer.ok_or(Code::INVALID_OPERATION)?;
        let mut pointer = ptr::null_mut();
        self.command.run(session, |count, list, event| {
            let mut code = 0;
            // SAFETY: handles are the driver's, the list has the stated length, the code is a local.
            pointer =
                unsafe { map(queue, memory, 0, flags, self.offset, self.size, count, list, event, &raw mut code) };
            Code(code)
        })?;
        if pointer == self.pointer {
            return Ok(());
        }
        driver!(api, clEnqueueUnmapMemObject(queue, memory, pointer, 0, ptr::null(), ptr::null_mut())).ok()?;
        Err(Code::MAP_FAILURE.into())
    }
}

fn mark(session: &Session, command: &Command) -> Result<(), Fault> {
    let (api, queue) = (command.api(), command.queue.handle);
    command.run(session, |count, list, event| driver!(api, clEnqueueMarkerWithWaitList(queue, count, list, event)))
}

/// A box of an image, and its location in shared memory; the pitches there follow the extent.
struct ImageRegion {
    command: Command,
    transfer: Transfer,
    pointer: Host,
}

impl ImageRegion {
    fn read(
        session: &Session,
        (queue, event, memory): (u32, u32, u32),
        address: u64,
        mut arguments: Arguments<'_>,
    ) -> Result<Self, Fault> {
        let command = Command::read(session, queue, event, &mut arguments)?;
        let transfer = Transfer::read(session, &command, (memory, IMAGE_BOX), &mut arguments)?;
        let mut rest = arguments.remaining();
        let bad = || SessionError::BadPart { message: "a map of an image", part: "pitches" };
        let (row, slice) = u64::take(&mut rest).zip(u64::take(&mut rest)).ok_or_else(bad)?;
        let reach = transfer.reach(row, slice).ok_or(Code::INVALID_VALUE)?;
        let host = session.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        let pointer = Host { start: host.pointer_to(address, reach)?, row: row as usize, slice: slice as usize };
        Ok(Self { command, transfer, pointer })
    }

    /// Enqueues a copy of the box to its location, or back.
    fn copy(&self, session: &Session, is_read: bool) -> Result<(), Fault> {
        let Self { command, transfer, pointer } = self;
        command.run(session, |count, list, event| transfer.enqueue(command, *pointer, is_read, (count, list, event)))
    }
}

/// Maps a region: shared memory holds its contents when the command has ended.
pub(crate) fn kdclMap(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclMap<'_>,
) -> Result<message::kdclMapReply, Fault> {
    let (names, arguments) = ((message.queue, message.event, message.memory), Arguments::new("kdclMap", message.waits));
    let in_place = u32::from(session.is_in_host.contains(&message.memory));
    if session.is_image(message.memory) {
        let region = ImageRegion::read(session, names, message.address, arguments)?;
        if in_place == 1 || message.flags & MAP_WRITE_INVALIDATE_REGION != 0 {
            mark(session, &region.command)?;
        } else {
            region.copy(session, true)?;
        }
        return Ok(message::kdclMapReply { in_place });
    }
    let region = Region::read(session, names, message.address, arguments)?;
    if session.mapped_in_host.contains(&message.memory) {
        region.map(session, message.flags)?;
        *session.host_maps.entry((message.memory, message.address)).or_default() += 1;
    } else if message.flags & MAP_WRITE_INVALIDATE_REGION != 0 {
        region.mark(session)?;
    } else {
        let Region { command, memory, pointer, offset, size } = &region;
        let (api, queue) = (command.api(), command.queue.handle);
        command.run(session, |count, list, event| {
            driver!(api, clEnqueueReadBuffer(queue, memory.handle, 0, *offset, *size, *pointer, count, list, event))
        })?;
    }
    session.count_map(message.address, true);
    Ok(message::kdclMapReply { in_place })
}

/// Unmaps a region: it belongs to the device again, with what the program may have written there.
pub(crate) fn kdclUnmap(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclUnmap<'_>,
) -> Result<message::kdclUnmapReply, Fault> {
    let names = (message.queue, message.event, message.memory);
    let arguments = Arguments::new("kdclUnmap", message.waits);
    if session.is_image(message.memory) {
        let region = ImageRegion::read(session, names, message.address, arguments)?;
        if message.writes == 0 || session.is_in_host.contains(&message.memory) {
            mark(session, &region.command)?;
        } else {
            region.copy(session, false)?;
        }
        return Ok(message::kdclUnmapReply {});
    }
    let region = Region::read(session, names, message.address, arguments)?;
    let Region { command, memory, pointer, offset, size } = &region;
    let (api, queue) = (command.api(), command.queue.handle);
    if session.mapped_in_host.contains(&message.memory) {
        // A region that was mapped in the worker before this one is not mapped in any driver.
        if !session.host_maps.contains_key(&(message.memory, message.address)) {
            region.mark(session)?;
            return Ok(message::kdclUnmapReply {});
        }
        command.run(session, |count, list, event| {
            driver!(api, clEnqueueUnmapMemObject(queue, memory.handle, *pointer, count, list, event))
        })?;
        session.forget_map(message.memory, message.address);
    } else if message.writes != 0 {
        command.run(session, |count, list, event| {
            driver!(api, clEnqueueWriteBuffer(queue, memory.handle, 0, *offset, *size, *pointer, count, list, event))
        })?;
    } else {
        region.mark(session)?;
    }
    session.count_map(message.address, false);
    Ok(message::kdclUnmapReply {})
}

impl Session {
    fn is_image(&self, memory: u32) -> bool {
        self.journal.get(memory).is_some_and(|entry| entry.is_made_by::<kdclImage<'_>>())
    }

    /// Counts maps of memory that is not the driver's, where that matters.
    fn count_map(&self, address: u64, is_mapped: bool) {
        if let Some(host) = &self.host {
            host.count_map(address, is_mapped);
        }
    }

    /// Removes one map of this region.
    fn forget_map(&mut self, memory: u32, address: u64) {
        let Some(count) = self.host_maps.get_mut(&(memory, address)) else { return };
        *count -= 1;
        if *count == 0 {
            self.host_maps.remove(&(memory, address));
        }
    }
}
