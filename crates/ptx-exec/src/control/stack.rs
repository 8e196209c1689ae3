//! `alloca stacksave stackrestore`: local memory that a function allocates while it runs.
//!
//! It lies after the frames, in the same rows for all lanes, and ends with the frame of its function. So only the function that
//! was called last can allocate: lanes that wait in a function they called would lose it.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{WARP_LANES, lanes_of};

/// Largest local memory of a thread, in bytes.
const MAX_LOCAL_BYTES: u64 = 512 * 1024;

/// Bytes of a row of local memory, for each lane.
const LANE_ROW_BYTES: u64 = 8;

/// `alloca d, a`: the address of `a` bytes, a multiple of `imm`; `x` tells whether size and address have 64 bits.
pub(crate) fn allocate(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let wide = inst.x != 0;
    let sizes = lanes_of(machine.mask).map(|lane| {
        if wide {
            machine.registers.row::<u64>(inst.a)[lane]
        } else {
            u64::from(machine.registers.row::<u32>(inst.a)[lane])
        }
    });
    let size = sizes.max().unwrap_or(0);
    let start = (machine.warp.local.len() as u64 * LANE_ROW_BYTES).next_multiple_of(inst.imm.max(LANE_ROW_BYTES));
    let end = start.saturating_add(size).saturating_add(LANE_ROW_BYTES - 1) / LANE_ROW_BYTES;
    let last = machine.warp.frames.len() as u64 == u64::from(machine.frame) + 1;
    if !last || end > MAX_LOCAL_BYTES / LANE_ROW_BYTES {
        let lane = lanes_of(machine.mask).next().unwrap_or(0);
        return machine.fail(FaultKind::StackOverflow, lane);
    }
    machine.warp.local.resize(end as usize, [0; WARP_LANES]);
    set_address(machine, inst, start);
    Flow::Next
}

/// Writes an address to the destination.
fn set_address(machine: &mut Machine<'_>, inst: &Inst, address: u64) {
    let mask = machine.mask;
    if inst.x != 0 {
        machine.registers.set(inst.d, mask, &[address; WARP_LANES]);
    } else {
        machine.registers.set(inst.d, mask, &[address as u32; WARP_LANES]);
    }
}

/// `stacksave d`: the end of the local memory.
pub(crate) fn save(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let end = machine.warp.local.len() as u64 * LANE_ROW_BYTES;
    set_address(machine, inst, end);
    Flow::Next
}

/// `stackrestore a`: frees later allocations. While other lanes may still use them, they stay until the function ends.
pub(crate) fn restore(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let lane = lanes_of(machine.mask).next().unwrap_or(0);
    let end = if inst.x != 0 {
        machine.registers.row::<u64>(inst.a)[lane]
    } else {
        u64::from(machine.registers.row::<u32>(inst.a)[lane])
    };
    let frame = machine.warp.frames.last().copied();
    let own = frame.map_or(0, |frame| {
        let bytes = machine.env.code.functions.get(frame.function as usize).map_or(0, |function| function.local_bytes);
        u64::from(frame.local) + u64::from(bytes)
    });
    let last = machine.warp.frames.len() as u64 == u64::from(machine.frame) + 1;
    if last && machine.mask == machine.warp.alive && end >= own {
        machine.warp.local.truncate((end / LANE_ROW_BYTES) as usize);
    }
    Flow::Next
}
