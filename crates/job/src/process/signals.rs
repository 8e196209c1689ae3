//! Signals that batch systems and terminals send to all processes of a job. They are meant for its programs; they must not end
//! what Katydid does meanwhile, such as a dump.

#![expect(unsafe_code, reason = "what a process ignores from its start is set before it becomes the program")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that ask a process to end, or announce that it soon will.
pub const END_REQUEST_SIGNALS: [libc::c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGXCPU];

/// Makes a command that is started ignore them.
pub(crate) fn ignore(command: &mut Command) {
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(set_ignored) };
}

fn set_ignored() -> io::Result<()> {
    for signal in END_REQUEST_SIGNALS {
        // SAFETY: sets no handler.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_outlives_what_is_meant_for_programs() {
        let script = "for s in HUP INT QUIT TERM USR1 USR2 XCPU; do kill -$s $$; done; exit 7";
        let mut command = Command::new("/bin/bash");
        ignore(command.args(["-c", script]));
        assert_eq!(command.status().unwrap().code(), Some(7));
    }
}
