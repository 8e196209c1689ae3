//! Contents of memory: copied while the program is paused ([`capture`]), written to the image while it runs, and restored.
//!
//! | kind | what | object |
//! |---|---|---|
//! | `buffer` | a buffer with memory of its own | its id |
//! | `image` | an image with memory of its own: rows packed | its id |
//! | `svm` | shared virtual memory | its address |
//! | `read` | what a command read and the program has not fetched | its number |
//!
//! Sub-buffers, images of buffers and buffers in shared virtual memory lie in these. If the host may not read or write memory, it
//! is copied through a temporary buffer.

#![expect(unsafe_code, reason = "has the driver copy to and from mapped memory")]

mod area;
mod capture;
mod copier;
mod copy_memory;
mod error;
mod frozen;
mod location;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex};

use katydid_image::{ImageSource, Region};
use katydid_opencl_sys::constant::DEVICE_TYPE_CPU;
use katydid_opencl_sys::{Code, Dispatch, cl_context, cl_device_id, cl_mem};
use katydid_session_core::{CHUNK_BYTES, Progress, read_all};
use katydid_wire::opencl::kind;
use katydid_wire::opencl::message::{kdclBuffer, kdclImage, kdclSvmAlloc};

use self::area::{Area, shape};
pub(crate) use self::capture::CapturedContents;
pub(crate) use self::copier::Copier;
use self::copy_memory::CopyMemory;
pub(crate) use self::error::ContentsError;
use self::location::AreaLocation;
use crate::calls::pending_reads::{CommandEnd, PendingRead, ReadBuffer, ReadLocation};
use crate::drivers::call::{driver, make};
use crate::journal::{self, JournalState, SvmMapping};
use crate::objects::object::Object;
use crate::state::Session;

impl Session {
    /// Returns all memory with contents.
    fn areas(&self) -> Result<Vec<Area>, ContentsError> {
        let mut areas = Vec::new();
        for (id, entry) in self.journal.of(kind::MEMORY) {
            let Ok(object) = self.shared.objects.get::<cl_mem>(id) else { continue };
            // Memory of the program is saved with the program.
            if !self.is_in_host.contains(&id) {
                areas.extend(self.area_of(id, entry, &object)?);
            }
        }
        for (address, frame) in self.journal.svm() {
            let Ok(message) = kdclSvmAlloc::decode(frame.payload()) else { continue };
            // Fine-grained memory is saved with the program too.
            if message.host_address != 0 {
                continue;
            }
            let (bytes, context) = (message.size, message.context);
            areas.push(Area { kind: "svm", object: address, bytes, context, location: AreaLocation::Svm(address) });
        }
        for (number, read) in self.shared.pending_reads.all() {
            if matches!(read.location, ReadLocation::Own(_)) && read.len() > 0 {
                let bytes = read.len();
                areas.push(Area {
                    kind: "read",
                    object: number,
                    bytes,
                    context: 0,
                    location: AreaLocation::PendingRead(read),
                });
            }
        }
        Ok(areas)
    }

    /// Returns the area of a memory object; `None` if it lies in another one.
    fn area_of(
        &self,
        id: u32,
        entry: &journal::ObjectEntry,
        object: &Object<cl_mem>,
    ) -> Result<Option<Area>, ContentsError> {
        let payload = entry.creation.frame.payload();
        if let Some(message) = kdclBuffer::decode(payload).ok().filter(|_| entry.is_made_by::<kdclBuffer<'_>>()) {
            let location = AreaLocation::Buffer(object.handle, message.flags);
            let area =
                Area { kind: "buffer", object: id.into(), bytes: message.size, context: message.context, location };
            return Ok((message.host_address == 0 || self.is_in_host(message.host_address)).then_some(area));
        }
        let Some(message) = kdclImage::decode(payload).ok().filter(|_| entry.is_made_by::<kdclImage<'_>>()) else {
            return Ok(None);
        };
        if message.parent != 0 {
            return Ok(None);
        }
        let (region, levels) = shape(message.arguments).unwrap_or(([0; 3], 0));
        if levels > 1 {
            return Err(ContentsError::Levels { object: id.into() });
        }
        let bytes = region.iter().map(|size| *size as u64).product::<u64>() * object.size;
        let location = AreaLocation::Image(object.handle, region, message.flags);
        Ok(Some(Area { kind: "image", object: id.into(), bytes, context: message.context, location }))
    }

    /// Makes a queue in every context that areas need.
    fn copiers(&self, areas: &[Area]) -> Result<HashMap<u32, Arc<Copier>>, ContentsError> {
        let mut copiers = HashMap::new();
        for context in areas.iter().map(|area| area.context).filter(|context| *context != 0) {
            if let Entry::Vacant(pointer) = copiers.entry(context) {
                pointer.insert(Arc::new(self.copier(context).map_err(|code| ContentsError::Queue { code })?));
            }
        }
        Ok(copiers)
    }

    /// Makes a queue in a context.
    pub(crate) fn copier(&self, id: u32) -> Result<Copier, Code> {
        let context: Object<cl_context> = self.shared.objects.get(id)?;
        let device = *self.devices_of(id).first().ok_or(Code::INVALID_CONTEXT)?;
        let queue = make!(context.api, clCreateCommandQueue(context.handle, device, 0))?;
        let (is_host, _context) = (self.is_of_processors(id), self.shared.objects.hold::<cl_context>(id)?);
        let (context, api, reading) = (context.handle, context.api, Mutex::default());
        Ok(Copier { queue, context, device, api, is_host, reading, _context })
    }

    /// Returns the driver's devices of a context; none if one of them is gone.
    pub(crate) fn devices_of(&self, context: u32) -> Vec<cl_device_id> {
        let devices = self.journal.get(context).map(journal::devices_of).unwrap_or_default();
        let of = self.shared.objects.get::<cl_context>(context);
        of.and_then(|context| self.shared.objects.all_of(context.api, &devices)).unwrap_or_default()
    }

    /// Returns whether all devices of a context are the machine's own processors.
    pub(crate) fn is_of_processors(&self, context: u32) -> bool {
        let (devices, object) = (self.devices_of(context), self.shared.objects.get::<cl_context>(context));
        let are = |context: Object<cl_context>| devices.iter().all(|device| self.is_processor(*device, context.api));
        !devices.is_empty() && object.is_ok_and(are)
    }

    /// Returns whether a device is one of the machine's own processors, or a part of one; asks the driver about parts.
    fn is_processor(&self, device: cl_device_id, api: &Dispatch) -> bool {
        let mut known = self.platforms.iter().flat_map(|platform| &platform.devices);
        let kind = known.find(|(other, _)| *other == device).map(|(_, kind)| *kind);
        kind.map_or_else(|| crate::drivers::driver::kind(device, api), Ok).is_ok_and(|kind| kind & DEVICE_TYPE_CPU != 0)
    }

    /// Fills memory from an image.
    ///
    /// # Errors
    ///
    /// The first region that does not match or cannot be read.
    pub(crate) fn put_back(
        &self,
        state: &JournalState,
        regions: &[Region],
        source: &dyn ImageSource,
        progress: &Progress,
    ) -> Result<(), ContentsError> {
        self.restore_pending_reads(state)?;
        let areas = self.areas()?;
        let copiers = self.copiers(&areas)?;
        progress.expect(areas.iter().map(|area| area.bytes).sum());
        for area in &areas {
            let is_its = |region: &&Region| {
                (region.kind.as_str(), region.object, region.bytes) == (area.kind, Some(area.object), area.bytes)
                    && region.chunk_bytes == CHUNK_BYTES as u32
                    && region.chunks.len() as u64 == area.bytes.div_ceil(CHUNK_BYTES)
            };
            let Some(region) = regions.iter().find(is_its) else {
                if self.is_in_program_memory(area) {
                    continue;
                }
                return Err(ContentsError::Absent { kind: area.kind, object: area.object, bytes: area.bytes });
            };
            let copier = copiers.get(&area.context).map(Arc::as_ref);
            let fill = |bytes: &mut [u8]| {
                let targets = bytes.chunks_mut(CHUNK_BYTES as usize);
                read_all(region.chunks.iter().copied().zip(targets).collect(), source, progress)
            };
            if let Some(direct) = area.direct_range(copier, false) {
                let start = ptr::with_exposed_provenance_mut::<u8>(direct.address as usize);
                // SAFETY: the area's bytes, the driver's or the worker's, which no code uses before the session is rebuilt.
                fill(unsafe { slice::from_raw_parts_mut(start, area.bytes as usize) })?;
                continue;
            }
            let mut memory = CopyMemory::new(area.bytes)?;
            fill(memory.bytes_mut())?;
            area.write(copier, memory.start)?;
        }
        Ok(())
    }

    /// Returns whether the program's image holds the contents of an area: it lay in program memory, and the device is another one
    /// now.
    fn is_in_program_memory(&self, area: &Area) -> bool {
        matches!(area.kind, "buffer" | "image")
            && self.host_address(area.object as u32).is_some()
            && !self.replay.has(area.object)
    }

    /// Returns the address of a buffer or an image in the memory that program and worker share.
    fn host_address(&self, id: u32) -> Option<u64> {
        let entry = self.journal.get(id)?;
        let payload = entry.creation.frame.payload();
        let pointer = if entry.is_made_by::<kdclImage<'_>>() {
            kdclImage::decode(payload).ok()?.host_address
        } else {
            kdclBuffer::decode(payload).ok().filter(|_| entry.is_made_by::<kdclBuffer<'_>>())?.host_address
        };
        self.is_in_host(pointer).then_some(pointer)
    }

    /// Fills buffers and images with the contents that the restored program has kept.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn take_from_program(&self) -> Result<(), ContentsError> {
        let areas: Vec<Area> = self.areas()?.into_iter().filter(|area| self.is_in_program_memory(area)).collect();
        let copiers = self.copiers(&areas)?;
        for area in &areas {
            let Some(pointer) = self.host_address(area.object as u32) else { continue };
            let pointer =
                self.host.as_ref().map_or(Err(Code::INVALID_VALUE), |host| host.pointer_to(pointer, area.bytes));
            area.write(copiers.get(&area.context).map(Arc::as_ref), pointer.map_err(area.failed())?)?;
        }
        Ok(())
    }

    /// Makes the pending reads again, with memory for bytes that the program has not fetched.
    fn restore_pending_reads(&self, state: &JournalState) -> Result<(), ContentsError> {
        for journal::PendingRead { number, status, bytes, address } in state.pending_reads.iter().copied() {
            let location = match address {
                0 => {
                    let target = ReadBuffer::new(bytes).map_err(|_| ContentsError::NoMemory { bytes })?;
                    ReadLocation::Own(Arc::new(target))
                }
                address => {
                    let failed = |code| ContentsError::Copy { kind: "read", object: number, code };
                    ReadLocation::Svm(address, bytes, self.svm.hold(address, bytes).map_err(failed)?)
                }
            };
            self.shared.pending_reads.add(number, PendingRead { location, end: CommandEnd::Past(status) });
        }
        Ok(())
    }

    /// Maps the shared virtual memory again that was mapped for the host.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn map_again(&mut self, mapped: &[SvmMapping]) -> Result<(), ContentsError> {
        for SvmMapping { address, size, flags } in mapped.iter().copied() {
            let failed = |code| ContentsError::Copy { kind: "svm", object: address, code };
            let start = self.svm.start_of(address).ok_or_else(|| failed(Code::INVALID_VALUE))?;
            let context = self.journal.svm().find(|(other, _)| *other == start).map(|(_, frame)| frame.word(0));
            let copier = self.copier(context.unwrap_or(0)).map_err(failed)?;
            let (pointer, length) = (ptr::with_exposed_provenance_mut(address as usize), size as usize);
            let null = ptr::null_mut();
            driver!(copier.api, clEnqueueSVMMap(copier.queue, 1, flags, pointer, length, 0, ptr::null(), null))
                .ok()
                .map_err(failed)?;
            self.svm.map(address, size, flags);
        }
        Ok(())
    }
}
