//! The choice of a worker's driver library: the value of `--driver`.
//!
//! A choice is only text here; `open.rs` turns it into a library. `auto` prefers NVIDIA's library and falls back to softcuda, so
//! the same command line works on a laptop and on a machine with a GPU.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The operator's choice of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// NVIDIA's library if it initializes and shows a device, else softcuda.
    #[default]
    Auto,
    /// softcuda, from the installed layout.
    Soft,
    /// The library at this path.
    Path(PathBuf),
}

impl FromStr for DriverChoice {
    type Err = Infallible;

    /// Parses `auto` and `soft`; anything else is a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "soft" => Self::Soft,
            path => Self::Path(PathBuf::from(path)),
        })
    }
}

impl fmt::Display for DriverChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Soft => out.write_str("soft"),
            Self::Path(path) => write!(out, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_survives_being_written_and_read() {
        for text in ["auto", "soft", "/opt/libcuda.so.1"] {
            let choice: DriverChoice = text.parse().unwrap();
            assert_eq!(choice.to_string(), text);
        }
    }

    #[test]
    fn a_word_that_is_no_choice_is_a_path() {
        assert_eq!("Soft".parse(), Ok(DriverChoice::Path(PathBuf::from("Soft"))));
    }
}
