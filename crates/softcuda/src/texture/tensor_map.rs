//! Tensor maps: checked as the driver documents it, and encoded in this driver's own layout.
//!
//! Copies of tiles and pixels read them (`crates/ptx-exec/src/tensor.rs` has the layout). Copies of interleaved tensors, of wide
//! columns and of packed elements are faults. Programs and libraries encode such maps all the same, and can rely on two facts:
//! the address is the first word, and the arguments alone determine the rest.

use katydid_cuda_sys::{CUresult, CUtensorMap};
use katydid_driver_rules::tensor_map::{MAX_PIXEL_RANK, MAX_TENSOR_RANK};

use crate::ffi::Outcome;

/// Bits of an element, by data type; the last three are packed.
const ELEMENT_BITS: [u64; 16] = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6];
/// The packed types whose elements form groups of 16 bytes.
const PACKED_BY_16: [u32; 2] = [14, 15];
const FIRST_PACKED_TYPE: u32 = 13;
const SIX_BITS: u32 = 15;
/// Types that have a NaN.
const FLOAT_TYPES: std::ops::RangeInclusive<u32> = 6..=12;
/// Largest row of a box in bytes, by swizzle; 0 is no limit.
const SWIZZLE_ROW_BYTES: [u64; 7] = [0, 32, 64, 128, 128, 128, 128];
/// Swizzles of packed elements, of 6-bit elements, and of wide columns.
const SWIZZLES_OF_PACKED: [u32; 3] = [0, 3, 4];
const SWIZZLES_OF_SIX_BITS: [u32; 4] = [0, 3, 4, 6];
const SWIZZLES_OF_WIDE: [u32; 3] = [2, 3, 4];
/// `CU_TENSOR_MAP_INTERLEAVE_32B`, and its only swizzle.
const INTERLEAVE_32: u32 = 2;
const SWIZZLE_32: u32 = 1;
/// Elements of a packed row.
const PACKED_ROW_ELEMENTS: u64 = 128;

/// The shape of gathered elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GatherShape {
    /// Boxes, with their elements in each dimension.
    Tiles([u32; MAX_TENSOR_RANK]),
    /// Columns of pixels between two corners.
    Columns {
        lower: [i32; MAX_PIXEL_RANK],
        upper: [i32; MAX_PIXEL_RANK],
        channels: u32,
        pixels: u32,
        /// Mode of columns along the width alone.
        wide: Option<u32>,
    },
}

/// The arguments without the address. Dimensions beyond the rank are 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor {
    pub(crate) data_type: u32,
    pub(crate) rank: usize,
    pub(crate) dimensions: [u64; MAX_TENSOR_RANK],
    pub(crate) strides: [u64; MAX_TENSOR_RANK],
    pub(crate) steps: [u32; MAX_TENSOR_RANK],
    pub(crate) gathered: GatherShape,
    pub(crate) interleave: u32,
    pub(crate) swizzle: u32,
    pub(crate) promotion: u32,
    pub(crate) fill: u32,
}

impl Tensor {
    /// Encodes the map of a tensor at an address.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for arguments that the driver's documentation rules out.
    pub(crate) fn encode(&self, address: u64) -> Outcome<CUtensorMap> {
        let fits =
            self.is_aligned_address(address) && self.has_known_kinds() && self.has_a_shape() && self.is_gathered();
        if !fits {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut map = CUtensorMap::default();
        let map_words = std::iter::once(address).chain(self.words_after_address());
        for (out, word) in map.0.chunks_exact_mut(8).zip(map_words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        Ok(map)
    }

    /// Returns the alignment of addresses and strides.
    fn alignment(&self) -> u64 {
        if self.interleave == INTERLEAVE_32 || self.is_packed_by_16() { 32 } else { 16 }
    }

    fn is_packed_by_16(&self) -> bool {
        PACKED_BY_16.contains(&self.data_type)
    }

    fn is_aligned_address(&self, address: u64) -> bool {
        address != 0 && address.is_multiple_of(self.alignment())
    }

    fn has_known_kinds(&self) -> bool {
        let is_known =
            (self.data_type as usize) < ELEMENT_BITS.len() && (self.swizzle as usize) < SWIZZLE_ROW_BYTES.len();
        let is_filled = self.fill == 0 || self.fill == 1 && FLOAT_TYPES.contains(&self.data_type);
        let is_interleaved = match self.interleave {
            0 => true,
            INTERLEAVE_32 if self.swizzle != SWIZZLE_32 => false,
            1 | INTERLEAVE_32 => self.rank >= 3 && self.data_type != SIX_BITS,
            _ => false,
        };
        let is_swizzled = match self.data_type {
            SIX_BITS => SWIZZLES_OF_SIX_BITS.contains(&self.swizzle),
            _ if self.is_packed_by_16() => SWIZZLES_OF_PACKED.contains(&self.swizzle),
            _ => true,
        };
        is_known && is_filled && is_interleaved && is_swizzled && self.promotion <= 3
    }

    fn has_a_shape(&self) -> bool {
        let rank = self.rank.min(MAX_TENSOR_RANK);
        let row = if self.is_packed_by_16() {
            PACKED_ROW_ELEMENTS
        } else {
            1 + u64::from(self.data_type == FIRST_PACKED_TYPE)
        };
        let strides = &self.strides[..rank.saturating_sub(1)];
        // Without interleaving, the first step is ignored.
        let first = usize::from(self.interleave == 0).min(rank);
        (1..=MAX_TENSOR_RANK).contains(&self.rank)
            && self.dimensions[..rank].iter().all(|size| (1..=1 << 32).contains(size))
            && self.dimensions[0].is_multiple_of(row)
            && strides.iter().all(|stride| stride.is_multiple_of(self.alignment()) && *stride < 1 << 40)
            && self.steps[first..rank].iter().all(|step| (1..=8).contains(step))
    }

    fn is_gathered(&self) -> bool {
        match self.gathered {
            GatherShape::Tiles(tile) => {
                let is_whole = self.interleave != 0 || self.bytes(tile[0]).is_multiple_of(16);
                let sizes = &tile[..self.rank.min(MAX_TENSOR_RANK)];
                is_whole && sizes.iter().all(|size| (1..=256).contains(size)) && self.fits_row(tile[0])
            }
            GatherShape::Columns { lower, upper, channels, pixels, wide } => {
                // A wide box has one dimension of pixels.
                let (count, least) = match (wide, self.rank) {
                    (Some(_), 3..=5) | (None, 3) => (1, -32768),
                    (None, 4) => (2, -128),
                    (None, 5) => (3, -16),
                    _ => return false,
                };
                let is_wide = wide.is_none_or(|mode| mode <= 1 && SWIZZLES_OF_WIDE.contains(&self.swizzle));
                let corners = lower.iter().take(count).chain(upper.iter().take(count));
                let are_near = corners.copied().all(|offset: i32| (least..-least).contains(&offset));
                let is_whole = self.interleave != 0 || self.bytes(channels).is_multiple_of(16);
                let mut ends = lower.iter().zip(&upper).zip(&self.dimensions[1..]).take(count);
                let is_there = |((lower, upper), size): ((&i32, &i32), &u64)| {
                    (*size).min(1 << 32) as i64 - 1 + i64::from(*upper) >= i64::from(*lower)
                };
                let is_taken = is_whole && (wide.is_some() || ends.all(is_there));
                is_wide && is_taken && are_near && channels <= 256 && pixels <= 1024 && self.fits_row(channels)
            }
        }
    }

    /// Returns the bytes of `elements` elements; a part of a byte is rounded down.
    fn bytes(&self, elements: u32) -> u64 {
        ELEMENT_BITS.get(self.data_type as usize).map_or(0, |bits| u64::from(elements) * bits / 8)
    }

    /// Returns whether a row of a box has the length that packing needs, within the limit of the swizzle.
    fn fits_row(&self, elements: u32) -> bool {
        let limit = SWIZZLE_ROW_BYTES.get(self.swizzle as usize).copied().unwrap_or(0);
        let is_short = self.interleave != 0 || limit == 0 || self.bytes(elements) <= limit;
        is_short && (!self.is_packed_by_16() || u64::from(elements) == PACKED_ROW_ELEMENTS)
    }

    /// Returns all words of a map after the address.
    fn words_after_address(&self) -> impl Iterator<Item = u64> {
        let packed =
            |values: [u32; MAX_TENSOR_RANK]| values.iter().fold(0, |word, value| word << 12 | u64::from(*value));
        let corner =
            |values: [i32; MAX_PIXEL_RANK]| values.iter().fold(0, |word, value| word << 16 | (*value as u64 & 0xffff));
        let (kind, shape_words) = match self.gathered {
            GatherShape::Tiles(tile) => (0, [packed(tile), 0, 0, 0]),
            GatherShape::Columns { lower, upper, channels, pixels, wide } => {
                let sizes = u64::from(channels) << 32 | u64::from(pixels);
                (1 + wide.map_or(0, |mode| 1 + mode), [0, corner(lower), corner(upper), sizes])
            }
        };
        let kinds = [kind, self.data_type, self.rank as u32, self.interleave, self.swizzle, self.promotion, self.fill];
        let kinds = kinds.iter().fold(0, |word, value| word << 8 | u64::from(*value));
        let sizes = self.dimensions.into_iter().chain(self.strides.into_iter().take(MAX_TENSOR_RANK - 1));
        std::iter::once(kinds).chain(sizes).chain([packed(self.steps)]).chain(shape_words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Tensor = Tensor {
        data_type: 7,
        rank: 3,
        dimensions: [64, 32, 16, 0, 0],
        strides: [256, 8192, 0, 0, 0],
        steps: [1, 1, 1, 0, 0],
        gathered: GatherShape::Tiles([16, 8, 4, 0, 0]),
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    };
    const AT: u64 = 0x7000;

    impl Tensor {
        fn with_channels(self, channels: u32) -> Self {
            let (lower, upper) = ([0; 3], [0; 3]);
            Self { gathered: GatherShape::Columns { lower, upper, channels, pixels: 64, wide: None }, ..self }
        }
    }

    fn columns(offset: i32, wide: Option<u32>) -> GatherShape {
        let (lower, upper) = ([offset, 0, 0], [0; 3]);
        GatherShape::Columns { lower, upper, channels: 16, pixels: 64, wide }
    }

    #[test]
    fn the_address_is_the_first_word_and_every_argument_is_in_the_others() {
        let map = TILES.encode(AT).unwrap();
        let moved = TILES.encode(AT + 32).unwrap();
        assert_eq!((map.0[..8].to_vec(), &map.0[8..]), (AT.to_le_bytes().to_vec(), &moved.0[8..]));
        let wide = Tensor { swizzle: 3, ..TILES };
        let changed = [
            Tensor { data_type: 6, ..TILES },
            Tensor { dimensions: [64, 32, 17, 0, 0], ..TILES },
            Tensor { strides: [256, 8208, 0, 0, 0], ..TILES },
            Tensor { steps: [1, 1, 2, 0, 0], ..TILES },
            Tensor { gathered: GatherShape::Tiles([16, 8, 5, 0, 0]), ..TILES },
            Tensor { interleave: 1, ..TILES },
            Tensor { swizzle: 2, ..TILES },
            Tensor { promotion: 1, ..TILES },
            Tensor { fill: 1, ..TILES },
            Tensor { gathered: columns(0, None), ..TILES },
            Tensor { gathered: columns(-1, None), ..TILES },
            Tensor { gathered: columns(0, Some(0)), ..wide },
            Tensor { gathered: columns(0, Some(1)), ..wide },
        ];
        let maps: Vec<_> = changed.iter().map(|tensor| tensor.encode(AT).unwrap().0).chain([map.0]).collect();
        for (at, map) in maps.iter().enumerate() {
            assert!(!maps[..at].contains(map), "{at} is as one before it");
        }
    }

    #[test]
    fn tensor_maps_that_the_documentation_rules_out_are_refused() {
        let addresses = [0, 8, AT + 8];
        assert!(addresses.into_iter().all(|at| TILES.encode(at).is_err()));
        let invalid = [
            Tensor { data_type: 16, ..TILES },
            Tensor { rank: 0, ..TILES },
            Tensor { rank: 6, ..TILES },
            Tensor { dimensions: [64, 0, 16, 0, 0], ..TILES },
            Tensor { dimensions: [64, (1 << 32) + 1, 16, 0, 0], ..TILES },
            Tensor { strides: [264, 8192, 0, 0, 0], ..TILES },
            Tensor { strides: [256, 1 << 40, 0, 0, 0], ..TILES },
            Tensor { steps: [1, 0, 1, 0, 0], ..TILES },
            Tensor { steps: [1, 9, 1, 0, 0], ..TILES },
            Tensor { gathered: GatherShape::Tiles([16, 0, 4, 0, 0]), ..TILES },
            Tensor { gathered: GatherShape::Tiles([16, 257, 4, 0, 0]), ..TILES },
            Tensor { gathered: GatherShape::Tiles([3, 8, 4, 0, 0]), ..TILES },
            Tensor { swizzle: 1, ..TILES },
            Tensor { swizzle: 7, ..TILES },
            Tensor { interleave: 2, ..TILES },
            Tensor { interleave: 3, ..TILES },
            Tensor { promotion: 4, ..TILES },
            Tensor { data_type: 2, fill: 1, ..TILES },
            Tensor { fill: 2, ..TILES },
            Tensor { data_type: 14, ..TILES },
            Tensor { gathered: columns(-32769, None), ..TILES },
            Tensor { gathered: columns(0, Some(2)), swizzle: 3, ..TILES },
            Tensor { gathered: columns(0, Some(0)), ..TILES },
            Tensor { rank: 2, gathered: columns(0, None), ..TILES },
            Tensor { gathered: columns(32, None), ..TILES },
            Tensor { data_type: 0, ..TILES }.with_channels(12),
        ];
        for (at, tensor) in invalid.iter().enumerate() {
            assert_eq!(tensor.encode(AT).err(), Some(CUresult::ERROR_INVALID_VALUE), "{at}");
        }
        assert!(Tensor { interleave: 2, swizzle: 1, ..TILES }.encode(AT).is_ok());
    }
}
