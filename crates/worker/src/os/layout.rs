//! Keeps the worker's own memory out of the way of the driver's.
//!
//! The addresses that are free when a driver asks the system for memory decide where it places a program's code and variables. A
//! restored worker starts the same way, but reads and starts other things in between, at other times. So the worker's own memory
//! must not take addresses that the system would give to the driver:
//!
//! - Large blocks of the heap come from its end.
//! - Stacks of threads come from a stock made before the driver opens.
//! - Threads have no second stack for signals (`server/src/workers/spawn.rs`).
//! - Mappings request addresses of their own (`transport/src/shm/shared_mapping.rs`, `session/src/memory/pinned_alloc.rs`,
//!   `session/src/snapshot/spare_memory.rs`).
//!
//! The worker loads the driver's compilers whether the driver will need them or not (`driver/src/open.rs`).

#![expect(unsafe_code, reason = "settings of the C library's heap, and of signals")]

use std::sync::Mutex;
use std::thread;

use libc::{M_ARENA_MAX, M_MMAP_MAX, mallopt};

/// Stacks kept for the worker's own threads: writing an image takes 16, and each bulk connection of the program one.
const OWN_STACKS: usize = 36;
/// Their size in bytes, the default of Rust's threads.
const OWN_STACK_BYTES: usize = 2 << 20;
/// Stacks kept for the driver's threads: three at its start, and one for the functions of each context.
const DRIVER_STACKS: usize = 16;
/// The largest stack kept for the driver. With a higher system limit its stacks lie wherever there is room.
const MAX_STACK_BYTES: u64 = 64 << 20;
/// Bytes of unused stacks that glibc keeps. Its default is 40 MiB (a tunable since 2.34; only addresses are reserved).
pub const STACKS_KEPT: &str = "glibc.pthread.stack_cache_size=1207959552";
/// Most blocks that glibc maps separately by default.
const DEFAULT_MAX_MAPPINGS: i32 = 65_536;

/// Fixes the layout. Must run before the driver is opened.
pub(crate) fn fix_layout() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: sets the default, which every process has that the server did not start.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: two numbers, which the heap reads when it next grows. A heap that does not know them is unchanged.
    unsafe {
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_MMAP_MAX, 0);
    }
    stock(&[OWN_STACK_BYTES; OWN_STACKS]);
    stock(&[drivers_size(); DRIVER_STACKS]);
}

/// Returns the default stack size of threads: the system's limit, or glibc's choice.
fn drivers_size() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    limit.filter(|limit| *limit <= MAX_STACK_BYTES).map_or(OWN_STACK_BYTES, |limit| limit as usize)
}

/// Makes glibc keep stacks of these sizes.
fn stock(sizes: &[usize]) {
    // The threads end only after the last one has started, so that each has a stack of its own.
    let lock = Mutex::new(());
    let guard = lock.lock();
    thread::scope(|scope| {
        for size in sizes {
            let waiting = thread::Builder::new().name("stack".into()).stack_size(*size);
            // A system that refuses more threads has given as many stacks as it can.
            let _ = waiting.spawn_scoped(scope, || drop(lock.lock()));
        }
        drop(guard);
    });
}

/// Restores the default settings of the heap, for a driver with addresses of its own.
pub(crate) fn restore_default_heap() {
    // SAFETY: as above; the default is no bound on arenas.
    unsafe {
        mallopt(M_ARENA_MAX, 0);
        mallopt(M_MMAP_MAX, DEFAULT_MAX_MAPPINGS);
    }
}
