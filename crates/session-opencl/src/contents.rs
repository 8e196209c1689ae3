//! Contents of memory: copied aside while the program stands still ([`aside`]), brought to the image behind its back, and
//! put back.
//!
//! | kind | what | object |
//! |---|---|---|
//! | `buffer` | a buffer with memory of its own | its id |
//! | `image` | an image with memory of its own: rows packed | its id |
//! | `svm` | shared virtual memory | its address |
//! | `landing` | what a command read and the program has not fetched | its number |
//!
//! Parts of buffers, images of buffers and buffers in shared virtual memory lie in these. Memory that the host may not
//! read or write is copied through a buffer of ours.

#![expect(unsafe_code, reason = "has the driver copy to and from mapped memory")]

mod aside;
mod copier;
mod frozen;
mod spare;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr;
use std::slice;
use std::sync::Arc;

use katydid_image::{Region, Source};
use katydid_opencl_sys::constant::{
    DEVICE_TYPE_CPU, MEM_HOST_NO_ACCESS, MEM_HOST_READ_ONLY, MEM_HOST_WRITE_ONLY, MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, Dispatch, cl_context, cl_device_id, cl_mem, void};
use katydid_session_core::{CHUNK_BYTES, ChunkError, Progress, read_all};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::kind;
use katydid_wire::opencl::message::{kdclBuffer, kdclImage, kdclSvmAlloc};

pub(crate) use self::aside::Captured;
pub(crate) use self::copier::Copier;
use self::copier::Map;
use self::spare::Spare;
pub(crate) use self::spare::free_memory;
use crate::calls::pending_reads::{CommandEnd, PendingRead, ReadBuffer, ReadLocation as Landed};
use crate::handlers::{driver, make};
use crate::journal::{self, Mapped, State};
use crate::memory::host::pointer;
use crate::objects::table::Object;
use crate::state::Session;

/// Why contents cannot be kept, or put back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentsError {
    /// The driver refuses a copy.
    #[error("the driver answers {code} when asked to copy the {kind} {object}")]
    Copy {
        /// Kind of its region.
        kind: &'static str,
        /// Its id, or address.
        object: u64,
        /// The driver's answer.
        code: Code,
    },
    /// The driver lends us no queue.
    #[error("the driver answers {code} when asked for a queue to copy with")]
    Queue {
        /// The driver's answer.
        code: Code,
    },
    /// Levels of an image.
    #[error("image {object} of the program has levels, and nothing copies these: it cannot be saved")]
    Levels {
        /// Its id.
        object: u64,
    },
    /// The system has no room for a copy.
    #[error("there is no memory for a copy of {bytes} bytes")]
    NoMemory {
        /// How many.
        bytes: u64,
    },
    /// The image lacks something, or has something else.
    #[error("the image has no {kind} {object} of {bytes} bytes, which the session has")]
    Absent {
        /// Kind of its region.
        kind: &'static str,
        /// Its id, or address.
        object: u64,
        /// Bytes.
        bytes: u64,
    },
    /// On the way to the image, or from it.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

/// Where the bytes of an area lie.
enum AreaLocation {
    /// Of a buffer, and the flags that it was made with.
    Buffer(cl_mem, u64),
    /// Of an image: elements, rows, slices; and its flags.
    Image(cl_mem, [usize; 3], u64),
    /// Shared virtual memory.
    Svm(u64),
    /// In memory of the worker's.
    PendingRead(Arc<PendingRead>),
}

/// A row of bytes.
struct Area {
    kind: &'static str,
    object: u64,
    bytes: u64,
    /// The context in which it can be copied; 0 for what needs none.
    context: u32,
    place: AreaLocation,
}

impl Session {
    /// All memory with contents.
    fn areas(&self) -> Result<Vec<Area>, ContentsError> {
        let mut areas = Vec::new();
        for (id, entry) in self.journal.of(kind::MEMORY) {
            let Ok(object) = self.shared.objects.get::<cl_mem>(id) else { continue };
            // What lies in memory of the program's is kept with the program.
            if !self.lies_in_host.contains(&id) {
                areas.extend(self.area_of(id, entry, &object)?);
            }
        }
        for (address, frame) in self.journal.svm() {
            let Ok(message) = kdclSvmAlloc::decode(frame.payload()) else { continue };
            // So is what is fine-grained.
            if message.place != 0 {
                continue;
            }
            let (bytes, context) = (message.size, message.context);
            areas.push(Area { kind: "svm", object: address, bytes, context, place: AreaLocation::Svm(address) });
        }
        for (number, landing) in self.shared.pending_reads.all() {
            if matches!(landing.place, Landed::Own(_)) && landing.len() > 0 {
                let bytes = landing.len();
                areas.push(Area {
                    kind: "landing",
                    object: number,
                    bytes,
                    context: 0,
                    place: AreaLocation::PendingRead(landing),
                });
            }
        }
        Ok(areas)
    }

    /// The area of a memory object; none of one that lies in another.
    fn area_of(&self, id: u32, entry: &journal::Entry, object: &Object<cl_mem>) -> Result<Option<Area>, ContentsError> {
        let payload = entry.made.frame.payload();
        if let Some(message) = kdclBuffer::decode(payload).ok().filter(|_| entry.is_made_by::<kdclBuffer<'_>>()) {
            let place = AreaLocation::Buffer(object.handle, message.flags);
            let area = Area { kind: "buffer", object: id.into(), bytes: message.size, context: message.context, place };
            return Ok((message.place == 0 || self.is_in_host(message.place)).then_some(area));
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
        let place = AreaLocation::Image(object.handle, region, message.flags);
        Ok(Some(Area { kind: "image", object: id.into(), bytes, context: message.context, place }))
    }

    /// A queue in every context that areas need.
    fn copiers(&self, areas: &[Area]) -> Result<HashMap<u32, Arc<Copier>>, ContentsError> {
        let mut copiers = HashMap::new();
        for context in areas.iter().map(|area| area.context).filter(|context| *context != 0) {
            if let Entry::Vacant(place) = copiers.entry(context) {
                place.insert(Arc::new(self.copier(context).map_err(|code| ContentsError::Queue { code })?));
            }
        }
        Ok(copiers)
    }

    /// A queue in a context.
    pub(crate) fn copier(&self, id: u32) -> Result<Copier, Code> {
        let context: Object<cl_context> = self.shared.objects.get(id)?;
        let device = *self.devices_of(id).first().ok_or(Code::INVALID_CONTEXT)?;
        let queue = make!(context.api, clCreateCommandQueue(context.handle, device, 0))?;
        let (is_host, _context) = (self.is_of_processors(id), self.shared.objects.hold::<cl_context>(id)?);
        Ok(Copier { queue, context: context.handle, device, api: context.api, is_host, _context })
    }

    /// The driver's devices of a context; none if it has one that is gone.
    pub(crate) fn devices_of(&self, context: u32) -> Vec<cl_device_id> {
        let devices = self.journal.get(context).map(journal::devices_of).unwrap_or_default();
        let of = self.shared.objects.get::<cl_context>(context);
        of.and_then(|context| self.shared.objects.all_of(context.api, &devices)).unwrap_or_default()
    }

    /// Whether a context has processors of the machine's own alone.
    pub(crate) fn is_of_processors(&self, context: u32) -> bool {
        let (devices, object) = (self.devices_of(context), self.shared.objects.get::<cl_context>(context));
        let are = |context: Object<cl_context>| devices.iter().all(|device| self.is_processor(*device, context.api));
        !devices.is_empty() && object.is_ok_and(are)
    }

    /// Whether a device is one of the machine's own processors, or a part of one, which its driver is asked for.
    fn is_processor(&self, device: cl_device_id, api: &Dispatch) -> bool {
        let mut known = self.platforms.iter().flat_map(|platform| &platform.devices);
        let kind = known.find(|(other, _)| *other == device).map(|(_, kind)| *kind);
        kind.map_or_else(|| crate::drivers::driver::kind(device, api), Ok).is_ok_and(|kind| kind & DEVICE_TYPE_CPU != 0)
    }

    /// Fills memory from an image.
    ///
    /// # Errors
    ///
    /// The first thing that does not go together, or cannot be read.
    pub(crate) fn put_back(
        &self,
        state: &State,
        regions: &[Region],
        source: &dyn Source,
        progress: &Progress,
    ) -> Result<(), ContentsError> {
        self.land_again(state)?;
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
                if self.is_kept_by_program(area) {
                    continue;
                }
                return Err(ContentsError::Absent { kind: area.kind, object: area.object, bytes: area.bytes });
            };
            let copier = copiers.get(&area.context).map(Arc::as_ref);
            let fill = |bytes: &mut [u8]| {
                let places = bytes.chunks_mut(CHUNK_BYTES as usize);
                read_all(region.chunks.iter().copied().zip(places).collect(), source, progress)
            };
            if let Some(lent) = area.lend(copier, false) {
                let start = ptr::with_exposed_provenance_mut::<u8>(lent.address as usize);
                // SAFETY: so many bytes of the driver's or ours, which no code uses before the session is rebuilt.
                fill(unsafe { slice::from_raw_parts_mut(start, area.bytes as usize) })?;
                continue;
            }
            let mut spare = Spare::new(area.bytes)?;
            fill(spare.bytes_mut())?;
            area.write(copier, spare.start)?;
        }
        Ok(())
    }

    /// Whether the contents of an area come with the program: it lay in its memory, and there is another device now.
    fn is_kept_by_program(&self, area: &Area) -> bool {
        area.kind == "buffer" && self.place_in_host(area.object as u32).is_some() && !self.replay.has(area.object)
    }

    /// Where a buffer is mapped in the memory of both.
    fn place_in_host(&self, id: u32) -> Option<u64> {
        let entry = self.journal.get(id).filter(|entry| entry.is_made_by::<kdclBuffer<'_>>())?;
        let place = kdclBuffer::decode(entry.made.frame.payload()).ok()?.place;
        self.is_in_host(place).then_some(place)
    }

    /// Fills buffers with what the program, which is there now, has kept of them.
    ///
    /// # Errors
    ///
    /// The driver's answer.
    pub(crate) fn take_from_program(&self) -> Result<(), ContentsError> {
        let areas: Vec<Area> = self.areas()?.into_iter().filter(|area| self.is_kept_by_program(area)).collect();
        let copiers = self.copiers(&areas)?;
        for area in &areas {
            let Some(place) = self.place_in_host(area.object as u32) else { continue };
            let place = self.host.as_ref().map_or(Err(Code::INVALID_VALUE), |host| host.place(place, area.bytes));
            area.write(copiers.get(&area.context).map(Arc::as_ref), place.map_err(area.failed())?)?;
        }
        Ok(())
    }

    /// Makes room for what had been read and not fetched.
    fn land_again(&self, state: &State) -> Result<(), ContentsError> {
        for journal::PendingRead { number, status, bytes, address } in state.pending_reads.iter().copied() {
            let place = match address {
                0 => {
                    let target = ReadBuffer::new(bytes).map_err(|_| ContentsError::NoMemory { bytes })?;
                    Landed::Own(Arc::new(target))
                }
                address => {
                    let failed = |code| ContentsError::Copy { kind: "landing", object: number, code };
                    Landed::Svm(address, bytes, self.svm.hold(address, bytes).map_err(failed)?)
                }
            };
            self.shared.pending_reads.add(number, PendingRead { place, end: CommandEnd::Past(status) });
        }
        Ok(())
    }

    /// Maps shared virtual memory for the host that was mapped before.
    ///
    /// # Errors
    ///
    /// The driver's answer.
    pub(crate) fn map_again(&mut self, mapped: &[Mapped]) -> Result<(), ContentsError> {
        for Mapped { address, size, flags } in mapped.iter().copied() {
            let failed = |code| ContentsError::Copy { kind: "svm", object: address, code };
            let start = self.svm.start_of(address).ok_or_else(|| failed(Code::INVALID_VALUE))?;
            let made = self.journal.svm().find(|(other, _)| *other == start).map(|(_, frame)| frame.word(0));
            let copier = self.copier(made.unwrap_or(0)).map_err(failed)?;
            let (place, length) = (ptr::with_exposed_provenance_mut(address as usize), size as usize);
            let null = ptr::null_mut();
            driver!(copier.api, clEnqueueSVMMap(copier.queue, 1, flags, place, length, 0, ptr::null(), null))
                .ok()
                .map_err(failed)?;
            self.svm.map(address, size, flags);
        }
        Ok(())
    }
}

/// Elements, rows and slices of an image, and its levels, out of its description.
fn shape(mut left: &[u8]) -> Option<([usize; 3], u32)> {
    let (_order, _type) = (u32::take(&mut left)?, u32::take(&mut left)?);
    let kind = u32::take(&mut left)?;
    let mut sizes = [0u64; 6];
    for size in &mut sizes {
        *size = u64::take(&mut left)?;
    }
    let [width, height, depth, images] = [sizes[0], sizes[1], sizes[2], sizes[3]].map(|size| size.max(1) as usize);
    let region = match kind {
        MEM_OBJECT_IMAGE1D_ARRAY => [width, images, 1],
        // A shape without slices has a depth of 1, one without images 1 image.
        _ => [width, height, depth.max(images)],
    };
    Some((region, u32::take(&mut left)?))
}

/// Where contents lie in this process.
struct LentRange<'a> {
    address: u64,
    /// What keeps them there.
    _map: Option<Map<'a>>,
}

impl Area {
    /// Where the contents lie in this process, to be read or to be written, if they do.
    fn lend<'a>(&self, copier: Option<&'a Copier>, is_out: bool) -> Option<LentRange<'a>> {
        let address = |place: *const void| place.expose_provenance() as u64;
        let copier = copier.filter(|copier| copier.is_host);
        match &self.place {
            AreaLocation::PendingRead(landing) => match &landing.place {
                Landed::Own(target) => Some(LentRange { address: address(target.pointer()), _map: None }),
                Landed::Svm(..) => None,
            },
            AreaLocation::Svm(address) => copier.map(|_| LentRange { address: *address, _map: None }),
            AreaLocation::Buffer(memory, flags) => {
                let map = copier?.map(*memory, (self.bytes, *flags), is_out).ok()?;
                Some(LentRange { address: address(map.place), _map: Some(map) })
            }
            AreaLocation::Image(..) => None,
        }
    }

    /// What the image says of it, without the chunks.
    fn region(&self) -> Region {
        let address = if let AreaLocation::Svm(address) = self.place { address } else { 0 };
        Region {
            kind: self.kind.to_owned(),
            name: format!("{} {:#x}", self.kind, self.object),
            object: Some(self.object),
            gpu: None,
            address,
            bytes: self.bytes,
            chunk_bytes: CHUNK_BYTES as u32,
            chunks: Vec::new(),
        }
    }

    fn failed(&self) -> impl Fn(Code) -> ContentsError + use<> {
        let (kind, object) = (self.kind, self.object);
        move |code| ContentsError::Copy { kind, object, code }
    }

    /// Reads all of it.
    fn read(&self, copier: Option<&Copier>, spare: &mut Spare) -> Result<(), ContentsError> {
        if let AreaLocation::PendingRead(landing) = &self.place {
            let Landed::Own(target) = &landing.place else { return Ok(()) };
            let bytes = spare.bytes_mut();
            for (number, chunk) in bytes.chunks_mut(CHUNK_BYTES as usize).enumerate() {
                let copied = target.copy(number as u64 * CHUNK_BYTES, chunk.len() as u32);
                chunk.copy_from_slice(&copied.ok_or_else(|| self.failed()(Code::INVALID_VALUE))?);
            }
            return Ok(());
        }
        let copier = copier.ok_or_else(|| self.failed()(Code::INVALID_CONTEXT))?;
        let to = spare.start;
        let code = match &self.place {
            AreaLocation::Buffer(memory, flags) if flags & (MEM_HOST_WRITE_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                copier.read(*memory, 0, self.bytes, to)
            }
            AreaLocation::Image(memory, region, flags) if flags & (MEM_HOST_WRITE_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                let (zero, null) = ([0; 3], ptr::null_mut());
                let (start, area) = (zero.as_ptr(), region.as_ptr());
                let queue = copier.queue;
                driver!(copier.api, clEnqueueReadImage(queue, *memory, 1, start, area, 0, 0, to, 0, ptr::null(), null))
                    .ok()
            }
            AreaLocation::Svm(address) => copier.copy_svm(to, pointer(*address), self.bytes),
            AreaLocation::PendingRead(_) => Ok(()),
            hidden => copier.through(self.bytes, |scratch| {
                copier.between(hidden, scratch, self.bytes, true)?;
                copier.read(scratch, 0, self.bytes, to)
            }),
        };
        code.map_err(self.failed())
    }

    /// Writes all of it, from memory of its size.
    fn write(&self, copier: Option<&Copier>, from: *mut void) -> Result<(), ContentsError> {
        if let AreaLocation::PendingRead(landing) = &self.place {
            let Landed::Own(target) = &landing.place else { return Ok(()) };
            // SAFETY: both have so many bytes, and no code knows the landing yet.
            unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), target.pointer().cast(), self.bytes as usize) };
            return Ok(());
        }
        let copier = copier.ok_or_else(|| self.failed()(Code::INVALID_CONTEXT))?;
        let code = match &self.place {
            AreaLocation::Buffer(memory, flags) if flags & (MEM_HOST_READ_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                copier.write(*memory, self.bytes, from)
            }
            AreaLocation::Image(memory, region, flags) if flags & (MEM_HOST_READ_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                let (zero, null) = ([0; 3], ptr::null_mut());
                let (start, area) = (zero.as_ptr(), region.as_ptr());
                let queue = copier.queue;
                driver!(
                    copier.api,
                    clEnqueueWriteImage(queue, *memory, 1, start, area, 0, 0, from, 0, ptr::null(), null)
                )
                .ok()
            }
            AreaLocation::Svm(address) => copier.copy_svm(pointer(*address), from, self.bytes),
            AreaLocation::PendingRead(_) => Ok(()),
            hidden => copier.through(self.bytes, |scratch| {
                copier.write(scratch, self.bytes, from)?;
                copier.between(hidden, scratch, self.bytes, false)
            }),
        };
        code.map_err(self.failed())
    }
}
