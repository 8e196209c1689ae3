//! What all matrix instructions begin with: the whole warp, and the description of the operation.

use super::operation::Matrix;
use crate::engine::machine::{Flow, Machine};
use crate::engine::warp::Wait;

/// Waits until all lanes of the warp are here: a matrix belongs to them together.
pub(super) fn gather(machine: &mut Machine<'_>) -> bool {
    if machine.warp.alive & !machine.mask == 0 {
        return true;
    }
    machine.park_masked_lanes();
    machine.wait = Wait::Lanes;
    false
}

/// `d = fetch(matrix)` for the instruction's matrix, of the kind that its code wants.
pub(super) fn description<T>(machine: &Machine<'_>, index: u64, pick: impl Fn(Matrix) -> Option<T>) -> Option<T> {
    machine.env.code.matrices.get(index as usize).copied().and_then(pick)
}

/// What an instruction without its description comes to; the decoder makes none such.
pub(super) const UNDESCRIBED_FLOW: Flow = Flow::Next;
