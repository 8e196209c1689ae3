//! The worker's own lines, for the operator's eyes: they go to the standard error the worker was started with.
//!
//! Descriptor 2 itself is given to the driver, whose words belong to the program; so the log keeps the descriptor
//! that stood there before. A panic of any thread is reported there too.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// What descriptor 2 was when the process began.
static FIRST_STDERR: OnceLock<OwnedFd> = OnceLock::new();

/// Keeps what descriptor 2 is now, for what is to be said when it is the program's.
///
/// # Errors
///
/// The system has no descriptor left.
pub(crate) fn keep_first() -> io::Result<()> {
    let first = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    // Of two times the first one counts.
    let _ = FIRST_STDERR.set(first);
    Ok(())
}

fn first() -> BorrowedFd<'static> {
    FIRST_STDERR.get().map_or(rustix::stdio::stderr(), AsFd::as_fd)
}

/// Destination of the worker's log lines.
#[derive(Debug)]
pub(crate) struct Log {
    real: Option<OwnedFd>,
}

impl Log {
    /// Writes to what descriptor 2 was when the process began.
    pub(crate) fn early() -> Self {
        Self { real: None }
    }

    /// Writes to `real`, which descriptor 2 was before.
    pub(crate) fn to_descriptor(real: OwnedFd) -> Self {
        Self { real: Some(real) }
    }

    /// One line. A closed standard error never ends a session.
    pub(crate) fn line(&self, text: fmt::Arguments<'_>) {
        let line = format!("katydid worker {}: {text}\n", std::process::id());
        let _ = match &self.real {
            Some(real) => rustix::io::write(real, line.as_bytes()),
            None => rustix::io::write(first(), line.as_bytes()),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use katydid_session_core::Capture;

    use super::*;

    const IS_WORKER: &str = "PANICS_AS_A_WORKER";

    /// Not a test by itself: a worker whose descriptor 2 is its program's, and which then panics.
    #[test]
    fn a_worker_that_panics_in_a_session() {
        if env::var_os(IS_WORKER).is_none() {
            return;
        }
        crate::os::process::prepare(&Log::early());
        let _capture = Capture::start().unwrap();
        panic!("last words");
    }

    #[test]
    fn panic_message_of_a_worker_is_kept_apart_from_program_output() {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "os::log::tests::a_worker_that_panics_in_a_session", "--nocapture"]);
        let outcome = command.env(IS_WORKER, "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&outcome.stderr);
        assert!(stderr.contains("fault in Katydid itself") && stderr.contains("last words"), "{stderr}");
        assert_eq!(outcome.status.code(), Some(70));
    }
}
