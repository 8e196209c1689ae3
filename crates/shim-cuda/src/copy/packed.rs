//! Rows of the program's own memory on their way to an array or to rows in the GPU's memory, and back: packed into pieces of the
//! staging area when many, into frames when few, by several threads when very many. Gaps between the program's rows are neither
//! read nor written: they may not be mapped.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use katydid_client::threads::Helpers;
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdRowsIn, kdRowsInStaged, kdRowsOut, kdRowsOutStaged};

use crate::copy::rows::{Extent, Rows};
use crate::copy::side;
use crate::copy::transfer::{Direction, Own, Road, Way, drain, fill, helpers, in_one_piece};
use crate::process::session::{Shim, shim};

/// The end that only the worker reaches.
#[derive(Clone, Copy)]
pub(crate) enum Far {
    /// An array, by its wire id, from a byte, row and slice on.
    Array(u32, [u64; 3]),
    /// Rows in memory.
    Memory(Rows),
}

/// A rectangle of a slice: bytes, rows and slices from the first of the copy, and its bytes and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    x: u64,
    y: u64,
    z: u64,
    width: u64,
    height: u64,
}

impl Part {
    fn bytes(self) -> u64 {
        self.width * self.height
    }
}

/// The parts of a copy, none of more than `most` bytes: whole rows of a slice where some fit, else parts of one row.
fn parts(extent: Extent, most: u64) -> Vec<Part> {
    let Extent { width, height, depth } = extent;
    let (wide, high) = (width.min(most), (most / width).clamp(1, height));
    let rows = |z: u64| (0..height).step_by(high as usize).map(move |y| (y, z));
    let rows = (0..depth).flat_map(rows);
    rows.flat_map(|(y, z)| {
        let columns = (0..width).step_by(wide as usize);
        columns.map(move |x| Part { x, y, z, width: wide.min(width - x), height: high.min(height - y) })
    })
    .collect()
}

/// Where a part begins on the far side, as messages say it: array, first byte, row and slice, and distance of rows.
struct Place {
    array: u32,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
}

impl Far {
    fn place(&self, part: Part) -> Place {
        match self {
            Self::Array(array, [x, y, z]) => {
                Place { array: *array, x: x + part.x, y: y + part.y, z: z + part.z, pitch: 0 }
            }
            Self::Memory(rows) => {
                let pitch = if part.height == 1 { part.width } else { rows.pitch };
                Place { array: 0, x: place(rows, part), y: 0, z: 0, pitch }
            }
        }
    }
}

/// The address of a part's first byte.
fn place(rows: &Rows, part: Part) -> u64 {
    rows.address() + part.z * rows.slice + part.y * rows.pitch + part.x
}

/// Rows of the program's own memory, of which several threads copy different parts.
#[derive(Clone, Copy)]
struct Near<'a>(&'a Rows);

impl Near<'_> {
    /// The start of a row of a part.
    fn row(self, part: Part, row: u64) -> Own {
        let address = place(self.0, part) + row * self.0.pitch;
        Own(std::ptr::with_exposed_provenance(address as usize))
    }

    /// Packs a part at `to`.
    ///
    /// # Safety
    ///
    /// The part is readable, and `to` valid for writing its bytes.
    unsafe fn pack(self, part: Part, to: *mut u8) {
        for row in 0..part.height {
            let from = self.row(part, row).at(0);
            // SAFETY: a row of the part and its place, by the contract.
            unsafe { to.add((row * part.width) as usize).copy_from_nonoverlapping(from, part.width as usize) };
        }
    }

    /// Spreads what is packed at `from` over a part.
    ///
    /// # Safety
    ///
    /// The part is writable, and `from` valid for reading its bytes.
    unsafe fn spread(self, part: Part, from: *const u8) {
        for row in 0..part.height {
            let to = self.row(part, row).at(0).cast_mut();
            // SAFETY: a row of the part and its place, by the contract.
            unsafe { from.add((row * part.width) as usize).copy_to_nonoverlapping(to, part.width as usize) };
        }
    }
}

/// Runs `step` for each part of a copy, by as many threads as pay: all of them are busy, and none of the parts is larger than the
/// road takes.
fn each_part(
    (shim, way): (&Shim, Way),
    (direction, extent): (Direction, Extent),
    (road, threads): (&Road, usize),
    step: impl Fn(Part) -> Result<(), CUresult> + Sync,
) -> Result<(), CUresult> {
    let bytes = extent.bytes();
    let helpers = helpers(way, bytes, threads);
    let parts = parts(extent, bytes.div_ceil(helpers as u64 + 1).clamp(1, road.most()));
    if let [one] = parts[..] {
        return step(one);
    }
    in_one_piece(shim, way, (direction, bytes), |batch| {
        let carried = |index| batch.run(|| step(parts[index as usize]));
        Helpers::take(helpers).run(parts.len() as u64, CUresult::ERROR_UNKNOWN, &carried)
    })
}

/// From the program's memory; it has been read when this returns.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(way: Way, far: Far, rows: &Rows, extent: Extent) -> Result<(), CUresult> {
    let shim = shim()?;
    side::prepare(rows.address(), way)?;
    let (near, stream) = (Near(rows), way.stream);
    let (road, threads) = Road::inwards(shim, extent.bytes());
    each_part((shim, way), (Direction::In, extent), (&road, threads), |part| {
        let (Part { width, height, .. }, Place { array, x, y, z, pitch }) = (part, far.place(part));
        if let Road::Staged(staging) = road {
            // SAFETY: readable by the contract; the piece was taken for so many bytes, so no other thread writes it.
            let pack = |start: *mut u8| unsafe { near.pack(part, start) };
            let (piece, offset) = fill(shim, staging, part.bytes(), pack)?;
            let message = kdRowsInStaged { array, stream, x, y, z, pitch, width, height, offset, piece };
            return shim.session.enqueue(way.context, &message);
        }
        let mut data = vec![0; part.bytes() as usize];
        // SAFETY: readable by the contract; the vector has so many bytes.
        unsafe { near.pack(part, data.as_mut_ptr()) };
        shim.session.enqueue(way.context, &kdRowsIn { array, stream, x, y, z, pitch, width, height, data: &data })
    })
}

/// To the program's memory; all is there when this returns.
///
/// # Safety
///
/// The rows are writable.
pub(crate) unsafe fn fetch(way: Way, far: Far, rows: &Rows, extent: Extent) -> Result<(), CUresult> {
    let shim = shim()?;
    side::prepare(rows.address(), way)?;
    let (near, stream) = (Near(rows), way.stream);
    let (road, threads) = Road::outwards(shim, extent.bytes());
    each_part((shim, way), (Direction::Out, extent), (&road, threads), |part| {
        let (Part { width, height, .. }, Place { array, x, y, z, pitch }) = (part, far.place(part));
        if let Road::Staged(staging) = road {
            let message = |offset| kdRowsOutStaged { array, stream, x, y, z, pitch, width, height, offset };
            let call = |offset| shim.session.call(way.context, &message(offset)).map(drop);
            // SAFETY: writable by the contract; the worker has written so many bytes of our piece.
            let spread = |start: *mut u8| unsafe { near.spread(part, start) };
            return drain(shim, staging, part.bytes(), call, spread);
        }
        let message = kdRowsOut { array, stream, x, y, z, pitch, width, height };
        let data = shim.session.call(way.context, &message)?.data;
        if data.len() as u64 != part.bytes() {
            return Err(CUresult::ERROR_UNKNOWN);
        }
        // SAFETY: writable by the contract; the vector has so many bytes.
        unsafe { near.spread(part, data.as_ptr()) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::side::Side;

    const MAX_BYTES: u64 = 1 << 20;

    #[test]
    fn parts_cover_every_byte_once() {
        for (width, height, depth) in
            [(1, 1, 1), (MAX_BYTES, 3, 2), (1000, 7000, 3), (MAX_BYTES * 2 + 5, 2, 1), (1, 9, 2)]
        {
            let parts = parts(Extent { width, height, depth }, MAX_BYTES);
            assert_eq!(parts.iter().map(|part| part.bytes()).sum::<u64>(), width * height * depth);
            assert!(parts.iter().all(|part| part.bytes() <= MAX_BYTES && part.width > 0));
        }
        let whole = Part { x: 0, y: 0, z: 1, width: 10, height: 4 };
        assert_eq!(parts(Extent { width: 10, height: 4, depth: 2 }, MAX_BYTES)[1], whole);
    }

    #[test]
    fn rows_are_packed_and_spread_without_touching_their_gaps() {
        let memory: Vec<u8> = (0..60).collect();
        let rows = |start: *const u8| Rows { side: Side::Own(start.expose_provenance() as u64), pitch: 10, slice: 30 };
        let part = Part { x: 2, y: 1, z: 1, width: 3, height: 2 };
        let mut packed = [0; 6];
        // SAFETY: both lie in memory of the test.
        unsafe { Near(&rows(memory.as_ptr())).pack(part, packed.as_mut_ptr()) };
        assert_eq!(packed, [42, 43, 44, 52, 53, 54]);
        let mut target = vec![0_u8; 60];
        let rows = rows(target.as_mut_ptr());
        // SAFETY: as above.
        unsafe { Near(&rows).spread(part, packed.as_ptr()) };
        let written: Vec<usize> = (0..60).filter(|at| target[*at] != 0).collect();
        assert_eq!(written, [42, 43, 44, 52, 53, 54]);
    }

    #[test]
    fn a_part_of_memory_is_where_its_bytes_are() {
        let rows = Rows { side: Side::Gpu(1000), pitch: 100, slice: 500 };
        let place = Far::Memory(rows).place(Part { x: 0, y: 2, z: 1, width: 40, height: 2 });
        assert_eq!((place.array, place.x, place.y, place.z, place.pitch), (0, 1700, 0, 0, 100));
        let place = Far::Array(3, [1, 2, 3]).place(Part { x: 4, y: 5, z: 6, width: 40, height: 1 });
        assert_eq!((place.array, place.x, place.y, place.z, place.pitch), (3, 5, 7, 9, 0));
    }
}
