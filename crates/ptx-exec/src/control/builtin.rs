//! Functions of the driver. A call of one is a single instruction, which finds its arguments where a call would put them, in the
//! caller's local memory.
//!
//! A name that no text defines and that is not in [`find`] is an unresolved symbol at load.

use crate::control::call_args::parameter;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::memory::heap;
use crate::{device_runtime, print};

/// Returns the code that implements a call of `name`.
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

/// `call cudaGraphSetConditional, (handle, value)`: if lanes have different values, the last one counts.
fn set_condition(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let (handle, value) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        machine.env.host.set_condition(handle, value);
    }
    Flow::Next
}
