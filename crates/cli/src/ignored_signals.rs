//! Signals that the caller ignored, as `nohup` does, and that stay ignored.

use std::fs;

/// Whether this process was started with the signal ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mask = fs::read_to_string("/proc/self/status").ok().and_then(|status| ignored_mask(&status));
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Reads the mask in `/proc/PID/status`: hexadecimal, bit N - 1 for signal N.
fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found_in_the_kernels_words() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_mask(status), Some(0x1001));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
    }
}
