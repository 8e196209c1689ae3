//! Lengths of time on the command line: a number and `ms`, `s`, `m` or `h`. A number alone is refused.

use std::str::FromStr;
use std::time::Duration;

use katydid_driver_rules::state::settings;
use katydid_driver_rules::state::units::{self, DurationError};

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationArg(pub Duration);

/// Why a text is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DurationArgError {
    /// The text is not a length of time.
    #[error(transparent)]
    Text(#[from] DurationError),
    /// The time is zero, or longer than a year.
    #[error("must be between 1ms and a year")]
    Bounds,
}

/// Longest duration that a flag takes.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

impl FromStr for DurationArg {
    type Err = DurationArgError;

    fn from_str(text: &str) -> Result<Self, DurationArgError> {
        match units::duration(text)? {
            time if time.is_zero() || time > MAX_DURATION => Err(DurationArgError::Bounds),
            time => Ok(Self(time)),
        }
    }
}

/// Limit for the silence of a link; nothing means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimit(pub Duration);

impl FromStr for SilenceLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = units::duration(text).map_err(|error| error.to_string())?;
        let remedy = match time < settings::MIN_SILENCE_LIMIT {
            true => "write 3s or more, or 0s for no limit",
            false => "write 277h or less, or 0s for no limit",
        };
        settings::silence(text).map(Self).ok_or_else(|| remedy.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_durations_are_refused() {
        assert_eq!("10m".parse(), Ok(DurationArg(Duration::from_secs(600))));
        assert_eq!("90".parse::<DurationArg>(), Err(DurationArgError::Text(DurationError::NoUnit("90".into()))));
        for text in ["0s", "99999h"] {
            assert_eq!(text.parse::<DurationArg>(), Err(DurationArgError::Bounds), "{text}");
        }
    }

    #[test]
    fn a_limit_for_silence_is_three_seconds_or_none() {
        for text in ["0s", "0"] {
            assert_eq!(text.parse(), Ok(SilenceLimit(Duration::ZERO)), "{text}");
        }
        assert_eq!("1m".parse(), Ok(SilenceLimit(Duration::from_secs(60))));
        for (text, remedy) in
            [("60", "60s"), ("2s", "3s or more"), ("999999h", "277h or less"), ("-5s", "negative"), ("x", "90s")]
        {
            let error = text.parse::<SilenceLimit>().unwrap_err();
            assert!(error.contains(remedy) && error.len() < 80, "{text}: {error}");
        }
    }
}
