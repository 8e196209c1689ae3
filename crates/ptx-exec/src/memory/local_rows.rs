//! Layout of local memory: rows of 8 bytes for each of 32 lanes.

use crate::engine::registers::WARP_LANES;

/// The local memory of a warp.
pub(crate) type Rows = Vec<[u64; WARP_LANES]>;

/// Returns the number of rows for `bytes` bytes of each lane.
pub(crate) fn rows_for(bytes: u32) -> usize {
    bytes.div_ceil(8) as usize
}

/// Returns whether `size` bytes at `offset` exist.
pub(crate) fn contains(rows: &Rows, offset: u64, size: u64) -> bool {
    offset.checked_add(size).is_some_and(|end| end <= rows.len() as u64 * 8)
}
