//! `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor` over tiles and pixels, and `tensormap.replace`.
//!
//! A box of a tensor goes to or comes from shared memory, row after row without gaps. Elements outside the tensor are filled when
//! loading, and left alone when storing; a barrier counts all bytes of a box. Like other bulk copies, these run when they are
//! issued.
//!
//! A copy of pixels (`.im2col`) takes the channels of a number of pixels, one after the other. It starts at its coordinates and
//! follows the first dimension of pixels, then the next ones, then the images. It stays in the map's box and uses the map's
//! steps. When loading, offsets are added to the coordinates of each pixel. Measured on an H200: coordinates outside the box are
//! a fault, as are channels that do not begin at a multiple of 16 bytes. Channels that the tensor does not have are filled.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::order;
use crate::engine::registers::lanes_of;
use crate::memory::atom::{self, Operation};
use crate::memory::word::Word;
use crate::tensor::{Field, MAX_TENSOR_RANK, PixelBox, TensorMap};
use crate::types::Space;

/// `Inst::imm` of a tensor copy: the rank, the kind of copy, and for a reduction the number of the operation.
pub(crate) mod how {
    /// Mask of the rank that the instruction names.
    pub(crate) const RANK: u64 = 7;
    /// Copy from the tensor to shared memory.
    pub(crate) const LOAD: u64 = 8;
    /// Copy to every block of the cluster that a mask names.
    pub(crate) const MULTICAST: u64 = 16;
    /// Combine elements of shared memory with those of the tensor.
    pub(crate) const REDUCE: u64 = 32;
    /// Copy pixels instead of tiles; a load has offsets too.
    pub(crate) const PIXELS: u64 = 64;
    /// Lowest bit of the number of the operation.
    pub(crate) const OPERATION_SHIFT: u32 = 8;
    /// Operations of reductions.
    pub(crate) const OPERATIONS: [&str; 8] = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];
}

/// Number of bytes in a piece of a row, which a swizzle moves as one.
const SWIZZLE_PIECE_BYTES: u64 = 16;
/// Alignment of boxes in shared memory.
const BOX_ALIGN_BYTES: u64 = 128;

/// Operands of one lane: a list of registers at `Inst::x`, in this order.
struct Copy {
    /// Address of the box in shared memory.
    shared: u64,
    /// Address of the map.
    at: u64,
    map: TensorMap,
    /// Address of a barrier that counts the bytes of a load.
    barrier: u64,
    /// Blocks of the cluster that a multicast writes to.
    blocks: u32,
    /// Start of the box in the tensor.
    corner: [i64; MAX_TENSOR_RANK],
    /// Offsets that are added to the coordinates of pixels.
    offsets: [i64; MAX_TENSOR_RANK],
}

impl Copy {
    fn read(machine: &mut Machine<'_>, inst: &Inst, lane: usize) -> Result<Self, FaultKind> {
        let code = machine.env.code;
        let wide = |machine: &Machine<'_>, index: u32| machine.registers.row::<u64>(code.list(inst.x + index))[lane];
        let word = |machine: &Machine<'_>, index: u32| machine.registers.row::<u32>(code.list(inst.x + index))[lane];
        let (shared, map) = (wide(machine, 0), wide(machine, 1));
        let rank = (inst.imm & how::RANK) as usize;
        let barrier = if inst.imm & how::LOAD != 0 { wide(machine, 2) } else { 0 };
        let mut next = if inst.imm & how::LOAD != 0 { 3 } else { 2 };
        let mut blocks = 0;
        if inst.imm & how::MULTICAST != 0 {
            blocks = word(machine, next) & 0xffff;
            next += 1;
        }
        let mut corner = [0; MAX_TENSOR_RANK];
        for (coordinates, index) in corner.iter_mut().take(rank).zip(next..) {
            *coordinates = i64::from(word(machine, index).cast_signed());
        }
        let (pixels, mut offsets) = (inst.imm & how::PIXELS != 0, [0; MAX_TENSOR_RANK]);
        if pixels && inst.imm & how::LOAD != 0 {
            let between = 1..rank.saturating_sub(1);
            for (coordinates, index) in offsets[between].iter_mut().zip(next + rank as u32..) {
                *coordinates = i64::from(word(machine, index) & 0xffff);
            }
        }
        if !shared.is_multiple_of(BOX_ALIGN_BYTES) {
            return Err(FaultKind::MisalignedAddress(shared));
        }
        let at = map;
        let map = machine.tensor_map(lane, at)?;
        if map.rank != rank || !map.row().is_multiple_of(SWIZZLE_PIECE_BYTES) || map.pixels.is_some() != pixels {
            return Err(FaultKind::BadTensorMap(at));
        }
        Ok(Self { shared, at, map, barrier, blocks, corner, offsets })
    }

    /// Calls `work` with each row of the box: its offset in the box, and the coordinates of its first element.
    fn rows(
        &self,
        mut work: impl FnMut(u64, [i64; MAX_TENSOR_RANK]) -> Result<(), FaultKind>,
    ) -> Result<(), FaultKind> {
        if let Some(pixels) = self.map.pixels {
            return self.pixels(pixels, work);
        }
        let [_, b, c, d, e] = self.map.tile;
        let mut offset = 0;
        for index in 0..b * c * d * e {
            let coordinates = [0, index % b, index / b % c, index / (b * c) % d, index / (b * c * d)];
            work(offset, std::array::from_fn(|at| self.corner[at] + (coordinates[at] * self.map.steps[at]) as i64))?;
            offset += self.map.row();
        }
        Ok(())
    }

    /// Does the same as `rows` for pixels: each is a row of its channels.
    fn pixels(
        &self,
        pixels: PixelBox,
        mut work: impl FnMut(u64, [i64; MAX_TENSOR_RANK]) -> Result<(), FaultKind>,
    ) -> Result<(), FaultKind> {
        let images = self.map.rank - 1;
        let mut coordinates = self.corner;
        let ends = || pixels.first.into_iter().zip(pixels.last).enumerate().take(images - 1);
        if ends().any(|(at, (first, last))| !(first..=last).contains(&coordinates[at + 1])) || !self.has_whole_pieces()
        {
            return Err(FaultKind::BadTensorMap(self.at));
        }
        for index in 0..self.map.tile[1] {
            work(index * self.map.row(), std::array::from_fn(|at| coordinates[at] + self.offsets[at]))?;
            let step = |at: usize| self.map.steps[at] as i64;
            let full = ends().all(|(at, (first, last))| {
                coordinates[at + 1] += step(at + 1);
                let is_over = coordinates[at + 1] > last;
                if is_over {
                    coordinates[at + 1] = first;
                }
                is_over
            });
            if full {
                coordinates[images] += step(images);
            }
        }
        Ok(())
    }

    /// Returns whether the channels of a pixel begin with a whole piece.
    fn has_whole_pieces(&self) -> bool {
        (self.corner[0].unsigned_abs() * self.map.element()).is_multiple_of(SWIZZLE_PIECE_BYTES)
    }

    /// Returns the address of element `at` of a row, if it lies in the tensor.
    fn element(&self, mut coordinates: [i64; MAX_TENSOR_RANK], at: u64) -> Option<u64> {
        coordinates[0] += at as i64;
        let mut address = self.map.address;
        for (dimension, coordinate) in coordinates.into_iter().enumerate().take(self.map.rank) {
            let coordinate = u64::try_from(coordinate).ok()?;
            if coordinate >= self.map.sizes[dimension] {
                return None;
            }
            address = address.wrapping_add(coordinate.wrapping_mul(self.map.strides[dimension]));
        }
        Some(address)
    }
}

/// Runs `cp.async.bulk.tensor`, both ways, and the reduction.
pub(crate) fn copy(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    machine.spinning = true;
    for lane in lanes_of(machine.mask) {
        if let Err(kind) = copy_lane(machine, inst, lane) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

fn copy_lane(machine: &mut Machine<'_>, inst: &Inst, lane: usize) -> Result<(), FaultKind> {
    let copy = Copy::read(machine, inst, lane)?;
    if inst.imm & how::REDUCE != 0 {
        let name = how::OPERATIONS.get((inst.imm >> how::OPERATION_SHIFT) as usize).copied().unwrap_or_default();
        let reduce = reduction(name, copy.map.type_name()).ok_or(FaultKind::BadTensorMap(copy.at))?;
        return each_element(machine, lane, &copy, reduce);
    }
    if inst.imm & how::LOAD == 0 {
        return each_piece(machine, &copy, copy.shared, false);
    }
    let targets = if inst.imm & how::MULTICAST != 0 { copy.blocks } else { 1 };
    for rank in lanes_of(targets) {
        let (mut shared, mut barrier) = (copy.shared, copy.barrier);
        if inst.imm & how::MULTICAST != 0 {
            shared = order::address_in_block(shared, rank as u32);
            barrier = order::address_in_block(barrier, rank as u32);
        }
        each_piece(machine, &copy, shared, true)?;
        machine.complete_bytes(lane, barrier, copy.map.bytes())?;
    }
    Ok(())
}

/// Moves a box piece by piece: whole pieces at once, those at an edge of the tensor by elements.
fn each_piece(machine: &mut Machine<'_>, copy: &Copy, shared: u64, load: bool) -> Result<(), FaultKind> {
    let (size, outside) = (copy.map.element(), copy.map.outside());
    let elements = SWIZZLE_PIECE_BYTES / size;
    copy.rows(|offset, coordinates| {
        for piece in 0..copy.map.row() / SWIZZLE_PIECE_BYTES {
            let at = copy.map.swizzled(shared.wrapping_add(offset + piece * SWIZZLE_PIECE_BYTES));
            let first = piece * elements;
            let ends = [copy.element(coordinates, first), copy.element(coordinates, first + elements - 1)];
            if let [Some(from), Some(_)] = ends {
                move_bytes(machine, at, from, SWIZZLE_PIECE_BYTES, load)?;
                continue;
            }
            for index in 0..elements {
                let at = at + index * size;
                match copy.element(coordinates, first + index) {
                    Some(from) => move_bytes(machine, at, from, size, load)?,
                    None if load => fill(machine, at, size, outside)?,
                    None => {}
                }
            }
        }
        Ok(())
    })
}

/// Moves bytes between shared memory and the tensor.
fn move_bytes(machine: &mut Machine<'_>, shared: u64, tensor: u64, size: u64, load: bool) -> Result<(), FaultKind> {
    let (shared, tensor) = ((Space::Shared, shared), (Space::Global, tensor));
    if load { machine.copy_stretch(shared, tensor, size) } else { machine.copy_stretch(tensor, shared, size) }
}

/// Writes an element that lies outside the tensor.
fn fill(machine: &mut Machine<'_>, at: u64, size: u64, value: u64) -> Result<(), FaultKind> {
    match size {
        1 => machine.write(Space::Shared, 0, at, value as u8),
        2 => machine.write(Space::Shared, 0, at, value as u16),
        4 => machine.write(Space::Shared, 0, at, value as u32),
        _ => machine.write(Space::Shared, 0, at, value),
    }
}

/// Combines one element of the tensor with one of shared memory.
type Reduce = fn(&mut Machine<'_>, usize, u64, u64) -> Result<(), FaultKind>;

/// Reduces one element: `tensor = tensor OP shared`, atomically.
fn reduce_element<O: Operation>(
    machine: &mut Machine<'_>,
    lane: usize,
    tensor: u64,
    shared: u64,
) -> Result<(), FaultKind> {
    let value = machine.read::<O::Word>(Space::Shared, lane, shared)?;
    machine.update::<O::Word>(Space::Global, lane, tensor, |old| O::apply_far(old, value, O::Word::cut(0))).map(drop)
}

/// Makes code for one element of a reduction.
struct ReduceElement;

impl atom::Visitor for ReduceElement {
    type Code = Reduce;

    fn visit<O: Operation>(self) -> Reduce {
        reduce_element::<O>
    }
}

/// Returns the code for an operation on elements of a type; bit operations take the types of numbers in a map.
fn reduction(name: &str, ty: &str) -> Option<Reduce> {
    let bits = matches!(name, "and" | "or" | "xor");
    let ty = match ty {
        "u32" | "s32" if bits => "b32",
        "u64" | "s64" if bits => "b64",
        ty => ty,
    };
    atom::visit(name, ty, ReduceElement)
}

/// Reduces a box into the tensor, element by element; elements outside the tensor are left alone.
fn each_element(machine: &mut Machine<'_>, lane: usize, copy: &Copy, reduce: Reduce) -> Result<(), FaultKind> {
    let size = copy.map.element();
    copy.rows(|offset, coordinates| {
        for index in 0..copy.map.tile[0] {
            let at = offset + index * size;
            let piece = copy.map.swizzled(copy.shared.wrapping_add(at / SWIZZLE_PIECE_BYTES * SWIZZLE_PIECE_BYTES));
            if let Some(tensor) = copy.element(coordinates, index) {
                reduce(machine, lane, tensor, piece + at % SWIZZLE_PIECE_BYTES)?;
            }
        }
        Ok(())
    })
}

/// Lowest bit of the field in `Inst::x` of a replacement; the space is below it, the dimension above it.
pub(crate) const FIELD_SHIFT: u32 = 8;
/// Lowest bit of the dimension.
pub(crate) const DIMENSION_SHIFT: u32 = 16;

/// Runs `tensormap.replace [a + imm], b`.
pub(crate) fn replace(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let space = Space::decode(inst.x & 3);
    let field = Field::decode(u64::from(inst.x >> FIELD_SHIFT & 0xff));
    let dimension = u64::from(inst.x >> DIMENSION_SHIFT);
    for lane in lanes_of(machine.mask) {
        let registers = &machine.registers;
        let address = if inst.x & atom::NARROW_POINTER != 0 {
            u64::from(registers.row::<u32>(inst.a)[lane].wrapping_add(inst.imm as u32))
        } else {
            registers.row::<u64>(inst.a)[lane].wrapping_add(inst.imm)
        };
        let value = if field.is_wide() {
            registers.row::<u64>(inst.b)[lane]
        } else {
            u64::from(registers.row::<u32>(inst.b)[lane])
        };
        if let Err(kind) = machine.replace_in_map(lane, (space, address), (field, dimension), value) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}
