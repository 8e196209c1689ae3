//! Extents and formats of arrays, and the valid descriptors, as measured on an H200.

use katydid_cuda_sys::{CUDA_ARRAY3D_DESCRIPTOR, CUresult};
use katydid_driver_rules::texture::{array_flag as flag, has_layers, is_mapped_later, level_extent};
use katydid_ptx_exec::texture::{Channel, Level, TextureShape};

use crate::ffi::{Outcome, unsupported};

/// Faces of a cube.
const CUBE_FACES: usize = 6;
/// Longest one-dimensional array.
const MAX_LINE_TEXELS: usize = 131_072;
/// Greatest width of a surface; greatest width and height of a layer, a face, a mipmap and a gathered array; most slices of a
/// volume.
pub(super) const MAX_EDGE_TEXELS: usize = 32_768;
/// Most rows of a two-dimensional array, which may be as wide as a one-dimensional one.
const MAX_IMAGE_ROWS: usize = 65_536;
/// Greatest width and height of a three-dimensional array.
const MAX_VOLUME_EDGE_TEXELS: usize = 16_384;
/// Most layers of an array.
const MAX_LAYERS: usize = 2048;
/// Most layers of cubes, counted in faces.
const MAX_CUBE_LAYER_FACES: usize = 2046;

/// Formats that exist on a GPU, but not here: block compression, video, and named normalised formats.
const FOREIGN_FORMATS: [std::ops::RangeInclusive<u32>; 3] = [0x91..=0x9e, 0xa0..=0xbf, 0xc0..=0xcb];

/// A checked extent and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Texels: width, height (0 in one dimension), depth or layers (0 in neither).
    pub(crate) extent: [usize; 3],
    /// Type of a channel.
    pub(crate) channel: Channel,
    /// Its code in a descriptor.
    code: u32,
    /// Channels of a texel.
    pub(crate) channels: u32,
    /// Flags of the descriptor.
    pub(crate) flags: u32,
}

/// Returns the channel type of format `code`.
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
        _ if FOREIGN_FORMATS.iter().any(|range| range.contains(&code)) => {
            return Err(unsupported(&format!("array format {code:#x}")));
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// Refuses channel counts that no texel has.
pub(crate) fn check_channels(channels: u32) -> Outcome {
    if matches!(channels, 1 | 2 | 4) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

impl Format {
    /// Checks a descriptor and reads its fields.
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

    /// Returns the descriptor for `cuArray3DGetDescriptor`.
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

    /// Returns whether its memory is mapped later, tile by tile.
    pub(crate) fn is_sparse(&self) -> bool {
        self.has(flag::SPARSE)
    }

    /// Returns whether its memory is mapped later, tile by tile or as a whole.
    pub(super) fn is_mapped_later(&self) -> bool {
        is_mapped_later(self.flags)
    }

    /// Checks that its extents go together and are not too large.
    fn is_possible(&self) -> bool {
        let [width, height, depth] = self.extent;
        let (layered, cube, gather) = (self.has(flag::LAYERED), self.has(flag::CUBE), self.has(flag::GATHER));
        let flat = height > 0 && depth == 0;
        // Tiles have two or three dimensions. An array has either tiles or memory for all of it.
        let tiled = !self.is_sparse() || (height > 0 && !cube && !self.has(flag::DEFERRED));
        if width == 0 || !tiled || (gather && (!flat || width.max(height) > MAX_EDGE_TEXELS)) {
            return false;
        }
        match (cube, layered) {
            (true, _) => {
                let faces = if layered { depth > 0 && depth.is_multiple_of(CUBE_FACES) } else { depth == CUBE_FACES };
                faces && width == height && width <= MAX_EDGE_TEXELS && depth <= MAX_CUBE_LAYER_FACES
            }
            (false, true) => depth > 0 && depth <= MAX_LAYERS && width.max(height) <= MAX_EDGE_TEXELS,
            (false, false) if depth > 0 => {
                height > 0 && width.max(height) <= MAX_VOLUME_EDGE_TEXELS && depth <= MAX_EDGE_TEXELS
            }
            (false, false) if height > 0 => width <= MAX_LINE_TEXELS && height <= MAX_IMAGE_ROWS,
            (false, false) => width <= if self.has(flag::SURFACE) { MAX_EDGE_TEXELS } else { MAX_LINE_TEXELS },
        }
    }

    /// Returns the meaning of its indices.
    pub(crate) fn shape(&self) -> TextureShape {
        let [_, height, depth] = self.extent;
        match (self.has(flag::CUBE), self.has(flag::LAYERED)) {
            (true, true) => TextureShape::CubeLayers,
            (true, false) => TextureShape::Cube,
            (false, true) => TextureShape::Layered(if height == 0 { 1 } else { 2 }),
            (false, false) => TextureShape::Plain(if depth > 0 { 3 } else { 1 + u32::from(height > 0) }),
        }
    }

    /// Returns whether its third extent counts layers or faces.
    pub(super) fn slices_are_layers(&self) -> bool {
        has_layers(self.flags)
    }

    /// Returns level `number` of its mipmap.
    pub(super) fn level(&self, number: u32) -> Self {
        Self { extent: level_extent(self.extent, self.flags, number), ..*self }
    }

    /// Returns the bytes of a texel.
    pub(crate) fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }

    /// Lays out its texels from `address` on; `None` if they exceed all addresses.
    pub(crate) fn level_at(&self, address: u64) -> Option<Level> {
        let [width, height, depth] = self.extent.map(|size| u32::try_from(size.max(1)).ok());
        let (width, height, depth) = (width?, height?, depth?);
        let pitch = u64::from(width) * self.texel_bytes();
        let slice = pitch.checked_mul(u64::from(height))?;
        slice.checked_mul(u64::from(depth))?;
        let (depth, layers) = if self.slices_are_layers() { (1, depth) } else { (depth, 1) };
        Some(Level { address, extent: [width, height, depth], pitch, slice, layers })
    }

    /// Returns the extent that a query of a texture reports.
    pub(crate) fn queried(&self) -> [u32; 3] {
        let [width, height, depth] = self.extent.map(|size| size as u32);
        match self.shape() {
            TextureShape::Plain(1) => [width, 1, 0],
            TextureShape::Layered(1) => [width, depth, 0],
            TextureShape::Cube => [width, height, 0],
            TextureShape::CubeLayers => [width, height, depth / CUBE_FACES as u32],
            _ => [width, height, depth],
        }
    }

    /// Returns the extent that a query of a surface reports.
    pub(crate) fn queried_surface(&self) -> [u32; 3] {
        let [width, height, depth] = self.extent.map(|size| size as u32);
        if self.shape() == TextureShape::Layered(1) { [width, depth, 0] } else { [width, height, depth] }
    }
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
}
