//! The machine with a GPU that a pack is made for and runs on.

use std::process::Command;

use katydid_machine::Machine;
use serde_json::Value;

use crate::shell;

/// Python version of the packages in a pack, which all machines with GPUs had so far. Other versions run without packages.
pub(crate) const PYTHON_VERSION: &str = "3.12";

/// Describes the machine; properties that cannot be queried stay empty.
pub(crate) fn describe() -> Value {
    let gpu = |what: &str| {
        let query = format!("--query-gpu={what}");
        let answer =
            shell::read(Command::new("nvidia-smi").args([&query, "--format=csv,noheader"])).unwrap_or_default();
        answer.trim().to_owned()
    };
    serde_json::to_value(Machine::with_device(gpu("name"), gpu("driver_version"))).unwrap_or_default()
}
