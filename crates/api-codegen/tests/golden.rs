//! Every product is held to kept output. `cargo xtask bless` (or `KATYDID_BLESS=1`) rewrites it: read the
//! difference before committing it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use katydid_api_codegen::implemented::implemented as implemented_in;
use katydid_api_codegen::{SpecFiles, coverage, dispatch, driver, function, message, opencl, soft, stub};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn source() -> SpecFiles {
    SpecFiles::read(&directory()).unwrap()
}

fn implemented() -> BTreeSet<String> {
    ["cuInit", "cuStreamQuery"].map(str::to_owned).into()
}

fn compare(name: &str, text: &str) {
    let path = directory().join(name);
    if env::var_os("KATYDID_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{name} differs from what the generator writes now; KATYDID_BLESS=1 rewrites it");
}

#[test]
fn functions_are_generated_as_kept() {
    compare("function.txt", &function::generate(&source().cuda));
    compare("handles.txt", &function::handles(&source().cuda));
}

#[test]
fn messages_are_generated_as_kept() {
    compare("message.txt", &message::generate(&source()));
}

#[test]
fn stubs_are_generated_as_kept() {
    compare("stub.txt", &stub::generate(&source().cuda));
}

#[test]
fn dispatch_is_generated_as_kept() {
    compare("dispatch.txt", &dispatch::generate(&source()));
}

#[test]
fn opencl_is_generated_as_kept() {
    let source = source();
    compare("opencl_entry.txt", &opencl::entries(&source.opencl));
    compare("opencl_dispatch.txt", &opencl::dispatch(&source));
    compare("opencl_table.txt", &opencl::table(&source.opencl));
}

#[test]
fn the_driver_table_is_generated_as_kept() {
    compare("driver.txt", &driver::generate(&source().cuda));
}

#[test]
fn softcuda_symbols_are_generated_as_kept() {
    compare("soft.txt", &soft::generate(&source().cuda, &implemented()));
}

#[test]
fn the_coverage_page_is_generated_as_kept() {
    compare("coverage.md", &coverage::generate(&source().cuda, &implemented()));
}

#[test]
fn the_published_coverage_page_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let soft = implemented_in(&root).unwrap();
    let page = coverage::generate(&SpecFiles::read(&root.join("spec")).unwrap().cuda, &soft);
    compare("../../../../docs/reference/api-coverage.md", &page);
}

#[test]
fn the_published_coverage_of_opencl_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = opencl::coverage(&SpecFiles::read(&root.join("spec")).unwrap().opencl);
    compare("../../../../docs/reference/opencl-coverage.md", &page);
}

/// Returns the programs of `tests/apps-opencl`, each with its source.
fn programs_of_opencl(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root.join("tests/apps-opencl"), &mut files);
    let mut programs: Vec<(String, String)> = files
        .into_iter()
        .filter(|path| !path.ends_with("drivers/memory.c"))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    programs.sort();
    // The header that all programs include has the calls that every one makes.
    programs.insert(0, ("all".to_owned(), fs::read_to_string(root.join("tests/apps-opencl/common/check.h")).unwrap()));
    programs
}

/// Adds all files at and below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

/// Whether a text contains a name as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    let is_part = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(name)
        .any(|(at, _)| !is_part(text[..at].chars().next_back()) && !is_part(text[at + name.len()..].chars().next()))
}

#[test]
fn every_function_of_opencl_is_called_by_a_program_and_the_page_names_it() {
    const MAX_NAMED_PROGRAMS: usize = 3;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = programs_of_opencl(&root);
    let mut page = String::from(
        "# Which program calls which function of OpenCL\n\nGenerated from the programs of `tests/apps-opencl` by `cargo xtask bless`; a test \
         compares, and fails where a function has none.\nAt most three are named; `all`: it is in what all of them begin with. \
         Each program runs natively and through Katydid on three ways\n(`cargo test -p katydid-tests --test opencl`). Functions that are \
         refused are called through Katydid alone.\n\n| function | programs |\n|---|---|\n",
    );
    for function in &SpecFiles::read(&root.join("spec")).unwrap().opencl.functions {
        let of = programs.iter().filter(|(_, text)| has_word(text, &function.name));
        let names: Vec<&str> = of.map(|(name, _)| name.as_str()).take(MAX_NAMED_PROGRAMS).collect();
        assert!(!names.is_empty(), "no program calls {}", function.name);
        page += &format!("| {} | {} |\n", function.name, names.join(", "));
    }
    compare("../../../../docs/evidence/opencl-calls.md", &page);
}

#[test]
fn a_changed_line_changes_the_hash() {
    let hash =
        |opencl| SpecFiles::from_texts(["f (x: u32) call none 2.0", "g () call none -", opencl, ""]).unwrap().hash;
    assert_ne!(hash("clF (x: u32) call none 1.0"), hash("clF (x: u64) call none 1.0"));
    let hash = |cuda| SpecFiles::from_texts([cuda, "", "", ""]).unwrap().hash;
    assert_ne!(hash("f (x: u32) call none 2.0"), hash("f (x: u64) call none 2.0"));
}

#[test]
fn a_name_that_no_line_has_does_not_compile() {
    let text = soft::generate(&source().cuda, &["cuNoSuchFunction".to_owned()].into());
    assert!(text.starts_with("compile_error!(\"softcuda has `cuNoSuchFunction`, which is not in spec/cuda.api\");"));
}
