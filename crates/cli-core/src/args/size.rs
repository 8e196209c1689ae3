//! Sizes in bytes, parsed from the command line and formatted for users.
//!
//! Suffixes are powers of 1024, as for memory: `K`, `KB` and `KiB` are the same.

use std::fmt;
use std::str::FromStr;

use katydid_driver_rules::state::units::{self, SizeError};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        units::size(text).map(Self)
    }
}

impl fmt::Display for Size {
    /// Formats at most three digits, such as `64 MiB`, `1.5 GiB`, `0 B`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
        let mut unit = units.next().unwrap_or("B");
        while value >= 1024.0 {
            let Some(larger) = units.next() else { break };
            (value, unit) = (value / 1024.0, larger);
        }
        let text = if value.fract() == 0.0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
        out.pad(&format!("{text} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (139 << 30, "139 GiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
