//! Functions that the driver provides: a call of one is a single instruction that finds its arguments where a call would
//! have put them, in the caller's local memory.
//!
//! A name that no text defines and that is not in [`find`] is an unresolved symbol when the program is loaded.

use crate::device_runtime;
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::engine::registers::lanes_of;
use crate::inst::{Exec, Flow, Inst};
use crate::memory::Word;
use crate::memory::heap;
use crate::memory::place::Space;
use crate::print;

/// The code that stands for a call of `name`.
pub(crate) fn find(name: &str) -> Option<Exec> {
    match name {
        "vprintf" => Some(print::vprintf),
        "__assertfail" => Some(print::assert_fail),
        "malloc" => Some(heap::malloc),
        "free" => Some(heap::free),
        "__nv_aligned_device_malloc" => Some(heap::aligned_malloc),
        "cudaGraphSetConditional" => Some(set_condition),
        _ => device_runtime::find(name),
    }
}

/// `call cudaGraphSetConditional, (handle, value)`: of lanes that say different things, the last is heard.
fn set_condition(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let (handle, value) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        machine.env.host.set_condition(handle, value);
    }
    Flow::Next
}

/// Reads parameter `index` of the call, which lies in the caller's local memory.
pub(crate) fn parameter<T: Word>(machine: &mut Machine<'_>, inst: &Inst, index: usize, lane: usize) -> T {
    field(machine, inst, index, 0, lane)
}

/// Reads the part of parameter `index` that is `at` bytes in.
pub(crate) fn field<T: Word>(machine: &mut Machine<'_>, inst: &Inst, index: usize, at: u32, lane: usize) -> T {
    let frame = machine.warp.frames.get(machine.frame as usize).map_or(0, |frame| frame.local);
    let site = machine.env.code.call_sites.get(inst.imm as usize);
    let offset = site.and_then(|site| site.args.get(index)).map_or(0, |area| area.offset);
    machine.read(Space::Local, lane, u64::from(frame + offset + at)).unwrap_or_else(|_| T::cut(0))
}

/// Writes the first result of the call, where the caller asks for one, into the caller's local memory.
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
