//! What failed: the names and outputs that `cargo xtask test` ends with.
//!
//! A run says tens of thousands of lines, and of a long one only the end may have been kept. So whatever failed is
//! said once more there, with its output, cut in the middle where it is long.

/// How much of one failure's output is said again: its beginning and its end.
const MAX_FIRST_LINES: usize = 60;
const MAX_FAILURE_LINES: usize = 60;

/// One thing that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A check's name, or a test's behind its suite.
    pub(crate) name: String,
    /// What it said.
    pub(crate) output: String,
}

impl Failure {
    /// Its name as a heading, then its output.
    pub(crate) fn show(&self) -> String {
        format!("---- {} ----\n{}", self.name, shortened(self.output.trim_matches('\n')))
    }
}

/// A text without its middle, where it is long.
fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let left_out = lines.len().saturating_sub(MAX_FIRST_LINES + MAX_FAILURE_LINES);
    if left_out == 0 {
        return text.to_owned();
    }
    let (first, last) = (&lines[..MAX_FIRST_LINES], &lines[lines.len() - MAX_FAILURE_LINES..]);
    format!("{}\n    ({left_out} lines are left out here)\n{}", first.join("\n"), last.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_loses_its_middle_only() {
        let output = (0..1000).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let shown = Failure { name: "long".to_owned(), output }.show();
        assert!(shown.starts_with("---- long ----\n0\n1\n") && shown.ends_with("\n998\n999"), "{shown}");
        assert!(shown.contains("(880 lines are left out here)"), "{shown}");
        assert_eq!(shown.lines().count(), 1 + MAX_FIRST_LINES + 1 + MAX_FAILURE_LINES);
    }
}
