//! Whole programs: PTX files whose first lines tell how to run them.
//!
//! The parser reads lines that begin with `//!`. The first one that is no directive tells what the program demonstrates.
//! Parameters are in the order of their lines.

use crate::case::{Argument, Case, Check};
use crate::exact::Bound;
use crate::kind::OperandKind;
use crate::rng::Rng;
use crate::values::{Domain, values};

/// A program whose head cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: `{line}` is not a directive that is understood")]
pub struct ProgramError {
    /// Name of the program.
    name: String,
    /// The line that the parser does not understand.
    line: String,
}

/// A program and what it demonstrates.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Program {
    /// What the program demonstrates, in one sentence.
    pub(crate) about: String,
    /// How to run it.
    pub(crate) case: Case,
}

/// Parses a program.
pub(crate) fn parse(name: &str, text: &str) -> Result<Program, ProgramError> {
    let case = Case {
        name: name.to_owned(),
        text: text.to_owned(),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        dynamic: 0,
        cluster: None,
        cooperative: false,
        arguments: Vec::new(),
        fault: 0,
        needs_driver: false,
        optimize: true,
        covers: Vec::new(),
        operands: None,
        check: Check::Exact,
    };
    let mut program = Program { about: String::new(), case };
    for line in text.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim) {
        if program.about.is_empty() {
            program.about = line.to_owned();
        } else if directive(&mut program.case, line).is_none() {
            return Err(ProgramError { name: name.to_owned(), line: line.to_owned() });
        }
    }
    Ok(program)
}

/// Parses one line of the head; `None` if it is invalid.
fn directive(case: &mut Case, line: &str) -> Option<()> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    match word {
        "grid" => case.grid = three(rest)?,
        "block" => case.block = three(rest)?,
        "cluster" => case.cluster = Some(three(rest)?),
        "dynamic" => case.dynamic = rest.parse().ok()?,
        "cooperative" => case.cooperative = true,
        "fault" => case.fault = rest.parse().ok()?,
        "covers" => case.covers.extend(rest.split_whitespace().map(str::to_owned)),
        "needs" if rest == "driver" => case.needs_driver = true,
        "bound" => {
            let (bound, kind) = rest.rsplit_once(' ')?;
            case.check = Check::Near(Bound::parse(bound)?, OperandKind::parse(kind)?);
        }
        "output" => case.arguments.push(Argument::Output(rest.parse().ok()?)),
        "input" => case.arguments.push(Argument::Input(buffer(case.arguments.len(), rest)?)),
        "inout" => case.arguments.push(Argument::InOut(buffer(case.arguments.len(), rest)?)),
        "scalar" => case.arguments.push(Argument::Scalar(scalar(rest)?)),
        _ => return None,
    }
    Some(())
}

/// Parses `4 1 1`.
fn three(text: &str) -> Option<[u32; 3]> {
    let numbers: Vec<u32> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// Parses `f16 4096 range`: type, number of elements, domain. Each parameter has its own values.
fn buffer(index: usize, text: &str) -> Option<Vec<u8>> {
    let [kind, count, domain] = text.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let (kind, domain) = (OperandKind::parse(kind)?, Domain::parse(domain)?);
    let mut rng = Rng::of(&format!("{index} {text}"));
    let values = values(kind, domain, count.parse().ok()?, None, &mut rng);
    Some(values.iter().flat_map(|value| value.to_le_bytes()[..kind.bytes()].to_vec()).collect())
}

/// Parses `u32 17`.
fn scalar(text: &str) -> Option<Vec<u8>> {
    let (kind, value) = text.split_once(' ')?;
    Some(match kind {
        "u32" => value.parse::<u32>().ok()?.to_le_bytes().to_vec(),
        "s32" => value.parse::<i32>().ok()?.to_le_bytes().to_vec(),
        "u64" => value.parse::<u64>().ok()?.to_le_bytes().to_vec(),
        "f32" => value.parse::<f32>().ok()?.to_le_bytes().to_vec(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! Adds.\n//! grid 2 1 1\n//! input u32 4 iota\n//! output 16\n//! scalar s32 -1\n\
        //! fault 700\n//! covers add.u32 add.s32\n//! bound rel 2^-9 f32\n.version 9.0\n";

    #[test]
    fn the_head_says_how_to_run_it() {
        let Program { about, case } = parse("adds", TEXT).unwrap();
        assert_eq!((about.as_str(), case.grid, case.block, case.fault), ("Adds.", [2, 1, 1], [32, 1, 1], 700));
        assert_eq!(case.arguments[0], Argument::Input(vec![0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]));
        assert_eq!(case.arguments[1..], [Argument::Output(16), Argument::Scalar(vec![0xff; 4])]);
        assert_eq!(case.covers.len(), 2);
        assert!(matches!(case.check, Check::Near(..)));
    }

    #[test]
    fn a_directive_that_is_not_understood_is_named() {
        let error = parse("adds", "//! Adds.\n//! grid 2\n").unwrap_err();
        assert!(error.to_string().contains("`grid 2`"), "{error}");
    }

    #[test]
    fn the_question_changes_with_everything() {
        let case = parse("adds", TEXT).unwrap().case;
        let other = Case { grid: [1, 1, 1], ..case.clone() };
        assert_ne!(case.question(), other.question());
    }
}
