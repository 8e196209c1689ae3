//! Measures the sources against the style targets: sizes of files and functions, share of comments, headers.
//!
//! Hard limits fail: a file above 1000 lines, or a function above 80. So do a file without a header about its purpose, and an
//! `unsafe` without its SAFETY comment. An uninformative doc comment of a public item fails as well. So does an example in a doc
//! comment, since `cargo xtask test` does not run examples. The other targets are shown beside the measured values. Tests and
//! generated files, which are not in the tree, are left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::checks::attributes::is_test;
use crate::checks::{sentences, short_docs, words};
use crate::output::{line, step};
use crate::tree::Tree;

const MAX_FILE_LINES: usize = 1000;
const MAX_FUNCTION_LINES: usize = 80;

/// Measured values of one file.
struct FileMeasures {
    path: PathBuf,
    lines: usize,
    code: usize,
    comments: usize,
    functions: Vec<(String, usize)>,
    faults: Vec<String>,
}

/// Returns blocks of doc comments that rustdoc would compile and run: those without a language, and those in Rust.
fn examples(lines: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut is_open = false;
    for (index, text) in lines.iter().enumerate() {
        let text = text.trim_start();
        let Some(comment) = text.strip_prefix("///").or_else(|| text.strip_prefix("//!")) else {
            is_open = false;
            continue;
        };
        let Some(language) = comment.trim_start().strip_prefix("```") else { continue };
        if !is_open && (language.is_empty() || language.starts_with("rust")) {
            faults.push(format!("{}: an example that no test runs; make it a test, or name its language", index + 1));
        }
        is_open = !is_open;
    }
    faults
}

/// Prints the figures, and fails if a hard limit is exceeded.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("style: sizes, comments, headers, words, lengths of sentences");
    let mut files = Vec::new();
    for folder in ["crates", "tests/src", "xtask/src"] {
        collect(&tree.root.join(folder), &mut files)?;
    }
    files.sort();
    let measured = files.iter().map(|path| measure(&tree.root, path)).collect::<Result<Vec<_>>>()?;
    show(&measured);
    let mut faults: Vec<String> = measured.iter().flat_map(hard_faults).collect();
    faults.extend(words::faults(tree)?);
    faults.extend(sentences::faults(tree)?);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// Collects all Rust files below `folder` that are neither tests nor generated.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["tests", "benches", "examples", "target", "golden"].contains(&name.as_str()) {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    Ok(())
}

fn measure(root: &Path, path: &Path) -> Result<FileMeasures> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let syntax = syn::parse_file(&text).with_context(|| format!("{} is not Rust", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let mut visitor = Visitor { lines: &lines, functions: Vec::new(), tests: Vec::new(), faults: Vec::new() };
    visitor.visit_file(&syntax);
    if !text.starts_with("//!") && !text.starts_with("/*!") {
        visitor.faults.push("1: no header that says what the file is for".to_owned());
    }
    visitor.faults.extend(examples(&lines));
    visitor.faults.extend(short_docs::faults(&syntax));
    let in_tests = |number: usize| visitor.tests.iter().any(|(first, last)| (*first..=*last).contains(&number));
    let outside_tests = lines.iter().enumerate().filter(|(index, _)| !in_tests(index + 1)).map(|(_, text)| text.trim());
    let filled: Vec<&str> = outside_tests.filter(|text| !text.is_empty()).collect();
    let comments = filled.iter().filter(|text| text.starts_with("//")).count();
    Ok(FileMeasures {
        path: path.strip_prefix(root).unwrap_or(path).to_owned(),
        lines: lines.len(),
        code: filled.len() - comments,
        comments,
        functions: visitor.functions,
        faults: visitor.faults,
    })
}

/// Walks one file, and leaves out test modules.
struct Visitor<'a> {
    lines: &'a [&'a str],
    functions: Vec<(String, usize)>,
    tests: Vec<(usize, usize)>,
    faults: Vec<String>,
}

impl Visitor<'_> {
    fn function(&mut self, name: &syn::Ident, signature: Span, block: &syn::Block) {
        let (first, last) = (signature.start().line, block.brace_token.span.close().end().line);
        self.functions.push((format!("{first}: {name}"), last + 1 - first));
    }

    /// Records an `unsafe` without a comment, either on its own line or above its statement.
    fn unsafety(&mut self, span: Span) {
        let number = span.start().line;
        let above = self.lines[..number].iter().rev().take(12).take_while(|text| !text.trim().is_empty());
        if !above.into_iter().any(|text| text.contains("SAFETY:")) {
            self.faults.push(format!("{number}: unsafe without a SAFETY comment"));
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_test(&module.attrs) {
            self.tests.push((module.span().start().line, module.span().end().line));
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            self.function(&function.sig.ident, function.sig.span(), &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig.ident, function.sig.span(), &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig.ident, function.sig.span(), block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.unsafety(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.unsafety(token.span);
        }
        visit::visit_item_impl(self, item);
    }
}

fn hard_faults(file: &FileMeasures) -> Vec<String> {
    let path = file.path.display();
    let mut faults: Vec<String> = file.faults.iter().map(|fault| format!("{path}:{fault}")).collect();
    if file.lines > MAX_FILE_LINES {
        faults.push(format!("{path}: {} lines, the limit is {MAX_FILE_LINES}", file.lines));
    }
    let long = file.functions.iter().filter(|(_, lines)| *lines > MAX_FUNCTION_LINES);
    faults.extend(long.map(|(name, lines)| format!("{path}:{name}: {lines} lines, the limit is {MAX_FUNCTION_LINES}")));
    faults
}

fn show(files: &[FileMeasures]) {
    let mut lines: Vec<usize> = files.iter().map(|file| file.lines).collect();
    let mut functions: Vec<usize> = files.iter().flat_map(|file| &file.functions).map(|(_, lines)| *lines).collect();
    lines.sort_unstable();
    functions.sort_unstable();
    let (code, comments) = files.iter().fold((0, 0), |sum, file| (sum.0 + file.code, sum.1 + file.comments));
    let share = 100 * comments / (code + comments).max(1);
    line(&format!("    {} files, {} functions, {code} lines of code", lines.len(), functions.len()));
    line(&format!("    lines a file:     {} (targets: <= 200, <= 800, <= 1000)", spread(&lines)));
    line(&format!("    lines a function: {} (targets: <= 8, <= 45, <= 80)", spread(&functions)));
    line(&format!("    comments: {share} % of non-blank lines (target: 20 to 27 %)"));
}

/// Returns median, 95th percentile and maximum of sorted numbers.
fn spread(sorted: &[usize]) -> String {
    let at = |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)));
    let show = |value: Option<&usize>| value.copied().unwrap_or(0);
    format!("median {}, 95th percentile {}, longest {}", show(at(50)), show(at(95)), show(sorted.last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(text: &str) -> (Vec<(String, usize)>, Vec<String>) {
        let lines: Vec<&str> = text.lines().collect();
        let mut visitor = Visitor { lines: &lines, functions: Vec::new(), tests: Vec::new(), faults: Vec::new() };
        visitor.visit_file(&syn::parse_file(text).unwrap());
        (visitor.functions, visitor.faults)
    }

    #[test]
    fn a_function_runs_from_its_signature_to_its_closing_brace() {
        let text = "/// Doc.\nfn a(\n    x: i32,\n) {\n    x\n}\n";
        assert_eq!(visited(text).0, [("2: a".to_owned(), 5)]);
    }

    #[test]
    fn an_example_that_nothing_runs_is_refused() {
        let text = "//! ```text\n//! a ─▶ b\n//! ```\n\n/// ```\n/// assert!(true);\n/// ```\nfn a() {}\n";
        let found = examples(&text.lines().collect::<Vec<_>>());
        assert_eq!(found, ["5: an example that no test runs; make it a test, or name its language"]);
    }

    #[test]
    fn tests_are_left_out() {
        assert!(visited("#[cfg(test)]\nmod tests {\n    fn long() {}\n}\n").0.is_empty());
    }

    #[test]
    fn an_unsafe_block_needs_its_comment() {
        assert_eq!(visited("fn a() {\n    unsafe { b() }\n}\n").1, ["2: unsafe without a SAFETY comment"]);
        assert!(visited("fn a() {\n    // SAFETY: b needs nothing.\n    unsafe { b() }\n}\n").1.is_empty());
    }
}
