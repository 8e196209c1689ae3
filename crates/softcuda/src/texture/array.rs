//! Arrays: texels in memory whose addresses no program sees, alone or as the levels of a mipmap.
//!
//! Every level lies row by row and slice by slice without gaps; layers and faces are slices. Copies and the texture unit reach
//! its range; plain loads do not.

use std::sync::Arc;

use katydid_cuda_sys::{CUarray, CUmipmappedArray, CUresult};
use katydid_driver_rules::texture::most_levels;
use katydid_ptx_exec::texture::Level;

use crate::context::contexts;
use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::allocation;
use crate::memory::space::{self, RangeKind};
use crate::process::handles::{Registry, new_handle};
use crate::process::state;
use crate::texture::backing::Backing;
use crate::texture::format::{Format, MAX_EDGE_TEXELS};

/// An array, or one level of a mipmap.
pub(crate) struct Array {
    /// Handle that programs know the array by.
    handle: usize,
    /// Extent, format and channels of the array.
    pub(crate) format: Format,
    /// Where its texels are.
    pub(crate) level: Level,
    /// Id of the context that it belongs to.
    context: u64,
    /// Start of the memory it owns; 0 for a level, whose mipmap owns it.
    memory: u64,
    /// That memory, if it is mapped later.
    backing: Option<Arc<Backing>>,
}

impl Array {
    /// Bytes of its texels.
    pub(crate) fn bytes(&self) -> u64 {
        let slices = u64::from(self.level.extent[2]) * u64::from(self.level.layers);
        self.level.slice * (slices - 1) + self.level.pitch * u64::from(self.level.extent[1])
    }

    /// Returns its memory that is mapped later; a level's belongs to its mipmap.
    pub(crate) fn own_backing(&self) -> Option<Arc<Backing>> {
        self.backing.clone()
    }

    /// Returns the handle of the array, as a C type.
    pub(crate) fn handle(&self) -> CUarray {
        CUarray(std::ptr::without_provenance_mut(self.handle))
    }
}

/// Levels that belong together.
pub(crate) struct Mipmap {
    handle: usize,
    /// Arrays of the levels, level 0 first.
    pub(crate) levels: Vec<Arc<Array>>,
    context: u64,
    memory: u64,
    /// The memory, if it is mapped later.
    pub(crate) backing: Option<Arc<Backing>>,
}

impl Mipmap {
    /// Returns the handle of the mipmap, as a C type.
    pub(crate) fn handle(&self) -> CUmipmappedArray {
        CUmipmappedArray(std::ptr::without_provenance_mut(self.handle))
    }
}

/// Live arrays, including levels.
static ARRAYS: Registry<Array> = Registry::new();
/// Live mipmapped arrays, by their handles.
static MIPMAPS: Registry<Mipmap> = Registry::new();

/// The levels of an array, and the memory around them.
struct ArrayAllocation {
    memory: u64,
    levels: Vec<Level>,
    backing: Option<Arc<Backing>>,
}

/// Allocates memory for consecutive formats, or reserves addresses that are mapped later.
fn allocate(context: &Context, formats: &[Format]) -> Outcome<ArrayAllocation> {
    if formats.first().is_some_and(|format| format.is_mapped_later()) {
        let (backing, levels) = Backing::new(context, formats)?;
        return Ok(ArrayAllocation { memory: backing.start(), levels, backing: Some(backing) });
    }
    let (memory, levels) = allocate_now(context, formats)?;
    Ok(ArrayAllocation { memory, levels, backing: None })
}

/// Allocates memory for consecutive formats. Returns its start, and each one's level.
fn allocate_now(context: &Context, formats: &[Format]) -> Outcome<(u64, Vec<Level>)> {
    /// Alignment of levels: the largest texel.
    const ALIGN: u64 = 16;
    let mut end = 0_u64;
    let mut levels = Vec::new();
    for format in formats {
        let start = end.next_multiple_of(ALIGN);
        let level = format.level_at(start).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let slices = u64::from(level.extent[2]) * u64::from(level.layers);
        let stop = level.slice.checked_mul(slices).and_then(|size| start.checked_add(size));
        end = stop.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        levels.push(level);
    }
    let memory = allocation::allocate_as(context, end, RangeKind::Array, |memory| memory.allocate_amid(end))?;
    for level in &mut levels {
        level.address += memory;
    }
    Ok((memory, levels))
}

/// `cuArray3DCreate`.
pub(crate) fn create(context: &Context, format: Format) -> Outcome<Arc<Array>> {
    let ArrayAllocation { memory, levels, backing } = allocate(context, &[format])?;
    let [level] = levels.as_slice() else { return Err(CUresult::ERROR_UNKNOWN) };
    let array = Arc::new(Array { handle: new_handle(), format, level: *level, context: context.id, memory, backing });
    ARRAYS.insert(array.handle, Arc::clone(&array));
    Ok(array)
}

/// `cuMipmappedArrayCreate`: as many levels as requested and possible.
pub(crate) fn create_mipmap(context: &Context, format: Format, level_count: u32) -> Outcome<Arc<Mipmap>> {
    let [width, height, _] = format.extent;
    if width.max(height) > MAX_EDGE_TEXELS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let formats: Vec<_> = (0..level_count.clamp(1, most_levels(format.extent, format.flags)))
        .map(|number| format.level(number))
        .collect();
    let ArrayAllocation { memory, levels, backing } = allocate(context, &formats)?;
    let level = |(format, level): (&Format, Level)| {
        let (handle, context) = (new_handle(), context.id);
        let array = Arc::new(Array { handle, format: *format, level, context, memory: 0, backing: None });
        ARRAYS.insert(array.handle, Arc::clone(&array));
        array
    };
    let levels = formats.iter().zip(levels).map(level).collect();
    let mipmap = Arc::new(Mipmap { handle: new_handle(), levels, context: context.id, memory, backing });
    MIPMAPS.insert(mipmap.handle, Arc::clone(&mipmap));
    Ok(mipmap)
}

/// The array behind a handle.
pub(crate) fn resolve(handle: CUarray) -> Outcome<Arc<Array>> {
    state::ready()?;
    ARRAYS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// The mipmap behind a handle.
pub(crate) fn resolve_mipmap(handle: CUmipmappedArray) -> Outcome<Arc<Mipmap>> {
    state::ready()?;
    MIPMAPS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Frees memory once the work of its context is done. 0 means none: the mipmap frees the memory of its levels.
fn release(memory: u64) -> Outcome {
    if memory == 0 {
        return Ok(());
    }
    if let Some(context) = space::find(memory).and_then(|region| contexts::living(region.context)) {
        context.drain();
    }
    let region = space::write().remove(memory);
    space::quiet();
    region.map_or(Ok(()), |region| allocation::give_back(&region))
}

/// `cuArrayDestroy`; a level stays as long as its mipmap.
pub(crate) fn destroy(handle: CUarray) -> Outcome {
    let array = resolve(handle)?;
    if array.memory != 0 {
        ARRAYS.remove(array.handle);
    }
    release(array.memory)
}

/// `cuMipmappedArrayDestroy`: ends its levels too.
pub(crate) fn destroy_mipmap(handle: CUmipmappedArray) -> Outcome {
    let mipmap = resolve_mipmap(handle)?;
    MIPMAPS.remove(mipmap.handle);
    for level in &mipmap.levels {
        ARRAYS.remove(level.handle);
    }
    release(mipmap.memory)
}

/// Ends the arrays of an ended context, whose memory is freed with the rest of its memory.
pub(crate) fn forget(context: u64) {
    ARRAYS.remove_if(|array| array.context == context);
    MIPMAPS.remove_if(|mipmap| mipmap.context == context);
}
