//! First steps of all matrix instructions: wait for the whole warp, and find the description of the operation.

use super::operation::Matrix;
use crate::engine::machine::{Flow, Machine};
use crate::engine::warp::Wait;

/// Waits until all live lanes of the warp are here, since a matrix belongs to all of them together.
pub(super) fn gather(machine: &mut Machine<'_>) -> bool {
    if machine.warp.alive & !machine.mask == 0 {
        return true;
    }
    machine.park_masked_lanes();
    machine.wait = Wait::Lanes;
    false
}

/// Returns the description at `index` of the instruction's matrix, if `pick` accepts its kind.
pub(super) fn description<T>(machine: &Machine<'_>, index: u64, pick: impl Fn(Matrix) -> Option<T>) -> Option<T> {
    machine.env.code.matrices.get(index as usize).copied().and_then(pick)
}

/// Result of an instruction without its description; the decoder makes none of these.
pub(super) const UNDESCRIBED_FLOW: Flow = Flow::Next;
