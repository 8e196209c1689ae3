//! Where and when figures were taken, so that a file of `--json` says it by itself.

use std::fs;
use std::thread;

use katydid_cli_core::probe::DriverFacts;
use serde::Serialize;
use time::OffsetDateTime;

/// What NVIDIA's kernel module says of its release.
const DRIVER_VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// The machine of a run; the same keys as `machine.json` of a report of `gpu-test`.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    /// Name of the first device.
    gpu: String,
    /// Release of the driver, such as `580.159.04`; `softcuda` for the software device.
    driver: String,
    /// When the report was made, in UTC.
    date: String,
    /// Release of Linux.
    kernel: String,
    /// Processors that this process may use.
    processors: String,
    /// Version of Katydid.
    katydid: &'static str,
}

impl Machine {
    /// Asks the system; what it cannot say is empty.
    pub(super) fn describe(driver: &DriverFacts) -> Self {
        let module = fs::read_to_string(DRIVER_VERSION_FILE).unwrap_or_default();
        let now = OffsetDateTime::now_utc();
        let (date, hour, minute) = (now.date(), now.hour(), now.minute());
        Self {
            gpu: driver.devices.first().map_or_else(String::new, |(name, _)| name.clone()),
            driver: if driver.soft { "softcuda".to_owned() } else { release(&module).to_owned() },
            date: format!("{}-{:02}-{:02} {hour:02}:{minute:02} UTC", date.year(), u8::from(date.month()), date.day()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: thread::available_parallelism().map_or_else(|_| String::new(), |number| number.to_string()),
            katydid: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The release in the text of [`DRIVER_VERSION_FILE`]: its first word of digits and dots.
fn release(module: &str) -> &str {
    let is_release =
        |word: &&str| word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    module.split_whitespace().find(is_release).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_the_module_is_found() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0\n";
        assert_eq!(release(text), "580.159.04");
        assert_eq!(release(""), "");
    }

    #[test]
    fn a_machine_says_when_and_where() {
        let driver =
            DriverFacts { path: "libcuda.so.1".into(), soft: true, version: 13000, devices: vec![("A".to_owned(), 1)] };
        let machine = Machine::describe(&driver);
        assert_eq!((machine.gpu.as_str(), machine.driver.as_str()), ("A", "softcuda"));
        assert!(
            machine.date.ends_with(" UTC") && machine.date.len() == "2026-11-29 18:00 UTC".len(),
            "{}",
            machine.date
        );
        assert!(!machine.kernel.is_empty() && machine.processors.parse::<usize>().is_ok());
    }
}
