//! Durations and sizes as text, in flags, variables and files.
//!
//! A duration needs a unit. A number without one is refused and never taken for seconds, because another user means minutes
//! by it; 0 is the same in all units. Sizes count in powers of 1024, as memory does: `K`, `KB` and `KiB` are the same.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DurationError {
    /// A number without a unit, which the error holds.
    NoUnit(String),
    /// The number is missing or malformed, or the unit is unknown.
    Malformed,
    /// The number is negative.
    Negative,
    /// The duration is too long to be represented.
    TooLong,
}

impl fmt::Display for DurationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUnit(number) => {
                write!(out, "{number} has no unit: write {number}s for seconds, or ms, m or h in place of s")
            }
            Self::Malformed => out.write_str("write a number and ms, s, m or h, such as 90s or 10m"),
            Self::Negative => out.write_str("it is negative: write a time without a sign, such as 90s"),
            Self::TooLong => out.write_str("is longer than can be counted: write less"),
        }
    }
}

impl Error for DurationError {}

/// Parses a number and `ms`, `s`, `m` or `h`.
///
/// # Errors
///
/// [`DurationError`], whose text tells what to write.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    if is_negative(text) {
        return Err(DurationError::Negative);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" if digits > 0 && number.bytes().all(|digit| digit == b'0') => return Ok(Duration::ZERO),
        "" if digits > 0 => return Err(DurationError::NoUnit(number.to_owned())),
        _ => return Err(DurationError::Malformed),
    };
    if digits == 0 {
        return Err(DurationError::Malformed);
    }
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    millis.map(Duration::from_millis).ok_or(DurationError::TooLong)
}

/// Returns whether a text begins with a negative number.
#[must_use]
pub fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit() || first == '.'))
}

/// Why a text is no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// The number is missing or malformed, or the suffix is unknown.
    Malformed,
    /// The number is negative.
    Negative,
    /// A limit of 0 would refuse every program.
    Zero,
    /// The size is more than 2^63 bytes.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Malformed => "write a number with an optional K, M, G or T, such as 512M or 1.5GiB",
            Self::Negative => "it is negative: write a size without a sign, such as 512M",
            Self::Zero => "must be at least one byte",
            Self::TooLarge => "larger than any machine's memory",
        })
    }
}

impl Error for SizeError {}

/// Suffix letters, each 1024 times the one before.
const SIZE_SUFFIXES: &str = "KMGT";

/// Parses a number of bytes, with an optional `K`, `M`, `G` or `T`.
///
/// # Errors
///
/// [`SizeError`], whose text tells what to write.
pub fn size(text: &str) -> Result<u64, SizeError> {
    if is_negative(text) {
        return Err(SizeError::Negative);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let bytes = decimal(number)? * multiplier(suffix.trim_start())?;
    match bytes {
        zero if zero < 1.0 => Err(SizeError::Zero),
        large if large > i64::MAX as f64 => Err(SizeError::TooLarge),
        fits => Ok(fits as u64),
    }
}

/// Parses digits and a point; the caller has excluded signs, exponents and infinity.
fn decimal(text: &str) -> Result<f64, SizeError> {
    text.parse().map_err(|_| SizeError::Malformed)
}

/// Returns the factor of `""`, `B`, `K`, `KB`, `KiB` and so on, in either case.
fn multiplier(suffix: &str) -> Result<f64, SizeError> {
    let upper = suffix.to_ascii_uppercase();
    let letter = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    if letter.is_empty() {
        return if upper == "IB" { Err(SizeError::Malformed) } else { Ok(1.0) };
    }
    let power = SIZE_SUFFIXES.find(letter).filter(|_| letter.len() == 1).ok_or(SizeError::Malformed)?;
    Ok(1024f64.powi(power as i32 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_are_elsewhere() {
        for (text, millis) in [("250ms", 250), ("0s", 0), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in ["", "m", "1.5s", "-s", "--", "1d", "1 m", "1S"] {
            assert_eq!(duration(text), Err(DurationError::Malformed), "{text}");
        }
        assert_eq!(duration("18446744073709551615h"), Err(DurationError::TooLong));
        assert_eq!((duration("-1s"), size("-.5G")), (Err(DurationError::Negative), Err(SizeError::Negative)));
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_what_to_write() {
        let error = duration("90").unwrap_err();
        assert_eq!(error.to_string(), "90 has no unit: write 90s for seconds, or ms, m or h in place of s");
        assert_eq!(duration("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn every_way_of_writing_a_gibibyte_is_the_same() {
        for text in ["1G", "1g", "1GB", "1GiB", "1 GiB", "1024M", "1073741824", "1073741824B"] {
            assert_eq!(size(text), Ok(1 << 30), "{text}");
        }
        assert_eq!(size("1.5K"), Ok(1536));
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in ["", "G", "1X", "1KM", "-G", "1iB", "..", "1e3", "inf"] {
            assert_eq!(size(text), Err(SizeError::Malformed), "{text}");
        }
        assert_eq!(size("0"), Err(SizeError::Zero));
        assert_eq!(size("99999999T"), Err(SizeError::TooLarge));
    }
}
