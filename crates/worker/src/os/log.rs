//! The worker's own lines, for the operator's eyes: they go to the standard error the worker was started with.
//!
//! Descriptor 2 itself is given to the driver, whose words belong to the program; so the log keeps the descriptor
//! that stood there before.

use std::fmt;
use std::os::fd::OwnedFd;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    real: Option<OwnedFd>,
}

impl Log {
    /// Writes to what descriptor 2 is at present.
    pub(crate) fn early() -> Self {
        Self { real: None }
    }

    /// Writes to `real`, which descriptor 2 was before.
    pub(crate) fn kept(real: OwnedFd) -> Self {
        Self { real: Some(real) }
    }

    /// One line. A closed standard error never ends a session.
    pub(crate) fn line(&self, text: fmt::Arguments<'_>) {
        let line = format!("katydid worker {}: {text}\n", std::process::id());
        let _ = match &self.real {
            Some(real) => rustix::io::write(real, line.as_bytes()),
            None => rustix::io::write(rustix::stdio::stderr(), line.as_bytes()),
        };
    }
}
