//! Counts the words of sentences: on pages, and in the doc comments of crates.
//!
//! A span of code counts as one word. Code blocks are left out; of tables only the hard limit is checked.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::checks::prose::prose_lines;
use crate::output::line;
use crate::shell;
use crate::tree::Tree;

/// Words of a sentence: the median, nineteen of twenty, and all.
const MAX_MEDIAN_WORDS: usize = 16;
const MAX_P95_WORDS: usize = 30;
const MAX_WORDS: usize = 45;
/// What a span of code becomes where words are counted.
const SPAN: &str = "code";

/// A line of prose, or a cell of a table, with the number of the line where it begins.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Prose(usize, String),
    Cell(usize, String),
}

/// What is wrong with pages and doc comments; their figures are printed.
pub(crate) fn faults<'a>(tree: &Tree, pages: impl Iterator<Item = (&'a Path, &'a str)>) -> Result<Vec<String>> {
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    for (path, text) in pages {
        let (more, long) = measured(path, text);
        lengths.extend(more);
        faults.extend(long);
    }
    faults.extend(judged("pages", &mut lengths));
    faults.extend(comments(tree)?);
    Ok(faults)
}

/// What is wrong with the doc comments of crates.
fn comments(tree: &Tree) -> Result<Vec<String>> {
    let files = shell::git(&tree.root, &["ls-files", "crates/*.rs", "xtask/*.rs", "tests/*.rs"])?;
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    for path in files.lines() {
        let path = tree.root.join(path);
        if path.exists() {
            let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let (more, long) = measured(&path, &doc_text(&source));
            lengths.extend(more);
            faults.extend(long);
        }
    }
    faults.extend(judged("doc comments", &mut lengths));
    Ok(faults)
}

/// The doc comments of a source as one page: comments apart from each other are paragraphs.
fn doc_text(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines().map(str::trim_start) {
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        text += comment.map_or("", str::trim);
        text.push('\n');
    }
    text
}

/// Words of each sentence of a page's prose, and the sentences beyond the limit, those of tables too.
fn measured(path: &Path, text: &str) -> (Vec<usize>, Vec<String>) {
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    for piece in pieces(text) {
        let (number, text, is_prose) = match &piece {
            Piece::Prose(number, text) => (number, text, true),
            Piece::Cell(number, text) => (number, text, false),
        };
        for sentence in sentences(text) {
            let count = words(&sentence);
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

/// Paragraphs and items of lists, each as one line, and cells of tables. Headings are left out.
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

/// The sentences of a paragraph, its spans of code and targets of links replaced by a word, or none.
fn sentences(paragraph: &str) -> Vec<String> {
    let spared = paragraph.split('`').enumerate().map(|(index, part)| if index % 2 == 1 { SPAN } else { part });
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

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// What is wrong with all sentences of pages together.
fn judged(what: &str, lengths: &mut [usize]) -> Vec<String> {
    let (median, nearly_all) = report(what, lengths);
    over(what, &[("the median", median, MAX_MEDIAN_WORDS), ("the 95th percentile", nearly_all, MAX_P95_WORDS)])
}

/// Prints the figures; gives the median and the 95th percentile.
fn report(what: &str, lengths: &mut [usize]) -> (usize, usize) {
    lengths.sort_unstable();
    let at = |percent: usize| lengths.get(lengths.len() * percent / 100).copied().unwrap_or(0);
    let (median, nearly_all, longest) = (at(50), at(95), lengths.last().copied().unwrap_or(0));
    let limits = format!("limits: {MAX_MEDIAN_WORDS}, {MAX_P95_WORDS}, {MAX_WORDS}");
    line(&format!(
        "    {} sentences of {what}, words: median {median}, 95th percentile {nearly_all}, longest {longest} ({limits})",
        lengths.len(),
    ));
    (median, nearly_all)
}

/// Figures beyond their limits.
fn over(what: &str, found: &[(&str, usize, usize)]) -> Vec<String> {
    let over = found.iter().filter(|(_, is, limit)| is > limit);
    over.map(|(name, is, limit)| format!("sentences of {what}: {name} is {is} words, the limit is {limit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_one_word_and_blocks_are_none() {
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
    fn targets_of_links_are_no_words() {
        assert_eq!(sentences("See [the page](a/b.md#c). End.")[0].trim(), "See [the page.");
    }

    #[test]
    fn doc_comments_are_paragraphs_without_their_code() {
        let source = "//! One two.\n\n/// Three\n/// four.\n/// ```\n/// code\n/// ```\nfn a() {} // no\n";
        assert_eq!(measured(Path::new("a.rs"), &doc_text(source)).0, [2, 2]);
    }
}
