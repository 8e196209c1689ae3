//! What ptxas takes is loaded, and what it refuses is refused: the instructions of NVIDIA's headers, and every conversion.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use katydid_ptx_forms::{ASKED_TARGETS, Form, conversions, header_forms};
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Forms on which the interpreter and ptxas do not agree.
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
fn conversions_are_taken_as_ptxas_takes_them() {
    check(&conversions(root()).unwrap());
}
