//! Memory barriers that one side pays for both.
//!
//! Two sides each write their own word and then read the other's. Both need a full barrier between the two steps, or neither may
//! see the other. The side that does this a million times a second omits its barrier ([`light`]). The side that does it seldom
//! has the system run a barrier on every processor that runs the first side. Processes take part once they are registered. If one
//! is not, or the system refuses, both sides use fences.

#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process's threads for [`everywhere`] of all processes, and for [`full`]. With several threads this takes the
/// system milliseconds.
pub(crate) fn register() -> bool {
    let register = |command| membarrier(command).is_ok();
    register(MembarrierCommand::RegisterGlobalExpedited) && register(MembarrierCommand::RegisterPrivateExpedited)
}

/// Runs a full barrier here and in every running thread of every registered process. Returns false if the system refuses.
pub(crate) fn everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Runs a full barrier in the threads of this process, which is registered unless it was restored since.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) fn full() -> bool {
    let barrier = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    barrier() || (register() && barrier())
}

/// The barrier of the side that pays nothing: only the compiler keeps its steps in order.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// In loom's models, both halves of such a barrier are fences.
#[cfg(all(test, feature = "loom"))]
pub(crate) fn full() -> bool {
    light();
    true
}

#[cfg(all(test, feature = "loom"))]
pub(crate) fn light() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
