//! Gives a job a session of its own if CRIU could not dump its present one. CRIU dumps no process whose session was made outside
//! of the process's PID namespace.
//!
//! That is the case below commands that enter a container, or make one, without a session of its own (`unshare --pid`, `nsenter`,
//! process 1 itself).

#![expect(unsafe_code, reason = "a session can only be made by who is to be in it")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::setsid;

use crate::process::tree;

/// Makes the command the leader of a session of its own, if this process's session was made outside of its namespace.
pub(crate) fn make_own_if_outside(command: &mut Command) {
    if is_outside(std::process::id()) {
        make_own(command);
    }
}

/// Whether the session of a process was made outside of its namespace.
pub(crate) fn is_outside(pid: u32) -> bool {
    tree::group_and_session(pid).is_some_and(|(_, session)| session == 0)
}

fn make_own(command: &mut Command) {
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_in_a_new_session_leads_it() {
        let mut command = Command::new("/bin/sleep");
        make_own(command.arg("1000"));
        let mut child = command.spawn().unwrap();
        assert_eq!(tree::group_and_session(child.id()), Some((child.id(), child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
