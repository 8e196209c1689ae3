//! Child processes that end with this one.

#![expect(unsafe_code, reason = "what a child does before it becomes the program is its own")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the program when this thread ends, which is the thread that waits for it.
pub fn dies_with_us(command: &mut Command) {
    let us = getpid();
    let before = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // This process may have been killed before the call.
        if getppid() == Some(us) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(before) };
}
