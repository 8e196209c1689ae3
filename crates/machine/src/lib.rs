//! Describes where and when figures were measured, for reports.

use std::thread;

use serde::Serialize;
use time::OffsetDateTime;

/// The machine of a run, as in `katydid bench --json` and the reports of `cargo xtask gpu-test`.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Name of the first device.
    pub gpu: String,
    /// Release of the driver, such as `580.159.04`; `softcuda` for the software device.
    pub driver: String,
    /// When the report was made, in UTC.
    pub date: String,
    /// Release of Linux.
    pub kernel: String,
    /// Processors that this process may use.
    pub processors: String,
    /// Version of Katydid.
    pub katydid: &'static str,
}

impl Machine {
    /// Describes this machine now, with this device and driver. Fields that the system cannot fill are empty.
    #[must_use]
    pub fn with_device(gpu: String, driver: String) -> Self {
        let now = OffsetDateTime::now_utc();
        let (date, hour, minute) = (now.date(), now.hour(), now.minute());
        Self {
            gpu,
            driver,
            date: format!("{}-{:02}-{:02} {hour:02}:{minute:02} UTC", date.year(), u8::from(date.month()), date.day()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: thread::available_parallelism().map_or_else(|_| String::new(), |number| number.to_string()),
            katydid: env!("CARGO_PKG_VERSION"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_when_and_where() {
        let machine = Machine::with_device("A".to_owned(), "softcuda".to_owned());
        assert_eq!((machine.gpu.as_str(), machine.driver.as_str()), ("A", "softcuda"));
        assert!(
            machine.date.ends_with(" UTC") && machine.date.len() == "2026-11-29 18:00 UTC".len(),
            "{}",
            machine.date
        );
        assert!(!machine.kernel.is_empty() && machine.processors.parse::<usize>().is_ok());
    }
}
