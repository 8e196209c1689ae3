//! The worker's own lines, for the operator. They go to the standard error that the worker was started with.
//!
//! Descriptor 2 itself is given to the driver, whose output belongs to the program. So the log keeps the earlier descriptor. A
//! panic of any thread is reported there too.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Descriptor 2 as the process began with it.
static FIRST_STDERR: OnceLock<OwnedFd> = OnceLock::new();

/// Keeps the current descriptor 2 for lines written after the program has taken it over.
///
/// # Errors
///
/// The system has no descriptor left.
pub(crate) fn keep_first() -> io::Result<()> {
    let first = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    // Only the first call counts.
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
    /// Creates a log to the process's first descriptor 2.
    pub(crate) fn early() -> Self {
        Self { real: None }
    }

    /// Creates a log to `real`, the earlier descriptor 2.
    pub(crate) fn to_descriptor(real: OwnedFd) -> Self {
        Self { real: Some(real) }
    }

    /// Writes one line. A closed standard error never ends a session.
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
        assert!(stderr.contains("internal error in Katydid") && stderr.contains("last words"), "{stderr}");
        assert_eq!(outcome.status.code(), Some(70));
    }
}
