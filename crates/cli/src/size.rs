//! Sizes in bytes, read from the command line and written for people.
//!
//! Suffixes count in powers of 1024, as memory does: `K`, `KB` and `KiB` are the same.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// Why a text is no size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SizeError {
    /// The number is missing or malformed, or the suffix is unknown.
    #[error("write a number with an optional K, M, G or T, such as 512M or 1.5GiB")]
    Malformed,
    /// A quota of nothing would refuse every program.
    #[error("must be at least one byte")]
    Zero,
    /// More than 2^63 bytes.
    #[error("larger than any machine's memory")]
    TooLarge,
}

/// Suffix letters, each 1024 times the one before.
const SUFFIXES: &str = "KMGT";

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let bytes = decimal(number)? * multiplier(suffix.trim_start())?;
        match bytes {
            zero if zero < 1.0 => Err(SizeError::Zero),
            large if large > i64::MAX as f64 => Err(SizeError::TooLarge),
            fits => Ok(Self(fits as u64)),
        }
    }
}

/// Digits and a point only, as the caller has made sure: no sign, no exponent, no infinity.
fn decimal(text: &str) -> Result<f64, SizeError> {
    text.parse().map_err(|_| SizeError::Malformed)
}

/// The factor of `""`, `B`, `K`, `KB`, `KiB` and so on, in either case.
fn multiplier(suffix: &str) -> Result<f64, SizeError> {
    let upper = suffix.to_ascii_uppercase();
    let letter = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    if letter.is_empty() {
        return if upper == "IB" { Err(SizeError::Malformed) } else { Ok(1.0) };
    }
    let power = SUFFIXES.find(letter).filter(|_| letter.len() == 1).ok_or(SizeError::Malformed)?;
    Ok(1024f64.powi(power as i32 + 1))
}

impl fmt::Display for Size {
    /// Three digits at most, such as `64 MiB`, `1.5 GiB`, `0 B`.
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
    fn every_way_of_writing_a_gibibyte_is_the_same() {
        for text in ["1G", "1g", "1GB", "1GiB", "1 GiB", "1024M", "1073741824", "1073741824B"] {
            assert_eq!(text.parse(), Ok(Size(1 << 30)), "{text}");
        }
    }

    #[test]
    fn fractions_are_allowed() {
        assert_eq!("1.5K".parse(), Ok(Size(1536)));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "1X", "1KM", "-1", "1iB", "..", "1e3", "inf"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed), "{text}");
        }
        assert_eq!("0".parse::<Size>(), Err(SizeError::Zero));
        assert_eq!("99999999T".parse::<Size>(), Err(SizeError::TooLarge));
    }

    #[test]
    fn sizes_are_written_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (139 << 30, "139 GiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
