//! The parts of the measuring program. Each notes its figures under the keys of `figures::FIGURES`. A part that fails costs only
//! its own figures.

mod by_hand;
mod calls;
mod copies;
mod graphs;
mod memory;
mod modules;
mod objects;
mod threads;

use super::empty_kernel::{EMPTY_KERNEL_NAME, EMPTY_KERNEL_PTX};
use super::sampling::Body;

/// Runs every part, slow ones last.
pub(super) fn measure(body: &mut Body) {
    if let Err(error) = body.cuda.load(EMPTY_KERNEL_PTX, EMPTY_KERNEL_NAME) {
        body.lose(error);
    }
    calls::measure(body);
    memory::measure(body);
    copies::measure(body);
    graphs::measure(body);
    modules::measure(body);
    threads::measure(body);
    if body.plan.by_hand {
        by_hand::measure(body);
    }
    if body.plan.heavy {
        objects::measure(body);
        copies::measure_large(body);
    }
}
