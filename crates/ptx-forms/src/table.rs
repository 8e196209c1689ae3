//! The documentation pages that come from the catalogue, the interpreter and the recorded answers.
//!
//! `forms_page` lists the forms of the interpreter. `result_page` compares its answers with the GPU's. Only the sentences around
//! the tables are written by hand.

use crate::accepted::{Acceptance, AcceptedError, known_disagreements, near_misses};
use crate::case::Case;
use crate::check::{Verdict, compare};
use crate::device::{Device, DeviceAnswer, DeviceError};
use crate::interpreter::Interpreter;
use crate::store::{Origin, RecordedAnswers, StoreError};
use crate::suite::{Group, SuiteError, recorded, suite};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The cases are invalid.
    #[error(transparent)]
    Suite(#[from] SuiteError),
    /// The recorded answers are invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The interpreter gave no answer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What ptxas takes cannot be read.
    #[error(transparent)]
    Accepted(#[from] AcceptedError),
}

/// A case with its results.
struct Fact<'a> {
    case: &'a Case,
    /// Answer of the interpreter; `None` where only a driver can run the case.
    answer: Option<DeviceAnswer>,
    /// Comparison with the recorded answer; `None` without one.
    verdict: Option<Result<Verdict, String>>,
}

impl Fact<'_> {
    /// Returns whether the interpreter loads it.
    fn is_done(&self) -> bool {
        !matches!(self.answer, Some(DeviceAnswer::Refused { .. }))
    }
}

/// A group with the results of its cases.
struct Facts<'a> {
    group: &'a Group,
    origin: Option<Origin>,
    cases: Vec<Fact<'a>>,
}

/// Runs all cases on the interpreter.
fn facts<'a>(root: &Path, groups: &'a [Group]) -> Result<Vec<Facts<'a>>, PageError> {
    let mut out = Vec::new();
    for group in groups {
        let answers = recorded(root, group)?;
        let cases = group.cases.iter().map(|case| fact(case, answers.as_ref())).collect::<Result<_, _>>()?;
        out.push(Facts { group, origin: answers.map(|answers| answers.origin), cases });
    }
    Ok(out)
}

fn fact<'a>(case: &'a Case, answers: Option<&RecordedAnswers>) -> Result<Fact<'a>, DeviceError> {
    let answer = if case.needs_driver { None } else { Some(Interpreter.ask(case)?) };
    let known = answers.and_then(|answers| answers.answer(case));
    let verdict = known.zip(answer.as_ref());
    let verdict =
        verdict.map(|(known, answer)| compare(case, known, answer).map_err(|difference| difference.to_string()));
    Ok(Fact { case, answer, verdict })
}

/// Number of cases per outcome.
#[derive(Debug, Default)]
struct Tally {
    same: usize,
    within: usize,
    refused: usize,
    missing: usize,
    differ: usize,
    open: usize,
    /// Largest shares of a bound that the GPU and the interpreter used.
    recorded: f64,
    got: f64,
}

impl Tally {
    fn of<'a>(facts: impl Iterator<Item = &'a Fact<'a>>) -> Self {
        let mut tally = Self::default();
        for fact in facts {
            match &fact.verdict {
                Some(Ok(Verdict::Same)) => tally.same += 1,
                Some(Ok(Verdict::BothRefuse)) => tally.refused += 1,
                Some(Ok(Verdict::NotDone)) => tally.missing += 1,
                Some(Ok(Verdict::Within { recorded, got, .. })) => {
                    tally.within += 1;
                    (tally.recorded, tally.got) = (tally.recorded.max(*recorded), tally.got.max(*got));
                }
                Some(Err(_)) => tally.differ += 1,
                None => tally.open += 1,
            }
        }
        tally
    }

    /// Formats the numbers for the cell of a table.
    fn cell(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |count: usize, text: &str| {
            if count > 0 {
                parts.push(format!("{count} {text}"));
            }
        };
        part(self.same, "same");
        part(self.within, "within the bound");
        part(self.refused, "refused by both");
        part(self.missing, "refused by softcuda");
        part(self.differ, "**differ**");
        part(self.open, "not compared");
        parts.join(", ")
    }
}

/// First words of the page of forms.
const FORMS_HEAD: &str = "\
# Instruction forms of softcuda

Made by `KATYDID_BLESS=1 cargo test -p katydid-ptx-forms` from the catalogue in `crates/ptx-forms`, the interpreter and
the kept answers of a GPU; a test fails when it is out of date. Braces stand for alternatives, so that a row is a family of
forms. *Done* counts the forms that are loaded and run; any other form is refused when a module is loaded, by name and
line. The last column compares the results with the GPU's: the same bits, or within the stated bound around the exact
function.
";

/// Returns the page of forms.
///
/// # Errors
///
/// When cases or recorded answers cannot be read.
pub fn forms_page(root: &Path) -> Result<String, PageError> {
    let groups = suite(root)?;
    let facts = facts(root, &groups)?;
    let mut out = FORMS_HEAD.to_owned();
    let forms = || facts.iter().filter(|facts| !facts.group.families.is_empty()).flat_map(|facts| &facts.cases);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "\n{} cases of the catalogue, {} of them done, {} whole programs and {} random ones.",
        forms().count(),
        forms().filter(|fact| fact.is_done()).count(),
        cases_of(&facts, "programs"),
        cases_of(&facts, "random"),
    );
    near(&mut out, root)?;
    for facts in facts.iter().filter(|facts| !facts.group.families.is_empty()) {
        families(&mut out, facts);
    }
    if let Some(programs) = facts.iter().find(|facts| facts.group.name == "programs") {
        program_table(&mut out, programs);
    }
    Ok(out)
}

/// Writes how far softcuda and ptxas agree on forms that are almost right.
fn near(out: &mut String, root: &Path) -> Result<(), PageError> {
    let forms = near_misses(root)?;
    let taken_by_ptxas = forms.iter().filter(|form| form.accepted != Acceptance::Neither).count();
    let known = known_disagreements(root)?;
    let wrongly_taken = known.iter().filter(|line| line.starts_with("taken ")).count();
    let _ = writeln!(
        out,
        "\nOf {} forms that differ from a right one in a word, a type or an operand, ptxas 13.0 takes {taken_by_ptxas}. softcuda takes \
         {wrongly_taken} that\nptxas refuses, and refuses {} that ptxas takes. `crates/ptx-forms/data/near.known` names them.",
        forms.len(),
        known.len() - wrongly_taken
    );
    Ok(())
}

fn cases_of(facts: &[Facts<'_>], name: &str) -> usize {
    facts.iter().filter(|facts| facts.group.name == name).map(|facts| facts.cases.len()).sum()
}

/// Writes a table under each heading of a file of the catalogue.
fn families(out: &mut String, facts: &Facts<'_>) {
    let mut heading = "";
    let mut rest = facts.cases.as_slice();
    for family in &facts.group.families {
        let (cases, others) = rest.split_at(family.forms.len().min(rest.len()));
        rest = others;
        if heading != family.heading {
            heading = &family.heading;
            let _ = writeln!(
                out,
                "\n## {heading}\n\n| forms | of them | done | compared with the GPU |\n|---|---:|---:|---|"
            );
        }
        let tally = Tally::of(cases.iter());
        let bound = if family.bound.is_empty() { String::new() } else { format!(" ({})", family.bound) };
        let refused: Vec<&str> =
            cases.iter().filter(|fact| !fact.is_done()).map(|fact| fact.case.name.as_str()).collect();
        let done = cases.len() - refused.len();
        let named = if refused.is_empty() || refused.len() == cases.len() {
            String::new()
        } else {
            format!("; refused: `{}`", refused.join("` `"))
        };
        let _ = writeln!(
            out,
            "| `{}` | {} | {done} | {}{bound}{named} |",
            family.pattern.replace('|', "\\|"),
            cases.len(),
            tally.cell()
        );
    }
}

/// Writes a row per program.
fn program_table(out: &mut String, facts: &Facts<'_>) {
    let _ = writeln!(
        out,
        "\n## Whole programs\n\n| program | what it shows | forms | compared with the GPU |\n|---|---|---|---|"
    );
    for (fact, about) in facts.cases.iter().zip(&facts.group.about) {
        let covers: Vec<String> = fact.case.covers.iter().map(|form| format!("`{form}`")).collect();
        let state = match fact.answer {
            None => "through the driver API".to_owned(),
            Some(_) if !fact.is_done() => "refused".to_owned(),
            Some(_) => Tally::of(std::iter::once(fact)).cell(),
        };
        let _ = writeln!(out, "| {} | {about} | {} | {state} |", fact.case.name, covers.join(" "));
    }
}

/// First words of the comparison page.
const RESULT_HEAD: &str = "\
# softcuda compared with a GPU

Every form of the catalogue (`crates/ptx-forms/catalog`) is run over 512 rows of operands. They are the edges of its types,
random bits, ordinary values, and values that are related to another operand. Whole programs and random ones come on top.
The GPU's answers were recorded once and are kept in `crates/ptx-forms/data`. Tests run the same on the interpreter, and
through the driver API on softcuda, and compare. `KATYDID_BLESS=1 cargo test -p katydid-ptx-forms` makes this page.

To record them again on a machine with a GPU:

    cargo run --release -p katydid-ptx-forms -- record --out crates/ptx-forms/data

An answer belongs to one question: text, operands and launch. When a case changes, its answer no longer counts, and a test
asks for a new one.
";

/// The notes: what is not compared bit for bit, and why.
const RESULT_NOTES: &str = "
## What is not bit for bit, and why

- **Approximations** (`rcp sqrt rsqrt ex2 lg2 sin cos tanh div` with `.approx` or `.full`): a GPU reads tables that are not
  published. Both sides are held to the error that the PTX ISA states around the exact function. The table above says how
  much of it each uses. Zeroes, infinities and NaN must be the same bits.
- **NaN**: where an instruction stands alone, its result is compared bit for bit, with its payload. Random programs drop the
  payload before they look at a NaN, since it depends on the instructions around. The GPU's compiler exchanges operands and
  folds signs into them. It also drops what changes nothing but a NaN, such as `min.f32` of a value with itself.
- **`mma.m8n8k4` of `f16`** is an instruction of the first tensor cores; later GPUs put it together from others. Where
  operands are edges, it may differ in the last bit: in 2 of 2,048 rows it does. NVIDIA does not publish the order of these
  sums.
- **Random programs** are compiled for the GPU without optimisation. With it, the same GPU gives other results for 9 of the
  256. In all of these, the predicate of a vote meets a loop that lanes leave at different times. softcuda agrees with the
  unoptimised code in all of them.
- **Programs with a bound of their own** say so in their head, with the reason (sums of tensor cores, filters of textures).
";

/// Returns the comparison page.
///
/// # Errors
///
/// When cases or recorded answers cannot be read.
pub fn result_page(root: &Path) -> Result<String, PageError> {
    let groups = suite(root)?;
    let facts = facts(root, &groups)?;
    let mut out = RESULT_HEAD.to_owned();
    let origins: BTreeSet<String> = facts
        .iter()
        .filter_map(|facts| facts.origin.as_ref())
        .map(|origin| format!("{}, driver {}, {}", origin.device, origin.driver, origin.date))
        .collect();
    let _ = writeln!(out, "\nRecorded on: {}.\n", origins.into_iter().collect::<Vec<_>>().join("; "));
    counts(&mut out, &facts);
    bounds(&mut out, &facts);
    out += RESULT_NOTES;
    differences(&mut out, &facts);
    Ok(out)
}

/// Writes a row per group.
fn counts(out: &mut String, facts: &[Facts<'_>]) {
    out.push_str("| group | cases | same bits | within a bound | refused by both | refused by softcuda | differ | not compared here |\n");
    out.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    let mut row = |name: &str, cases: usize, tally: &Tally| {
        let Tally { same, within, refused, missing, differ, open, .. } = tally;
        let _ = writeln!(out, "| {name} | {cases} | {same} | {within} | {refused} | {missing} | {differ} | {open} |");
    };
    for facts in facts {
        row(&facts.group.name, facts.cases.len(), &Tally::of(facts.cases.iter()));
    }
    let all = || facts.iter().flat_map(|facts| &facts.cases);
    row("**all**", all().count(), &Tally::of(all()));
    out.push_str("\nNot compared here are programs that only a driver can run; a test of softcuda compares those.\n");
}

/// Writes a row per approximation.
fn bounds(out: &mut String, facts: &[Facts<'_>]) {
    out.push_str("\n## Approximations\n\n| forms | bound | the GPU uses | softcuda uses |\n|---|---|---:|---:|\n");
    for facts in facts {
        let mut rest = facts.cases.as_slice();
        for family in &facts.group.families {
            let (cases, others) = rest.split_at(family.forms.len().min(rest.len()));
            rest = others;
            let tally = Tally::of(cases.iter());
            if !family.bound.is_empty() {
                let part = |used: f64| format!("{:.0} %", used * 100.0);
                let pattern = family.pattern.replace('|', "\\|");
                let _ = writeln!(
                    out,
                    "| `{pattern}` | {} | {} | {} |",
                    family.bound,
                    part(tally.recorded),
                    part(tally.got)
                );
            }
        }
    }
}

/// Writes all differences; there should be none.
fn differences(out: &mut String, facts: &[Facts<'_>]) {
    out.push_str("\n## Differences\n\n");
    let all = facts.iter().flat_map(|facts| &facts.cases);
    let different: Vec<String> = all
        .filter_map(|fact| match &fact.verdict {
            Some(Err(difference)) => Some(format!("- `{}`: {difference}\n", fact.case.name)),
            _ => None,
        })
        .collect();
    out.push_str(if different.is_empty() { "None.\n" } else { "" });
    out.push_str(&different.concat());
}
