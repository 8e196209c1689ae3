//! Output for terminals only: progress of long work, on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use katydid_wire::printable::printable;
use rustix::termios::tcgetwinsize;

use crate::args::size::Size;

/// Length of a full bar, in characters.
const BAR_CHARS: u64 = 20;

/// One line, which the next one replaces and which is erased at the end; without a terminal on standard error nothing is shown.
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
            // A line that wraps into the next row could not be erased.
            let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            let shown: String = printable(line).chars().take(columns.checked_sub(1).unwrap_or(usize::MAX)).collect();
            // A closed terminal is no reason to stop the work.
            let _ = write!(io::stderr(), "\r\x1b[K{shown}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}

/// Formats the progress of a work of `total` bytes that began `elapsed` ago: a bar, bytes, `more` about them, and the mean rate.
/// A total of 0 is not known yet, and is left out.
pub fn bar(done: u64, total: u64, more: &str, elapsed: Duration) -> String {
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0).min(100);
    let filled = "#".repeat((percent * BAR_CHARS / 100) as usize);
    let rate = (done as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
    let of_total = if total == 0 { String::new() } else { format!(" of {}", Size(total)) };
    format!("[{filled:<20}] {percent:3} %  {}{of_total}{more}, {}/s", Size(done), Size(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_bytes_and_rate() {
        let line = bar(1 << 20, 4 << 20, ", 3 B new", Duration::from_secs(2));
        assert_eq!(line, "[#####               ]  25 %  1 MiB of 4 MiB, 3 B new, 512 KiB/s");
        assert_eq!(bar(0, 0, "", Duration::ZERO), "[                    ]   0 %  0 B, 0 B/s");
        assert!(bar(1 << 20, 0, " on the GPU", Duration::from_secs(1)).ends_with("   0 %  1 MiB on the GPU, 1 MiB/s"));
        assert!(bar(9, 3, "", Duration::ZERO).contains(" 100 % "));
    }
}
