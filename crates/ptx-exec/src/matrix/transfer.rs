//! Matrices between memory and fragments: `wmma.load wmma.store ldmatrix stmatrix movmatrix`.
//!
//! Each lane reads and writes the elements that it holds, at the address that it computed. It moves the largest pieces that lie
//! together in memory. The tiles of `ldmatrix` are eight rows of 16 bytes, each at the address of one lane.

use super::layout::{Fragment, per_register};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{WARP_LANES, lanes_of};
use crate::matrix::gather::{UNDESCRIBED_FLOW, description, gather};
use crate::matrix::operation::{Matrix, Transfer};
use crate::types::Space;

/// Number of bytes in a row of a tile.
pub(crate) const ROW_BYTES: u64 = 16;

/// Number of rows in a tile.
const TILE_ROWS: usize = 8;

/// Rows of a tile, as words.
type Tile = [[u32; 4]; TILE_ROWS];

impl Transfer {
    /// Returns the address that a lane computed.
    fn address(&self, machine: &Machine<'_>, inst: &Inst, lane: usize) -> u64 {
        if self.narrow {
            u64::from(machine.registers.row::<u32>(inst.a)[lane].wrapping_add(self.offset as u32))
        } else {
            machine.registers.row::<u64>(inst.a)[lane].wrapping_add(self.offset)
        }
    }

    /// Returns the address of an element, where lines are `stride` elements apart.
    fn element(&self, base: u64, stride: u32, line: u32, position: u32) -> u64 {
        let (far, near) = if self.along { (line, position) } else { (position, line) };
        let element = u64::from(far) * u64::from(stride) + u64::from(near);
        base.wrapping_add(element * u64::from(self.bits) / 8)
    }
}

/// Returns the description of a transfer.
fn transfer(machine: &Machine<'_>, inst: &Inst) -> Option<Transfer> {
    description(machine, inst.imm, |matrix| if let Matrix::Transfer(transfer) = matrix { Some(transfer) } else { None })
}

/// Returns the address of the tile row that this lane supplies, if it supplies one.
pub(crate) fn row_of_tile(machine: &Machine<'_>, inst: &Inst, lane: usize) -> Option<(Space, u64)> {
    let transfer = transfer(machine, inst)?;
    let is_used = lane < TILE_ROWS * transfer.registers as usize;
    is_used.then(|| (transfer.space, transfer.address(machine, inst, lane)))
}

/// Calls `visit(machine, address, bits, shift)` for one register of a lane, either once or for each element.
fn pieces(
    machine: &mut Machine<'_>,
    inst: &Inst,
    transfer: &Transfer,
    (fragment, register, lane): (Fragment, u32, usize),
    mut visit: impl FnMut(&mut Machine<'_>, u64, u32, u32) -> Result<(), FaultKind>,
) -> Result<(), FaultKind> {
    let (bits, per) = (transfer.bits, per_register(transfer.bits));
    let base = transfer.address(machine, inst, lane);
    let stride = machine.registers.row::<u32>(inst.b)[lane];
    let (line, position) = fragment.position(bits, register, lane as u32, 0);
    let first = transfer.element(base, stride, line, position);
    if transfer.along || per == 1 {
        return visit(machine, first, bits * per, 0);
    }
    for index in 0..per {
        let (line, position) = fragment.position(bits, register, lane as u32, index);
        visit(machine, transfer.element(base, stride, line, position), bits, bits * index)?;
    }
    Ok(())
}

/// Runs `wmma.load`: the stride is in `b`, the registers are in the list at `x`.
pub(crate) fn load_fragment(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let Some(transfer) = transfer(machine, inst) else { return UNDESCRIBED_FLOW };
    let Some(fragment) = transfer.fragment else { return UNDESCRIBED_FLOW };
    let distinct = fragment.registers(transfer.bits);
    for register in 0..distinct {
        let mut row = [0_u64; WARP_LANES];
        for lane in lanes_of(machine.mask) {
            let value = &mut row[lane];
            let read = |machine: &mut Machine<'_>, address, bits, shift| {
                let raw = match bits {
                    8 => u64::from(machine.read::<u8>(transfer.space, lane, address)?),
                    16 => u64::from(machine.read::<u16>(transfer.space, lane, address)?),
                    64 => machine.read::<u64>(transfer.space, lane, address)?,
                    _ => u64::from(machine.read::<u32>(transfer.space, lane, address)?),
                };
                *value |= raw << shift;
                Ok(())
            };
            if let Err(kind) = pieces(machine, inst, &transfer, (fragment, register, lane), read) {
                return machine.fail(kind, lane);
            }
        }
        for copy in (register..transfer.registers).step_by(distinct as usize) {
            let slot = machine.env.code.list(inst.x + copy);
            if transfer.bits == 64 {
                machine.registers.set(slot, machine.mask, &row);
            } else {
                machine.registers.set(slot, machine.mask, &row.map(|value| value as u32));
            }
        }
    }
    Flow::Next
}

/// Runs `wmma.store`: the stride is in `b`, the registers are in the list at `x`.
pub(crate) fn store_fragment(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let Some(transfer) = transfer(machine, inst) else { return UNDESCRIBED_FLOW };
    let Some(fragment) = transfer.fragment else { return UNDESCRIBED_FLOW };
    for register in 0..fragment.registers(transfer.bits) {
        let slot = machine.env.code.list(inst.x + register);
        let row: [u64; WARP_LANES] = if transfer.bits == 64 {
            *machine.registers.row(slot)
        } else {
            machine.registers.row::<u32>(slot).map(u64::from)
        };
        for lane in lanes_of(machine.mask) {
            let write = |machine: &mut Machine<'_>, address, bits, shift: u32| {
                let raw = row[lane] >> shift;
                match bits {
                    16 => machine.write(transfer.space, lane, address, raw as u16),
                    64 => machine.write(transfer.space, lane, address, raw),
                    _ => machine.write(transfer.space, lane, address, raw as u32),
                }
            };
            if let Err(kind) = pieces(machine, inst, &transfer, (fragment, register, lane), write) {
                return machine.fail(kind, lane);
            }
        }
    }
    Flow::Next
}

/// Returns a 16-bit element of a tile.
fn half(tile: &Tile, row: usize, column: usize) -> u32 {
    tile[row % TILE_ROWS][column / 2 % 4] >> (16 * (column % 2)) & 0xffff
}

/// Returns the tile in a register of all lanes: each group of four lanes holds a row.
fn tile_of(row: &[u32; WARP_LANES]) -> Tile {
    std::array::from_fn(|line| std::array::from_fn(|word| row[4 * line + word]))
}

/// Returns the register that holds a tile, or its transpose.
fn register_of(tile: &Tile, plain: bool) -> [u32; WARP_LANES] {
    std::array::from_fn(|lane| {
        let (group, thread) = (lane / 4, lane % 4);
        if plain {
            tile[group][thread]
        } else {
            half(tile, 2 * thread, group) | half(tile, 2 * thread + 1, group) << 16
        }
    })
}

/// Runs `ldmatrix`: tile `n` is at the addresses of lanes `8 n` to `8 n + 7`.
pub(crate) fn load_tiles(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let Some(transfer) = transfer(machine, inst) else { return UNDESCRIBED_FLOW };
    for register in 0..transfer.registers {
        let mut tile = [[0; 4]; TILE_ROWS];
        for (line, words) in tile.iter_mut().enumerate() {
            let lane = (TILE_ROWS * register as usize + line) % WARP_LANES;
            let address = transfer.address(machine, inst, lane);
            let whole = machine.resolve(transfer.space, address, ROW_BYTES, false).map(|_| ());
            let mut read = |index: u64| machine.read::<u32>(transfer.space, lane, address + 4 * index);
            let row_bytes = whole.and_then(|()| Ok([read(0)?, read(1)?, read(2)?, read(3)?]));
            match row_bytes {
                Ok(row) => *words = row,
                Err(kind) => return machine.fail(kind, lane),
            }
        }
        let slot = machine.env.code.list(inst.x + register);
        machine.registers.set(slot, machine.mask, &register_of(&tile, transfer.along));
    }
    Flow::Next
}

/// Runs `stmatrix`, the reverse of `load_tiles`.
pub(crate) fn store_tiles(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let Some(transfer) = transfer(machine, inst) else { return UNDESCRIBED_FLOW };
    for register in 0..transfer.registers {
        let held = machine.registers.row::<u32>(machine.env.code.list(inst.x + register));
        // To store a transposed tile, the rows that the lanes hold are transposed.
        let tile = tile_of(&register_of(&tile_of(held), transfer.along));
        for (line, words) in tile.iter().enumerate() {
            let lane = (TILE_ROWS * register as usize + line) % WARP_LANES;
            let address = transfer.address(machine, inst, lane);
            let whole = machine.resolve(transfer.space, address, ROW_BYTES, true).map(|_| ());
            let written = whole.and_then(|()| {
                let mut words = words.iter().zip(0..);
                words.try_for_each(|(word, index)| machine.write(transfer.space, lane, address + 4 * index, *word))
            });
            if let Err(kind) = written {
                return machine.fail(kind, lane);
            }
        }
    }
    Flow::Next
}

/// Runs `movmatrix.trans`.
pub(crate) fn transpose(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let turned = register_of(&tile_of(machine.registers.row(inst.a)), false);
    machine.registers.set(inst.d, machine.mask, &turned);
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_transposed_twice_is_itself() {
        let row: [u32; WARP_LANES] = std::array::from_fn(|lane| (2 * lane as u32) | ((2 * lane as u32 + 1) << 16));
        let turned = register_of(&tile_of(&row), false);
        // Elements are numbered by rows of eight, so the first column is 0, 8, 16...
        assert_eq!((turned[0], turned[1], turned[4]), (8 << 16, 24 << 16 | 16, 9 << 16 | 1));
        assert_eq!(register_of(&tile_of(&turned), false), row);
        assert_eq!(register_of(&tile_of(&row), true), row);
    }
}
