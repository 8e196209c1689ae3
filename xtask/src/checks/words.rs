//! Words that the project gave up for the field's terms stay gone.
//!
//! A row of the table names a word, what to write instead, and where the word is refused: everywhere, or only as the name of a module, a
//! type or a constant, where the word has ordinary meanings too. Code, pages and subjects of commits are checked. The changelog and
//! docs/evidence may keep old words. Names that say nothing by themselves have tables of their own ([`names`]).

mod names;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};

use crate::shell;
use crate::tree::Tree;

/// Where a word is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// In prose, messages and names alike, whatever the case.
    Everywhere,
    /// Only where a module, a type, a constant or a variable of that name is declared; the case counts.
    Names,
}

use Scope::{Everywhere, Names};

/// The old word, the term instead, and where the word is refused. Add a row when a word is gone.
const OLD_WORDS: &[(&str, &str, Scope)] = &[
    ("whoever", "the actor's name: the caller, the peer, the thread", Everywhere),
    ("somebody", "the actor's name: another process, a user, a thread", Everywhere),
    ("everybody", "the actors' name: all processes, all users", Everywhere),
    ("nobody", "the actor's name: no process, no caller, no thread", Everywhere),
    ("anybody", "the actor's name: any process, any user, any thread", Everywhere),
    ("plea", "reclaim request", Everywhere),
    ("pleas", "reclaim requests", Everywhere),
    ("plead", "send a reclaim request", Everywhere),
    ("pleads", "sends a reclaim request", Everywhere),
    ("appeal", "reclaim notice", Everywhere),
    ("appeals", "reclaim notices", Everywhere),
    ("lookout", "event poller", Everywhere),
    ("minder", "supervisor", Everywhere),
    ("incarnation", "generation", Everywhere),
    ("incarnations", "generations", Everywhere),
    ("bereft", "worker_lost", Everywhere),
    ("lobby", "hello queue", Everywhere),
    ("stranger", "the client, process or object that is not the own one", Everywhere),
    ("strangers", "clients, processes or objects that are not the own ones", Everywhere),
    ("twin", "duplicate, copy, clone", Everywhere),
    ("twins", "duplicates, copies, clones", Everywhere),
    ("visitors", "connections of a session: of a program, for bulk, of a companion", Everywhere),
    ("witness", "what it shows: a lifetime, an identity", Everywhere),
    ("witnesses", "what they show: lifetimes, identities", Everywhere),
    ("quicken", "enable the fast path", Everywhere),
    ("wagon", "frame of a batch", Everywhere),
    ("wagons", "frames of a batch", Everywhere),
    ("laden", "what it carries", Everywhere),
    ("inlet", "frame reader", Everywhere),
    ("servant", "the CRIU service", Everywhere),
    ("lender", "exporter", Names),
    ("Lender", "Exporter", Names),
    ("borrower", "importer", Names),
    ("Borrower", "Importer", Names),
    ("Loan", "Export", Names),
    ("Loans", "Exports", Names),
    ("SHELF", "ZERO_COPY", Names),
    ("quota", "memory_limit", Names),
    ("QUOTA", "MEMORY_LIMIT", Names),
    ("PlaceLimits", "SlotLimits", Names),
    ("ReservedPlace", "Reservation", Names),
    ("RankPlace", "JobAddress", Names),
    ("behind", "backpressure", Names),
    ("border", "ffi", Names),
    ("greens", "green_ctx", Names),
    ("hosts", "host_memory", Names),
    ("ledgers", "process_state", Names),
    ("manageds", "managed", Names),
    ("olds", "legacy_launch", Names),
    ("Apart", "UnsharedPages", Names),
    ("Look", "SocketGeneration", Names),
    ("Landed", "ReadLocation", Names),
    ("landing", "read_number", Names),
    ("Parcel", "TransferBlock", Names),
    ("parcels", "transfer_blocks", Names),
    ("aside", "capture", Names),
    ("company", "watched_processes", Names),
    ("Books", "the table's or the lock's name", Names),
    ("LanePlace", "LaneAddress", Names),
    ("CodePlace", "CodeLocation", Names),
    ("EntryPlace", "EntryPosition", Names),
    ("Lanes", "FrameConnections", Names),
    ("KeptPages", "ReturnedPages", Names),
    ("DriverTurn", "DriverLock", Names),
    ("VARIABLE", "a constant with a subject, such as SERVER_VARIABLE", Names),
    ("FOLDER", "a constant with a subject, such as CRIU_FOLDER", Names),
    ("LIMIT", "a constant with a subject and a unit, such as PROGRAM_TIMEOUT", Names),
    ("PIECE", "a constant with a subject and a unit, such as READ_BUFFER_BYTES", Names),
    ("LINE", "a constant with a subject and a unit, such as UNITS_PER_LINE", Names),
    ("MOST", "a constant with a subject and a unit, such as MAX_NAME_BYTES", Names),
    ("PATIENCE", "a constant with a subject, such as CONNECT_TIMEOUT", Names),
    ("LOOK", "a constant with a subject, such as POLL_INTERVAL", Names),
];

/// Paths that may keep old words for good: what they say is history, or, as here, the tables themselves.
const HISTORY_PATHS: [&str; 3] = ["CHANGELOG.md", "docs/evidence/", "xtask/src/checks/words"];

/// Ends of the names of files that people read.
const READ_SUFFIXES: [&str; 11] = [".rs", ".md", ".toml", ".cu", ".cuh", ".c", ".h", ".cpp", ".py", ".sh", ".api"];

/// The commit whose descendants have to keep to the table.
const FIRST_CHECKED_COMMIT: &str = "775b905a";

/// Keywords before a name that is declared.
const DECLARING_KEYWORDS: [&str; 8] = ["mod", "struct", "enum", "trait", "type", "const", "static", "union"];

/// Each place where an old word is back.
pub(crate) fn faults(tree: &Tree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let files = shell::git(&tree.root, &["ls-files"])?;
    for path in files.lines().filter(|path| is_checked(path)) {
        // A file may be gone from the checkout before it is gone from the index.
        let Ok(bytes) = fs::read(tree.root.join(path)) else { continue };
        faults.extend(old_words(&String::from_utf8_lossy(&bytes), path));
    }
    faults.extend(subjects(&tree.root)?);
    if !faults.is_empty() {
        faults.push("The table of words is in xtask/src/checks/words.rs".to_owned());
    }
    faults.extend(names::faults(tree)?);
    Ok(faults)
}

fn is_checked(path: &str) -> bool {
    let is_left_out = HISTORY_PATHS.iter().any(|start| path.starts_with(start));
    !is_left_out && READ_SUFFIXES.iter().any(|end| path.ends_with(end))
}

/// Most characters of a commit's subject.
const MAX_SUBJECT_CHARS: usize = 72;

/// Old words in the subjects of commits since the table began, and subjects that are too long; none where the history is not available.
fn subjects(root: &Path) -> Result<Vec<String>> {
    if shell::git(root, &["cat-file", "-e", FIRST_CHECKED_COMMIT]).is_err() {
        return Ok(Vec::new());
    }
    let log = shell::git(root, &["log", "--format=%h %s", &format!("{FIRST_CHECKED_COMMIT}..HEAD")])
        .context("cannot read the subjects of commits")?;
    let lines = log.lines().filter_map(|line| line.split_once(' '));
    let faults = lines.flat_map(|(commit, subject)| {
        let is_long = subject.chars().count() > MAX_SUBJECT_CHARS;
        let long = format!("commit {commit}: the subject has more than {MAX_SUBJECT_CHARS} characters");
        old_words(subject, &format!("commit {commit}")).into_iter().chain(is_long.then_some(long))
    });
    Ok(faults.collect())
}

/// The old words of a text, each with its line and the term instead.
fn old_words(text: &str, location: &str) -> Vec<String> {
    static EVERYWHERE: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        OLD_WORDS.iter().filter(|(_, _, scope)| *scope == Everywhere).map(|(word, term, _)| (*word, *term)).collect()
    });
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut fault = |word: &str, term: &str| {
            faults.push(format!("{location}:{}: \"{word}\" is not used any more: {term}", index + 1));
        };
        for word in words_of(line) {
            if let Some(term) = EVERYWHERE.get(word.as_str()) {
                fault(&word, term);
            }
        }
        if location.ends_with(".rs") {
            let names = OLD_WORDS.iter().filter(|(word, _, scope)| *scope == Names && line.contains(word));
            names.filter(|(word, _, _)| declares(line, word)).for_each(|(word, term, _)| fault(word, term));
        }
    }
    faults
}

/// The words of a line, in lower case: letters between others, so that those of `nobody_waits` are two.
fn words_of(line: &str) -> impl Iterator<Item = String> {
    let parts = line.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_lowercase)
}

/// Whether a line declares something of that name.
fn declares(line: &str, word: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") {
        return false;
    }
    let mut tokens =
        code.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|part| !part.is_empty());
    let mut before = "";
    tokens.any(|token| {
        let is_declared = token == word && DECLARING_KEYWORDS.contains(&before);
        before = token;
        is_declared
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_with_its_line_and_term() {
        let faults = old_words("fine\n// Nobody waits.\n", "crates/x/src/a.rs");
        assert_eq!(
            faults,
            [
                "crates/x/src/a.rs:2: \"nobody\" is not used any more: the actor's name: no process, no caller, no thread"
            ]
        );
        assert_eq!(old_words("fn nobody_waits() {}", "a.rs").len(), 1);
        assert!(old_words("antibodybuilder", "a.md").is_empty());
    }

    #[test]
    fn a_name_is_refused_only_where_it_is_declared() {
        assert_eq!(old_words("pub(crate) mod behind;", "a.rs").len(), 1);
        assert_eq!(old_words("    const MOST: usize = 3;", "a.rs").len(), 1);
        assert!(old_words("// The mod behind it.\nlet behind = 3;", "a.rs").is_empty());
        assert!(old_words("mod behind;", "a.md").is_empty());
    }
}
