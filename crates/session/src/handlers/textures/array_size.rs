//! Bytes of device memory that an array takes, by its tiles. The tests compare them with those on an H200.

use katydid_cuda_sys::CUDA_ARRAY3D_DESCRIPTOR;
use katydid_session_core::Texels;

/// `CUDA_ARRAY3D_LAYERED`, `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers, equal for all levels.
const LAYER_FLAGS: u32 = 0x01 | 0x04;
/// `CUDA_ARRAY3D_SPARSE`, `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later, and its blocks are charged.
const DEFERRED_MEMORY_FLAGS: u32 = 0x40 | 0x80;

/// Returns the bytes of the tiles of an array, or of all `levels` of a mipmap; unknown formats count as the largest texel.
pub(super) fn bytes_of(it: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u64 {
    if it.Flags & DEFERRED_MEMORY_FLAGS != 0 {
        return 0;
    }
    let channel = match it.Format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    Texels {
        bytes: u64::from(it.NumChannels).saturating_mul(channel),
        extent: [it.Width, it.Height, it.Depth].map(|size| size as u64),
        has_layers: it.Flags & LAYER_FLAGS != 0,
        levels,
    }
    .tiled_bytes()
}

#[cfg(test)]
mod tests {
    use katydid_session_core::GpuPieces;

    use super::*;

    fn array([Width, Height, Depth]: [usize; 3], Format: u32, NumChannels: u32, Flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth, Format, NumChannels, Flags }
    }

    /// Bytes that 50 arrays, and 50 mipmaps of 3 levels, took of an H200's free memory, each (driver 580.159.04, 2026-11-30).
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
                let mut pieces = GpuPieces::default();
                let counted: u64 = (0..COUNT).map(|_| pieces.take(bytes_of(&descriptor, levels)).1).sum();
                assert_eq!(counted / COUNT, measured, "{descriptor:?}, {levels} levels");
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
