//! Copies rows between the program's own memory and an array, or rows in GPU memory. Rows are packed: into pieces of the
//! staging area when many, into frames when few, by several threads when very many. Gaps between the program's rows are
//! neither read nor written: they may not be mapped.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use katydid_client::threads::Helpers;
use katydid_cuda_sys::CUresult;
use katydid_driver_rules::copy::CopyExtent;
use katydid_wire::message::{kdRowsIn, kdRowsInStaged, kdRowsOut, kdRowsOutStaged};

use crate::copy::rows::Rows;
use crate::copy::side;
use crate::copy::transfer::{Direction, ProgramMemory, StreamIds, TransferPath, drain, fill, helpers, in_one_piece};
use crate::process::session::{Shim, shim};

/// The end that only the worker reaches.
#[derive(Clone, Copy)]
pub(crate) enum FarEnd {
    /// An array, by its wire id, and the first byte, row and slice of the copy.
    Array(u32, [u64; 3]),
    /// Rows in memory, at a pitch.
    Memory(Rows),
}

/// A rectangle of a slice: byte, row and slice relative to the start of the copy, and its bytes and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyTile {
    x: u64,
    y: u64,
    z: u64,
    width: u64,
    height: u64,
}

impl CopyTile {
    fn bytes(self) -> u64 {
        self.width * self.height
    }
}

/// Splits a copy into tiles of at most `most` bytes: whole rows of a slice where some fit, otherwise parts of one row.
fn tiles(extent: CopyExtent, most: u64) -> Vec<CopyTile> {
    let CopyExtent { width, height, depth } = extent;
    let (wide, high) = (width.min(most), (most / width).clamp(1, height));
    let rows = |z: u64| (0..height).step_by(high as usize).map(move |y| (y, z));
    let rows = (0..depth).flat_map(rows);
    rows.flat_map(|(y, z)| {
        let columns = (0..width).step_by(wide as usize);
        columns.map(move |x| CopyTile { x, y, z, width: wide.min(width - x), height: high.min(height - y) })
    })
    .collect()
}

/// The start of a tile on the far side, as messages say it: array, first byte, row and slice, and pitch of rows.
struct FarOffset {
    array: u32,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
}

impl FarEnd {
    fn offset_of(&self, tile: CopyTile) -> FarOffset {
        match self {
            Self::Array(array, [x, y, z]) => {
                FarOffset { array: *array, x: x + tile.x, y: y + tile.y, z: z + tile.z, pitch: 0 }
            }
            Self::Memory(rows) => {
                let pitch = if tile.height == 1 { tile.width } else { rows.pitch };
                FarOffset { array: 0, x: address_of(rows, tile), y: 0, z: 0, pitch }
            }
        }
    }
}

/// Returns the address of a tile's first byte.
fn address_of(rows: &Rows, tile: CopyTile) -> u64 {
    rows.address() + tile.z * rows.slice + tile.y * rows.pitch + tile.x
}

/// Rows of the program's own memory; several threads copy different tiles of them.
#[derive(Clone, Copy)]
struct NearRows<'a>(&'a Rows);

impl NearRows<'_> {
    /// Returns the start of a row of a tile.
    fn row(self, tile: CopyTile, row: u64) -> ProgramMemory {
        let address = address_of(self.0, tile) + row * self.0.pitch;
        ProgramMemory(std::ptr::with_exposed_provenance(address as usize))
    }

    /// Packs a tile at `to`.
    ///
    /// # Safety
    ///
    /// The tile is readable, and `to` valid for writing its bytes.
    unsafe fn pack(self, tile: CopyTile, to: *mut u8) {
        for row in 0..tile.height {
            let from = self.row(tile, row).at(0);
            // SAFETY: a row of the tile and its place, by the contract.
            unsafe { to.add((row * tile.width) as usize).copy_from_nonoverlapping(from, tile.width as usize) };
        }
    }

    /// Spreads the packed bytes at `from` over a tile.
    ///
    /// # Safety
    ///
    /// The tile is writable, and `from` valid for reading its bytes.
    unsafe fn spread(self, tile: CopyTile, from: *const u8) {
        for row in 0..tile.height {
            let to = self.row(tile, row).at(0).cast_mut();
            // SAFETY: a row of the tile and its place, by the contract.
            unsafe { from.add((row * tile.width) as usize).copy_to_nonoverlapping(to, tile.width as usize) };
        }
    }
}

/// Runs `step` for each tile of a copy, by as many threads as pay. Tiles keep all of them busy, and none is larger than the
/// path takes.
fn each_tile(
    (shim, ids): (&Shim, StreamIds),
    (direction, extent): (Direction, CopyExtent),
    (path, threads): (&TransferPath, usize),
    step: impl Fn(CopyTile) -> Result<(), CUresult> + Sync,
) -> Result<(), CUresult> {
    let bytes = extent.bytes();
    let helpers = helpers(ids, bytes, threads);
    let tiles = tiles(extent, bytes.div_ceil(helpers as u64 + 1).clamp(1, path.most()));
    if let [tile] = tiles[..] {
        return step(tile);
    }
    in_one_piece(shim, ids, (direction, bytes), |batch| {
        let carried = |index| batch.run(|| step(tiles[index as usize]));
        Helpers::take(helpers).run(tiles.len() as u64, CUresult::ERROR_UNKNOWN, &carried)
    })
}

/// Copies from the program's memory, which has been read when this returns.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(ids: StreamIds, far: FarEnd, rows: &Rows, extent: CopyExtent) -> Result<(), CUresult> {
    let shim = shim()?;
    side::prepare(rows.address(), ids)?;
    let (near, stream) = (NearRows(rows), ids.stream);
    let (path, threads) = TransferPath::inwards(shim, extent.bytes());
    each_tile((shim, ids), (Direction::In, extent), (&path, threads), |tile| {
        let (CopyTile { width, height, .. }, FarOffset { array, x, y, z, pitch }) = (tile, far.offset_of(tile));
        if let TransferPath::Staged(staging) = path {
            // SAFETY: readable by the contract; the piece was taken for this many bytes, so no other thread writes it.
            let pack = |start: *mut u8| unsafe { near.pack(tile, start) };
            let (piece, offset) = fill(shim, staging, tile.bytes(), pack)?;
            let message = kdRowsInStaged { array, stream, x, y, z, pitch, width, height, offset, piece };
            return shim.session.enqueue(ids.context, &message);
        }
        let mut data = vec![0; tile.bytes() as usize];
        // SAFETY: readable by the contract; the vector has this many bytes.
        unsafe { near.pack(tile, data.as_mut_ptr()) };
        shim.session.enqueue(ids.context, &kdRowsIn { array, stream, x, y, z, pitch, width, height, data: &data })
    })
}

/// Copies to the program's memory; all bytes are there when this returns.
///
/// # Safety
///
/// The rows are writable.
pub(crate) unsafe fn fetch(ids: StreamIds, far: FarEnd, rows: &Rows, extent: CopyExtent) -> Result<(), CUresult> {
    let shim = shim()?;
    side::prepare(rows.address(), ids)?;
    let (near, stream) = (NearRows(rows), ids.stream);
    let (path, threads) = TransferPath::outwards(shim, extent.bytes());
    each_tile((shim, ids), (Direction::Out, extent), (&path, threads), |tile| {
        let (CopyTile { width, height, .. }, FarOffset { array, x, y, z, pitch }) = (tile, far.offset_of(tile));
        if let TransferPath::Staged(staging) = path {
            let message = |offset| kdRowsOutStaged { array, stream, x, y, z, pitch, width, height, offset };
            let call = |offset| shim.session.call(ids.context, &message(offset)).map(drop);
            // SAFETY: writable by the contract; the worker has written this many bytes of the piece.
            let spread = |start: *mut u8| unsafe { near.spread(tile, start) };
            return drain(shim, staging, tile.bytes(), call, spread);
        }
        let message = kdRowsOut { array, stream, x, y, z, pitch, width, height };
        let data = shim.session.call(ids.context, &message)?.data;
        if data.len() as u64 != tile.bytes() {
            return Err(CUresult::ERROR_UNKNOWN);
        }
        // SAFETY: writable by the contract; the vector has this many bytes.
        unsafe { near.spread(tile, data.as_ptr()) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::side::CopySide;

    const MAX_PACKED_BYTES: u64 = 1 << 20;

    #[test]
    fn tiles_cover_every_byte_once() {
        for (width, height, depth) in
            [(1, 1, 1), (MAX_PACKED_BYTES, 3, 2), (1000, 7000, 3), (MAX_PACKED_BYTES * 2 + 5, 2, 1), (1, 9, 2)]
        {
            let tiles = tiles(CopyExtent { width, height, depth }, MAX_PACKED_BYTES);
            assert_eq!(tiles.iter().map(|tile| tile.bytes()).sum::<u64>(), width * height * depth);
            assert!(tiles.iter().all(|tile| tile.bytes() <= MAX_PACKED_BYTES && tile.width > 0));
        }
        let whole = CopyTile { x: 0, y: 0, z: 1, width: 10, height: 4 };
        assert_eq!(tiles(CopyExtent { width: 10, height: 4, depth: 2 }, MAX_PACKED_BYTES)[1], whole);
    }

    #[test]
    fn rows_are_packed_and_spread_without_touching_their_gaps() {
        let memory: Vec<u8> = (0..60).collect();
        let rows =
            |start: *const u8| Rows { side: CopySide::Own(start.expose_provenance() as u64), pitch: 10, slice: 30 };
        let tile = CopyTile { x: 2, y: 1, z: 1, width: 3, height: 2 };
        let mut packed = [0; 6];
        // SAFETY: both lie in memory of the test.
        unsafe { NearRows(&rows(memory.as_ptr())).pack(tile, packed.as_mut_ptr()) };
        assert_eq!(packed, [42, 43, 44, 52, 53, 54]);
        let mut target = vec![0_u8; 60];
        let rows = rows(target.as_mut_ptr());
        // SAFETY: as above.
        unsafe { NearRows(&rows).spread(tile, packed.as_ptr()) };
        let written: Vec<usize> = (0..60).filter(|at| target[*at] != 0).collect();
        assert_eq!(written, [42, 43, 44, 52, 53, 54]);
    }

    #[test]
    fn a_tile_of_memory_is_where_its_bytes_are() {
        let rows = Rows { side: CopySide::Gpu(1000), pitch: 100, slice: 500 };
        let offset = FarEnd::Memory(rows).offset_of(CopyTile { x: 0, y: 2, z: 1, width: 40, height: 2 });
        assert_eq!((offset.array, offset.x, offset.y, offset.z, offset.pitch), (0, 1700, 0, 0, 100));
        let offset = FarEnd::Array(3, [1, 2, 3]).offset_of(CopyTile { x: 4, y: 5, z: 6, width: 40, height: 1 });
        assert_eq!((offset.array, offset.x, offset.y, offset.z, offset.pitch), (3, 5, 7, 9, 0));
    }
}
