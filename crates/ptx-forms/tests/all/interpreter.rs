//! The interpreter's answers to every case equal the recorded answers of the GPU, and the pages about them are up to date.
//!
//! `KATYDID_BLESS=1 cargo test -p katydid-ptx-forms` rewrites the pages; the difference is then reviewed like code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use katydid_ptx_forms::{Device, Interpreter, compare, forms_page, recorded, result_page, suite};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_answer_is_that_of_the_gpu() {
    let (mut compared, mut different) = (0, Vec::new());
    for group in suite(root()).unwrap() {
        let answers = recorded(root(), &group).unwrap().unwrap_or_default();
        for case in group.cases.iter().filter(|case| !case.needs_driver) {
            let Some(answer) = answers.answer(case) else { continue };
            compared += 1;
            if let Err(difference) = compare(case, answer, &Interpreter.ask(case).unwrap()) {
                different.push(format!("{}: {difference}", case.name));
            }
        }
    }
    assert!(compared > 2_000, "only {compared} answers are kept");
    assert!(different.is_empty(), "{} of {compared} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn every_case_has_its_kept_answer() {
    let mut missing = Vec::new();
    for group in suite(root()).unwrap() {
        let answers = recorded(root(), &group).unwrap().unwrap_or_default();
        missing.extend(group.cases.iter().filter(|case| answers.answer(case).is_none()).map(|case| case.name.clone()));
    }
    assert!(missing.is_empty(), "record these on a GPU (docs/evidence/softcuda-differential.md says how): {missing:?}");
}

/// Compares a page with its expected text, or rewrites it.
fn check(name: &str, page: &str) {
    let path: PathBuf = root().join("../../docs").join(name);
    if std::env::var_os("KATYDID_BLESS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{} is out of date: KATYDID_BLESS=1 cargo test -p katydid-ptx-forms", path.display());
}

#[test]
fn the_page_of_forms_is_up_to_date() {
    check("reference/softcuda-forms.md", &forms_page(root()).unwrap());
}

#[test]
fn the_page_of_the_comparison_is_up_to_date() {
    check("evidence/softcuda-differential.md", &result_page(root()).unwrap());
}
