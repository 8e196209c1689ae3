//! Output of a command: a line for each step on standard output, problems on standard error.

use std::sync::LazyLock;
use std::time::Instant;

/// Start time of the first step.
static RUN_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Prints the name of the step that begins, with the minutes and seconds since the first one.
pub(crate) fn step(text: &str) {
    let seconds = RUN_START.elapsed().as_secs();
    println!("==> {:02}:{:02} {text}", seconds / 60, seconds % 60);
}

/// Prints a line of a result.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// Prints an error message.
pub(crate) fn problem(text: &str) {
    eprintln!("xtask: {text}");
}
