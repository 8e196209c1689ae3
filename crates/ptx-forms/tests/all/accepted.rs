//! The interpreter loads the texts that ptxas accepts, and refuses the others: the instructions of NVIDIA's headers, and every
//! conversion.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use katydid_ptx_forms::{ASKED_TARGETS, Form, conversions, header_forms};
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the forms on which the interpreter and ptxas differ.
fn differing(forms: &[Form]) -> Vec<String> {
    let mut out = Vec::new();
    for form in forms {
        for arch in ASKED_TARGETS {
            match (form.load(arch), form.accepted.by(arch)) {
                (Err(error), true) => out.push(format!("refused for {arch}: {}: {error}", form.text)),
                (Ok(()), false) => out.push(format!("taken for {arch}: {}", form.text)),
                _ => {}
            }
        }
    }
    out
}

fn check(forms: &[Form]) {
    let out = differing(forms);
    assert!(out.is_empty(), "{} of {} forms differ from ptxas:\n{}", out.len(), forms.len(), out.join("\n"));
}

#[test]
fn instructions_of_headers_are_taken_as_ptxas_takes_them() {
    check(&header_forms(root()).unwrap());
}

#[test]
fn the_page_states_how_many_are_compared() {
    let page = std::fs::read_to_string(root().join("../../docs/explanation/softcuda.md")).unwrap();
    let count = |forms: &[Form], is_counted: fn([bool; 2]) -> bool| {
        forms.iter().filter(|form| is_counted(ASKED_TARGETS.map(|target| form.accepted.by(target)))).count()
    };
    let (headers, conversions) = (header_forms(root()).unwrap(), conversions(root()).unwrap());
    let shown =
        |count: usize| if count < 1000 { count.to_string() } else { format!("{},{:03}", count / 1000, count % 1000) };
    let [all, both, one, none] = [
        count(&headers, |_| true),
        count(&headers, |by_target| by_target == [true, true]),
        count(&headers, |by_target| by_target[0] != by_target[1]),
        count(&headers, |by_target| by_target == [false, false]),
    ]
    .map(shown);
    let counts = format!("({both} for both, {one} for `sm_90a` alone, {none} for neither)");
    let accepted_count = shown(count(&conversions, |by_target| by_target.contains(&true)));
    let texts = [format!("the {all} instructions"), counts, format!("all {} conversions", shown(conversions.len()))];
    for text in texts.into_iter().chain([format!("takes {accepted_count}.")]) {
        assert!(page.contains(&text), "docs/explanation/softcuda.md does not say `{text}`");
    }
}

#[test]
fn conversions_are_taken_as_ptxas_takes_them() {
    check(&conversions(root()).unwrap());
}
