//! Checks pages. Links, paths, variables and symbols ([`symbols`]) in backticks must exist, and tables of figures must match the
//! data.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::checks::changelog;
use crate::checks::constants;
use crate::checks::evidence::{self, Evidence};
use crate::checks::flags::{COMMANDS_PAGE, Flags};
use crate::checks::prose::prose_lines;
use crate::checks::symbols::{self, Symbols};
use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// List of Katydid's variables, and the prefix of their names.
const VARIABLES_FILE: &str = "crates/driver-rules/src/state/settings.rs";
const VARIABLE_PREFIX: &str = "KATYDID_";

/// Page with the description of the API, which lies beside that description.
const SPEC_PAGE: &str = "spec/README.md";

/// Made-up pages in the tests of these checks.
const EXAMPLE_PAGES: [&str; 6] =
    ["docs/a.md", "docs/b.md", "docs/c.md", "docs/how-to/a.md", "docs/NAME.md", "docs/none.md"];

/// A page with its text.
struct Page {
    /// Path from the root.
    path: PathBuf,
    text: String,
}

/// Checks the pages; with `writes`, first makes the tables of `docs/evidence` anew.
pub(crate) fn check(tree: &Tree, writes: bool) -> Result<()> {
    if writes {
        write(tree)?;
    }
    run(tree)
}

/// Makes the tables of `docs/evidence` anew.
pub(crate) fn write(tree: &Tree) -> Result<()> {
    let pages = read(&tree.root)?;
    let pages: Vec<(&PathBuf, &str)> = pages.iter().map(|page| (&page.path, page.text.as_str())).collect();
    evidence::write(&tree.root, &pages)
}

/// Prints the figures, and fails if a page breaks a limit or names something that does not exist.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("pages: links, paths, symbols, tables of figures");
    let pages = read(&tree.root)?;
    let list = tree.root.join(VARIABLES_FILE);
    let list = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let mut faults: Vec<String> = Vec::new();
    let evidence = Evidence::read(&tree.root)?;
    let symbols = Symbols::read(&tree.root)?;
    let commands =
        pages.iter().find(|page| page.path == Path::new(COMMANDS_PAGE)).context("there is no page of commands")?;
    let flags = Flags::of_page(&commands.text);
    for page in &pages {
        faults.extend(outdated(page, &evidence));
        faults.extend(broken(&tree.root, page, &pages));
        faults.extend(unknown(page, &list));
        faults.extend(lost_symbols(page, &symbols));
        faults.extend(wrong_constants(&tree.root, page));
        let at = |(number, fault)| format!("{}:{number}: {fault}", page.path.display());
        faults.extend(flags.faults(&page.text).into_iter().map(at));
    }
    let all_spans = pages.iter().flat_map(|page| prose_lines(&page.text)).flat_map(|(_, text)| spans(text));
    faults.extend(symbols::unused(all_spans));
    faults.extend(unlisted(&pages));
    faults.extend(changelog::faults(&tree.root)?);
    faults.extend(lost_pages(&tree.root)?);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// Reads all pages of the root and of `docs`, and [`SPEC_PAGE`].
fn read(root: &Path) -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    collect(root, false, &mut paths)?;
    collect(&root.join("docs"), true, &mut paths)?;
    paths.extend(Some(root.join(SPEC_PAGE)).filter(|page| page.exists()));
    paths.sort();
    let page = |path: PathBuf| -> Result<Page> {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Page { path: path.strip_prefix(root).unwrap_or(&path).to_owned(), text })
    };
    paths.into_iter().map(page).collect()
}

fn collect(folder: &Path, is_deep: bool, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() && is_deep {
            collect(&path, is_deep, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Returns links and paths of a page that lead nowhere.
fn broken(root: &Path, page: &Page, pages: &[Page]) -> Vec<String> {
    let at = |number: usize, what: &str| format!("{}:{number}: {what}", page.path.display());
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let mut faults = Vec::new();
    for (number, text) in prose_lines(&page.text) {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.path.clone() } else { plain(&folder.join(file)) };
            if !root.join(&target).exists() {
                faults.push(at(number, &format!("the link {link} leads nowhere")));
            } else if !anchor.is_empty() && !has_heading(pages, &target, anchor) {
                faults.push(at(number, &format!("{} has no heading #{anchor}", target.display())));
            }
        }
        let lost =
            spans(text).into_iter().filter(|span| is_path(span) && !root.join(span.trim_end_matches('/')).exists());
        faults.extend(lost.map(|span| at(number, &format!("there is no {span}"))));
    }
    faults
}

/// Returns variables that a page names and `list` does not.
fn unknown(page: &Page, list: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, text) in prose_lines(&page.text) {
        let words = spans(text).into_iter().flat_map(|span| span.split(|letter: char| !is_of_variable(letter)));
        // A prefix at the end of a word stands for several variables.
        let named = words.filter(|word| word.starts_with(VARIABLE_PREFIX) && !word.ends_with('_'));
        let lost = named.filter(|word| !list.contains(&format!("\"{word}\"")));
        faults.extend(lost.map(|word| format!("{}:{number}: there is no variable {word}", page.path.display())));
    }
    faults
}

/// Returns symbols on a page that exist nowhere. The changelog describes the past, so it may name removed symbols.
fn lost_symbols(page: &Page, symbols: &Symbols) -> Vec<String> {
    if page.path == Path::new(changelog::CHANGELOG_PAGE) {
        return Vec::new();
    }
    let spans =
        prose_lines(&page.text).flat_map(|(number, text)| spans(text).into_iter().map(move |span| (number, span)));
    let lost = spans.flat_map(|(number, span)| symbols.faults(span).into_iter().map(move |fault| (number, fault)));
    lost.map(|(number, fault)| format!("{}:{number}: {fault}", page.path.display())).collect()
}

/// Returns constants on a page whose values differ from the source.
fn wrong_constants(root: &Path, page: &Page) -> Vec<String> {
    let lines = prose_lines(&page.text);
    let wrong = lines
        .flat_map(|(number, text)| constants::faults(root, &spans(text)).into_iter().map(move |fault| (number, fault)));
    wrong.map(|(number, fault)| format!("{}:{number}: {fault}", page.path.display())).collect()
}

/// Returns a fault if the tables of a page differ from the data.
fn outdated(page: &Page, evidence: &Evidence) -> Option<String> {
    let path = page.path.display();
    match evidence.fill(&page.text) {
        Ok(filled) if filled == page.text => None,
        Ok(_) => Some(format!("{path}: a table is not what docs/evidence gives: `cargo xtask pages --write`")),
        Err(error) => Some(format!("{path}: {error:#}")),
    }
}

fn is_of_variable(letter: char) -> bool {
    letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_'
}

/// Returns the targets of the relative links of a line.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).collect()
}

/// Returns the spans of code of a line.
fn spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns whether a span is a path in the repository: below one of its folders, without a placeholder.
fn is_path(span: &str) -> bool {
    let is_plain = span.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-/".contains(letter));
    let below = ["crates/", "docs/", "fuzz/", "spec/", "tests/", "xtask/", ".github/"];
    is_plain && below.iter().any(|folder| span.starts_with(folder))
}

/// Returns a path without `.` and `..`.
pub(crate) fn plain(path: &Path) -> PathBuf {
    path.iter().fold(PathBuf::new(), |mut plain, part| {
        if part == ".." {
            plain.pop();
        } else if part != "." {
            plain.push(part);
        }
        plain
    })
}

fn has_heading(pages: &[Page], path: &Path, anchor: &str) -> bool {
    let page = pages.iter().find(|page| page.path == path);
    page.is_none_or(|page| prose_lines(&page.text).any(|(_, line)| line.starts_with('#') && slug(line) == anchor))
}

/// Returns the anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let letters = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Returns pages below `docs` that sources name in comments and messages, but that do not exist.
fn lost_pages(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in shell::git(root, &["ls-files", "crates/*.rs", "xtask/*.rs", "spec/*.api"])?.lines() {
        // A file may be deleted in the checkout before it is removed from the index.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            let words = line.split(|letter: char| !(letter.is_ascii_alphanumeric() || "._-/".contains(letter)));
            let named = words.filter(|word| word.starts_with("docs/") && word.ends_with(".md"));
            let lost = named.filter(|word| !root.join(word).exists() && !EXAMPLE_PAGES.contains(word));
            faults.extend(lost.map(|word| format!("{path}:{}: there is no {word}", index + 1)));
        }
    }
    Ok(faults)
}

/// Returns pages below `docs` that the book leaves out.
fn unlisted(pages: &[Page]) -> Vec<String> {
    let summary = Path::new("docs/SUMMARY.md");
    let Some(book) = pages.iter().find(|page| page.path == summary) else {
        return vec!["docs/SUMMARY.md is missing".to_owned()];
    };
    let listed: Vec<PathBuf> = links(&book.text).into_iter().map(|link| Path::new("docs").join(link)).collect();
    let doc_paths = pages.iter().map(|page| &page.path).filter(|path| path.starts_with("docs") && *path != summary);
    doc_paths
        .filter(|path| !listed.contains(path))
        .map(|path| format!("docs/SUMMARY.md does not list {}", path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn links_paths_and_headings_that_are_not_there_are_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("docs")).unwrap();
        fs::write(root.path().join("docs/a.md"), "").unwrap();
        let other = page("docs/a.md", "## A `b`-heading, so\n");
        let text = "[a](docs/a.md#a-b-heading-so) `docs/a.md` <https://x.y> [e](https://x.y/z) `docs/NAME/*`\n```\n[z](z)\n```\n";
        assert_eq!(broken(root.path(), &page("b.md", text), &[other]), Vec::<String>::new());
        let other = page("docs/a.md", "");
        let text = "[a](../docs/b.md)\n`crates/none.rs`\n[c](a.md#none)\n";
        let faults = broken(root.path(), &page("docs/c.md", text), &[other]);
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    #[test]
    fn a_variable_that_is_not_listed_is_found() {
        let page = page("a.md", "`KATYDID_ONE=1 katydid run`, `KATYDID_TWO`, all `KATYDID_…` and `KATYDID_T_*`\n");
        assert_eq!(unknown(&page, "\"KATYDID_ONE\""), ["a.md:1: there is no variable KATYDID_TWO"]);
    }

    #[test]
    fn a_page_that_the_book_leaves_out_is_named() {
        let pages = [page("docs/SUMMARY.md", "- [A](a.md)\n"), page("docs/a.md", ""), page("docs/b.md", "")];
        assert_eq!(unlisted(&pages), ["docs/SUMMARY.md does not list docs/b.md"]);
    }
}
