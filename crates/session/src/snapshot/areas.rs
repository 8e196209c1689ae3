//! Finds the memory of a session that has contents.
//!
//! | kind | what | object |
//! |---|---|---|
//! | `arena` | a grown piece of a device arena | its address |
//! | `block` | a block of the virtual memory API | its id |
//! | `array`, `mipmap` | an array, or a level of a mipmap: rows, packed | its id, with the level above 32 bits |
//! | `variables` | all variables of a module, or of a library in a context | id, with the context above 32 bits |
//! | `heap` | what device code allocated (softcuda) | its address |
//! | `pinned` | host pages that are the worker's alone | their address |
//!
//! An error names memory that cannot be saved; nothing is left out.

#![expect(unsafe_code, reason = "asks the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUcontext, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmipmappedArray,
    CUresult, access_flags,
};
use katydid_driver::Driver;
use katydid_image::Region;
use serde::{Deserialize, Serialize};

use super::area::{Area, AreaLocation, CHUNK_BYTES, Texels};
use super::code::{self, FoundVariable, LoadedCode};
use super::contexts::{Contexts, SwitchableContext, architecture};
use super::declared::NamedImage;
use super::error::{SnapshotError, refused};
use super::soft;
use super::spare_memory::SpareMemory;
use crate::device::ask::ask;
use crate::journal::ObjectKind;
use crate::memory::device_block::access;
use crate::memory::virtual_memory::Memory;
use crate::objects::arrays::ArrayObject;
use crate::state::Session;

/// Kind of the areas that are grown pieces of arenas.
pub(super) const ARENA_KIND: &str = "arena";
/// Kind of the areas that are host pages.
pub(super) const PINNED_KIND: &str = "pinned";
/// Flags of arrays whose texels are mapped like virtual memory: sparse ones, and those mapped later.
const MAPPED_TEXELS: u32 = 0x40 | 0x80;
/// Most levels of a mipmap, as extents have 32 bits.
const MAX_MIP_LEVELS: u32 = 32;

/// Memory whose contents a snapshot saves, and the records of the objects that hold it.
pub(super) struct Areas {
    pub(super) all: Vec<Area>,
    pub(super) records: Records,
    /// Keeps addresses of areas mapped.
    _views: Vec<SpareMemory>,
}

/// The image's records of areas, beside their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Records {
    /// Variables, in the order in which they are packed.
    pub(super) code: Vec<CodeRecord>,
    pub(super) heaps: Vec<HeapRecord>,
}

/// The variables of a piece of code in a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CodeRecord {
    pub(super) code: String,
    pub(super) object: u64,
    pub(super) variables: Vec<FoundVariable>,
    /// The code that the device runs: its functions have the same addresses only with the same code. Images of earlier
    /// builds do not tell.
    #[serde(default)]
    pub(super) runs: Option<String>,
    /// Whether addresses of its functions depend on where it is loaded. Each load determines it again.
    #[serde(skip)]
    pub(super) relocates_functions: bool,
}

/// A heap of device code, by the program's id of its context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeapRecord {
    pub(super) context: u32,
    #[serde(rename = "books")]
    pub(super) allocator_state: Vec<u8>,
}

/// Which areas are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AreaFilter {
    /// Includes host pages that the program has as well.
    pub(super) shared_pages: bool,
}

/// Finds the areas of a session whose GPU is at rest.
///
/// # Errors
///
/// Memory that cannot be saved, or a query that the driver refuses.
pub(super) fn areas(session: &mut Session, contexts: &Contexts, filter: AreaFilter) -> Result<Areas, SnapshotError> {
    let mut finder = AreaFinder::new(session, contexts);
    finder.arenas(session)?;
    // Before blocks: if a block is mapped piece by piece, its memory cannot be mapped elsewhere, and that error says less.
    finder.arrays(session)?;
    finder.blocks(session)?;
    finder.variables(session)?;
    finder.heaps()?;
    finder.pinned(session, filter)?;
    Ok(finder.areas)
}

/// Finds only the variables of code.
///
/// # Errors
///
/// As [`areas`].
pub(super) fn code_areas(session: &Session, contexts: &Contexts) -> Result<Areas, SnapshotError> {
    let mut finder = AreaFinder::new(session, contexts);
    finder.variables(session)?;
    Ok(finder.areas)
}

/// Finds only the grown pieces of arenas.
///
/// # Errors
///
/// As [`areas`].
pub(super) fn arena_areas(session: &Session, contexts: &Contexts) -> Result<Areas, SnapshotError> {
    let mut finder = AreaFinder::new(session, contexts);
    finder.arenas(session)?;
    Ok(finder.areas)
}

struct AreaFinder<'a> {
    driver: Arc<Driver>,
    contexts: &'a Contexts,
    areas: Areas,
}

impl<'a> AreaFinder<'a> {
    fn new(session: &Session, contexts: &'a Contexts) -> Self {
        let areas = Areas { all: Vec::new(), records: Records::default(), _views: Vec::new() };
        Self { driver: Arc::clone(&session.shared.driver), contexts, areas }
    }

    fn add(
        &mut self,
        kind: &str,
        name: String,
        object: u64,
        (device, context): (i32, CUcontext),
        bytes: u64,
        location: AreaLocation,
    ) {
        let chunk_bytes = match &location {
            AreaLocation::Texels(texels) => texels.chunk_bytes(),
            _ => CHUNK_BYTES,
        };
        let address = match location {
            AreaLocation::Linear(address) if kind == ARENA_KIND => address,
            AreaLocation::Host(address) | AreaLocation::Heap(address) => address,
            _ => 0,
        };
        let region = Region {
            kind: kind.to_owned(),
            name,
            object: Some(object),
            gpu: u32::try_from(device).ok(),
            address,
            bytes,
            chunk_bytes: u32::try_from(chunk_bytes).unwrap_or(u32::MAX),
            chunks: Vec::new(),
        };
        self.areas.all.push(Area { region, context, location });
    }

    fn arenas(&mut self, session: &Session) -> Result<(), SnapshotError> {
        for (device, address, size) in session.device.ranges() {
            let context = self.contexts.of_device(device)?;
            let name = format!("arena of GPU {device} at {address:#x}");
            self.add(ARENA_KIND, name, address, (device, context), size, AreaLocation::Linear(address));
        }
        Ok(())
    }

    /// Finds blocks. They are read where they are mapped as a whole, otherwise through a mapping of the worker. Imported
    /// blocks belong to other sessions.
    fn blocks(&mut self, session: &Session) -> Result<(), SnapshotError> {
        if let Some(block) = session.virtual_memory.any_of(Memory::Host) {
            return Err(SnapshotError::HostBlock { block });
        }
        if let Some(block) = session.virtual_memory.any_of(Memory::Tiles) {
            return Err(SnapshotError::TilePool { block });
        }
        let driver = Arc::clone(&self.driver);
        let mappings: Vec<_> = session.virtual_memory.mappings().collect();
        let blocks = session.virtual_memory.blocks();
        for (id, handle, size) in blocks.into_iter().filter(|(id, ..)| !session.shares.has_block(*id)) {
            let mapped = mappings.iter().filter(|(.., block)| *block == id);
            let own = RetainedHandle::of(&driver, handle, mapped.clone().next().map(|(address, ..)| *address))?;
            let device = own.device()?;
            let context = self.contexts.of_device(device)?;
            let whole = mapped.filter(|(_, length, _)| *length == size).map(|(address, ..)| *address);
            let address = match whole.into_iter().find(|address| is_writable(&driver, device, *address)) {
                Some(address) => address,
                None => {
                    let view = SpareMemory::view(&driver, device, own.handle(), size);
                    let view = view.map_err(refused("map a block of memory"))?;
                    let address = view.start();
                    self.areas._views.push(view);
                    address
                }
            };
            self.add("block", format!("block {id}"), id.into(), (device, context), size, AreaLocation::Linear(address));
        }
        Ok(())
    }

    fn arrays(&mut self, session: &Session) -> Result<(), SnapshotError> {
        for (id, held, context) in session.tables.arrays.owners() {
            let context = self.contexts.of_id(context)?;
            context.1.enter(&self.driver)?;
            match held {
                ArrayObject::Array(array) | ArrayObject::Level(array, _) => {
                    self.texels("array", id, 0, array, context)?
                }
                ArrayObject::Mipmap(mipmap) => {
                    for (level, array) in levels(&self.driver, mipmap) {
                        self.texels("mipmap", id, level, array, context)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn texels(
        &mut self,
        kind: &str,
        id: u32,
        level: u32,
        array: CUarray,
        (device, context): (i32, SwitchableContext),
    ) -> Result<(), SnapshotError> {
        let driver = &self.driver;
        // SAFETY: an array of the session; the output is a local.
        let it: CUDA_ARRAY3D_DESCRIPTOR = ask(|out| unsafe { driver.cuArray3DGetDescriptor_v2(out, array) })
            .map_err(refused("ask for the extent of an array"))?;
        let width = texel(&it).ok_or(SnapshotError::Array { array: id, reason: "its format is not known here" })?;
        let width = width * it.Width as u64;
        if it.Flags & MAPPED_TEXELS != 0 {
            return Err(SnapshotError::Array { array: id, reason: "its memory is mapped piece by piece" });
        }
        if width == 0 || width > CHUNK_BYTES {
            return Err(SnapshotError::Array { array: id, reason: "its rows are longer than a chunk of an image" });
        }
        let (height, depth) = (it.Height.max(1) as u64, it.Depth.max(1) as u64);
        let name = if kind == "mipmap" { format!("level {level} of mipmap {id}") } else { format!("array {id}") };
        let object = u64::from(id) | u64::from(level) << 32;
        let texels = Texels { array, width, height };
        self.add(kind, name, object, (device, context.0), width * height * depth, AreaLocation::Texels(texels));
        Ok(())
    }

    fn variables(&mut self, session: &Session) -> Result<(), SnapshotError> {
        for it in code_of(session) {
            let (device, context) = self.contexts.of_id(it.context)?;
            context.enter(&self.driver)?;
            let (is_soft, sm) = (self.driver.is_soft(), architecture(&self.driver, device)?);
            let declared = session.snapshots.declared().of(&it.named, sm, is_soft)?;
            let NamedImage { name, .. } = it.named;
            if declared.uses_heap && !is_soft {
                return Err(SnapshotError::DeviceHeap { code: name });
            }
            let variables = code::find(&self.driver, it.loaded, &declared, &name)?;
            let bytes = variables.iter().map(|found| found.size).sum();
            if bytes > 0 {
                let variable_ranges = variables.iter().map(|found| (found.address, found.size)).collect();
                let (title, location) = (format!("variables of {name}"), AreaLocation::Variables(variable_ranges));
                self.add("variables", title, it.object, (device, context.0), bytes, location);
            }
            let runs = Some(code::runs(&self.driver, declared.code, sm));
            let relocates_functions = declared.relocates_functions;
            let record = CodeRecord { code: name, object: it.object, variables, runs, relocates_functions };
            self.areas.records.code.push(record);
        }
        Ok(())
    }

    /// Finds heaps. For a driver that does not show its heaps, code that uses one was refused before.
    fn heaps(&mut self) -> Result<(), SnapshotError> {
        if !self.driver.is_soft() {
            return Ok(());
        }
        for (id, device, context) in self.contexts.all().to_vec() {
            for heap in soft::heaps(&self.driver, context).map_err(refused("look at a heap of device code"))? {
                let name = format!("heap of context {id}");
                self.add("heap", name, heap.address, (device, context), heap.size, AreaLocation::Heap(heap.address));
                self.areas.records.heaps.push(HeapRecord { context: id, allocator_state: heap.allocator_state });
            }
        }
        Ok(())
    }

    fn pinned(&mut self, session: &Session, filter: AreaFilter) -> Result<(), SnapshotError> {
        let Some(host) = &session.host else { return Ok(()) };
        for (address, size) in host.blocks() {
            if !filter.shared_pages && !host.is_private(address) {
                continue;
            }
            let context = (0, self.contexts.of_device(0)?);
            self.add(
                PINNED_KIND,
                format!("pinned memory at {address:#x}"),
                address,
                context,
                size,
                AreaLocation::Host(address),
            );
        }
        Ok(())
    }
}

impl Session {
    /// Prepares for a snapshot soon: computes everything that can be found out while the program runs.
    pub fn prepare_snapshot(&self) {
        let images = code_of(self).into_iter().map(|it| it.named).collect();
        // Code on another kind of device is looked up again in the snapshot.
        if let Ok(sm) = architecture(self.driver(), 0) {
            self.snapshots.declared().prepare(images, sm, self.driver().is_soft());
        }
    }
}

/// Code that is loaded in a context.
pub(super) struct Code {
    pub(super) named: NamedImage,
    pub(super) object: u64,
    context: u32,
    loaded: LoadedCode,
}

/// Returns all code: modules, and libraries in the contexts where they are in use. A query for a library's variable
/// elsewhere would load it there.
pub(super) fn code_of(session: &Session) -> Vec<Code> {
    let mut all = Vec::new();
    for (id, module, context) in session.tables.modules.all() {
        if let Some(image) = session.journal.image(ObjectKind::Module, id) {
            let (name, object) = (format!("module {id}"), u64::from(id));
            all.push(Code { named: NamedImage { name, image }, object, context, loaded: LoadedCode::Module(module) });
        }
    }
    for (id, context, _) in session.journal.uses.in_order() {
        let library = session.tables.libraries.all().find(|(other, ..)| *other == id);
        if let (Some((_, library, _)), Some(image)) = (library, session.journal.image(ObjectKind::Library, id)) {
            let (name, object) = (format!("library {id}"), u64::from(id) | u64::from(context) << 32);
            all.push(Code { named: NamedImage { name, image }, object, context, loaded: LoadedCode::Library(library) });
        }
    }
    all
}

/// Returns the bytes of a texel; none for formats with blocks of texels or planes.
fn texel(it: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<u64> {
    let channel = match it.Format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return None,
    };
    Some(channel * u64::from(it.NumChannels))
}

/// Returns the levels of a mipmap: a driver refuses levels after the last one.
fn levels(driver: &Driver, mipmap: CUmipmappedArray) -> Vec<(u32, CUarray)> {
    // SAFETY: a mipmap of the session; the output is a local.
    let level = |number| ask(|out| unsafe { driver.cuMipmappedArrayGetLevel(out, mipmap, number) });
    (0..MAX_MIP_LEVELS).map_while(|number| Some((number, level(number).ok()?))).collect()
}

/// Returns whether the device may read and write memory mapped at an address.
fn is_writable(driver: &Driver, device: i32, address: u64) -> bool {
    let location = access(device).location;
    // SAFETY: both pointers are locals' for the call.
    let flags = ask::<u64>(|out| unsafe { driver.cuMemGetAccess(out, &raw const location, address) });
    flags == Ok(u64::from(access_flags::READ_WRITE))
}

/// A block's handle; if the program released it, it is retained from a mapping as long as this value lives.
pub(super) struct RetainedHandle<'a> {
    driver: &'a Driver,
    handle: CUmemGenericAllocationHandle,
    is_ours: bool,
}

impl<'a> RetainedHandle<'a> {
    pub(super) fn of(
        driver: &'a Driver,
        handle: Option<CUmemGenericAllocationHandle>,
        mapped: Option<u64>,
    ) -> Result<Self, SnapshotError> {
        if let Some(handle) = handle {
            return Ok(Self { driver, handle, is_ours: false });
        }
        let pointer = std::ptr::with_exposed_provenance_mut(mapped.unwrap_or(0) as usize);
        // SAFETY: the output is a local; a block without a handle has a mapping.
        let handle = ask(|out| unsafe { driver.cuMemRetainAllocationHandle(out, pointer) });
        Ok(Self { driver, handle: handle.map_err(refused("find a block of memory"))?, is_ours: true })
    }

    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    pub(super) fn device(&self) -> Result<i32, SnapshotError> {
        let (driver, handle) = (self.driver, self.handle);
        let mut answer = CUmemAllocationProp::default();
        // SAFETY: the output is a local.
        let status = unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut answer, handle) };
        status.ok().map_err(refused("ask where a block of memory lies"))?;
        Ok(answer.location.id)
    }
}

impl Drop for RetainedHandle<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: retained by `of`; mappings keep the memory.
            let _: CUresult = unsafe { self.driver.cuMemRelease(self.handle) };
        }
    }
}
