//! `malloc` and `free` of device code. The host keeps the heap, since its memory outlives every launch.

use crate::control::call_args::{parameter, set_result};
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::host::DeviceHeap;

/// Alignment of `malloc`.
const MALLOC_ALIGN_BYTES: u64 = 16;

/// Runs `call (pointer), malloc, (size)`: null if the heap is full; an allocation of zero bytes still has an address.
pub(crate) fn malloc(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    allocate(machine, inst, |_, _| MALLOC_ALIGN_BYTES)
}

/// Runs `call (pointer), __nv_aligned_device_malloc, (size, alignment)`.
pub(crate) fn aligned_malloc(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    allocate(machine, inst, |machine, lane| parameter::<u64>(machine, inst, 1, lane).max(MALLOC_ALIGN_BYTES))
}

/// Makes one allocation for each lane. An alignment that is no power of two fails.
fn allocate(machine: &mut Machine<'_>, inst: &Inst, align: impl Fn(&mut Machine<'_>, usize) -> u64) -> Flow {
    for lane in lanes_of(machine.mask) {
        let size: u64 = parameter(machine, inst, 0, lane);
        let align = align(machine, lane);
        let possible = align.is_power_of_two();
        let address = if possible { machine.env.host.allocate(DeviceHeap::Malloc, size.max(1), align) } else { None };
        if let Err(kind) = set_result(machine, inst, lane, address.unwrap_or(0)) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// Runs `call free, (pointer)`; a pointer that is null or was never allocated is ignored.
pub(crate) fn free(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let address: u64 = parameter(machine, inst, 0, lane);
        if address != 0 {
            machine.env.host.free(DeviceHeap::Malloc, address);
        }
    }
    Flow::Next
}
