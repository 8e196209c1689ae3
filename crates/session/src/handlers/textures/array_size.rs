//! Bytes of device memory that an array takes.
//!
//! A GPU holds the texels of an array in tiles of 64 bytes and 8 rows. Rows are filled up to whole tiles, so an array of one
//! texel takes 512 bytes, and one of 65,536 rows of a byte each 4 MiB. An array of more than 1 MiB has memory of its own,
//! in whole pieces of 2 MiB. The tests hold this against what an H200 takes.

use katydid_cuda_sys::CUDA_ARRAY3D_DESCRIPTOR;

/// Bytes of a row of a tile, and rows of a tile.
const TILE_ROW_BYTES: u64 = 64;
const TILE_ROWS: u64 = 8;
/// An array of more bytes than these has memory of its own.
const MAX_TILED_ARRAY_BYTES: u64 = 1 << 20;
/// Pieces of such memory.
const ARRAY_PIECE_BYTES: u64 = 2 << 20;

/// `CUDA_ARRAY3D_LAYERED`, `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers, which all levels have.
const LAYER_FLAGS: u32 = 0x01 | 0x04;
/// `CUDA_ARRAY3D_SPARSE`, `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later, and charged with the blocks that it is.
const DEFERRED_MEMORY_FLAGS: u32 = 0x40 | 0x80;

/// Bytes of an array, or of all `levels` of a mipmap; those of the largest texel where the format is not known here.
pub(super) fn bytes_of(it: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u64 {
    if it.Flags & DEFERRED_MEMORY_FLAGS != 0 {
        return 0;
    }
    let channel = match it.Format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    let texel = u64::from(it.NumChannels).saturating_mul(channel);
    let has_layers = it.Flags & LAYER_FLAGS != 0;
    let [width, height, depth] = [it.Width, it.Height, it.Depth].map(|size| size.max(1) as u64);
    let longest = width.max(height).max(if has_layers { 1 } else { depth });
    let bytes = (0..levels.clamp(1, longest.ilog2() + 1)).fold(0_u64, |all, level| {
        let size = |size: u64| (size >> level).max(1);
        let row = size(width).saturating_mul(texel).div_ceil(TILE_ROW_BYTES).saturating_mul(TILE_ROW_BYTES);
        let rows = size(height).div_ceil(TILE_ROWS).saturating_mul(TILE_ROWS);
        let slices = if has_layers { depth } else { size(depth) };
        all.saturating_add(row.saturating_mul(rows).saturating_mul(slices))
    });
    if bytes > MAX_TILED_ARRAY_BYTES {
        bytes.div_ceil(ARRAY_PIECE_BYTES).saturating_mul(ARRAY_PIECE_BYTES)
    } else {
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array([Width, Height, Depth]: [usize; 3], Format: u32, NumChannels: u32, Flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth, Format, NumChannels, Flags }
    }

    /// Bytes that 50 arrays, and 50 mipmaps of 3 levels, took of an H200's free memory, each (driver 580.159.04,
    /// 2026-11-30). The driver takes 2 MiB at a time, so small ones share.
    #[test]
    fn array_bytes_match_those_of_a_gpu() {
        const BYTE: u32 = 0x01;
        const FLOAT: u32 = 0x20;
        const COUNT: u64 = 50;
        let cases = [
            (array([1, 0, 0], BYTE, 1, 0), Some(41_943), Some(41_943)),
            (array([1, 512, 0], BYTE, 1, 0), Some(41_943), Some(83_886)),
            (array([1, 65_536, 0], BYTE, 1, 0), Some(4_194_304), None),
            (array([64, 65_536, 0], BYTE, 1, 0), Some(4_194_304), None),
            (array([65, 4096, 0], BYTE, 1, 0), Some(545_259), Some(1_048_576)),
            (array([1024, 1024, 0], FLOAT, 1, 0), Some(4_194_304), Some(6_291_456)),
            (array([1025, 1025, 0], FLOAT, 1, 0), Some(6_291_456), Some(6_291_456)),
            (array([1, 1, 2048], BYTE, 1, 0), Some(1_048_576), Some(2_097_152)),
            (array([1, 1, 2048], BYTE, 1, 1), Some(1_048_576), Some(1_048_576)),
            (array([1, 1024, 1024], BYTE, 1, 0), Some(67_108_864), Some(88_080_384)),
            (array([100, 100, 100], BYTE, 1, 0), Some(2_097_152), Some(2_097_152)),
            (array([1024, 1, 0], FLOAT, 4, 0), Some(167_772), Some(251_658)),
            (array([131_072, 0, 0], FLOAT, 4, 0), Some(16_777_216), None),
            (array([100, 0, 1000], BYTE, 1, 1), Some(1_048_576), Some(2_097_152)),
        ];
        for (descriptor, one_level, three_levels) in cases {
            for (levels, measured) in [(1, one_level), (3, three_levels)] {
                let Some(measured) = measured else { continue };
                let (counted, took) = (bytes_of(&descriptor, levels) * COUNT, measured * COUNT);
                // Of a piece of 2 MiB that several share a third may be left over.
                let is_right = counted <= took + COUNT && took <= counted * 3 / 2 + ARRAY_PIECE_BYTES;
                assert!(is_right, "{descriptor:?}, {levels} levels: {counted} bytes, and the GPU takes {took}");
            }
        }
    }

    #[test]
    fn no_extent_is_too_large_and_memory_that_is_mapped_later_is_not_counted() {
        let huge = array([usize::MAX; 3], 0x20, 4, 0);
        assert_eq!(bytes_of(&huge, u32::MAX), u64::MAX);
        assert_eq!(bytes_of(&array([1024, 1024, 0], 0x20, 1, 0x40), 3), 0);
        assert_eq!(bytes_of(&array([0; 3], 0x20, 0, 0), 0), 0);
    }
}
