//! Kernel parameters: bytes that have the same value for every lane.

use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES};
use crate::memory::word::Word;
use crate::slot::NO_SLOT;

/// Returns whether `size` bytes at `offset` exist.
pub(crate) fn contains(params: &[u8], offset: u64, size: u64) -> bool {
    offset.checked_add(size).is_some_and(|end| end <= params.len() as u64)
}

/// Returns the little-endian number of `size` bytes at `offset`; bytes that do not exist are 0.
pub(crate) fn read(params: &[u8], offset: u64, size: u64) -> u64 {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = params.get(start..).unwrap_or_default();
    bytes.iter().take(size as usize).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Runs `ld.param` of a kernel at a constant offset: one read for 32 lanes.
pub(crate) fn load<T: Word, L: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let value = T::cut(read(machine.env.params, inst.imm, T::BYTES));
    machine.registers.set(inst.d, machine.mask, &[L::narrow(value.extended()); WARP_LANES]);
    Flow::Next
}

/// Runs `ld.param` of a vector at a constant offset: one read of each element for 32 lanes.
pub(crate) fn load_vector<T: Word, L: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for index in 0..inst.c {
        let value = T::cut(read(machine.env.params, inst.imm + u64::from(index) * T::BYTES, T::BYTES));
        let slot = machine.env.code.list(inst.x + index);
        if slot != NO_SLOT {
            machine.registers.set(slot, machine.mask, &[L::narrow(value.extended()); WARP_LANES]);
        }
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_end_with_the_buffer() {
        assert_eq!(read(&[1, 2, 3, 4], 1, 2), 0x0302);
        assert_eq!(read(&[1, 2], 1, 4), 2);
        assert!(contains(&[1, 2], 0, 2) && !contains(&[1, 2], 1, 2) && !contains(&[], u64::MAX, 1));
    }
}
