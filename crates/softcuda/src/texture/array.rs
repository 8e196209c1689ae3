//! Arrays: texels in memory whose addresses no program sees, alone or as the levels of a mipmap.
//!
//! Every level lies row by row, slice by slice (layers and faces are slices) without gaps, in a range that copies and the
//! texture unit reach and plain loads do not. What a descriptor may say was asked of an H200.

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray, CUresult};
use katydid_ptx_exec::texture::{Channel, Level, Shape};

use crate::context::contexts::{self, Context};
use crate::ffi::{Outcome, unsupported};
use crate::memory::allocation;
use crate::memory::space::{self, Kind};
use crate::process::handles::{Registry, mint};
use crate::process::state;
use crate::texture::sparse::Backing;

/// Flags of a descriptor.
mod flag {
    pub(super) const LAYERED: u32 = 1;
    pub(super) const SURFACE: u32 = 2;
    pub(super) const CUBE: u32 = 4;
    pub(super) const GATHER: u32 = 8;
    /// Depth buffers and colour attachments belong to graphics.
    pub(super) const GRAPHICS: u32 = 0x30;
    /// Memory that is mapped later, tile by tile.
    pub(super) const SPARSE: u32 = 0x40;
    /// Memory that is mapped later, as a whole.
    pub(super) const DEFERRED: u32 = 0x80;
}

/// Faces of a cube.
const FACES: usize = 6;
/// Longest one-dimensional array; as a surface; largest extents in two and three dimensions, of layers, and of a mipmap.
const LINE: usize = 131_072;
const EDGE: usize = 32_768;
const ROWS: usize = 65_536;
const CUBIC: usize = 16_384;
/// Most layers; of cubes, counted in faces.
const LAYERS: usize = 2048;
const FACE_LAYERS: usize = 2046;

/// Formats that exist on a GPU, but not here: block compression, video, and normalised formats by name.
const FOREIGN: [std::ops::RangeInclusive<u32>; 3] = [0x91..=0x9e, 0xa0..=0xbf, 0xc0..=0xcb];

/// Extent and format, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Texels: width, height (0 in one dimension), depth or layers (0 in neither).
    pub(crate) extent: [usize; 3],
    /// What a channel is.
    pub(crate) channel: Channel,
    /// Its number in a descriptor.
    code: u32,
    /// Channels of a texel.
    pub(crate) channels: u32,
    /// As the descriptor had them.
    pub(crate) flags: u32,
}

/// What a channel of format `code` is.
pub(crate) fn channel(code: u32) -> Outcome<Channel> {
    Ok(match code {
        0x01 => Channel::U8,
        0x02 => Channel::U16,
        0x03 => Channel::U32,
        0x08 => Channel::S8,
        0x09 => Channel::S16,
        0x0a => Channel::S32,
        0x10 => Channel::F16,
        0x20 => Channel::F32,
        _ if FOREIGN.iter().any(|range| range.contains(&code)) => {
            return Err(unsupported(&format!("array format {code:#x}")));
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// Refuses numbers of channels that no texel has.
pub(crate) fn check_channels(channels: u32) -> Outcome {
    if matches!(channels, 1 | 2 | 4) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

impl Format {
    /// Checks a descriptor.
    pub(crate) fn new(it: &CUDA_ARRAY3D_DESCRIPTOR) -> Outcome<Self> {
        check_channels(it.NumChannels)?;
        let extent = [it.Width, it.Height, it.Depth];
        let format =
            Self { extent, channel: channel(it.Format)?, code: it.Format, channels: it.NumChannels, flags: it.Flags };
        if !format.is_possible() || it.Flags & flag::GRAPHICS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(format)
    }

    /// As a descriptor.
    pub(crate) fn descriptor(&self) -> CUDA_ARRAY3D_DESCRIPTOR {
        let [Width, Height, Depth] = self.extent;
        CUDA_ARRAY3D_DESCRIPTOR {
            Width,
            Height,
            Depth,
            Format: self.code,
            NumChannels: self.channels,
            Flags: self.flags,
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether its memory is mapped later, tile by tile.
    pub(crate) fn is_sparse(&self) -> bool {
        self.has(flag::SPARSE)
    }

    /// Whether such an array exists: which extents go together, and how large they are.
    fn is_possible(&self) -> bool {
        let [width, height, depth] = self.extent;
        let (layered, cube, gather) = (self.has(flag::LAYERED), self.has(flag::CUBE), self.has(flag::GATHER));
        let flat = height > 0 && depth == 0;
        // Tiles are flat or solid, and an array has either tiles or memory for the whole of it.
        let tiled = !self.is_sparse() || (height > 0 && !cube && !self.has(flag::DEFERRED));
        if width == 0 || !tiled || (gather && (!flat || width.max(height) > EDGE)) {
            return false;
        }
        match (cube, layered) {
            (true, _) => {
                let faces = if layered { depth > 0 && depth.is_multiple_of(FACES) } else { depth == FACES };
                faces && width == height && width <= EDGE && depth <= FACE_LAYERS
            }
            (false, true) => depth > 0 && depth <= LAYERS && width.max(height) <= EDGE,
            (false, false) if depth > 0 => height > 0 && width.max(height) <= CUBIC && depth <= EDGE,
            (false, false) if height > 0 => width <= LINE && height <= ROWS,
            (false, false) => width <= if self.has(flag::SURFACE) { EDGE } else { LINE },
        }
    }

    /// What indices of it mean.
    pub(crate) fn shape(&self) -> Shape {
        let [_, height, depth] = self.extent;
        match (self.has(flag::CUBE), self.has(flag::LAYERED)) {
            (true, true) => Shape::CubeLayers,
            (true, false) => Shape::Cube,
            (false, true) => Shape::Layered(if height == 0 { 1 } else { 2 }),
            (false, false) => Shape::Plain(if depth > 0 { 3 } else { 1 + u32::from(height > 0) }),
        }
    }

    /// Whether its third extent counts layers or faces.
    fn slices_are_layers(&self) -> bool {
        self.has(flag::CUBE | flag::LAYERED)
    }

    /// Level `number` of a mipmap of it.
    fn level(&self, number: u32) -> Self {
        let half = |size: usize| if size == 0 { 0 } else { (size >> number).max(1) };
        let [width, height, depth] = self.extent;
        let depth = if self.slices_are_layers() { depth } else { half(depth) };
        Self { extent: [half(width), half(height), depth], ..*self }
    }

    /// Bytes of a texel.
    pub(crate) fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }

    /// Where its texels are, when the first is at `address`; `None` beyond all bounds.
    pub(crate) fn place(&self, address: u64) -> Option<Level> {
        let [width, height, depth] = self.extent.map(|size| u32::try_from(size.max(1)).ok());
        let (width, height, depth) = (width?, height?, depth?);
        let pitch = u64::from(width) * self.texel_bytes();
        let slice = pitch.checked_mul(u64::from(height))?;
        slice.checked_mul(u64::from(depth))?;
        let (depth, layers) = if self.slices_are_layers() { (1, depth) } else { (depth, 1) };
        Some(Level { address, extent: [width, height, depth], pitch, slice, layers })
    }

    /// What a texture says of its extent.
    pub(crate) fn queried(&self) -> [u32; 3] {
        let [width, height, depth] = self.extent.map(|size| size as u32);
        match self.shape() {
            Shape::Plain(1) => [width, 1, 0],
            Shape::Layered(1) => [width, depth, 0],
            Shape::Cube => [width, height, 0],
            Shape::CubeLayers => [width, height, depth / FACES as u32],
            _ => [width, height, depth],
        }
    }

    /// What a surface says of its extent.
    pub(crate) fn queried_surface(&self) -> [u32; 3] {
        let [width, height, depth] = self.extent.map(|size| size as u32);
        if self.shape() == Shape::Layered(1) { [width, depth, 0] } else { [width, height, depth] }
    }
}

/// An array, or one level of a mipmap.
pub(crate) struct Array {
    /// Its handle.
    handle: usize,
    /// Extent and format.
    pub(crate) format: Format,
    /// Where its texels are.
    pub(crate) level: Level,
    /// Id of the context that it belongs to.
    context: u64,
    /// Start of the memory it owns; 0 for a level, whose mipmap owns it.
    memory: u64,
    /// That memory, where it is mapped later.
    backing: Option<Arc<Backing>>,
}

impl Array {
    /// Bytes of its texels.
    pub(crate) fn bytes(&self) -> u64 {
        let slices = u64::from(self.level.extent[2]) * u64::from(self.level.layers);
        self.level.slice * (slices - 1) + self.level.pitch * u64::from(self.level.extent[1])
    }

    /// Memory that is mapped later; a level's is its mipmap's.
    pub(crate) fn own_backing(&self) -> Option<Arc<Backing>> {
        self.backing.clone()
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> CUarray {
        CUarray(std::ptr::without_provenance_mut(self.handle))
    }
}

/// Levels that belong together.
pub(crate) struct Mipmap {
    handle: usize,
    /// Level 0 first.
    pub(crate) levels: Vec<Arc<Array>>,
    context: u64,
    memory: u64,
    /// The memory, where it is mapped later.
    pub(crate) backing: Option<Arc<Backing>>,
}

impl Mipmap {
    /// Its handle.
    pub(crate) fn handle(&self) -> CUmipmappedArray {
        CUmipmappedArray(std::ptr::without_provenance_mut(self.handle))
    }
}

/// Arrays that live, levels among them.
static ARRAYS: Registry<Array> = Registry::new();
/// Mipmaps that live.
static MIPMAPS: Registry<Mipmap> = Registry::new();

/// Where levels lie, and what they lie in.
struct Allocated {
    memory: u64,
    levels: Vec<Level>,
    backing: Option<Arc<Backing>>,
}

/// Memory for formats that follow each other, or addresses that it will be mapped to.
fn allocate(context: &Context, formats: &[Format]) -> Outcome<Allocated> {
    if formats.first().is_some_and(|format| format.has(flag::SPARSE | flag::DEFERRED)) {
        let (backing, levels) = Backing::new(context, formats)?;
        return Ok(Allocated { memory: backing.start(), levels, backing: Some(backing) });
    }
    let (memory, levels) = allocate_now(context, formats)?;
    Ok(Allocated { memory, levels, backing: None })
}

/// Memory for formats that follow each other: its start, and each one's level.
fn allocate_now(context: &Context, formats: &[Format]) -> Outcome<(u64, Vec<Level>)> {
    /// What levels are aligned to: the largest texel.
    const ALIGN: u64 = 16;
    let mut end = 0_u64;
    let mut levels = Vec::new();
    for format in formats {
        let start = end.next_multiple_of(ALIGN);
        let level = format.place(start).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let slices = u64::from(level.extent[2]) * u64::from(level.layers);
        let stop = level.slice.checked_mul(slices).and_then(|size| start.checked_add(size));
        end = stop.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        levels.push(level);
    }
    let memory = allocation::place_as(context, end, Kind::Array, |memory| memory.allocate_amid(end))?;
    for level in &mut levels {
        level.address += memory;
    }
    Ok((memory, levels))
}

/// `cuArray3DCreate`.
pub(crate) fn create(context: &Context, format: Format) -> Outcome<Arc<Array>> {
    let Allocated { memory, levels, backing } = allocate(context, &[format])?;
    let [level] = levels.as_slice() else { return Err(CUresult::ERROR_UNKNOWN) };
    let array = Arc::new(Array { handle: mint(), format, level: *level, context: context.id, memory, backing });
    ARRAYS.insert(array.handle, Arc::clone(&array));
    Ok(array)
}

/// `cuMipmappedArrayCreate`: as many levels as are wanted and there can be.
pub(crate) fn create_mipmap(context: &Context, format: Format, wanted: u32) -> Outcome<Arc<Mipmap>> {
    let [width, height, depth] = format.extent;
    let depth = if format.slices_are_layers() { 0 } else { depth };
    let longest = width.max(height).max(depth);
    if width.max(height) > EDGE {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let formats: Vec<_> = (0..wanted.clamp(1, longest.ilog2() + 1)).map(|number| format.level(number)).collect();
    let Allocated { memory, levels, backing } = allocate(context, &formats)?;
    let level = |(format, level): (&Format, Level)| {
        let (handle, context) = (mint(), context.id);
        let array = Arc::new(Array { handle, format: *format, level, context, memory: 0, backing: None });
        ARRAYS.insert(array.handle, Arc::clone(&array));
        array
    };
    let levels = formats.iter().zip(levels).map(level).collect();
    let mipmap = Arc::new(Mipmap { handle: mint(), levels, context: context.id, memory, backing });
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

/// Frees memory once the work of its context is done; a level has none (0): its mipmap frees it.
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

/// `cuMipmappedArrayDestroy`: its levels go with it.
pub(crate) fn destroy_mipmap(handle: CUmipmappedArray) -> Outcome {
    let mipmap = resolve_mipmap(handle)?;
    MIPMAPS.remove(mipmap.handle);
    for level in &mipmap.levels {
        ARRAYS.remove(level.handle);
    }
    release(mipmap.memory)
}

/// Ends the arrays of an ended context; their memory is freed with the rest of its memory.
pub(crate) fn forget(context: u64) {
    ARRAYS.remove_if(|array| array.context == context);
    MIPMAPS.remove_if(|mipmap| mipmap.context == context);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(width: usize, height: usize, depth: usize, flags: u32) -> Outcome<Format> {
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: 1,
            NumChannels: 1,
            Flags: flags,
        };
        Format::new(&descriptor)
    }

    #[test]
    fn extents_that_an_h200_takes_are_taken() {
        for (width, height, depth, flags) in [
            (131_072, 0, 0, 0),
            (131_072, 65536, 0, 2),
            (4, 0, 4, 1),
            (4, 4, 6, 4),
            (4, 4, 12, 5),
            (4, 4, 2046, 5),
            (32768, 4, 2048, 1),
            (4, 4, 32768, 0),
            (4, 4, 0, 8),
        ] {
            assert!(format(width, height, depth, flags).is_ok(), "{width} {height} {depth} {flags}");
        }
    }

    #[test]
    fn extents_that_an_h200_refuses_are_refused() {
        for (width, height, depth, flags) in [
            (0, 0, 0, 0),
            (4, 0, 4, 0),
            (4, 4, 0, 1),
            (4, 5, 6, 4),
            (4, 4, 7, 4),
            (4, 4, 13, 5),
            (4, 4, 2052, 5),
            (4, 0, 0, 8),
            (4, 4, 3, 9),
            (32769, 4, 0, 8),
            (131_073, 0, 0, 0),
            (4, 65537, 0, 0),
            (16385, 4, 4, 0),
            (32769, 0, 0, 2),
            (4, 4, 2049, 1),
            (4, 4, 0, 0x10),
        ] {
            assert_eq!(
                format(width, height, depth, flags),
                Err(CUresult::ERROR_INVALID_VALUE),
                "{width} {height} {depth}"
            );
        }
    }

    #[test]
    fn levels_halve_what_is_no_layer() {
        let cube = format(4, 4, 6, 4).unwrap();
        assert_eq!((cube.level(1).extent, cube.level(2).extent), ([2, 2, 6], [1, 1, 6]));
        let block = format(7, 5, 3, 0).unwrap();
        assert_eq!((block.level(1).extent, block.level(2).extent), ([3, 2, 1], [1, 1, 1]));
        assert_eq!(format(8, 0, 0, 0).unwrap().level(1).extent, [4, 0, 0]);
    }
}
