//! `mbarrier`: barriers that are 64-bit words of shared memory, which count arrivals and bytes.
//!
//! The word holds the whole state of a barrier, so any thread that can access the word can work on it. PTX leaves the layout
//! open. Here it is the same for the object and for the states that `arrive` returns:
//!
//! | bits | field |
//! |---|---|
//! | 0..20 | arrivals that the next phases wait for |
//! | 20..40 | arrivals that this phase still waits for |
//! | 40..61 | bytes that this phase still waits for, signed: copies may finish before they are announced |
//! | 63 | whether the phase is an odd one |

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::engine::warp::Wait;
use crate::memory::atom::NARROW_POINTER;
use crate::slot::NO_SLOT;
use crate::types::Space;

/// Width of a count of arrivals.
const COUNT_BITS: u32 = 20;

/// Largest count of arrivals.
const MAX_ARRIVALS: u64 = (1 << COUNT_BITS) - 1;

/// Width of the count of bytes.
const BYTES_BITS: u32 = 21;

/// The bit that tells odd phases from even ones.
const ODD_PHASE_BIT: u64 = 1 << 63;

/// Flags of an arrival, in `Inst::imm` above the offset of the address.
pub(crate) mod how {
    /// The barrier expects one arrival less from the next phase on.
    pub(crate) const DROP: u64 = 1;
    /// The operand counts expected bytes, not arrivals.
    pub(crate) const EXPECT: u64 = 2;
    /// The operand names the phase by its parity, not by a state.
    pub(crate) const PARITY: u64 = 4;
    /// A lane that finds an incomplete phase yields to others.
    pub(crate) const PATIENT: u64 = 8;
}

/// The fields of a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Barrier {
    expected: u64,
    pending: u64,
    bytes: i64,
    odd: bool,
}

impl Barrier {
    /// Decodes a word.
    fn read(word: u64) -> Self {
        let signed = ((word >> (2 * COUNT_BITS)) << (64 - BYTES_BITS)).cast_signed();
        Self {
            expected: word & MAX_ARRIVALS,
            pending: (word >> COUNT_BITS) & MAX_ARRIVALS,
            bytes: signed >> (64 - BYTES_BITS),
            odd: word & ODD_PHASE_BIT != 0,
        }
    }

    /// Encodes the word. Counts out of range wrap; PTX leaves them undefined.
    fn word(self) -> u64 {
        let bytes = self.bytes.cast_unsigned() & ((1 << BYTES_BITS) - 1);
        let counts = (self.expected & MAX_ARRIVALS) | (self.pending & MAX_ARRIVALS) << COUNT_BITS;
        counts | bytes << (2 * COUNT_BITS) | if self.odd { ODD_PHASE_BIT } else { 0 }
    }

    /// Counts arrivals and bytes. The last of both ends the phase.
    fn count(mut self, arrivals: u64, bytes: i64) -> Self {
        self.pending = self.pending.wrapping_sub(arrivals) & MAX_ARRIVALS;
        self.bytes -= bytes;
        if self.pending == 0 && self.bytes == 0 {
            Self { pending: self.expected, odd: !self.odd, ..self }
        } else {
            self
        }
    }

    /// Counts an arrival that later phases do not expect.
    fn drop_out(mut self, arrivals: u64, bytes: i64) -> Self {
        self.expected = self.expected.wrapping_sub(arrivals) & MAX_ARRIVALS;
        self.count(arrivals, bytes)
    }
}

/// Returns the address of the barrier for `lane`: `a` plus the low half of `imm`, signed.
fn address(machine: &Machine<'_>, inst: &Inst, lane: usize) -> u64 {
    let offset = inst.imm as u32;
    if inst.x & NARROW_POINTER != 0 {
        u64::from(machine.registers.row::<u32>(inst.a)[lane].wrapping_add(offset))
    } else {
        let offset = i64::from(offset.cast_signed()).cast_unsigned();
        machine.registers.row::<u64>(inst.a)[lane].wrapping_add(offset)
    }
}

/// Applies `change` to the barrier of each lane, one after the other, with operand `b` of the lane.
fn each(machine: &mut Machine<'_>, inst: &Inst, change: impl Fn(Barrier, u64) -> Barrier) -> Flow {
    machine.spinning = true;
    let space = Space::decode(inst.x & 3);
    for lane in lanes_of(machine.mask) {
        let operand = if inst.b == NO_SLOT { 1 } else { u64::from(machine.registers.row::<u32>(inst.b)[lane]) };
        let at = address(machine, inst, lane);
        match machine.update::<u64>(space, lane, at, |word| change(Barrier::read(word), operand).word()) {
            Ok(old) if inst.d != NO_SLOT => machine.registers.set_lane(inst.d, lane, old),
            Ok(_) => {}
            Err(kind) => return machine.fail(kind, lane),
        }
    }
    Flow::Next
}

/// `mbarrier.init [a], b`: the barrier starts in its first, even phase.
pub(crate) fn init(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each(machine, inst, |_, count| Barrier { expected: count, pending: count, bytes: 0, odd: false })
}

/// `mbarrier.inval [a]`: the word is free again.
pub(crate) fn invalidate(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each(machine, inst, |_, _| Barrier { expected: 0, pending: 0, bytes: 0, odd: false })
}

/// `mbarrier.expect_tx [a], b`: adds expected bytes to the phase.
pub(crate) fn expect(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each(machine, inst, |barrier, bytes| Barrier { bytes: barrier.bytes + bytes.cast_signed(), ..barrier })
}

/// `mbarrier.complete_tx [a], b`: counts bytes that have arrived.
pub(crate) fn complete(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each(machine, inst, |barrier, bytes| barrier.count(0, bytes.cast_signed()))
}

/// `mbarrier.arrive`, `mbarrier.arrive_drop`: returns the state of the phase that the lane arrived in.
pub(crate) fn arrive(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let flags = inst.imm >> 32;
    each(machine, inst, |barrier, operand| {
        let (arrivals, bytes) = if flags & how::EXPECT != 0 { (1, -operand.cast_signed()) } else { (operand, 0) };
        if flags & how::DROP != 0 { barrier.drop_out(arrivals, bytes) } else { barrier.count(arrivals, bytes) }
    })
}

/// `mbarrier.test_wait`, `mbarrier.try_wait`: returns whether the phase that `b` names is complete.
///
/// An incomplete phase gives false at once. PTX allows a try to end at any time, so it only yields to others first.
pub(crate) fn test(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let (flags, space) = (inst.imm >> 32, Space::decode(inst.x & 3));
    let (mask, mut complete) = (machine.mask, 0_u32);
    for lane in lanes_of(mask) {
        let at = address(machine, inst, lane);
        let word = match machine.read::<u64>(space, lane, at) {
            Ok(word) => word,
            Err(kind) => return machine.fail(kind, lane),
        };
        let odd = if flags & how::PARITY != 0 {
            machine.registers.row::<u32>(inst.b)[lane] & 1 != 0
        } else {
            machine.registers.row::<u64>(inst.b)[lane] & ODD_PHASE_BIT != 0
        };
        complete |= u32::from((word & ODD_PHASE_BIT != 0) != odd) << lane;
    }
    machine.registers.set_bits(inst.d, mask, complete);
    machine.spinning = true;
    if flags & how::PATIENT == 0 || complete == mask {
        return Flow::Next;
    }
    machine.park_masked_lanes();
    machine.pc += 1;
    machine.wait = Wait::Ready;
    Flow::Wait
}

/// `cp.async.mbarrier.arrive` without `.noinc`: adds one expected arrival and makes it, since copies are already done. Only the
/// address matters.
pub(crate) fn touch(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each(machine, inst, |barrier, _| barrier)
}

/// `mbarrier.pending_count d, a`: the arrivals that were still missing in the phase of a state.
pub(crate) fn pending_count(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let counts = machine.registers.row::<u64>(inst.a).map(|state| Barrier::read(state).pending as u32);
    machine.registers.set(inst.d, machine.mask, &counts);
    Flow::Next
}

impl Machine<'_> {
    /// Counts `bytes` arrived bytes at the barrier at `address`, an offset into the shared memory of the cluster.
    pub(crate) fn complete_bytes(&mut self, lane: usize, address: u64, bytes: u64) -> Result<(), FaultKind> {
        let change = |word| Barrier::read(word).count(0, bytes.cast_signed()).word();
        self.update::<u64>(Space::Shared, lane, address, change).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Barrier = Barrier { expected: 2, pending: 2, bytes: 0, odd: false };

    #[test]
    fn a_word_keeps_every_field() {
        let barrier = Barrier { expected: MAX_ARRIVALS, pending: 7, bytes: -(1 << 20), odd: true };
        assert_eq!(Barrier::read(barrier.word()), barrier);
        let barrier = Barrier { expected: 1, pending: MAX_ARRIVALS, bytes: (1 << 20) - 1, odd: false };
        assert_eq!(Barrier::read(barrier.word()), barrier);
    }

    #[test]
    fn the_last_arrival_starts_the_next_phase() {
        assert_eq!(FRESH.count(1, 0), Barrier { pending: 1, ..FRESH });
        assert_eq!(FRESH.count(1, 0).count(1, 0), Barrier { odd: true, ..FRESH });
        assert_eq!(FRESH.drop_out(1, 0).count(1, 0), Barrier { expected: 1, pending: 1, bytes: 0, odd: true });
    }

    #[test]
    fn a_phase_waits_for_bytes_in_either_order() {
        let announced = FRESH.count(2, -64);
        assert_eq!((announced.pending, announced.bytes, announced.odd), (0, 64, false));
        assert_eq!(announced.count(0, 64), Barrier { odd: true, ..FRESH });
        let early = FRESH.count(0, 64);
        assert_eq!((early.bytes, early.odd), (-64, false));
        assert_eq!(early.count(2, -64), Barrier { odd: true, ..FRESH });
    }
}
