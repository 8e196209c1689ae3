//! Access to local memory, in safe code: rows of 8 bytes for each of 32 lanes.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES, lanes_of};
use crate::memory::local_rows::{Rows, contains};
use crate::memory::pointer::Pointer;
use crate::memory::word::Word;

/// Returns the value of a lane; 0 for an offset outside, which `contains` excludes.
pub(crate) fn read<T: Word>(rows: &Rows, lane: usize, offset: u64) -> T {
    let word = rows.get((offset / 8) as usize).map_or(0, |row| row[lane]);
    T::cut(word >> (8 * (offset % 8)))
}

/// Changes the value of a lane.
pub(crate) fn write<T: Word>(rows: &mut Rows, lane: usize, offset: u64, value: T) {
    if let Some(row) = rows.get_mut((offset / 8) as usize) {
        row[lane] = merged(row[lane], offset, value);
    }
}

/// Returns `word` with the bytes at `offset % 8` replaced.
#[inline(always)]
fn merged<T: Word>(word: u64, offset: u64, value: T) -> u64 {
    let (shift, mask) = (8 * (offset % 8), u64::MAX >> (64 - 8 * T::BYTES));
    (word & !(mask << shift)) | ((value.extended() & mask) << shift)
}

/// Runs `ld.local` of one value.
pub(crate) fn load<T: Word, L: Raw, P: Pointer>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    load_element::<T, L, P>(machine, inst, inst.imm, inst.d, T::BYTES)
}

/// Runs `ld.local` of several values.
pub(crate) fn load_vector<T: Word, L: Raw, P: Pointer>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    // The first element may overwrite the address, so it is copied.
    let row = *machine.registers.row::<P>(inst.a);
    for index in 0..inst.c {
        let imm = inst.imm.wrapping_add(u64::from(index) * T::BYTES);
        let total = if index == 0 { T::BYTES * u64::from(inst.c) } else { T::BYTES };
        let slot = machine.env.code.list(inst.x + index);
        let flow = load_row::<T, L, P>(machine, &row, imm, slot, total);
        if flow != Flow::Next {
            return flow;
        }
    }
    Flow::Next
}

/// Loads one value from the addresses in the instruction's register.
fn load_element<T: Word, L: Raw, P: Pointer>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    imm: u64,
    slot: u32,
    alignment: u64,
) -> Flow {
    let row = *machine.registers.row::<P>(inst.a);
    load_row::<T, L, P>(machine, &row, imm, slot, alignment)
}

/// Reads one value for each lane, at addresses that must be multiples of `alignment`.
fn load_row<T: Word, L: Raw, P: Pointer>(
    machine: &mut Machine<'_>,
    row: &[P; WARP_LANES],
    imm: u64,
    slot: u32,
    alignment: u64,
) -> Flow {
    let mut out = [L::ZERO; WARP_LANES];
    let first = row[0].plus(imm);
    let usable = first.is_multiple_of(alignment) && contains(&machine.warp.local, first, T::BYTES);
    if P::pattern(row, T::BYTES).1 && usable {
        let shift = 8 * (first % 8);
        if let Some(words) = machine.warp.local.get((first / 8) as usize) {
            for lane in 0..WARP_LANES {
                out[lane] = L::narrow(T::cut(words[lane] >> shift).extended());
            }
        }
    } else {
        for lane in lanes_of(machine.mask) {
            let address = row[lane].plus(imm);
            if let Err(kind) = check(machine, address, T::BYTES, alignment) {
                return machine.fail(kind, lane);
            }
            out[lane] = L::narrow(read::<T>(&machine.warp.local, lane, address).extended());
        }
    }
    if slot != crate::slot::NO_SLOT {
        machine.registers.set(slot, machine.mask, &out);
    }
    Flow::Next
}

/// Checks an access; alignment comes first, as on the hardware.
fn check(machine: &Machine<'_>, address: u64, size: u64, alignment: u64) -> Result<(), FaultKind> {
    if !address.is_multiple_of(alignment) {
        return Err(FaultKind::MisalignedAddress(address));
    }
    if contains(&machine.warp.local, address, size) { Ok(()) } else { Err(FaultKind::IllegalAddress(address)) }
}

/// Runs `st.local` of one value.
pub(crate) fn store<T: Word, L: Raw, P: Pointer>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    store_row::<T, L, P>(machine, inst, inst.imm, inst.b, T::BYTES)
}

/// Runs `st.local` of several values.
pub(crate) fn store_vector<T: Word, L: Raw, P: Pointer>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for index in 0..inst.c {
        let imm = inst.imm.wrapping_add(u64::from(index) * T::BYTES);
        let total = if index == 0 { T::BYTES * u64::from(inst.c) } else { T::BYTES };
        let slot = machine.env.code.list(inst.x + index);
        let flow = store_row::<T, L, P>(machine, inst, imm, slot, total);
        if flow != Flow::Next {
            return flow;
        }
    }
    Flow::Next
}

/// Stores one value for each lane.
fn store_row<T: Word, L: Raw, P: Pointer>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    imm: u64,
    slot: u32,
    alignment: u64,
) -> Flow {
    for lane in lanes_of(machine.mask) {
        let address = machine.registers.row::<P>(inst.a)[lane].plus(imm);
        if let Err(kind) = check(machine, address, T::BYTES, alignment) {
            return machine.fail(kind, lane);
        }
        let value = T::cut(machine.registers.row::<L>(slot)[lane].wide());
        write(&mut machine.warp.local, lane, address, value);
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_size_share_rows() {
        let mut rows: Rows = vec![[0; WARP_LANES]; 2];
        write::<u8>(&mut rows, 3, 9, 0xab);
        write::<i16>(&mut rows, 3, 14, -2);
        assert_eq!((rows[1][3], rows[1][2]), (0xfffe_0000_0000_ab00, 0));
        assert_eq!((read::<u8>(&rows, 3, 9), read::<i16>(&rows, 3, 14)), (0xab, -2));
        write::<u64>(&mut rows, 3, 8, 7);
        assert_eq!(read::<u32>(&rows, 3, 12), 0);
    }

    #[test]
    fn the_end_of_local_memory_is_exact() {
        let rows: Rows = vec![[0; WARP_LANES]; 2];
        assert!(contains(&rows, 8, 8) && !contains(&rows, 9, 8) && !contains(&rows, u64::MAX, 8));
    }
}
