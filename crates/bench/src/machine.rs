//! The machine and the driver of the figures.

use std::fs;

use katydid_cli_core::probe::ProbedDriver;
use katydid_machine::Machine;

/// File with the release of NVIDIA's kernel module.
const DRIVER_VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// Describes machine and driver. Unknown fields are empty.
pub(super) fn describe(driver: &ProbedDriver) -> Machine {
    let gpu = driver.devices.first().map_or_else(String::new, |(name, _)| name.clone());
    let module = fs::read_to_string(DRIVER_VERSION_FILE).unwrap_or_default();
    Machine::with_device(gpu, if driver.soft { "softcuda".to_owned() } else { release(&module).to_owned() })
}

/// Returns the release in the text of [`DRIVER_VERSION_FILE`]: its first word of digits and dots.
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
}
