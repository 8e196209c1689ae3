//! Counts the words of sentences on pages, in doc comments, and in the messages of errors.
//!
//! A span of code counts as one word. Code blocks are left out; for tables only the hard limit is checked. Pages are those of the
//! root, of `docs` and of `spec`. Messages are the texts of `#[error("…")]`, `bail!`, `anyhow!` and `Failure::…("…")`, and constants
//! of text that read like one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::checks::prose::prose_lines;
use crate::output::line;
use crate::shell;
use crate::tree::Tree;

/// Largest numbers of words in a sentence: for the median, the 95th percentile, and every sentence.
const MAX_MEDIAN_WORDS: usize = 16;
const MAX_P95_WORDS: usize = 30;
const MAX_WORDS: usize = 45;
/// Word that takes the place of a span of code for the count.
const SPAN_WORD: &str = "code";
/// What begins a message. Its text follows in parentheses, alone or in those of `format!`.
const MESSAGE_BEGINNINGS: [&str; 4] = ["#[error", "bail!", "anyhow!", "Failure::"];
/// What begins a constant of text. It counts as a message if it is one line of as many words.
const CONSTANT_BEGINNING: &str = ": &str";
const MIN_CONSTANT_WORDS: usize = 5;
/// Ends the sentence of a message, and is no word.
const MESSAGE_END: &str = " .";

/// A line of prose or a cell of a table, with the number of its first line.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Prose(usize, String),
    Cell(usize, String),
}

/// Returns the faults of all sentences, and prints their figures.
pub(crate) fn faults(tree: &Tree) -> Result<Vec<String>> {
    let sources = ["crates/*.rs", "xtask/*.rs", "tests/*.rs"];
    let mut faults = of_files(tree, "pages", &[":(glob)*.md", "docs/*.md", "spec/*.md"], str::to_owned)?;
    faults.extend(of_files(tree, "doc comments", &sources, doc_text)?);
    faults.extend(of_files(tree, "messages", &["crates/*.rs", "xtask/*.rs"], messages)?);
    Ok(faults)
}

/// Returns the faults of the sentences that `prose` takes out of the tracked files that match.
fn of_files(tree: &Tree, kind: &str, patterns: &[&str], prose: fn(&str) -> String) -> Result<Vec<String>> {
    let files = shell::git(&tree.root, &[&["ls-files"], patterns].concat())?;
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    for file in files.lines().map(Path::new) {
        let path = tree.root.join(file);
        if path.exists() {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let (more, long) = measured(file, &prose(&text));
            lengths.extend(more);
            faults.extend(long);
        }
    }
    faults.extend(judged(kind, &mut lengths));
    Ok(faults)
}

/// Returns the texts of messages in a source, each on the line where it begins.
fn messages(source: &str) -> String {
    let occurrences = |beginning: &'static str| source.match_indices(beginning).map(move |(at, _)| (at, beginning));
    let all = MESSAGE_BEGINNINGS.into_iter().chain([CONSTANT_BEGINNING]);
    let mut beginnings: Vec<(usize, &str)> = all.flat_map(occurrences).collect();
    beginnings.sort_unstable();
    let mut text = String::new();
    let mut last_line = 0;
    for (at, beginning) in beginnings {
        let rest = source.get(at + beginning.len()..).unwrap_or_default();
        let Some(message) = message(rest, beginning == CONSTANT_BEGINNING) else { continue };
        let line = source.get(..at).map_or(0, |above| above.matches('\n').count());
        text += &"\n".repeat(line.saturating_sub(last_line));
        last_line = line;
        text += &message;
        text += MESSAGE_END;
    }
    text
}

/// Returns the text of a message, on one line, from the text after its beginning; none if no text comes next.
fn message(rest: &str, is_constant: bool) -> Option<String> {
    let (before, quoted) = rest.split_once('"')?;
    let (before, text) = (before.trim(), literal(quoted));
    if is_constant {
        let is_prose = !text.contains('\n') && text.split_whitespace().count() >= MIN_CONSTANT_WORDS;
        return (before == "=" && is_prose).then_some(text);
    }
    let is_of_call = |letter: char| letter.is_alphanumeric() || letter.is_whitespace() || "_!&(".contains(letter);
    (before.ends_with('(') && before.chars().all(is_of_call)).then(|| text.replace('\n', " "))
}

/// Returns a string literal's text up to its closing quote.
fn literal(quoted: &str) -> String {
    let mut text = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => match letters.next() {
                // The text continues behind the indentation of the next line.
                Some('\n') | None => {}
                Some('n') => text.push('\n'),
                // Other escapes are no words.
                Some(_) => text.push(' '),
            },
            other => text.push(other),
        }
    }
    text
}

/// Returns the doc comments of a source as one page, where separate comments are separate paragraphs.
fn doc_text(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines().map(str::trim_start) {
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        text += comment.map_or("", str::trim);
        text.push('\n');
    }
    text
}

/// Returns the number of words in each sentence of a page's prose, and the sentences beyond the limit, also in tables.
fn measured(path: &Path, text: &str) -> (Vec<usize>, Vec<String>) {
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    for piece in pieces(text) {
        let (number, text, is_prose) = match &piece {
            Piece::Prose(number, text) => (number, text, true),
            Piece::Cell(number, text) => (number, text, false),
        };
        for sentence in sentences(text) {
            let count = word_count(&sentence);
            if is_prose && count > 0 {
                lengths.push(count);
            }
            if count > MAX_WORDS {
                let begin: String = sentence.chars().take(50).collect();
                faults.push(format!("{}:{number}: {count} words, the limit is {MAX_WORDS}: {begin}…", path.display()));
            }
        }
    }
    (lengths, faults)
}

/// Returns paragraphs and items of lists, each as one line, and cells of tables. Headings are left out.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut last = 0;
    for (number, line) in prose_lines(text) {
        let text = line.trim();
        let is_item = text.starts_with("- ") || text.split_once(". ").is_some_and(|(digits, _)| is_number(digits));
        if text.starts_with('|') {
            let cells = text.trim_matches('|').split(" | ").map(|cell| Piece::Cell(number, cell.trim().to_owned()));
            pieces.extend(cells);
        } else if text.is_empty() || text.starts_with('#') {
        } else if let (Some(Piece::Prose(_, before)), true, false) = (pieces.last_mut(), last + 1 == number, is_item) {
            *before += " ";
            *before += text;
            last = number;
        } else {
            let begin = if is_item { text.split_once(' ').map_or("", |(_, rest)| rest) } else { text };
            pieces.push(Piece::Prose(number, begin.to_owned()));
            last = number;
        }
    }
    pieces
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit())
}

/// Returns the sentences of a paragraph. A word takes the place of each span of code; targets of links are removed.
fn sentences(paragraph: &str) -> Vec<String> {
    let spared = paragraph.split('`').enumerate().map(|(index, part)| if index % 2 == 1 { SPAN_WORD } else { part });
    let mut text: String = spared.collect();
    while let Some((begin, end)) = text.find("](").and_then(|at| Some((at, at + text.get(at..)?.find(')')?))) {
        text.replace_range(begin..=end, "");
    }
    let ends = |word: &str| word.trim_end_matches(['*', ')', '"', '_']).ends_with(['.', '!', '?']);
    let mut sentences = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(sentence) = sentences.last_mut() {
            *sentence += word;
            *sentence += " ";
        }
        if ends(word) {
            sentences.push(String::new());
        }
    }
    sentences
}

fn word_count(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// Returns the faults of all sentences of pages together.
fn judged(kind: &str, lengths: &mut [usize]) -> Vec<String> {
    let (median, nearly_all) = report(kind, lengths);
    over(kind, &[("the median", median, MAX_MEDIAN_WORDS), ("the 95th percentile", nearly_all, MAX_P95_WORDS)])
}

/// Prints the figures; returns the median and the 95th percentile.
fn report(kind: &str, lengths: &mut [usize]) -> (usize, usize) {
    lengths.sort_unstable();
    let at = |percent: usize| lengths.get(lengths.len() * percent / 100).copied().unwrap_or(0);
    let (median, nearly_all, longest) = (at(50), at(95), lengths.last().copied().unwrap_or(0));
    let limits = format!("limits: {MAX_MEDIAN_WORDS}, {MAX_P95_WORDS}, {MAX_WORDS}");
    line(&format!(
        "    {} sentences of {kind}, words: median {median}, 95th percentile {nearly_all}, longest {longest} ({limits})",
        lengths.len(),
    ));
    (median, nearly_all)
}

/// Returns the figures beyond their limits.
fn over(kind: &str, sentences: &[(&str, usize, usize)]) -> Vec<String> {
    let over = sentences.iter().filter(|(_, is, limit)| is > limit);
    over.map(|(name, is, limit)| format!("sentences of {kind}: {name} is {is} words, the limit is {limit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_spans_count_as_one_word_and_blocks_as_none() {
        let page = "# Title\nOne `a b c` two. Three\nfour five.\n```text\nno words\n```\n- item one\n";
        assert_eq!(measured(Path::new("a.md"), page).0, [3, 3, 2]);
    }

    #[test]
    fn a_sentence_beyond_the_limit_is_named_in_prose_and_tables() {
        let long = "word ".repeat(MAX_WORDS + 1);
        assert_eq!(measured(Path::new("a.md"), &format!("{long}.\n\n| a | {long} |\n")).1.len(), 2);
        assert!(measured(Path::new("a.md"), "Short. Too.").1.is_empty());
    }

    #[test]
    fn link_targets_are_not_words() {
        assert_eq!(sentences("See [the page](a/b.md#c). End.")[0].trim(), "See [the page.");
    }

    #[test]
    fn doc_comments_are_paragraphs_without_their_code() {
        let source = "//! One two.\n\n/// Three\n/// four.\n/// ```\n/// code\n/// ```\nfn a() {} // no\n";
        assert_eq!(measured(Path::new("a.rs"), &doc_text(source)).0, [2, 2]);
    }

    #[test]
    fn messages_are_read_from_attributes() {
        let source = "a\n#[error(\"one {0} two\")]\n#[error(transparent)]\n#[error(\n    \"three \\\n     four\"\n)]\n";
        let text = messages(source);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words, ["one", "{0}", "two", ".", "three", "four", "."]);
        assert_eq!(text.lines().position(|line| line.contains("three")), Some(3), "{text:?}");
    }

    #[test]
    fn messages_are_read_from_macros_and_failures() {
        let source = "bail!(\"one\");\nanyhow!(\n \"two\"\n);\nFailure::Usage(format!(\"three {x}\"))\n\
            Failure::Other(text)\nbail!(code, \"no\");\n\"bail!\"; \"no\"\n";
        let text = messages(source);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["one", ".", "two", ".", "three", "{x}", "."]);
    }

    #[test]
    fn constants_of_one_line_of_prose_are_messages_of_their_own() {
        let source = "const A: &str = \"one two three \\\n    four five\";\nconst B: &str = \"six six six six six six\";\n\
            const C: &str = \"a short one\";\nconst D: &str = \"many words\\nof a file of lines\";\n\
            const E: &str = concat!(\"no no no no no no\");\nfn f(a: &str) { g(\"no no no no no no\") }\n";
        assert_eq!(measured(Path::new("a.rs"), &messages(source)).0, [5, 6]);
    }
}
