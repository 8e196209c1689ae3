//! Arguments and results of a call, in the local memory of the caller.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Inst, Machine};
use crate::memory::word::Word;
use crate::types::Space;

/// Reads parameter `index` of the call from the caller's local memory.
pub(crate) fn parameter<T: Word>(machine: &mut Machine<'_>, inst: &Inst, index: usize, lane: usize) -> T {
    field(machine, inst, index, 0, lane)
}

/// Reads the part of parameter `index` at byte `at`.
pub(crate) fn field<T: Word>(machine: &mut Machine<'_>, inst: &Inst, index: usize, at: u32, lane: usize) -> T {
    let frame = machine.warp.frames.get(machine.frame as usize).map_or(0, |frame| frame.local);
    let site = machine.env.code.call_sites.get(inst.imm as usize);
    let offset = site.and_then(|site| site.args.get(index)).map_or(0, |area| area.offset);
    machine.read(Space::Local, lane, u64::from(frame + offset + at)).unwrap_or_else(|_| T::cut(0))
}

/// Writes the first result of the call to the caller's local memory, if the caller uses it.
pub(crate) fn set_result<T: Word>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    lane: usize,
    value: T,
) -> Result<(), FaultKind> {
    let frame = machine.warp.frames.get(machine.frame as usize).map_or(0, |frame| frame.local);
    let site = machine.env.code.call_sites.get(inst.imm as usize);
    let Some(area) = site.and_then(|site| site.results.first()) else { return Ok(()) };
    let address = u64::from(frame + area.offset);
    machine.write(Space::Local, lane, address, value)
}
