//! What a command says: a line for each step on standard output, problems on standard error.

use std::sync::LazyLock;
use std::time::Instant;

/// When the first step began.
static RUN_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Names the step that begins, and says how many minutes and seconds after the first one.
pub(crate) fn step(text: &str) {
    let seconds = RUN_START.elapsed().as_secs();
    println!("==> {:02}:{:02} {text}", seconds / 60, seconds % 60);
}

/// A line of a result.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// Something that went wrong.
pub(crate) fn problem(text: &str) {
    eprintln!("xtask: {text}");
}
