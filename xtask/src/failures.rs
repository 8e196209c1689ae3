//! Failures: the names and outputs at the end of `cargo xtask test`.
//!
//! A run prints tens of thousands of lines, and only the end of a long output may have been kept. So every failure is repeated
//! there with its output. Long outputs are cut in the middle.

/// Number of lines that are repeated of one failure's output: at its beginning and at its end.
const MAX_FIRST_LINES: usize = 60;
const MAX_FAILURE_LINES: usize = 60;

/// One failed check or test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Name of the check, or of the test behind its suite.
    pub(crate) name: String,
    /// Output of the check or test.
    pub(crate) output: String,
}

impl Failure {
    /// Returns the name as a heading, followed by the output.
    pub(crate) fn show(&self) -> String {
        format!("---- {} ----\n{}", self.name, shortened(self.output.trim_matches('\n')))
    }
}

/// Returns a text without its middle, if it is long.
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
