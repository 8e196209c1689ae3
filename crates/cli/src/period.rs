//! Lengths of time on the command line: a number and `ms`, `s`, `m` or `h`; seconds without one.

use std::str::FromStr;
use std::time::Duration;

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

/// Why a text is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PeriodError {
    /// The number is missing or malformed, or the suffix is unknown.
    #[error("write a number with an optional ms, s, m or h, such as 90s or 10m")]
    Malformed,
    /// Nothing at all, or more than a year.
    #[error("must be more than nothing and less than a year")]
    Bounds,
}

/// A year, in milliseconds.
const MOST: u64 = 365 * 24 * 3600 * 1000;

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| PeriodError::Malformed)?;
        let factor = match suffix {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(PeriodError::Malformed),
        };
        match number.checked_mul(factor) {
            Some(millis @ 1..=MOST) => Ok(Self(Duration::from_millis(millis))),
            _ => Err(PeriodError::Bounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_are_elsewhere() {
        for (text, millis) in [("250ms", 250), ("90", 90_000), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000)] {
            assert_eq!(text.parse(), Ok(Period(Duration::from_millis(millis))), "{text}");
        }
    }

    #[test]
    fn what_is_no_period_is_refused() {
        for text in ["", "m", "1.5s", "-1s", "1d", "1 m"] {
            assert_eq!(text.parse::<Period>(), Err(PeriodError::Malformed), "{text}");
        }
        for text in ["0", "99999h", "18446744073709551615h"] {
            assert_eq!(text.parse::<Period>(), Err(PeriodError::Bounds), "{text}");
        }
    }
}
