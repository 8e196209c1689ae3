//! What failed, picked out of what `cargo test` says: the names and outputs that `cargo xtask test` ends with.
//!
//! A run says tens of thousands of lines, and of a long one only the end may have been kept. So whatever failed is
//! said once more there, with its output, cut in the middle where it is long.

/// How much of one failure's output is said again: its beginning and its end.
const FIRST_LINES: usize = 60;
const LAST_LINES: usize = 60;

/// One thing that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A check's name, or a test's behind the binary that ran it.
    pub(crate) name: String,
    /// What it said.
    pub(crate) output: String,
}

impl Failure {
    /// Its name as a heading, then its output.
    pub(crate) fn shown(&self) -> String {
        format!("---- {} ----\n{}", self.name, shortened(self.output.trim_matches('\n')))
    }
}

/// A text without its middle, where it is long.
fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let left_out = lines.len().saturating_sub(FIRST_LINES + LAST_LINES);
    if left_out == 0 {
        return text.to_owned();
    }
    let (first, last) = (&lines[..FIRST_LINES], &lines[lines.len() - LAST_LINES..]);
    format!("{}\n    ({left_out} lines are left out here)\n{}", first.join("\n"), last.join("\n"))
}

/// Where a line stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Between the parts that matter.
    #[default]
    Outside,
    /// Behind the first `failures:` of a binary: the outputs.
    Outputs,
    /// Behind the second: the names once more.
    Names,
    /// In an error of cargo itself: code that does not compile, a binary that died.
    Error,
}

/// Reads what `cargo test` says, line by line, standard output and standard error in one.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    binary: String,
    /// What the binary said, for the case that it dies.
    said: Vec<String>,
    place: Place,
    died: u64,
    failures: Vec<Failure>,
}

impl Reader {
    /// One line.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(binary) = binary_named_by(line) {
            (self.binary, self.place) = (binary, Place::Outside);
            self.said.clear();
            return;
        }
        match self.place {
            _ if line.starts_with("test result: ") => self.place = Place::Outside,
            Place::Outside if line == "failures:" => self.place = Place::Outputs,
            Place::Outside if line == "Caused by:" => self.death(),
            Place::Outside if is_error(line) => self.begin("cargo".to_owned(), Place::Error, line),
            Place::Error if line.is_empty() => self.place = Place::Outside,
            Place::Outputs if line == "failures:" => self.place = Place::Names,
            Place::Outputs => match heading(line) {
                Some(test) => self.begin(format!("{} {test}", self.binary), Place::Outputs, ""),
                None => self.add(line),
            },
            Place::Error => self.add(line),
            Place::Outside => self.said.push(line.to_owned()),
            Place::Names => {}
        }
    }

    /// Everything that failed, and how many binaries died, of whose tests none is counted as failed.
    pub(crate) fn finish(self) -> (Vec<Failure>, u64) {
        (self.failures, self.died)
    }

    /// Cargo gives a cause where a binary did not end by itself: the error before it is that binary's.
    fn death(&mut self) {
        self.place = Place::Error;
        self.died += 1;
        let said = std::mem::take(&mut self.said).join("\n");
        if let Some(failure) = self.failures.last_mut() {
            failure.name = format!("{} died", self.binary);
            failure.output = format!("{said}\n{}\nCaused by:", failure.output);
        }
    }

    fn begin(&mut self, name: String, place: Place, first: &str) {
        self.place = place;
        self.failures.push(Failure { name, output: first.to_owned() });
    }

    fn add(&mut self, line: &str) {
        if let Some(failure) = self.failures.last_mut() {
            failure.output.push('\n');
            failure.output.push_str(line);
        }
    }
}

/// The binary whose tests follow: cargo says `Running unittests src/lib.rs (target/debug/deps/name-0123456789abcdef)`.
fn binary_named_by(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package} (documentation)"));
    }
    let path = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?.1;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
}

/// The test whose output follows: `---- name stdout ----`, or `---- name ----` where the harness is another one.
fn heading(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

fn is_error(line: &str) -> bool {
    line.starts_with("error:") || line.starts_with("error[")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        reader.finish().0.into_iter().map(|failure| (failure.name, failure.output)).collect()
    }

    #[test]
    fn a_binary_that_dies_is_a_failure_with_what_it_had_said() {
        let text = "     Running tests/t.rs (target/debug/deps/t-00ff)\n\nrunning 1 test\n\
            error: test failed, to rerun pass `--test t`\n\nCaused by:\n  process: `t` (signal: 6)\n   Doc-tests x\n";
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        let (failures, died) = reader.finish();
        assert_eq!((died, failures.len(), failures[0].name.as_str()), (1, 1, "t died"));
        assert!(failures[0].output.contains("running 1 test\n") && failures[0].output.ends_with("(signal: 6)"));
    }

    #[test]
    fn a_failed_test_is_named_with_its_binary_and_its_output() {
        let text = "     Running unittests src/lib.rs (/t/debug/deps/katydid_wire-00ff)\n\
            running 2 tests\ntest a ... FAILED\ntest b ... ok\n\nfailures:\n\n---- a stdout ----\n\
            thread 'a' panicked\nleft: 1\n\n\nfailures:\n    a\n\ntest result: FAILED. 1 passed; 1 failed\n\n\
            \x20    Running tests/apps.rs (/t/debug/deps/apps-00ff)\n\nfailures:\n\n---- shm::static::scan ----\n\
            exit status 1\n\n\nfailures:\n    shm::static::scan\n\n\ntest result: FAILED. 0 passed; 1 failed\n\n\
            error: 2 targets failed:\n    `-p katydid-wire --lib`\n\nafterwards\n";
        let found = read(text);
        let wanted = [
            ("katydid_wire a", "\nthread 'a' panicked\nleft: 1\n\n\n"),
            ("apps shm::static::scan", "\nexit status 1\n\n"),
            ("cargo", "error: 2 targets failed:\n    `-p katydid-wire --lib`"),
        ];
        assert_eq!(found, wanted.map(|(name, output)| (name.to_owned(), output.to_owned())));
    }

    #[test]
    fn code_that_does_not_compile_is_a_failure_too() {
        let found = read("   Compiling x\nerror[E0308]: mismatched types\n --> src/lib.rs:1:1\n\nwarning: other\n");
        assert_eq!(found, [("cargo".into(), "error[E0308]: mismatched types\n --> src/lib.rs:1:1".into())]);
    }

    #[test]
    fn tests_that_pass_leave_nothing_even_when_they_print_like_failures() {
        let text = "test says_error ... ok\n    error: indented\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(read(text), []);
    }

    #[test]
    fn a_long_output_loses_its_middle_only() {
        let output = (0..1000).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let shown = Failure { name: "long".to_owned(), output }.shown();
        assert!(shown.starts_with("---- long ----\n0\n1\n") && shown.ends_with("\n998\n999"), "{shown}");
        assert!(shown.contains("(880 lines are left out here)"), "{shown}");
        assert_eq!(shown.lines().count(), 1 + FIRST_LINES + 1 + LAST_LINES);
    }
}
