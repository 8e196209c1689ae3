//! The memory that an allocation takes of a GPU: tiles, and pieces of 2 MiB.
//!
//! A driver takes 2 MiB of a GPU at a time. An allocation of more than 1 MiB has whole pieces of its own. A smaller one
//! shares pieces with others of its context, and an empty piece is released. Texels lie in tiles of 64 bytes and 8 rows, so
//! rows are padded to whole tiles. Seen on an H200 with driver 580.159.04, for arrays of CUDA and for buffers and images of
//! OpenCL alike.
//!
//! A piece counts as a whole from the first allocation in it to the end of the last one. Otherwise a program could keep any
//! number of pieces, each for the 512 bytes that it still has in it.

/// Bytes of a row of a tile, and rows of a tile.
const TILE_ROW_BYTES: u64 = 64;
const TILE_ROWS: u64 = 8;
/// Largest allocation, in bytes, that shares a piece.
const MAX_PIECE_SHARE_BYTES: u64 = 1 << 20;
/// Bytes that a driver takes of a GPU at a time.
const PIECE_BYTES: u64 = 2 << 20;
/// Allocation unit within a piece, in bytes, and the number of units in a piece.
const UNIT_BYTES: u64 = 512;
const PIECE_UNITS: u16 = (PIECE_BYTES / UNIT_BYTES) as u16;

/// Texels of an image or array with all of its levels.
#[derive(Debug, Clone, Copy)]
pub struct Texels {
    /// Bytes of one texel.
    pub bytes: u64,
    /// Width, height and depth; 0 counts as 1.
    pub extent: [u64; 3],
    /// Whether the depth is a number of layers, equal for all levels.
    pub has_layers: bool,
    /// Levels of a mipmap: each is half as wide, high and deep as the one before.
    pub levels: u32,
}

impl Texels {
    /// Returns the bytes of all tiles.
    #[must_use]
    pub fn tiled_bytes(&self) -> u64 {
        let [width, height, depth] = self.extent.map(|size| size.max(1));
        let longest = width.max(height).max(if self.has_layers { 1 } else { depth });
        (0..self.levels.clamp(1, longest.ilog2() + 1)).fold(0_u64, |all, level| {
            let size = |size: u64| (size >> level).max(1);
            let whole = |size: u64, unit: u64| size.div_ceil(unit).saturating_mul(unit);
            let row = whole(size(width).saturating_mul(self.bytes), TILE_ROW_BYTES);
            let slices = if self.has_layers { depth } else { size(depth) };
            all.saturating_add(row.saturating_mul(whole(size(height), TILE_ROWS)).saturating_mul(slices))
        })
    }
}

/// The memory of one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMemory {
    /// Whole pieces of its own, in bytes.
    Own(u64),
    /// A part of a shared piece.
    Shared(PiecePart),
}

/// A part of a shared piece, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PiecePart {
    piece: u32,
    start: u16,
    end: u16,
}

/// The shared pieces of a context, filled from the first one on.
#[derive(Debug, Default)]
pub struct GpuPieces {
    /// The used parts of each piece, in order. A piece without any belongs to the driver.
    parts: Vec<Vec<(u16, u16)>>,
    /// The largest number of adjacent free units in each piece; 0 for a piece of the driver.
    largest_gap: Vec<u16>,
}

impl GpuPieces {
    /// Allocates memory: returns it, and the bytes of a GPU that are taken with it.
    pub fn take(&mut self, bytes: u64) -> (GpuMemory, u64) {
        if bytes > MAX_PIECE_SHARE_BYTES || bytes == 0 {
            let own = bytes.div_ceil(PIECE_BYTES).saturating_mul(PIECE_BYTES);
            return (GpuMemory::Own(own), own);
        }
        // At most half of a piece.
        let units = bytes.div_ceil(UNIT_BYTES) as u16;
        let with_gap = self.largest_gap.iter().position(|gap| *gap >= units);
        let piece = with_gap.or_else(|| self.parts.iter().position(Vec::is_empty)).unwrap_or_else(|| {
            self.parts.push(Vec::new());
            self.largest_gap.push(0);
            self.largest_gap.len() - 1
        });
        let parts = &mut self.parts[piece];
        let added = if parts.is_empty() { PIECE_BYTES } else { 0 };
        let (at, start) = gaps(parts).find(|(_, start, end)| end - start >= units).map_or((0, 0), |it| (it.0, it.1));
        parts.insert(at, (start, start + units));
        self.measure(piece);
        (GpuMemory::Shared(PiecePart { piece: piece as u32, start, end: start + units }), added)
    }

    /// Releases the memory of an allocation; returns the bytes of a GPU that are free with it.
    pub fn give_back(&mut self, memory: GpuMemory) -> u64 {
        let part = match memory {
            GpuMemory::Own(bytes) => return bytes,
            GpuMemory::Shared(part) => part,
        };
        let piece = part.piece as usize;
        let Some(parts) = self.parts.get_mut(piece) else { return 0 };
        let Some(at) = parts.iter().position(|one| *one == (part.start, part.end)) else { return 0 };
        parts.remove(at);
        let freed = if parts.is_empty() { PIECE_BYTES } else { 0 };
        self.measure(piece);
        freed
    }

    /// Returns the bytes of all shared pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().filter(|parts| !parts.is_empty()).count() as u64 * PIECE_BYTES
    }

    /// Updates the largest gap of a piece.
    fn measure(&mut self, piece: usize) {
        let parts = &self.parts[piece];
        let largest = gaps(parts).map(|(_, start, end)| end - start).max().unwrap_or(0);
        self.largest_gap[piece] = if parts.is_empty() { 0 } else { largest };
    }
}

/// Returns the gaps between the parts of a piece: the index of a part in the gap, its first unit and its end.
fn gaps(parts: &[(u16, u16)]) -> impl Iterator<Item = (usize, u16, u16)> {
    let starts = std::iter::once(0).chain(parts.iter().map(|(_, end)| *end));
    let ends = parts.iter().map(|(start, _)| *start).chain(std::iter::once(PIECE_UNITS));
    starts.zip(ends).enumerate().map(|(at, (start, end))| (at, start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On an H200: one allocation of 512 bytes took a piece, and 16,383 others took three more. None was released
    /// while each piece kept two of them, between which 1 MiB does not fit. Four of 1 MiB took two more pieces, and
    /// 4,000 small ones none.
    #[test]
    fn pieces_are_taken_and_given_back_as_a_gpu_does() {
        let mut pieces = GpuPieces::default();
        let mut take = |count: usize, bytes| {
            let results: Vec<_> = (0..count).map(|_| pieces.take(bytes)).collect();
            let added: u64 = results.iter().map(|(_, added)| added).sum();
            (results.into_iter().map(|(memory, _)| memory).collect::<Vec<_>>(), added >> 20)
        };
        let (first, added) = take(1, 512);
        assert_eq!(added, 2);
        let (others, added) = take(16_383, 512);
        assert_eq!(added, 6);
        let all = [first, others].concat();
        let is_left = |at: usize| [1800, 3000].contains(&(at % 4096));
        let (left, gone): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(at, _)| is_left(*at));
        let mut give = |all: Vec<GpuMemory>| all.into_iter().map(|memory| pieces.give_back(memory)).sum::<u64>() >> 20;
        assert_eq!(give(gone.into_iter().map(|(_, memory)| memory).collect()), 0);
        let mut take = |count: usize, bytes| {
            let results: Vec<_> = (0..count).map(|_| pieces.take(bytes)).collect();
            (
                results.iter().map(|(memory, _)| *memory).collect::<Vec<_>>(),
                results.iter().map(|it| it.1).sum::<u64>() >> 20,
            )
        };
        let (large, added) = take(4, 1 << 20);
        assert_eq!(added, 4);
        let (small, added) = take(4000, 512);
        assert_eq!((added, pieces.bytes() >> 20), (0, 12));
        let mut give = |all: Vec<GpuMemory>| all.into_iter().map(|memory| pieces.give_back(memory)).sum::<u64>() >> 20;
        assert_eq!(give([large, small].concat()), 4);
        assert_eq!(give(left.into_iter().map(|(_, memory)| memory).collect()), 8);
        assert_eq!(pieces.bytes(), 0);
    }

    #[test]
    fn what_is_large_has_whole_pieces_and_parts_are_given_back_once() {
        let mut pieces = GpuPieces::default();
        for (bytes, own) in [(0, 0), ((1 << 20) + 1, 2 << 20), ((2 << 20) + 1, 4 << 20), (u64::MAX, u64::MAX)] {
            assert_eq!(pieces.take(bytes), (GpuMemory::Own(own), own));
            assert_eq!(pieces.give_back(GpuMemory::Own(own)), own);
        }
        let (one, _) = pieces.take(1);
        let (other, added) = pieces.take(600);
        assert_eq!((added, pieces.give_back(one), pieces.give_back(one)), (0, 0, 0));
        assert_eq!((pieces.give_back(other), pieces.bytes()), (PIECE_BYTES, 0));
    }
}
