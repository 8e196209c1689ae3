//! Checks that constants with values on pages, as `NAME = VALUE` before the path of a source file, match that file.

use std::fs;
use std::path::Path;

/// Text that begins a declaration.
const DECLARATION_PREFIX: &str = "const ";

/// Returns the faults of the constants that the spans of code of one line name.
pub(crate) fn faults(root: &Path, spans: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, span) in spans.iter().enumerate() {
        let Some((name, value)) = constant(span) else { continue };
        let Some(path) = spans[at..].iter().find(|span| span.ends_with(".rs")) else { continue };
        let Ok(source) = fs::read_to_string(root.join(path)) else { continue };
        match declared(&source, name) {
            None => faults.push(format!("{path} has no constant {name}")),
            Some(now) if now != value => faults.push(format!("{name} is {now} in {path}, and not {value}")),
            Some(_) => {}
        }
    }
    faults
}

/// Returns name and value of a span such as `MAX_FRAME = 1 << 20`.
fn constant(span: &str) -> Option<(&str, &str)> {
    let is_name = |name: &str| name.chars().all(|letter| letter.is_ascii_uppercase() || "_0123456789".contains(letter));
    span.split_once(" = ").filter(|(name, _)| !name.is_empty() && is_name(name))
}

/// Returns the value of a constant in its declaration.
fn declared<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let starts = source.match_indices(DECLARATION_PREFIX).map(|(at, _)| &source[at + DECLARATION_PREFIX.len()..]);
    let mut values = starts.filter_map(|rest| rest.strip_prefix(name)?.strip_prefix(": ")?.split_once(" = "));
    values.next().and_then(|(_, rest)| rest.split(';').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_the_source_does_not_have_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.rs"), "/// Most.\npub(crate) const MAX_NAME: usize = 4 << 10;\n").unwrap();
        assert!(faults(root.path(), &["MAX_NAME = 4 << 10", "a.rs", "--name = X"]).is_empty());
        assert_eq!(faults(root.path(), &["MAX_NAME = 40", "a.rs"]), ["MAX_NAME is 4 << 10 in a.rs, and not 40"]);
        assert_eq!(faults(root.path(), &["MAX_NAMES = 40", "a.rs"]), ["a.rs has no constant MAX_NAMES"]);
    }
}
