//! What a command says: a line for each step on standard output, problems on standard error.

/// Names the step that begins.
pub(crate) fn step(text: &str) {
    println!("==> {text}");
}

/// A line of a result.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// Something that went wrong.
pub(crate) fn problem(text: &str) {
    eprintln!("xtask: {text}");
}
