//! Runs a function of the runtime for each lane, and stores the errors.

use super::error;
use super::jobs::Runtime;
use crate::control::call_args::set_result;
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{WARP_LANES, lanes_of};
use std::sync::{MutexGuard, PoisonError};

/// Runs a function of the runtime for each lane. Its error code becomes the lane's result and last error.
pub(super) fn for_each(
    machine: &mut Machine<'_>,
    inst: &Inst,
    function: impl Fn(&mut Machine<'_>, usize) -> Result<u32, FaultKind>,
) -> Flow {
    for lane in lanes_of(machine.mask) {
        let done = function(machine, lane).and_then(|code| {
            machine.note_error(lane, code);
            set_result(machine, inst, lane, code)
        });
        if let Err(kind) = done {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

impl Machine<'_> {
    /// Locks the grid's requests so far.
    pub(super) fn runtime(&self) -> MutexGuard<'_, Runtime> {
        self.env.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the error of a lane until a query.
    pub(super) fn note_error(&mut self, lane: usize, code: u32) {
        if code != error::CUDA_SUCCESS {
            self.warp.errors.resize(WARP_LANES, error::CUDA_SUCCESS);
            if let Some(last) = self.warp.errors.get_mut(lane) {
                *last = code;
            }
        }
    }
}
