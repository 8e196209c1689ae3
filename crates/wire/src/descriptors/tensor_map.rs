//! The arguments of `cuTensorMapEncode*`, in `kdTensorMap`.
//!
//! Layout: every number below in this order as 64 little-endian bits, arrays with all their elements; elements beyond the rank
//! are 0. Signed numbers are sign-extended. The reader takes exactly that many bytes.

/// Most dimensions of a tensor.
pub const MAX_TENSOR_RANK: usize = 5;
/// Most dimensions of a box of pixels: those of a tensor without channels and batch.
pub const MAX_PIXEL_RANK: usize = MAX_TENSOR_RANK - 2;
/// Number of 64-bit words in the layout.
const TENSOR_MAP_WORDS: usize = 3 + 4 * MAX_TENSOR_RANK + 2 * MAX_PIXEL_RANK + 7;
/// Bytes of the layout.
pub const TENSOR_MAP_BYTES: usize = 8 * TENSOR_MAP_WORDS;

/// Driver function that encodes the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorMapKind {
    /// `cuTensorMapEncodeTiled`: boxes of the tensor's own dimensions.
    Tiled,
    /// `cuTensorMapEncodeIm2col`: boxes of pixels, for convolutions.
    Im2col,
    /// `cuTensorMapEncodeIm2colWide`; its box is in the first element of the corners.
    Im2colWide,
}

/// The arguments without the address. Fields have the header's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Driver function that the program called.
    pub kind: TensorMapKind,
    /// `tensorDataType`, a `CUtensorMapDataType`.
    pub data_type: u32,
    /// `tensorRank`: 1 to [`MAX_TENSOR_RANK`].
    pub rank: u32,
    /// `globalDim`, in elements.
    pub dimensions: [u64; MAX_TENSOR_RANK],
    /// `globalStrides`, in bytes; one fewer than dimensions.
    pub strides: [u64; MAX_TENSOR_RANK],
    /// `boxDim`, in elements (tiled).
    pub tile: [u32; MAX_TENSOR_RANK],
    /// `elementStrides`: steps between loaded elements, in elements.
    pub element_strides: [u32; MAX_TENSOR_RANK],
    /// `pixelBoxLowerCorner`, in pixels; 0 unless im2col.
    pub lower: [i32; MAX_PIXEL_RANK],
    /// `pixelBoxUpperCorner`, in pixels; 0 unless im2col.
    pub upper: [i32; MAX_PIXEL_RANK],
    /// `channelsPerPixel` of a box; 0 unless im2col.
    pub channels: u32,
    /// `pixelsPerColumn` of a box; 0 unless im2col.
    pub pixels: u32,
    /// `interleave`, a `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `mode`, a `CUtensorMapIm2ColWideMode`; 0 unless im2col wide.
    pub mode: u32,
    /// `swizzle`, a `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `l2Promotion`, a `CUtensorMapL2promotion`.
    pub promotion: u32,
    /// `oobFill`, a `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

impl TensorMap {
    /// Encodes the arguments in the layout.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let signed = |value: i32| i64::from(value).cast_unsigned();
        let mut fields = vec![self.kind as u64, u64::from(self.data_type), u64::from(self.rank)];
        fields.extend(self.dimensions);
        fields.extend(self.strides);
        fields.extend(self.tile.map(u64::from));
        fields.extend(self.element_strides.map(u64::from));
        fields.extend(self.lower.map(signed));
        fields.extend(self.upper.map(signed));
        let Self { channels, pixels, interleave, mode, swizzle, promotion, fill, .. } = *self;
        fields.extend([channels, pixels, interleave, mode, swizzle, promotion, fill].map(u64::from));
        fields.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes the layout; `None` for another number of bytes, an unknown function or an impossible rank.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; TENSOR_MAP_BYTES] = bytes.try_into().ok()?;
        let mut fields = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        let mut next = || fields.next().unwrap_or(0);
        let kind = match next() {
            0 => TensorMapKind::Tiled,
            1 => TensorMapKind::Im2col,
            2 => TensorMapKind::Im2colWide,
            _ => return None,
        };
        let (data_type, rank) = (next() as u32, next() as u32);
        if !(1..=MAX_TENSOR_RANK).contains(&(rank as usize)) {
            return None;
        }
        Some(Self {
            kind,
            data_type,
            rank,
            dimensions: std::array::from_fn(|_| next()),
            strides: std::array::from_fn(|_| next()),
            tile: std::array::from_fn(|_| next() as u32),
            element_strides: std::array::from_fn(|_| next() as u32),
            lower: std::array::from_fn(|_| next() as i32),
            upper: std::array::from_fn(|_| next() as i32),
            channels: next() as u32,
            pixels: next() as u32,
            interleave: next() as u32,
            mode: next() as u32,
            swizzle: next() as u32,
            promotion: next() as u32,
            fill: next() as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            kind: TensorMapKind::Im2col,
            data_type: 6,
            rank: 4,
            dimensions: [64, 16, 16, 2, 0],
            strides: [128, 2048, 1 << 40, 0, 0],
            tile: [1, 2, 3, 4, 5],
            element_strides: [1, 1, 2, 1, 0],
            lower: [-1, 0, -32768],
            upper: [1, -2, 0],
            channels: 32,
            pixels: 16,
            interleave: 1,
            mode: 0,
            swizzle: 3,
            promotion: 2,
            fill: 1,
        }
    }

    #[test]
    fn arguments_come_back_as_they_were() {
        let bytes = map().encode();
        assert_eq!(bytes.len(), TENSOR_MAP_BYTES);
        assert_eq!(TensorMap::decode(&bytes), Some(map()));
    }

    #[test]
    fn other_lengths_functions_and_ranks_are_refused() {
        let mut bytes = map().encode();
        assert_eq!(TensorMap::decode(&bytes[1..]), None);
        bytes[0] = 3;
        assert_eq!(TensorMap::decode(&bytes), None);
        for rank in [0, 6] {
            assert_eq!(TensorMap::decode(&TensorMap { rank, ..map() }.encode()), None);
        }
    }
}
