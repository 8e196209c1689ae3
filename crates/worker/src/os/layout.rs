//! Keeps the worker's own memory out of the way of the driver's.
//!
//! A driver places a program's code and variables by which addresses of the process are free when it asks the system for
//! more. A restored worker starts the same way, but reads and starts other things in between, at times of its own. So the
//! worker's own memory must not take addresses that the system would give to the driver:
//!
//! - Large blocks of the heap come from its end.
//! - Stacks of threads come from a stock that was made before the driver.
//! - Threads have no second stack for signals (`server/src/workers/spawn.rs`).
//! - Mappings lie at places of their own (`transport/src/shm/shared_mapping.rs`, `session/src/memory/pinned_alloc.rs`,
//!   `session/src/snapshot/scratch.rs`).
//!
//! The worker loads the driver's compilers whether the driver will need them or not (`driver/src/open.rs`).

#![expect(unsafe_code, reason = "settings of the C library's heap, and of signals")]

use std::sync::Mutex;
use std::thread;

use libc::{M_ARENA_MAX, M_MMAP_MAX, mallopt};

/// Stacks that are kept for our threads: what writes an image has 16, and each bulk connection of the program's one.
const OWN_STACKS: usize = 36;
/// Their size, as of all threads of Rust's.
const OUR_SIZE: usize = 2 << 20;
/// Stacks that are kept for the driver's threads: three as it starts, and one for the functions of each context.
const DRIVER_STACKS: usize = 16;
/// The largest that are kept for it: with a higher limit of the system it has stacks wherever there is room.
const MAX_STACK_BYTES: u64 = 64 << 20;
/// What glibc keeps of stacks that no process has: its own choice is 40 MiB (a tunable since 2.34; the room is of addresses alone).
pub const STACKS_KEPT: &str = "glibc.pthread.stack_cache_size=1207959552";
/// Blocks that glibc maps by themselves unless told otherwise.
const DEFAULT_MAX_MAPPINGS: i32 = 65_536;

/// Before the driver is opened.
pub(crate) fn fix_layout() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default, as every process has it that was not started by our server.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: two numbers; the heap looks at them when it next grows. One that does not know them stays as it was.
    unsafe {
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_MMAP_MAX, 0);
    }
    stock(&[OUR_SIZE; OWN_STACKS]);
    stock(&[drivers_size(); DRIVER_STACKS]);
}

/// The size of the stack of a thread whose maker does not choose: the system's limit, or glibc's choice.
fn drivers_size() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    limit.filter(|limit| *limit <= MAX_STACK_BYTES).map_or(OUR_SIZE, |limit| limit as usize)
}

/// Has glibc keep stacks of these sizes.
fn stock(sizes: &[usize]) {
    // The threads end one after the other once the last has been started, so that each has a stack of its own.
    let turn = Mutex::new(());
    let hold = turn.lock();
    thread::scope(|scope| {
        for size in sizes {
            let waiting = thread::Builder::new().name("stack".into()).stack_size(*size);
            // A system that gives no more threads has given as many stacks as there will be.
            let _ = waiting.spawn_scoped(scope, || drop(turn.lock()));
        }
        drop(hold);
    });
}

/// The heap as other programs have it, for a driver whose addresses are its own.
pub(crate) fn restore_default_heap() {
    // SAFETY: as above; no bound on arenas is the default.
    unsafe {
        mallopt(M_ARENA_MAX, 0);
        mallopt(M_MMAP_MAX, DEFAULT_MAX_MAPPINGS);
    }
}
