//! Compares an answer with the recorded one.

use crate::case::{Case, Check, Operands};
use crate::device::DeviceAnswer;
use crate::exact::{Bound, Function};
use crate::form::RUNS_PER_FORM;
use crate::kernel::result_bytes;
use crate::kind::{Content, Format, OperandKind};
use crate::values::decode;
use std::fmt;

/// How an answer agrees with the recorded one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The outputs are equal bit for bit.
    Same,
    /// Both lie within the bound: the largest share of it that each used, and how many values differ.
    Within {
        /// Share of the bound that the recorded answer used; 0 if the bound is around that answer.
        recorded: f64,
        /// Share of the bound that the compared answer used.
        got: f64,
        /// Number of values that differ.
        differing: usize,
    },
    /// Neither device loads the text.
    BothRefuse,
    /// The GPU runs the text, and this device does not load it; the page of forms lists it as refused.
    NotDone,
}

/// How an answer differs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Difference(String);

/// Compares `got` with `recorded`.
///
/// # Errors
///
/// The first difference, and how much differs in all.
pub fn compare(case: &Case, recorded: &DeviceAnswer, got: &DeviceAnswer) -> Result<Verdict, Difference> {
    match (recorded, got) {
        (DeviceAnswer::Done(recorded), DeviceAnswer::Done(got)) if recorded.len() != got.len() => {
            Err(Difference(format!("{} bytes, recorded are {}", got.len(), recorded.len())))
        }
        (DeviceAnswer::Done(recorded), DeviceAnswer::Done(got)) => match &case.check {
            Check::Exact => exact(case, recorded, got),
            Check::Function(bound) => around_function(case, *bound, recorded, got),
            Check::Near(bound, kind) => around_recorded(*bound, *kind, recorded, got),
        },
        (DeviceAnswer::Refused { .. }, DeviceAnswer::Refused { .. }) => Ok(Verdict::BothRefuse),
        (DeviceAnswer::Done(_), DeviceAnswer::Refused { .. }) => Ok(Verdict::NotDone),
        (DeviceAnswer::Faulted { code: recorded, .. }, DeviceAnswer::Faulted { code: got, .. }) if recorded == got => {
            Ok(Verdict::Same)
        }
        _ => Err(Difference(format!("{}; recorded: {}", describe(got), describe(recorded)))),
    }
}

/// Describes an answer in a few words.
fn describe(answer: &DeviceAnswer) -> String {
    match answer {
        DeviceAnswer::Done(output) => format!("done, {} bytes", output.len()),
        DeviceAnswer::Refused { code, log } => format!("refused with {code} {log}"),
        DeviceAnswer::Faulted { code, log } => format!("failed with {code} {log}"),
    }
}

/// Compares bit for bit.
fn exact(case: &Case, recorded: &[u8], got: &[u8]) -> Result<Verdict, Difference> {
    if recorded == got {
        return Ok(Verdict::Same);
    }
    let Some(operands) = &case.operands else {
        let at = recorded.iter().zip(got).position(|(recorded, got)| recorded != got).unwrap_or(0) & !3;
        let word = |bytes: &[u8]| hex(bytes.get(at..(at + 4).min(bytes.len())).unwrap_or_default());
        let bytes = recorded.iter().zip(got).filter(|(recorded, got)| recorded != got).count();
        return Err(Difference(format!("{bytes} bytes differ; at {at}: {} recorded {}", word(got), word(recorded))));
    };
    let rows: Vec<Row<'_>> = rows(case, operands, recorded, got).filter(|row| row.recorded != row.got).collect();
    Err(Difference(format!("{} of {RUNS_PER_FORM} differ; {}", rows.len(), listed(&rows))))
}

/// One result of one row.
struct Row<'a> {
    kind: OperandKind,
    inputs: Vec<&'a [u8]>,
    recorded: &'a [u8],
    got: &'a [u8],
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs.iter().map(|input| hex(input)).collect();
        write!(f, "({}) = {} recorded {}", inputs.join(", "), hex(self.got), hex(self.recorded))
    }
}

/// Lists a few rows.
fn listed(rows: &[Row<'_>]) -> String {
    rows.iter().take(6).map(Row::to_string).collect::<Vec<_>>().join("; ")
}

/// Formats a number in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns all results of all rows.
fn rows<'a>(
    case: &'a Case,
    operands: &'a Operands,
    recorded: &'a [u8],
    got: &'a [u8],
) -> impl Iterator<Item = Row<'a>> {
    let input = case.inputs().next().unwrap_or_default();
    let mut start = 0;
    let sources: Vec<(usize, usize)> = operands
        .sources
        .iter()
        .map(|kind| {
            let column = (start, kind.bytes());
            start = (start + kind.bytes() * RUNS_PER_FORM).next_multiple_of(16);
            column
        })
        .collect();
    let mut start = 0;
    let results = operands.results.iter().map(move |kind| {
        let column = (*kind, start, result_bytes(*kind));
        start += column.2 * RUNS_PER_FORM;
        column
    });
    results.flat_map(move |(kind, start, size)| {
        let sources = sources.clone();
        (0..RUNS_PER_FORM).map(move |row| {
            let cell = |bytes: &'a [u8], start: usize, size: usize| {
                bytes.get(start + row * size..start + (row + 1) * size).unwrap_or_default()
            };
            Row {
                kind,
                inputs: sources.iter().map(|(start, size)| cell(input, *start, *size)).collect(),
                recorded: cell(recorded, start, size),
                got: cell(got, start, size),
            }
        })
    })
}

/// Formats all rows of a form.
pub fn written(case: &Case, recorded: &[u8], got: &[u8]) -> Vec<String> {
    let Some(operands) = &case.operands else { return Vec::new() };
    rows(case, operands, recorded, got).map(|row| row.to_string()).collect()
}

/// Returns the floats in a value: one, or two of half its size.
fn floats(kind: OperandKind, bytes: &[u8]) -> Option<(Format, Vec<u64>)> {
    let whole = bytes.iter().rev().take(8).fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    match kind.content {
        Content::Float(format) => Some((format, vec![whole])),
        Content::Two(Some(format)) => Some((format, vec![whole & 0xffff, whole >> 16])),
        _ => None,
    }
}

/// Shares of a bound that the answers used.
#[derive(Debug, Clone, Copy, Default)]
struct BoundUsage {
    recorded: f64,
    got: f64,
    differing: usize,
}

impl BoundUsage {
    fn verdict(self) -> Verdict {
        if self.differing == 0 {
            Verdict::Same
        } else {
            Verdict::Within { recorded: self.recorded, got: self.got, differing: self.differing }
        }
    }
}

/// Returns whether only equal bits will do. Zero, infinities and NaN are never approximate, except zero under an absolute bound.
fn is_special(value: f64, bound: Bound) -> bool {
    !value.is_finite() || (value == 0.0 && !bound.is_absolute())
}

/// Checks that each value of both answers is near the exact function of its inputs.
fn around_function(case: &Case, bound: Bound, recorded: &[u8], got: &[u8]) -> Result<Verdict, Difference> {
    let (Some(operands), Some(function)) = (&case.operands, bound.function) else {
        return Err(Difference("a bound around a function needs a form".to_owned()));
    };
    let mut used = BoundUsage::default();
    let mut far = Vec::new();
    for row in rows(case, operands, recorded, got).filter(|row| row.recorded != row.got) {
        let Some(parts) = row_used(&row, operands, bound, function) else {
            far.push(row);
            continue;
        };
        if parts.recorded > 1.0 || parts.got > 1.0 {
            far.push(row);
        }
        used.recorded = used.recorded.max(parts.recorded);
        used.got = used.got.max(parts.got);
        used.differing += 1;
    }
    if far.is_empty() {
        return Ok(used.verdict());
    }
    Err(Difference(format!(
        "{} of {RUNS_PER_FORM} are too far (recorded {:.3}, got {:.3} of the bound); {}",
        far.len(),
        used.recorded,
        used.got,
        listed(&far)
    )))
}

/// Returns how far a row is from the function; `None` when a special value differs.
fn row_used(row: &Row<'_>, operands: &Operands, bound: Bound, function: Function) -> Option<BoundUsage> {
    let (format, recorded) = floats(row.kind, row.recorded)?;
    let (_, got) = floats(row.kind, row.got)?;
    let inputs: Vec<(Format, Vec<u64>)> =
        row.inputs.iter().zip(&operands.sources).map(|(input, kind)| floats(*kind, input)).collect::<Option<_>>()?;
    let mut used = BoundUsage::default();
    for part in (0..recorded.len()).filter(|part| recorded[*part] != got[*part]) {
        let (recorded, got) = (decode(format, recorded[part]), decode(format, got[part]));
        if is_special(recorded, bound) || is_special(got, bound) {
            return None;
        }
        let operand = |index: usize| inputs.get(index).map_or(0.0, |(format, bits)| decode(*format, bits[part]));
        let exact = function.of(operand(0), operand(1));
        used.recorded = used.recorded.max(bound.used(exact, recorded, format));
        used.got = used.got.max(bound.used(exact, got, format));
    }
    Some(used)
}

/// Checks that each value is near the recorded one.
fn around_recorded(bound: Bound, kind: OperandKind, recorded: &[u8], got: &[u8]) -> Result<Verdict, Difference> {
    let mut used = BoundUsage::default();
    let size = kind.bytes();
    for (index, (recorded, got)) in recorded.chunks(size).zip(got.chunks(size)).enumerate().filter(|(_, (a, b))| a != b)
    {
        let pair = floats(kind, recorded).zip(floats(kind, got));
        let Some(((format, kept_bits), (_, got_bits))) = pair else {
            return Err(Difference(format!("{} is not a float", kind.name)));
        };
        for (kept_bits, got_bits) in kept_bits.iter().zip(&got_bits).filter(|(a, b)| a != b) {
            let (exact, value) = (decode(format, *kept_bits), decode(format, *got_bits));
            let part = bound.used(exact, value, format);
            if !exact.is_finite() || !value.is_finite() || part > 1.0 {
                return Err(Difference(format!(
                    "value {index} is {value:e}, recorded {exact:e}: {part:.3} of the bound"
                )));
            }
            used.got = used.got.max(part);
            used.differing += 1;
        }
    }
    Ok(used.verdict())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::parse;
    use crate::program;

    fn case(line: &str) -> Case {
        parse(line).unwrap()[0].forms[0].case()
    }

    /// All rows 1.0 but the first.
    fn output(first: f32) -> DeviceAnswer {
        let mut rows = vec![1.0_f32; RUNS_PER_FORM];
        rows[0] = first;
        DeviceAnswer::Done(rows.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    #[test]
    fn an_exact_form_names_the_rows_that_differ() {
        let case = case("abs.f32 : f32 = f32");
        assert_eq!(compare(&case, &output(1.0), &output(1.0)), Ok(Verdict::Same));
        let difference = compare(&case, &output(1.0), &output(2.0)).unwrap_err().to_string();
        assert!(difference.contains("1 of 512") && difference.contains("= 40000000 recorded 3f800000"), "{difference}");
    }

    #[test]
    fn an_approximation_may_differ_within_its_bound_but_not_in_special_values() {
        let case = case("ex2.approx.f32 : f32 = f32:zero ~ rel 2^-22 ex2");
        let near = f32::from_bits(1.0_f32.to_bits() + 1);
        let verdict = compare(&case, &output(near), &output(1.0)).unwrap();
        assert!(
            matches!(verdict, Verdict::Within { recorded, got: 0.0, differing: 1 } if recorded > 0.4),
            "{verdict:?}"
        );
        assert!(compare(&case, &output(1.0), &output(1.001)).is_err());
        assert!(compare(&case, &output(f32::INFINITY), &output(1.0)).is_err());
    }

    #[test]
    fn a_program_may_be_near_the_kept_values() {
        let case = program::parse("p", "//! About.\n//! output 2048\n//! bound rel 2^-9 f32\n").unwrap().case;
        assert!(compare(&case, &output(1.0), &output(1.001)).is_ok());
        assert!(compare(&case, &output(1.0), &output(1.01)).is_err());
    }

    #[test]
    fn refusals_and_faults_are_answers_too() {
        let case = case("abs.f32 : f32 = f32");
        let refused = |code| DeviceAnswer::Refused { code, log: String::new() };
        let faulted = |code| DeviceAnswer::Faulted { code, log: String::new() };
        assert_eq!(compare(&case, &refused(218), &refused(300)), Ok(Verdict::BothRefuse));
        assert_eq!(compare(&case, &faulted(700), &faulted(700)), Ok(Verdict::Same));
        assert_eq!(compare(&case, &output(1.0), &refused(218)), Ok(Verdict::NotDone));
        assert!(compare(&case, &faulted(700), &faulted(716)).is_err());
        assert!(compare(&case, &refused(218), &output(1.0)).is_err());
    }
}
