//! Arrays, mipmaps and texture references: the meaning of their descriptors and flags.
//!
//! Levels, layers and flags are those of an H200.

use katydid_cuda_sys::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR};

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Flags of a `CUDA_ARRAY3D_DESCRIPTOR`.
pub mod array_flag {
    /// The third extent counts layers.
    pub const LAYERED: u32 = 1;
    /// Surfaces may be made of it.
    pub const SURFACE: u32 = 2;
    /// The third extent counts faces.
    pub const CUBE: u32 = 4;
    /// Four texels may be fetched at once.
    pub const GATHER: u32 = 8;
    /// Depth buffers and colour attachments belong to graphics.
    pub const GRAPHICS: u32 = 0x30;
    /// Memory that is mapped later, tile by tile.
    pub const SPARSE: u32 = 0x40;
    /// Memory that is mapped later, as a whole.
    pub const DEFERRED: u32 = 0x80;
}

/// Values of `CUresourcetype`: the memory that a texture reads.
pub mod resource_kind {
    /// A CUDA array (`CU_RESOURCE_TYPE_ARRAY`).
    pub const ARRAY: u32 = 0;
    /// An array with levels.
    pub const MIPMAP: u32 = 1;
    /// Linear memory, in one dimension.
    pub const LINEAR: u32 = 2;
    /// Pitched memory (`CU_RESOURCE_TYPE_PITCH2D`).
    pub const PITCHED: u32 = 3;
}

/// Bytes of a tile of an array whose memory is mapped later.
pub const TILE_BYTES: u64 = 65536;
/// `CU_TRSA_OVERRIDE_FORMAT`. The documentation requires it; drivers (580) accept an array without it as well.
const TRSA_OVERRIDE_FORMAT: u32 = 1;

/// Returns whether the third extent counts layers or faces.
#[inline]
pub const fn has_layers(flags: u32) -> bool {
    flags & (array_flag::LAYERED | array_flag::CUBE) != 0
}

/// Returns whether memory is mapped later, tile by tile or as a whole.
#[inline]
pub const fn is_mapped_later(flags: u32) -> bool {
    flags & (array_flag::SPARSE | array_flag::DEFERRED) != 0
}

/// Returns the most levels of a mipmap: down to a single texel.
pub fn most_levels([width, height, depth]: [usize; 3], flags: u32) -> u32 {
    let depth = if has_layers(flags) { 0 } else { depth };
    width.max(height).max(depth).max(1).ilog2() + 1
}

/// Returns the extent of level `number`: half of the one before, except for layers.
pub fn level_extent([width, height, depth]: [usize; 3], flags: u32, number: u32) -> [usize; 3] {
    let half = |size: usize| if size == 0 { 0 } else { (size >> number).max(1) };
    [half(width), half(height), if has_layers(flags) { depth } else { half(depth) }]
}

/// Returns the descriptor of an array of one or two dimensions in the form for three.
pub fn whole(plain: CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = plain;
    CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }
}

/// Returns the descriptor of an array in the form for two dimensions, without its other fields.
pub fn plain(whole: CUDA_ARRAY3D_DESCRIPTOR) -> CUDA_ARRAY_DESCRIPTOR {
    let CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Format, NumChannels, .. } = whole;
    CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels }
}

/// Refuses unknown flags of a call that binds an array to a texture reference.
pub const fn check_reference_flags(flags: u32) -> Outcome {
    check(flags & !TRSA_OVERRIDE_FORMAT == 0)
}

/// Checks the number of a dimension of a texture reference: 0, 1 or 2.
pub fn reference_dimension(number: i32) -> Outcome<usize> {
    usize::try_from(number).ok().filter(|number| *number < 3).ok_or(INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_halve_what_is_no_layer() {
        assert_eq!(level_extent([7, 5, 3], 0, 1), [3, 2, 1]);
        assert_eq!(level_extent([7, 5, 3], 0, 2), [1, 1, 1]);
        assert_eq!(level_extent([4, 4, 6], array_flag::CUBE, 2), [1, 1, 6]);
        assert_eq!(level_extent([8, 0, 0], 0, 3), [1, 0, 0]);
        assert_eq!((most_levels([16, 8, 0], 0), most_levels([4, 4, 12], 5), most_levels([0; 3], 0)), (5, 3, 1));
    }

    #[test]
    fn a_plain_array_has_neither_depth_nor_flags() {
        let flat = CUDA_ARRAY_DESCRIPTOR { Width: 4, Height: 3, Format: 1, NumChannels: 2 };
        let deep = CUDA_ARRAY3D_DESCRIPTOR { Depth: 9, Flags: array_flag::SPARSE, ..whole(flat) };
        assert_eq!((whole(flat).Depth, whole(flat).Flags, plain(deep).Height), (0, 0, 3));
        assert!(is_mapped_later(deep.Flags) && !is_mapped_later(array_flag::SURFACE));
    }

    #[test]
    fn references_have_three_dimensions_and_one_flag() {
        assert_eq!([-1, 0, 2, 3].map(reference_dimension), [Err(INVALID_VALUE), Ok(0), Ok(2), Err(INVALID_VALUE)]);
        assert_eq!([0, 1, 2].map(check_reference_flags), [Ok(()), Ok(()), Err(INVALID_VALUE)]);
    }
}
