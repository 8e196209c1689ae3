//! The machine with a GPU that a pack is made for and runs on.

use std::process::Command;

use serde_json::{Value, json};

use crate::shell;

/// The Python for which a pack carries packages: that of the machines with GPUs so far. Another one does without.
pub(crate) const PYTHON_VERSION: &str = "3.12";

/// What the machine says of itself; a question that it cannot answer stays open.
pub(crate) fn describe() -> Value {
    let ask = |program: &str, arguments: &[&str]| {
        let answer = shell::read(Command::new(program).args(arguments)).unwrap_or_default();
        answer.trim().to_owned()
    };
    let gpu = |what: &str| ask("nvidia-smi", &[&format!("--query-gpu={what}"), "--format=csv,noheader"]);
    json!({
        "gpu": gpu("name"),
        "driver": gpu("driver_version"),
        "date": ask("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        "kernel": ask("uname", &["-r"]),
        "processors": ask("nproc", &[]),
    })
}
