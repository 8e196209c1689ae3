//! Builds the documentation as a book, where mdbook is installed: `docs/SUMMARY.md` has the order of its pages.
//!
//! Pages under `docs` link to pages of the root. mdbook takes one folder, so the book is built from a copy that has both.
//! Afterwards every link of the result is followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::checks::pages::plain;
use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Pages of the root that are also chapters, with their titles there.
const ROOT_PAGES: [(&str, &str); 5] = [
    ("ARCHITECTURE.md", "Architecture for contributors"),
    ("SECURITY.md", "Security in full"),
    ("SPECIFICATION.md", "Promises as numbers"),
    ("CONTRIBUTING.md", "Contributing"),
    ("CHANGELOG.md", "Changelog"),
];

/// Page that is the first chapter.
const FIRST_PAGE: &str = "introduction.md";

/// Builds the book into `target/book`, and follows its links.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    if !shell::works("mdbook", &["--version"]) {
        bail!("mdbook is not installed: `cargo install mdbook` installs it; docs/SUMMARY.md lists the same pages");
    }
    step("building the book");
    let (source, book) = (tree.target.join("book-source"), tree.target.join("book"));
    lay_out(&tree.root, &source)?;
    let mut command = Command::new("mdbook");
    let output =
        command.arg("build").arg(&source).arg("--dest-dir").arg(&book).output().context("cannot start mdbook")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || stderr.contains("WARN") || stderr.contains("ERROR") {
        bail!("mdbook ended with {}:\n{stderr}", output.status);
    }
    let lost = lost_links(&book)?;
    if !lost.is_empty() {
        bail!("links of the book that lead nowhere:\n{}", lost.join("\n"));
    }
    line(&format!("{} is its first page", book.join("index.html").display()));
    Ok(())
}

/// Makes the folder that mdbook reads.
fn lay_out(root: &Path, source: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(source);
    copy(&root.join("docs"), &source.join("docs"))?;
    for (page, _) in ROOT_PAGES {
        fs::copy(root.join(page), source.join(page)).with_context(|| format!("cannot copy {page}"))?;
    }
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"));
    for moved in ["SUMMARY.md", FIRST_PAGE] {
        fs::remove_file(source.join("docs").join(moved))?;
    }
    fs::write(source.join("SUMMARY.md"), summary(&read("docs/SUMMARY.md")?))?;
    // mdbook also shows the first chapter as index.html of the root, where its links must lead to the same pages.
    fs::write(source.join(FIRST_PAGE), from_root(&read(&format!("docs/{FIRST_PAGE}"))?))?;
    fs::write(source.join("book.toml"), read("book.toml")?.replace("src = \"docs\"", "src = \".\""))?;
    Ok(())
}

/// Returns the list of chapters as seen from the root, followed by the pages of the root.
fn summary(docs: &str) -> String {
    let pages: String = ROOT_PAGES.map(|(page, title)| format!("- [{title}]({page})\n")).concat();
    let chapters = from_root(docs).replace(&format!("](docs/{FIRST_PAGE})"), &format!("]({FIRST_PAGE})"));
    format!("{chapters}\n# The project\n\n{pages}")
}

/// Returns the text of a page of `docs`, with its links as seen from the root.
fn from_root(page: &str) -> String {
    let mut parts = page.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, link| {
        let is_elsewhere = ["../", "#", "http"].iter().any(|start| link.starts_with(start));
        let below = if is_elsewhere { "" } else { "docs/" };
        text + "](" + below + link.strip_prefix("../").unwrap_or(link)
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Returns links between the pages below `book` whose file or heading does not exist.
fn lost_links(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(book, &mut pages)?;
    let names: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, values(text, "id=\"").collect())).collect();
    let mut lost = Vec::new();
    for (path, text) in &pages {
        let folder = path.parent().unwrap_or(book);
        for link in values(text, "href=\"").filter(|link| !link.contains(':') && !link.is_empty()) {
            let (file, name) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { plain(&folder.join(file)) };
            let has_name = || names.get(&target).is_none_or(|names| name.is_empty() || names.contains(name));
            if !target.exists() || !has_name() {
                lost.push(format!("{}: {link}", path.strip_prefix(book).unwrap_or(path).display()));
            }
        }
    }
    lost.dedup();
    Ok(lost)
}

fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// Returns the values of an attribute that begins with `start`.
fn values<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_chapters_has_the_pages_of_the_root() {
        let list = summary("# Summary\n\n[K](introduction.md)\n\n- [A](how-to/a.md)\n");
        assert!(list.starts_with("# Summary\n\n[K](introduction.md)\n\n- [A](docs/how-to/a.md)\n\n# The project"));
        assert!(list.ends_with("- [Changelog](CHANGELOG.md)\n"), "{list}");
    }

    #[test]
    fn links_of_the_first_page_lead_to_the_same_pages_from_the_root() {
        let page = "[a](how-to/a.md), [b](../SECURITY.md#b), [c](#c) and [d](https://x.y/z)";
        assert_eq!(from_root(page), "[a](docs/how-to/a.md), [b](SECURITY.md#b), [c](#c) and [d](https://x.y/z)");
    }

    #[test]
    fn a_link_without_its_file_or_heading_is_found() {
        let book = tempfile::tempdir().unwrap();
        fs::create_dir(book.path().join("a")).unwrap();
        fs::write(book.path().join("a/b.html"), "<h2 id=\"here\">").unwrap();
        let text =
            "href=\"a/b.html\" href=\"a/b.html#here\" href=\"https://x.y/z\" href=\"a/b.html#gone\" href=\"../c.html\"";
        fs::write(book.path().join("d.html"), text).unwrap();
        assert_eq!(lost_links(book.path()).unwrap(), ["d.html: a/b.html#gone", "d.html: ../c.html"]);
    }
}
