//! What is shown on a terminal only: progress of long work, on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use crate::args::size::Size;

/// Characters of a whole bar.
const BAR_CHARS: u64 = 20;

/// One line that is replaced by the next and wiped at the end; nothing at all when standard error is no terminal.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Progress on standard error.
    pub fn on_stderr() -> Self {
        Self { shown: io::stderr().is_terminal() }
    }

    /// Replaces the line on the terminal with `line`, cut to its width.
    pub fn show(&self, line: &str) {
        if self.shown {
            // A line that goes on in the next row could not be wiped.
            let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            let shown: String = line.chars().take(columns.checked_sub(1).unwrap_or(usize::MAX)).collect();
            // A terminal that went away is no reason to stop the work.
            let _ = write!(io::stderr(), "\r\x1b[K{shown}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}

/// How far a work of `total` bytes, 0 as long as that is not known, is that began `elapsed` ago: a bar, bytes, `more` about them, and the mean rate.
pub fn bar(done: u64, total: u64, more: &str, elapsed: Duration) -> String {
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0).min(100);
    let filled = "#".repeat((percent * BAR_CHARS / 100) as usize);
    let rate = (done as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
    format!("[{filled:<20}] {percent:3} %  {} of {}{more}, {}/s", Size(done), Size(total), Size(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_bytes_and_rate() {
        let line = bar(1 << 20, 4 << 20, ", 3 B new", Duration::from_secs(2));
        assert_eq!(line, "[#####               ]  25 %  1 MiB of 4 MiB, 3 B new, 512 KiB/s");
        assert_eq!(bar(0, 0, "", Duration::ZERO), "[                    ]   0 %  0 B of 0 B, 0 B/s");
        assert!(bar(9, 3, "", Duration::ZERO).contains(" 100 % "));
    }
}
