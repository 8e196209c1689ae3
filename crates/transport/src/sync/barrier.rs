//! Barriers of which one side pays for both.
//!
//! Where two sides each write a word of their own and then read the other's, both need a full barrier between the two
//! steps, or neither may see the other. The side that does this a million times a second leaves its barrier out
//! ([`light`]); the one that does it seldom has the system run a barrier on every processor that runs the former.
//! Processes take part in that once they are registered; one that is not, or a system that refuses, has both sides use fences.

#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// From now on this process's threads take part in [`everywhere`] of all processes, and in [`full`]. With several threads
/// this takes the system milliseconds.
pub(crate) fn register() -> bool {
    let register = |command| membarrier(command).is_ok();
    register(MembarrierCommand::RegisterGlobalExpedited) && register(MembarrierCommand::RegisterPrivateExpedited)
}

/// A full barrier here and in every running thread of every process that is registered; false if the system refuses.
pub(crate) fn everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// A full barrier in the threads of this process, which is registered unless it was restored since.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) fn full() -> bool {
    let barrier = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    barrier() || (register() && barrier())
}

/// The side that pays nothing: its steps stay in order as far as the compiler goes.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// In models of interleavings, both sides' halves of such a barrier are fences.
#[cfg(all(test, feature = "loom"))]
pub(crate) fn full() -> bool {
    light();
    true
}

#[cfg(all(test, feature = "loom"))]
pub(crate) fn light() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
