//! Results in an item's output, and the comparison of two runs.
//!
//! `same NAME VALUE` must be equal to the last character, `near NAME TOLERANCE VALUE` within that fraction of the native value.
//! `time` and `version` are recorded but not compared; all other lines belong to the framework. See `said.py`.

use std::collections::BTreeMap;

/// One result that an item printed.
#[derive(Debug, Clone, PartialEq)]
enum ItemResult {
    Same(String),
    Near { tolerance: f64, value: f64 },
}

/// All results of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ItemResults {
    results: BTreeMap<String, ItemResult>,
    /// Repeated names and malformed lines: errors of the item itself.
    wrong: Vec<String>,
    /// Seconds that the item measured, by name.
    pub times: Vec<(String, f64)>,
    /// Versions that the item reports, by name of the library.
    pub versions: Vec<(String, String)>,
}

impl ItemResults {
    /// Parses the output of a run.
    pub fn of(text: &str) -> Self {
        let mut results = Self::default();
        for line in text.lines() {
            if results.read(line).is_none() {
                results.wrong.push(line.to_owned());
            }
        }
        results
    }

    /// Parses a line; `None` for a malformed result line.
    fn read(&mut self, line: &str) -> Option<()> {
        let (kind, fields) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "same" => {
                let (name, value) = fields.split_once(' ')?;
                self.keep(name, ItemResult::Same(value.to_owned()))
            }
            "near" => {
                let mut parts = fields.splitn(3, ' ');
                let (name, tolerance, value) = (parts.next()?, parts.next()?, parts.next()?);
                self.keep(name, ItemResult::Near { tolerance: tolerance.parse().ok()?, value: value.parse().ok()? })
            }
            "time" => {
                let (name, seconds) = fields.split_once(' ')?;
                self.times.push((name.to_owned(), seconds.parse().ok()?));
                Some(())
            }
            "version" => {
                let (name, value) = fields.split_once(' ')?;
                self.versions.push((name.to_owned(), value.to_owned()));
                Some(())
            }
            _ => Some(()),
        }
    }

    fn keep(&mut self, name: &str, result: ItemResult) -> Option<()> {
        // A second result with the same name would hide the first.
        self.results.insert(name.to_owned(), result).is_none().then_some(())
    }

    /// Returns the number of results. An item without any has shown nothing.
    pub fn count(&self) -> usize {
        self.results.len()
    }

    /// Returns the names of results that differ between this native run and `other`, or that only one of them has.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let all = self.results.keys().chain(other.results.keys().filter(|name| !self.results.contains_key(*name)));
        let differ = |name: &&String| match (self.results.get(*name), other.results.get(*name)) {
            (Some(native), Some(other)) => !agree(native, other),
            _ => true,
        };
        let wrong = self.wrong.iter().chain(&other.wrong).map(|line| format!("malformed or twice: {line}"));
        all.filter(differ).cloned().chain(wrong).collect()
    }

    /// Returns a result as text, for reports.
    pub fn text(&self, name: &str) -> String {
        match self.results.get(name) {
            Some(ItemResult::Same(value)) => value.chars().take(120).collect(),
            Some(ItemResult::Near { value, .. }) => value.to_string(),
            None => "nothing".to_owned(),
        }
    }
}

/// Returns whether a result matches the native one. Two NaNs match.
fn agree(native: &ItemResult, other: &ItemResult) -> bool {
    match (native, other) {
        (ItemResult::Same(native), ItemResult::Same(other)) => native == other,
        (ItemResult::Near { tolerance, value }, ItemResult::Near { value: other, .. }) => {
            let both_none = value.is_nan() && other.is_nan();
            value == other || both_none || (value - other).abs() <= tolerance * value.abs()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NATIVE: &str = "warning: slow\nversion torch 2.11\nsame sum 0x1.8p+3\nnear norm 1e-3 100.0\ntime step 0.25\n";

    #[test]
    fn equal_words_have_no_differences() {
        let other = NATIVE.replace("0.25", "0.5").replace("slow", "fast").replace("100.0", "100.09");
        assert_eq!(ItemResults::of(NATIVE).differences(&ItemResults::of(&other)), Vec::<String>::new());
    }

    #[test]
    fn a_last_bit_counts_and_so_does_what_is_beyond_the_tolerance() {
        let native = ItemResults::of(NATIVE);
        assert_eq!(native.differences(&ItemResults::of(&NATIVE.replace("1.8p", "1.9p"))), ["sum"]);
        assert_eq!(native.differences(&ItemResults::of(&NATIVE.replace("100.0", "100.2"))), ["norm"]);
        assert_eq!(native.differences(&ItemResults::of(&NATIVE.replace("100.0", "nan"))), ["norm"]);
    }

    #[test]
    fn missing_words_are_differences() {
        let (native, less) = (ItemResults::of(NATIVE), ItemResults::of("same sum 0x1.8p+3"));
        assert_eq!(native.differences(&less), ["norm"]);
        assert_eq!(less.differences(&native), ["norm"]);
    }

    #[test]
    fn a_result_said_twice_or_malformed_is_a_difference() {
        let native = ItemResults::of("same a 1");
        assert_eq!(native.differences(&ItemResults::of("same a 1\nsame a 1")), ["malformed or twice: same a 1"]);
        assert_eq!(
            native.differences(&ItemResults::of("same a 1\nnear b much 2")),
            ["malformed or twice: near b much 2"]
        );
    }

    #[test]
    fn times_and_versions_are_kept() {
        let words = ItemResults::of(NATIVE);
        assert_eq!(words.times, [("step".to_owned(), 0.25)]);
        assert_eq!(words.versions, [("torch".to_owned(), "2.11".to_owned())]);
        assert_eq!(words.count(), 2);
    }
}
