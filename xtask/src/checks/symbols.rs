//! Checks that words in backticks that look like symbols exist: in the tree, in a command line of the project, or in the table of
//! words from outside.
//!
//! A word looks like a symbol if it has an underscore or a hump (`cuInit`, `SessionFlags`), or stands before a parenthesis. It is
//! searched among the identifiers of all tracked files except pages; comments are left out. `*` and `…` beside a word match
//! anything. A path `owner::name` needs a source file that is or declares `owner` and names `name`.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::checks::command_tree::{Commands, long_flag};
use crate::checks::outside::{OUTSIDE_FLAGS, OUTSIDE_SYMBOLS};
use crate::shell;

/// Files whose words are ignored: tables of words that are foreign or no longer used.
const NOT_INDEXED: [&str; 2] = ["xtask/src/checks/outside.rs", "xtask/src/checks/words.rs"];

/// Keywords before the name of something that can own names.
const OWNER_KEYWORDS: [&str; 7] = ["mod", "struct", "enum", "trait", "union", "impl", "type"];

/// Extensions of source files, which must exist if a page names one.
const SYMBOL_SOURCE_ENDS: [&str; 3] = [".rs", ".api", ".cu"];

/// Symbols that pages may name.
pub(crate) struct Symbols {
    /// Sorted identifiers, so that those with a common beginning lie together.
    identifiers: BTreeSet<String>,
    file_names: HashSet<String>,
    sources: Vec<Source>,
    commands: Commands,
}

/// A source file: the owners of names in it, and all its identifiers.
struct Source {
    owners: HashSet<String>,
    identifiers: HashSet<String>,
}

/// A word of a span, with the letters before and behind it.
struct Word<'a> {
    text: &'a str,
    preceding: Option<char>,
    after: Option<char>,
}

impl Symbols {
    /// Reads all tracked files below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut symbols = Self {
            identifiers: BTreeSet::new(),
            file_names: HashSet::new(),
            sources: Vec::new(),
            commands: Commands::read(root)?,
        };
        let files = shell::git(root, &["ls-files", "--cached", "--others", "--exclude-standard"])?;
        for path in files.lines() {
            symbols.file_names.extend(path.split('/').map(str::to_owned));
            symbols.identifiers.extend(words_of(path).map(|word| word.text.to_owned()));
            let is_left_out = path.ends_with(".md") || NOT_INDEXED.contains(&path);
            // A file that is not text, or is missing from the checkout, has no symbols.
            if let Some(text) = (!is_left_out).then(|| fs::read_to_string(root.join(path)).ok()).flatten() {
                symbols.add(path, &text);
            }
        }
        Ok(symbols)
    }

    fn add(&mut self, path: &str, text: &str) {
        let mut source = Source { owners: HashSet::new(), identifiers: HashSet::new() };
        for line in text.lines().map(|line| without_comment(line, path)) {
            let mut preceding = "";
            for word in words_of(line) {
                // Tests without a `#[test]` declaration are named as `"owner::{name}"`.
                let is_prefix = word.preceding == Some('"') && word.after == Some(':');
                if OWNER_KEYWORDS.contains(&preceding) || is_prefix {
                    source.owners.insert(word.text.to_owned());
                }
                if !self.identifiers.contains(word.text) {
                    self.identifiers.insert(word.text.to_owned());
                }
                if !source.identifiers.contains(word.text) {
                    source.identifiers.insert(word.text.to_owned());
                }
                preceding = word.text;
            }
        }
        if path.ends_with(".rs") {
            source.owners.extend(path.trim_end_matches(".rs").split('/').map(|part| part.replace('-', "_")));
            self.sources.push(source);
        }
    }

    /// Returns the faults of the span of code `span`.
    pub(crate) fn faults(&self, span: &str) -> Vec<String> {
        let mut faults: Vec<String> = self.commands.fault(span).into_iter().collect();
        let is_file = SYMBOL_SOURCE_ENDS.iter().any(|end| span.ends_with(end)) && !span.contains(['*', ' ', '/', '<']);
        if is_file && !self.file_names.contains(span) {
            faults.push(format!("there is no file {span}"));
        }
        if faults.is_empty() {
            faults.extend(span.split_whitespace().filter_map(long_flag).filter_map(|flag| {
                let is_known = self.commands.have_flag(flag) || OUTSIDE_FLAGS.iter().any(|(known, _)| *known == flag);
                (!is_known).then(|| format!("no command has a flag --{flag}"))
            }));
        }
        for path in rust_paths(span) {
            if !self.has_path(path) {
                faults.push(format!("there is no {path}"));
            }
        }
        let lost = words_of(span).filter(|word| word.looks_like_symbol() && !self.has(word));
        faults.extend(lost.map(|word| format!("there is no symbol {}", word.text)));
        faults
    }

    fn has(&self, word: &Word) -> bool {
        if OUTSIDE_SYMBOLS.iter().any(|(known, _)| *known == word.text) {
            return true;
        }
        match (is_wildcard(word.preceding), is_wildcard(word.after)) {
            (false, false) => self.identifiers.contains(word.text),
            (false, true) => {
                let mut following = self.identifiers.range(word.text.to_owned()..);
                following.next().is_some_and(|known| known.starts_with(word.text))
            }
            (true, false) => self.identifiers.iter().any(|known| known.ends_with(word.text)),
            (true, true) => self.identifiers.iter().any(|known| known.contains(word.text)),
        }
    }

    /// Returns whether a file has the last two parts of a path.
    fn has_path(&self, path: &str) -> bool {
        let mut parts = path.rsplit("::");
        let (Some(name), Some(owner)) = (parts.next(), parts.next()) else { return true };
        let mut sources = self.sources.iter();
        sources.any(|source| source.owners.contains(owner) && source.identifiers.contains(name))
    }
}

/// Returns rows of the table of words from outside that no span names any more.
pub(crate) fn unused<'a>(spans: impl Iterator<Item = &'a str>) -> Vec<String> {
    let named: HashSet<String> = spans
        .flat_map(|span| {
            let flags = span.split_whitespace().filter_map(long_flag);
            flags.map(str::to_owned).chain(words_of(span).map(|word| word.text.to_owned())).collect::<Vec<_>>()
        })
        .collect();
    let rows = OUTSIDE_SYMBOLS.iter().chain(OUTSIDE_FLAGS);
    let idle = rows.filter(|(word, _)| !named.contains(*word));
    idle.map(|(word, _)| format!("xtask/src/checks/outside.rs: no page names {word} any more")).collect()
}

impl Word<'_> {
    fn looks_like_symbol(&self) -> bool {
        let text = self.text;
        if text.starts_with(|letter: char| letter.is_ascii_digit()) || text.starts_with("KATYDID_") {
            return false;
        }
        let letters: Vec<char> = text.chars().collect();
        let has_hump = letters.windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
        let is_called = self.after == Some('(') && letters.len() > 1;
        let has_underscore = text.trim_matches('_').contains('_') || (self.is_open() && text.contains('_'));
        has_underscore || has_hump || is_called
    }

    /// Returns whether more letters may stand before or behind the word.
    fn is_open(&self) -> bool {
        is_wildcard(self.preceding) || is_wildcard(self.after)
    }
}

/// Returns whether a letter beside a word stands for any others.
fn is_wildcard(letter: Option<char>) -> bool {
    matches!(letter, Some('*' | '…'))
}

/// Returns the words of a text: runs of letters, digits and underscores.
fn words_of(text: &str) -> impl Iterator<Item = Word<'_>> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(is_part)?;
        let end = text[start..].find(|letter| !is_part(letter)).map_or(text.len(), |length| start + length);
        at = end;
        let (preceding, after) = (text[..start].chars().next_back(), text[end..].chars().next());
        Some(Word { text: &text[start..end], preceding, after })
    })
}

/// Returns the paths such as `owner::name` in a span that has nothing but such paths and words.
fn rust_paths(span: &str) -> Vec<&str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_: ()".contains(letter);
    if !span.chars().all(is_plain) {
        return Vec::new();
    }
    span.split([' ', '(', ')']).filter(|word| word.contains("::")).collect()
}

/// Returns a line up to its comment.
fn without_comment<'a>(line: &'a str, path: &str) -> &'a str {
    let end = path.rsplit('.').next().unwrap_or_default();
    let mark = match end {
        "rs" | "c" | "h" | "cpp" | "cu" | "cuh" | "cl" | "ptx" => "//",
        "api" | "py" | "sh" | "toml" | "yml" => "# ",
        _ => return line,
    };
    // `://` of an address does not begin a comment.
    let starts = line.match_indices(mark).map(|(at, _)| at);
    let comment = starts.into_iter().find(|at| line[..*at].chars().next_back().is_none_or(char::is_whitespace));
    comment.map_or(line, |at| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> Symbols {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Symbols {
            identifiers: BTreeSet::new(),
            file_names: HashSet::from(["queue.rs".to_owned()]),
            sources: Vec::new(),
            commands: Commands::read(root).unwrap(),
        }
    }

    fn with_source() -> Symbols {
        let mut symbols = symbols();
        let text = "pub(crate) struct LinkQueue;\n/// Not of old_name.\nfn take_frame() {} // nor old_frame\nconst A: &str = \"tls://cuMemAlloc\";\n";
        symbols.add("crates/transport/src/link/queue.rs", text);
        symbols
    }

    #[test]
    fn a_wrong_symbol_fails() {
        let symbols = with_source();
        for span in [
            "take_frames",
            "old_name",
            "old_frame",
            "LinkQueues",
            "LinkQueue::put",
            "queues::take_frame",
            "take()",
            "cuMemFree",
            "take_frames*",
            "…_frames",
            "line.rs",
            "--no-such-flag",
            "katydid walk",
            "serve --no-such-flag",
        ] {
            assert!(!symbols.faults(span).is_empty(), "{span}");
        }
    }

    #[test]
    fn existing_symbols_and_ordinary_words_pass() {
        let symbols = with_source();
        for span in [
            "take_frame",
            "take_frame()",
            "LinkQueue::take_frame",
            "by link::queue::take_frame",
            "take_…",
            "*_frame",
            "cuMem*",
            "queue.rs",
            "an ordinary word",
            "42",
            "KATYDID_LOG=1",
            "katydid serve --mps",
            "--mps",
        ] {
            assert_eq!(symbols.faults(span), Vec::<String>::new(), "{span}");
        }
    }

    #[test]
    fn words_from_outside_are_those_that_a_page_names() {
        let all: Vec<&str> = OUTSIDE_SYMBOLS.iter().map(|(word, _)| *word).collect();
        let flags: Vec<String> = OUTSIDE_FLAGS.iter().map(|(flag, _)| format!("--{flag}")).collect();
        let spans = || all.iter().copied().chain(flags.iter().map(String::as_str));
        assert_eq!(unused(spans()), Vec::<String>::new());
        assert_eq!(unused(spans().skip(1)).len(), 1);
    }
}
