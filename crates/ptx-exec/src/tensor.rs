//! Tensor maps as device code reads and changes them: 16 words of 8 bytes, in this project's own layout.
//!
//! | word | what |
//! |---|---|
//! | 0 | the address of the tensor |
//! | 1 | bytes, lowest first: fill, promotion, swizzle, interleave, rank, data type, kind of box (0: tiles) |
//! | 2 to 6 | sizes of the dimensions, innermost first |
//! | 7 to 10 | strides in bytes, from the second dimension on |
//! | 11, 12 | steps between elements, and sizes of a box: 12 bits each, the innermost dimension highest |
//! | 13, 14 | lower and upper corner of a box of pixels: 16 bits each, the first dimension of pixels highest |
//! | 15 | channels and pixels that a copy takes of such a box: 32 bits each |
//!
//! The driver that uses this crate encodes maps in this layout. A map is data, so each use checks it.

use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::types::Space;

/// Largest number of dimensions of a tensor.
pub(crate) const MAX_TENSOR_RANK: usize = 5;

/// Number of words in a map, and its alignment.
const MAP_WORDS: u64 = 16;
const MAP_ALIGN_BYTES: u64 = 64;

/// Largest number of pixel dimensions: all except channels and images.
const MAX_PIXEL_RANK: usize = MAX_TENSOR_RANK - 2;

/// Index of the word with the kinds, and of the first word of sizes, strides, steps and sizes of a box.
const KINDS_WORD: u64 = 1;
const FIRST_SIZE_WORD: u64 = 2;
const FIRST_STRIDE_WORD: u64 = 7;
const STEPS_WORD: u64 = 11;
const BOX_WORD: u64 = 12;
/// Indices of the words with the corners of a box of pixels, and with the part of it that a copy takes.
const CORNER_WORDS: [usize; 2] = [13, 14];
const TAKEN_WORD: usize = 15;
/// Largest number of elements in a dimension.
const MAX_TENSOR_ELEMENTS: u64 = 1 << 32;
/// Kinds of boxes.
const TILE_BOXES: usize = 0;
const PIXEL_BOXES: usize = 1;

/// PTX names of the element types, by their number in a map.
const ELEMENT_TYPES: [&str; 13] =
    ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32", "f32", "f32"];
/// Numbers of the same types in `tensormap.replace`.
const REPLACED_TYPES: [u64; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12];
/// Sizes of the same types in bytes.
const ELEMENT_BYTES: [u64; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];

/// The box that a copy of pixels stays in: the first and last coordinate in each pixel dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PixelBox {
    /// First coordinates.
    pub(crate) first: [i64; MAX_PIXEL_RANK],
    /// Last coordinates.
    pub(crate) last: [i64; MAX_PIXEL_RANK],
}

/// A map of tiles or of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorMap {
    /// Address of the tensor.
    pub(crate) address: u64,
    /// Number of dimensions.
    pub(crate) rank: usize,
    /// Number of the element type.
    data_type: usize,
    /// Number of elements in each dimension.
    pub(crate) sizes: [u64; MAX_TENSOR_RANK],
    /// Number of bytes between elements in each dimension.
    pub(crate) strides: [u64; MAX_TENSOR_RANK],
    /// Distance in elements between two that a box takes, in each dimension.
    pub(crate) steps: [u64; MAX_TENSOR_RANK],
    /// Number of elements that a box takes in each dimension; for pixels: the numbers of channels and pixels.
    pub(crate) tile: [u64; MAX_TENSOR_RANK],
    /// Mask of the bits of a row's address that are combined with its 16-byte pieces by `xor`.
    swizzle: u64,
    /// Whether elements outside the tensor are NaN instead of zero.
    pub(crate) fills_with_nan: bool,
    /// The box that pixels are taken from; `None` for a map of tiles.
    pub(crate) pixels: Option<PixelBox>,
}

impl TensorMap {
    /// Decodes a map from 16 words. Returns `None` if it cannot be read: wide columns, packed elements, interleaved tensors, and
    /// invalid maps.
    pub(crate) fn from_words(words: &[u64; MAP_WORDS as usize]) -> Option<Self> {
        let kind = |at: u32| (words[KINDS_WORD as usize] >> (8 * at) & 0xff) as usize;
        let (fill, swizzle, interleave, rank, data_type, boxes) =
            (kind(0), kind(2), kind(3), kind(4), kind(5), kind(6));
        let bytes = *ELEMENT_BYTES.get(data_type)?;
        let swizzle = match swizzle {
            0 => 0,
            1 => 1,
            2 => 3,
            3 => 7,
            _ => return None,
        };
        let ranks = match boxes {
            TILE_BOXES => 1..=MAX_TENSOR_RANK,
            PIXEL_BOXES => 3..=MAX_TENSOR_RANK,
            _ => return None,
        };
        if !ranks.contains(&rank) || interleave != 0 || fill > 1 {
            return None;
        }
        let packed = |word: u64, at: usize| words[word as usize] >> (12 * (MAX_TENSOR_RANK - 1 - at)) & 0xfff;
        let inside = |at: usize| at < rank;
        let mut map = Self {
            address: words[0],
            rank,
            data_type,
            sizes: std::array::from_fn(|at| if inside(at) { words[FIRST_SIZE_WORD as usize + at] } else { 1 }),
            strides: std::array::from_fn(|at| if at == 0 { bytes } else { words[FIRST_STRIDE_WORD as usize + at - 1] }),
            // Without interleaving, the innermost step is ignored.
            steps: std::array::from_fn(|at| if at == 0 || !inside(at) { 1 } else { packed(STEPS_WORD, at) }),
            tile: std::array::from_fn(|at| if inside(at) { packed(BOX_WORD, at) } else { 1 }),
            swizzle,
            fills_with_nan: fill == 1,
            pixels: None,
        };
        if boxes == PIXEL_BOXES {
            return map.of_pixels(words);
        }
        if map.steps.contains(&0) || map.tile.contains(&0) || map.tile.iter().any(|size| *size > 256) {
            return None;
        }
        for (size, step) in map.tile.iter_mut().zip(map.steps) {
            *size = size.div_ceil(step);
        }
        Some(map)
    }

    /// Adds the pixels that a copy takes of a box.
    fn of_pixels(mut self, words: &[u64; MAP_WORDS as usize]) -> Option<Self> {
        let corner = |word: usize, at: usize| i64::from((words[word] >> (16 * (MAX_PIXEL_RANK - 1 - at))) as i16);
        let [lower, upper] = CORNER_WORDS;
        let end = |at: usize| self.sizes[at + 1].min(MAX_TENSOR_ELEMENTS) as i64 - 1;
        let (channels, pixels) = (words[TAKEN_WORD] >> 32, words[TAKEN_WORD] & 0xffff_ffff);
        self.pixels = Some(PixelBox {
            first: std::array::from_fn(|at| if at + 2 < self.rank { corner(lower, at) } else { 0 }),
            last: std::array::from_fn(|at| if at + 2 < self.rank { end(at) + corner(upper, at) } else { 0 }),
        });
        self.tile = [channels, pixels, 1, 1, 1];
        let is_read = (1..=256).contains(&channels) && (1..=1024).contains(&pixels) && !self.steps.contains(&0);
        is_read.then_some(self)
    }

    /// Returns the size of an element in bytes.
    pub(crate) fn element(&self) -> u64 {
        ELEMENT_BYTES.get(self.data_type).copied().unwrap_or(1)
    }

    /// Returns the PTX name of the element type.
    pub(crate) fn type_name(&self) -> &'static str {
        ELEMENT_TYPES.get(self.data_type).copied().unwrap_or("u8")
    }

    /// Returns the number of bytes in a row of a box.
    pub(crate) fn row(&self) -> u64 {
        self.tile[0] * self.element()
    }

    /// Returns the number of bytes in a box.
    pub(crate) fn bytes(&self) -> u64 {
        self.tile.iter().product::<u64>() * self.element()
    }

    /// Returns where the swizzle puts a piece of a box whose plain address in shared memory is `address`.
    pub(crate) fn swizzled(&self, address: u64) -> u64 {
        address ^ (address >> 7 & self.swizzle) << 4
    }

    /// Returns the value of an element outside the tensor, repeated over 8 bytes.
    pub(crate) fn outside(&self) -> u64 {
        match (self.fills_with_nan, self.element()) {
            (false, _) => 0,
            (true, 2) => 0x7ff7_7ff7_7ff7_7ff7,
            (true, 4) => 0x7fff_ffff_7fff_ffff,
            (true, _) => 0x7fff_ffff_ffff_ffff,
        }
    }
}

/// Field of a map that `tensormap.replace` changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// `.global_address`
    Address,
    /// `.rank`, minus one
    Rank,
    /// `.box_dim`
    Box,
    /// `.global_dim`
    Size,
    /// `.global_stride`
    Stride,
    /// `.element_stride`
    Step,
    /// `.elemtype`
    Type,
    /// `.interleave_layout`
    Interleave,
    /// `.swizzle_mode`
    Swizzle,
    /// `.fill_mode`
    Fill,
}

impl Field {
    /// All fields, with their names.
    const ALL: [(&'static str, Self); 10] = [
        ("global_address", Self::Address),
        ("rank", Self::Rank),
        ("box_dim", Self::Box),
        ("global_dim", Self::Size),
        ("global_stride", Self::Stride),
        ("element_stride", Self::Step),
        ("elemtype", Self::Type),
        ("interleave_layout", Self::Interleave),
        ("swizzle_mode", Self::Swizzle),
        ("fill_mode", Self::Fill),
    ];

    /// Returns the field called `name`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }

    /// Returns the number of the field, for `Inst` fields.
    pub(crate) fn encode(self) -> u64 {
        Self::ALL.iter().position(|(_, field)| *field == self).unwrap_or(0) as u64
    }

    /// Returns the field for a number from `encode`.
    pub(crate) fn decode(code: u64) -> Self {
        Self::ALL.get(code as usize).map_or(Self::Address, |(_, field)| *field)
    }

    /// Returns whether the field has 64 bits.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::Address | Self::Stride)
    }

    /// Returns the number of dimensions that the field has values for; `None` if it has only one value.
    pub(crate) fn dimensions(self) -> Option<u64> {
        match self {
            Self::Box | Self::Size | Self::Step => Some(MAX_TENSOR_RANK as u64),
            Self::Stride => Some(MAX_TENSOR_RANK as u64 - 1),
            _ => None,
        }
    }

    /// Returns the largest value of a field that is set by an immediate; `None` for other fields.
    pub(crate) fn largest(self) -> Option<u64> {
        match self {
            Self::Type => Some(REPLACED_TYPES.len() as u64 - 1),
            Self::Interleave => Some(2),
            Self::Swizzle => Some(3),
            Self::Fill => Some(1),
            _ => None,
        }
    }

    /// Returns the word that holds the field, its lowest bit there, and its number of bits.
    fn bit_range(self, dimension: u64) -> (u64, u64, u32) {
        let packed = |word| (word, 12 * (MAX_TENSOR_RANK as u64 - 1).saturating_sub(dimension), 12);
        match self {
            Self::Address => (0, 0, 64),
            Self::Rank => (KINDS_WORD, 32, 8),
            Self::Box => packed(BOX_WORD),
            Self::Size => (FIRST_SIZE_WORD + dimension, 0, 64),
            Self::Stride => (FIRST_STRIDE_WORD + dimension, 0, 64),
            Self::Step => packed(STEPS_WORD),
            Self::Type => (KINDS_WORD, 40, 8),
            Self::Interleave => (KINDS_WORD, 24, 8),
            Self::Swizzle => (KINDS_WORD, 16, 8),
            Self::Fill => (KINDS_WORD, 0, 8),
        }
    }

    /// Returns the number of the map's word that holds the field, and a function that changes it.
    fn change(self, dimension: u64, value: u64) -> (u64, impl Fn(u64) -> u64) {
        let (word, shift, bits) = self.bit_range(dimension);
        let value = match self {
            Self::Rank => value.wrapping_add(1),
            Self::Type => REPLACED_TYPES.get(value as usize).copied().unwrap_or(value),
            _ => value,
        };
        let mask = u64::MAX >> (64 - bits) << shift;
        (word, move |old| old & !mask | value << shift & mask)
    }
}

impl Machine<'_> {
    /// Reads a map for a lane; an invalid map is a fault.
    pub(crate) fn tensor_map(&mut self, lane: usize, address: u64) -> Result<TensorMap, FaultKind> {
        if !address.is_multiple_of(MAP_ALIGN_BYTES) {
            return Err(FaultKind::MisalignedAddress(address));
        }
        let mut words = [0; MAP_WORDS as usize];
        for (index, word) in (0_u64..).zip(&mut words) {
            *word = self.read(Space::Generic, lane, address.wrapping_add(8 * index))?;
        }
        TensorMap::from_words(&words).ok_or(FaultKind::BadTensorMap(address))
    }

    /// Changes a field of a map.
    pub(crate) fn replace_in_map(
        &mut self,
        lane: usize,
        (space, address): (Space, u64),
        (field, dimension): (Field, u64),
        value: u64,
    ) -> Result<(), FaultKind> {
        if !address.is_multiple_of(MAP_ALIGN_BYTES) {
            return Err(FaultKind::MisalignedAddress(address));
        }
        let (word, change) = field.change(dimension, value);
        let at = address.wrapping_add(8 * word);
        let old = self.read::<u64>(space, lane, at)?;
        self.write::<u64>(space, lane, at, change(old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a map of two dimensions of `f32`, 16 by 8, with boxes of 4 by 2.
    fn map_words() -> [u64; 16] {
        let mut words = [0; 16];
        (words[0], words[1]) = (0x1000, 7 << 40 | 2 << 32);
        (words[2], words[3], words[7]) = (16, 8, 64);
        (words[11], words[12]) = (1 << 48 | 1 << 36, 4 << 48 | 2 << 36);
        words
    }

    #[test]
    fn words_become_a_map() {
        let map = TensorMap::from_words(&map_words()).unwrap();
        assert_eq!((map.address, map.rank, map.type_name(), map.row(), map.bytes()), (0x1000, 2, "f32", 16, 32));
        assert_eq!((map.sizes, map.strides), ([16, 8, 1, 1, 1], [4, 64, 0, 0, 0]));
        let (mut wide, mut packed, mut empty) = (map_words(), map_words(), map_words());
        wide[1] |= 2 << 48;
        packed[1] |= 13 << 40;
        empty[12] = 0;
        assert_eq!([wide, packed, empty].map(|words| TensorMap::from_words(&words)), [None; 3]);
    }

    #[test]
    fn a_box_of_pixels_ends_where_its_corners_say() {
        let mut words = map_words();
        words[1] = 1 << 48 | 7 << 40 | 4 << 32;
        (words[4], words[5]) = (5, 3);
        words[11] = 1 << 48 | 2 << 36 | 1 << 24 | 1 << 12;
        (words[13], words[14], words[15]) = (0xffff << 32, 0xfffe << 16, 16 << 32 | 64);
        let map = TensorMap::from_words(&words).unwrap();
        assert_eq!(map.pixels, Some(PixelBox { first: [-1, 0, 0], last: [7, 2, 0] }));
        assert_eq!((map.row(), map.bytes(), map.steps[1]), (64, 4096, 2));
        words[15] = 16 << 32;
        assert_eq!(TensorMap::from_words(&words), None, "no pixels");
    }

    #[test]
    fn fields_are_replaced_one_by_one() {
        let mut words = map_words();
        let mut replace = |field: Field, dimension, value| {
            let (word, change) = field.change(dimension, value);
            words[word as usize] = change(words[word as usize]);
        };
        replace(Field::Address, 0, 0x2000);
        replace(Field::Rank, 0, 2);
        replace(Field::Size, 2, 5);
        replace(Field::Stride, 1, 512);
        replace(Field::Box, 2, 3);
        replace(Field::Step, 2, 1);
        replace(Field::Type, 0, 10);
        replace(Field::Swizzle, 0, 3);
        replace(Field::Fill, 0, 1);
        let map = TensorMap::from_words(&words).unwrap();
        assert_eq!((map.address, map.rank, map.type_name(), map.bytes()), (0x2000, 3, "bf16", 48));
        assert_eq!((map.sizes, map.strides[2], map.tile), ([16, 8, 5, 1, 1], 512, [4, 2, 3, 1, 1]));
        assert_eq!((map.swizzled(0x0380), map.outside() & 0xffff), (0x03f0, 0x7ff7));
    }

    #[test]
    fn fields_survive_being_numbers() {
        for (name, field) in Field::ALL {
            assert_eq!((Field::parse(name), Field::decode(field.encode())), (Some(field), field));
        }
    }
}
