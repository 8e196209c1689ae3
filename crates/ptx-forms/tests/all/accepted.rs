//! What ptxas takes is loaded, and what it refuses is refused: the instructions of NVIDIA's headers, every conversion, and
//! forms that are almost right.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use katydid_ptx_forms::{
    ASKED_TARGETS, Acceptance, Form, conversions, differing, header_forms, keep_disagreements, known_disagreements,
    near_misses,
};
use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn check(forms: &[Form]) {
    let out: Vec<String> = differing(forms).iter().map(ToString::to_string).collect();
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

#[test]
fn forms_that_are_almost_right_are_taken_as_ptxas_takes_them() {
    let found = differing(&near_misses(root()).unwrap());
    let lines: BTreeSet<String> = found.iter().map(|disagreement| disagreement.line()).collect();
    if std::env::var_os("KATYDID_BLESS").is_some() {
        keep_disagreements(root(), &lines.iter().cloned().collect::<Vec<_>>()).unwrap();
    }
    let known: BTreeSet<String> = known_disagreements(root()).unwrap().into_iter().collect();
    let new: Vec<_> = lines.difference(&known).cloned().collect();
    assert!(new.is_empty(), "{} forms differ from ptxas anew:\n{}", new.len(), new.join("\n"));
    let gone: Vec<_> = known.difference(&lines).cloned().collect();
    assert!(gone.is_empty(), "these agree now, so data/near.known is out of date:\n{}", gone.join("\n"));
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let refusal = |text: &str| Form { accepted: Acceptance::Neither, text: text.to_owned() }.load("sm_90").unwrap_err();
    for (form, reason) in [
        ("add.sat.u32 r, r, r", "line 4: add.sat.u32: .sat is not allowed here"),
        ("add.u8 h, h, h", "type .u8 is not one of"),
        ("div.f32 f, f, f", "one of .rn .rz .rm .rp .approx .full is missing"),
        ("add.f32 f, f, r, r", "it takes 3 operands, not 4"),
        ("add.f32 f, f, l", "operand 3 is a register that is not for .f32: l"),
        ("add.u32 r, r, %tid.x", "operand 3 is not one for .u32"),
        ("ld.volatile.volatile.u32 r, [l]", ".volatile is given twice"),
        ("ld.global.v2.u32 {r, r, r}, [l]", "operand 1 is not a vector of 2"),
        ("ld.global.u32 r, [8]", "operand 2 is a number, an address of local memory alone"),
        ("bar.sync 16", "operand 1 is 16, not less than 16"),
    ] {
        let message = refusal(form).to_string();
        assert!(message.contains(reason), "{form}: {message}");
    }
}
