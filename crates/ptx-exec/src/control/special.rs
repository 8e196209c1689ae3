//! Special registers: `%tid`, `%ctaid`, lane masks, clocks.

use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::WARP_LANES;
use crate::types::Width;
use std::time::{SystemTime, UNIX_EPOCH};

/// Registers by name and component, in the order of their numbers (`Inst::imm`).
const SPECIAL_REGISTERS: &[(&str, &str, Width)] = &[
    ("%tid", "x", Width::Word),
    ("%tid", "y", Width::Word),
    ("%tid", "z", Width::Word),
    ("%ntid", "x", Width::Word),
    ("%ntid", "y", Width::Word),
    ("%ntid", "z", Width::Word),
    ("%ctaid", "x", Width::Word),
    ("%ctaid", "y", Width::Word),
    ("%ctaid", "z", Width::Word),
    ("%nctaid", "x", Width::Word),
    ("%nctaid", "y", Width::Word),
    ("%nctaid", "z", Width::Word),
    ("%laneid", "", Width::Word),
    ("%warpid", "", Width::Word),
    ("%nwarpid", "", Width::Word),
    ("%lanemask_eq", "", Width::Word),
    ("%lanemask_lt", "", Width::Word),
    ("%lanemask_le", "", Width::Word),
    ("%lanemask_gt", "", Width::Word),
    ("%lanemask_ge", "", Width::Word),
    ("%clock", "", Width::Word),
    ("%clock_hi", "", Width::Word),
    ("%globaltimer_lo", "", Width::Word),
    ("%globaltimer_hi", "", Width::Word),
    ("%dynamic_smem_size", "", Width::Word),
    ("%total_smem_size", "", Width::Word),
    ("%smid", "", Width::Word),
    ("%nsmid", "", Width::Word),
    ("%envreg1", "", Width::Word),
    ("%envreg2", "", Width::Word),
    ("%gridid", "", Width::Double),
    ("%clock64", "", Width::Double),
    ("%globaltimer", "", Width::Double),
    ("%clusterid", "x", Width::Word),
    ("%clusterid", "y", Width::Word),
    ("%clusterid", "z", Width::Word),
    ("%nclusterid", "x", Width::Word),
    ("%nclusterid", "y", Width::Word),
    ("%nclusterid", "z", Width::Word),
    ("%cluster_ctaid", "x", Width::Word),
    ("%cluster_ctaid", "y", Width::Word),
    ("%cluster_ctaid", "z", Width::Word),
    ("%cluster_nctaid", "x", Width::Word),
    ("%cluster_nctaid", "y", Width::Word),
    ("%cluster_nctaid", "z", Width::Word),
    ("%cluster_ctarank", "", Width::Word),
    ("%cluster_nctarank", "", Width::Word),
    ("%aggr_smem_size", "", Width::Word),
    ("%reserved_smem_offset_begin", "", Width::Word),
    ("%reserved_smem_offset_end", "", Width::Word),
    ("%reserved_smem_offset_cap", "", Width::Word),
    ("%reserved_smem_offset_0", "", Width::Word),
    ("%reserved_smem_offset_1", "", Width::Word),
    ("%is_explicit_cluster", "", Width::Pred),
    ("%current_graph_exec", "", Width::Double),
];

/// Bytes of shared memory that the system reserves in each block, after the program's own.
pub const RESERVED_SHARED_BYTES: u32 = 1024;

/// Clock ticks per nanosecond of host time.
const TICKS_PER_NANOSECOND: u64 = 2;

/// Number of registers that are always 0: fourth components, performance counters without a counter, and environment registers
/// that the driver does not set.
const ZERO: u64 = u64::MAX;

/// Returns number and width of a special register, if the name is one.
pub(crate) fn lookup(name: &str, member: &str) -> Option<(u64, Width)> {
    let number = |name: &str, member: &str| {
        SPECIAL_REGISTERS.iter().position(|(known, component, _)| (*known, *component) == (name, member))
    };
    if let Some(index) = number(name, member) {
        return Some((index as u64, SPECIAL_REGISTERS[index].2));
    }
    match member {
        "w" => number(name, "x").map(|_| (ZERO, Width::Word)),
        "" => unset(name).map(|width| (ZERO, width)),
        _ => None,
    }
}

/// Returns the width of `%envreg0` to `%envreg31`, `%pm0` to `%pm7` and `%pm0_64` to `%pm7_64`.
fn unset(name: &str) -> Option<Width> {
    let is_below = |number: &str, end: u32| (0..end).any(|known| known.to_string() == number);
    if let Some(number) = name.strip_prefix("%envreg") {
        return is_below(number, 32).then_some(Width::Word);
    }
    let number = name.strip_prefix("%pm")?;
    match number.strip_suffix("_64") {
        Some(number) => is_below(number, 8).then_some(Width::Double),
        None => is_below(number, 8).then_some(Width::Word),
    }
}

/// Prefixes of special registers that are not in `SPECIAL_REGISTERS`.
const UNNUMBERED_PREFIXES: &[&str] = &["%envreg", "%pm", "%reserved_smem_offset"];

/// Returns whether PTX has a special register of that name.
pub(crate) fn exists(name: &str) -> bool {
    SPECIAL_REGISTERS.iter().any(|(known, ..)| *known == name)
        || UNNUMBERED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the code that reads a register of that width.
pub(crate) fn code(width: Width) -> Exec {
    match width {
        Width::Word => read_word,
        Width::Double => read_double,
        Width::Pred => read_predicate,
    }
}

/// Returns component `axis` of each lane's `%tid`.
fn thread_index(machine: &Machine<'_>, axis: u64) -> [u32; WARP_LANES] {
    let [x, y, _] = machine.env.block;
    let first = machine.warp.index * 32;
    std::array::from_fn(|lane| {
        let linear = first + lane as u32;
        match axis {
            0 => linear % x,
            1 => linear / x % y,
            _ => linear / x / y,
        }
    })
}

/// Returns the ticks since the grid's start, without pauses.
fn clock(machine: &Machine<'_>) -> u64 {
    let elapsed = (machine.env.time_before + machine.env.started.elapsed()).as_nanos();
    u64::try_from(elapsed).unwrap_or(u64::MAX).wrapping_mul(TICKS_PER_NANOSECOND)
}

/// Nanoseconds of wall-clock time.
fn timer() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the bits of `mask_of(1 << lane)` for each lane.
fn masks(mask_of: impl Fn(u32) -> u32) -> [u32; WARP_LANES] {
    std::array::from_fn(|lane| mask_of(1 << lane))
}

/// Reads a register of 32 bits into a row.
fn read_word(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let env = machine.env;
    let splat = |value: u32| [value; WARP_LANES];
    let axis = |values: [u32; 3]| values[(inst.imm % 3) as usize];
    let values = match inst.imm {
        0..=2 => thread_index(machine, inst.imm),
        3..=5 => splat(axis(env.block)),
        6..=8 => splat(axis(machine.block.index)),
        9..=11 => splat(axis(env.order.grid)),
        12 => std::array::from_fn(|lane| lane as u32),
        13 => splat(machine.warp.index),
        14 => splat(env.warps()),
        15 => masks(|bit| bit),
        16 => masks(|bit| bit - 1),
        17 => masks(|bit| bit | (bit - 1)),
        18 => masks(|bit| !(bit | (bit - 1))),
        19 => masks(|bit| !(bit - 1)),
        20 => splat(clock(machine) as u32),
        21 => splat((clock(machine) >> 32) as u32),
        22 => splat(timer() as u32),
        23 => splat((timer() >> 32) as u32),
        24 => splat(env.dynamic_shared),
        25 => splat(env.shared_bytes),
        27 => splat(1),
        // Upper and lower half of the address at which a cooperative launch has its barrier.
        28 => splat((env.workspace_address() >> 32) as u32),
        29 => splat(env.workspace_address() as u32),
        33..=52 => splat(cluster_word(machine, inst.imm)),
        _ => splat(0),
    };
    machine.registers.set(inst.d, machine.mask, &values);
    Flow::Next
}

/// Returns registers of the cluster, and of the system's shared memory.
fn cluster_word(machine: &Machine<'_>, number: u64) -> u32 {
    let (env, index) = (machine.env, machine.block.index);
    let axis = |values: [u32; 3]| values[(number % 3) as usize];
    // A kernel that names one of these registers has the reserved memory.
    let reserved = machine.block.shared.first() as u32 + env.all_shared_bytes.saturating_sub(RESERVED_SHARED_BYTES);
    match number {
        33..=35 => axis(env.order.cluster_of(index)),
        36..=38 => axis(env.order.clusters()),
        39..=41 => axis(env.order.index_in_cluster(index)),
        42..=44 => axis(env.order.cluster),
        45 => env.order.rank(index),
        46 => env.order.size(),
        47 => env.all_shared_bytes,
        49 => reserved + RESERVED_SHARED_BYTES,
        50 => RESERVED_SHARED_BYTES,
        52 => reserved + RESERVED_SHARED_BYTES / 2,
        _ => reserved,
    }
}

/// Reads a predicate. The only one tells whether the launch has clusters.
fn read_predicate(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let bits = if machine.env.clustered { u32::MAX } else { 0 };
    machine.registers.set_bits(inst.d, machine.mask, bits);
    Flow::Next
}

/// Reads a register of 64 bits into a row.
fn read_double(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let value = match inst.imm {
        30 => machine.env.grid_id,
        31 => clock(machine),
        32 => timer(),
        // Device code launches no graphs.
        _ => 0,
    };
    machine.registers.set(inst.d, machine.mask, &[value; WARP_LANES]);
    Flow::Next
}

/// `mov` of the address `imm` bytes into dynamic shared memory, which is known only at launch.
pub(crate) fn dynamic_shared_word(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let start = machine.block.shared.first() as u32 + machine.env.dynamic_shared_at;
    let address = start.wrapping_add(inst.imm as u32);
    machine.registers.set(inst.d, machine.mask, &[address; WARP_LANES]);
    Flow::Next
}

/// `mov` of the address of dynamic shared memory into a 64-bit register.
pub(crate) fn dynamic_shared_double(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let start = machine.block.shared.first() + u64::from(machine.env.dynamic_shared_at);
    let address = start.wrapping_add(inst.imm);
    machine.registers.set(inst.d, machine.mask, &[address; WARP_LANES]);
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_the_code_matches_on() {
        assert_eq!(lookup("%tid", "z"), Some((2, Width::Word)));
        assert_eq!(lookup("%nctaid", "x"), Some((9, Width::Word)));
        assert_eq!(lookup("%laneid", ""), Some((12, Width::Word)));
        assert_eq!(lookup("%lanemask_ge", ""), Some((19, Width::Word)));
        assert_eq!(lookup("%total_smem_size", ""), Some((25, Width::Word)));
        assert_eq!(lookup("%clock64", ""), Some((31, Width::Double)));
        assert_eq!(lookup("%envreg2", ""), Some((29, Width::Word)));
        assert_eq!(lookup("%globaltimer", ""), Some((32, Width::Double)));
        assert_eq!(lookup("%cluster_ctarank", ""), Some((45, Width::Word)));
        assert_eq!(lookup("%reserved_smem_offset_1", ""), Some((52, Width::Word)));
        assert_eq!(lookup("%current_graph_exec", ""), Some((54, Width::Double)));
        assert_eq!(lookup("%tid", ""), None);
        assert_eq!((lookup("%tid", "w"), lookup("%laneid", "w")), (Some((ZERO, Width::Word)), None));
        assert_eq!((lookup("%envreg31", ""), lookup("%envreg32", "")), (Some((ZERO, Width::Word)), None));
        assert_eq!((lookup("%envreg01", ""), lookup("%pm8", "")), (None, None));
        assert_eq!(
            (lookup("%pm7_64", ""), lookup("%pm7", "")),
            (Some((ZERO, Width::Double)), Some((ZERO, Width::Word)))
        );
    }
}
