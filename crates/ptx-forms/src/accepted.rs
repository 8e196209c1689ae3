//! The verdicts of ptxas on instructions: those of NVIDIA's headers, and every conversion.
//!
//! A form is an instruction whose registers are letters for their types; its module declares a register for each. The verdicts in
//! `data/*.ptxas` are those of ptxas for `sm_90` and `sm_90a`; `katydid-forms ptxas` renews them.

mod near;

use crate::interpreter;
use katydid_ptx_exec::LoadError;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, io};

/// The targets for which ptxas accepts a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Acceptance {
    /// ptxas accepts the form for `sm_90`, and so for `sm_90a`.
    Both,
    /// ptxas accepts the form for `sm_90a` only.
    ByA,
    /// ptxas accepts the form for neither target.
    Neither,
    /// ptxas ends without a verdict: it crashes, or takes seconds.
    Unknown,
}

impl Acceptance {
    const NAMES: [(Self, &'static str); 4] =
        [(Self::Both, "both"), (Self::ByA, "a"), (Self::Neither, "none"), (Self::Unknown, "crash")];

    fn parse(word: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == word).map(|(accepted, _)| *accepted)
    }

    /// Returns whether ptxas accepts a text for that target.
    pub fn by(self, arch: &str) -> bool {
        self == Self::Both || (self == Self::ByA && arch == "sm_90a")
    }
}

impl fmt::Display for Acceptance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(accepted, _)| accepted == self).map_or("", |(_, name)| name))
    }
}

/// An instruction form and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Form {
    /// Whether ptxas assembles the form.
    pub accepted: Acceptance,
    /// The instruction, with registers as letters.
    pub text: String,
}

/// The two targets of the verdicts.
pub const ASKED_TARGETS: [&str; 2] = ["sm_90", "sm_90a"];

/// Why there are no forms, or no verdicts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptedError {
    /// A file cannot be read or written, or ptxas cannot run.
    #[error("{}: {error}", path.display())]
    File {
        /// The file, or ptxas.
        path: PathBuf,
        /// Error that the system returned.
        error: io::Error,
    },
    /// A line without a verdict.
    #[error("{}: line {line} has no verdict", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// Returns the type of the register that a letter stands for.
fn register_type(letter: char) -> Option<&'static str> {
    Some(match letter {
        'p' => "pred",
        'b' => "b8",
        'h' => "b16",
        'r' => "b32",
        'f' => "f32",
        'l' => "b64",
        'd' => "f64",
        'q' => "b128",
        _ => return None,
    })
}

/// Returns a kernel `k{number}` with a form, on one line.
fn kernel(form: &str, number: usize) -> String {
    let (opcode, operands) = form.split_once(' ').unwrap_or((form, ""));
    let (mut declared, mut written) = (String::new(), String::new());
    let letters: Vec<char> = operands.chars().collect();
    for (index, letter) in letters.iter().enumerate() {
        let near = |at: Option<usize>| at.and_then(|at| letters.get(at)).copied().unwrap_or(' ');
        let part_of_word = |other: char| other.is_alphanumeric() || matches!(other, '_' | '%' | '.' | '$');
        let alone = !part_of_word(near(index.checked_sub(1))) && !part_of_word(near(Some(index + 1)));
        written.push(*letter);
        if let Some(ty) = register_type(*letter).filter(|_| alone) {
            declared += &format!(".reg .{ty} {letter}{index}; ");
            written += &index.to_string();
        }
    }
    format!(".visible .entry k{number}() {{ {declared}{opcode} {written}; ret; }}\n")
}

/// Returns the head of a text for a target.
fn head(arch: &str) -> String {
    format!(".version 9.0\n.target {arch}\n.address_size 64\n")
}

impl Form {
    /// Loads it in the interpreter, for a target.
    ///
    /// # Errors
    ///
    /// Why the interpreter refuses it.
    pub fn load(&self, arch: &str) -> Result<(), LoadError> {
        interpreter::load(&(head(arch) + &kernel(&self.text, 0)))
    }
}

fn file_error(path: &Path, error: io::Error) -> AcceptedError {
    AcceptedError::File { path: path.to_owned(), error }
}

/// Reads the instructions of NVIDIA's headers.
///
/// # Errors
///
/// When the file cannot be read or a line has no verdict.
pub fn header_forms(root: &Path) -> Result<Vec<Form>, AcceptedError> {
    read(&root.join("data/headers.ptxas"))
}

/// Returns all conversions between two types, with all modifiers of `cvt`. The file names those that ptxas accepts.
///
/// # Errors
///
/// As [`header_forms`].
pub fn conversions(root: &Path) -> Result<Vec<Form>, AcceptedError> {
    let named = read(&root.join("data/conversions.ptxas"))?;
    let accepted: HashSet<&str> =
        named.iter().filter(|form| form.accepted == Acceptance::Both).map(|form| &*form.text).collect();
    let verdict = |text: &str| if accepted.contains(text) { Acceptance::Both } else { Acceptance::Neither };
    Ok(every_conversion().into_iter().map(|text| Form { accepted: verdict(&text), text }).collect())
}

/// Forms that are almost right; the file names those that are taken. Those without a verdict are left out.
///
/// # Errors
///
/// As [`header_forms`].
pub fn near_misses(root: &Path) -> Result<Vec<Form>, AcceptedError> {
    let named = read(&root.join("data/near.ptxas"))?;
    let accepted: HashMap<&str, Acceptance> = named.iter().map(|form| (&*form.text, form.accepted)).collect();
    let verdict = |text: &str| accepted.get(text).copied().unwrap_or(Acceptance::Neither);
    let all = every_near_miss(root)?.into_iter().map(|text| Form { accepted: verdict(&text), text });
    Ok(all.filter(|form| form.accepted != Acceptance::Unknown).collect())
}

fn every_near_miss(root: &Path) -> Result<Vec<String>, AcceptedError> {
    let path = root.join("near/seeds.forms");
    let seeds = std::fs::read_to_string(&path).map_err(|error| file_error(&path, error))?;
    Ok(near::near_misses(&seeds))
}

/// A form on which the interpreter and ptxas do not agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Target of the comparison, as `sm_90a`.
    pub arch: &'static str,
    /// The form, registers as letters.
    pub form: String,
    /// Why the interpreter refuses it; `None` where it takes what ptxas refuses.
    pub refusal: Option<LoadError>,
}

impl Disagreement {
    /// What the interpreter does with which form, whatever the target.
    pub fn line(&self) -> String {
        let done = if self.refusal.is_some() { "refused" } else { "taken" };
        format!("{done} {}", self.form)
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(error) => write!(f, "refused for {}: {}: {error}", self.arch, self.form),
            None => write!(f, "taken for {}: {}", self.arch, self.form),
        }
    }
}

/// Forms on which the interpreter and ptxas do not agree.
pub fn differing(forms: &[Form]) -> Vec<Disagreement> {
    let mut out = Vec::new();
    for form in forms {
        for arch in ASKED_TARGETS {
            let refusal = match (form.load(arch), form.accepted.by(arch)) {
                (Err(error), true) => Some(error),
                (Ok(()), false) => None,
                _ => continue,
            };
            out.push(Disagreement { arch, form: form.text.clone(), refusal });
        }
    }
    out
}

/// What the file of known disagreements begins with.
const KNOWN_FILE_HEAD: &str = "# Forms of the sweep of `near.ptxas` that softcuda takes though ptxas 13.0 refuses them, and those that it refuses though\n\
                       # ptxas takes them. `KATYDID_BLESS=1 cargo test -p katydid-ptx-forms` writes the file. Of 2026-11-30.\n";

/// Lines of the known disagreements on forms that are almost right, each as [`Disagreement::line`] has it.
///
/// # Errors
///
/// When the file cannot be read.
pub fn known_disagreements(root: &Path) -> Result<Vec<String>, AcceptedError> {
    let path = root.join("data/near.known");
    let text = std::fs::read_to_string(&path).map_err(|error| file_error(&path, error))?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

/// Writes down the known disagreements.
///
/// # Errors
///
/// When the file cannot be written.
pub fn keep_disagreements(root: &Path, lines: &[String]) -> Result<(), AcceptedError> {
    let path = root.join("data/near.known");
    let text = lines.iter().fold(KNOWN_FILE_HEAD.to_owned(), |all, line| all + line + "\n");
    std::fs::write(&path, text).map_err(|error| file_error(&path, error))
}

fn read(path: &Path) -> Result<Vec<Form>, AcceptedError> {
    let text = std::fs::read_to_string(path).map_err(|error| file_error(path, error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let form = |(index, line): (usize, &str)| {
        let parts = line.split_once(' ').and_then(|(word, text)| Some((Acceptance::parse(word)?, text)));
        let (accepted, text) = parts.ok_or_else(|| AcceptedError::Line { path: path.to_owned(), line: index + 1 })?;
        Ok(Form { accepted, text: text.to_owned() })
    };
    lines.map(form).collect()
}

/// Types of conversions with the letters of their registers: integers, floats, and types that convert only from and to floats.
const CONVERSION_TYPES: [(&str, char); 17] = [
    ("s8", 'h'),
    ("u8", 'h'),
    ("s16", 'h'),
    ("u16", 'h'),
    ("s32", 'r'),
    ("u32", 'r'),
    ("s64", 'l'),
    ("u64", 'l'),
    ("f16", 'h'),
    ("bf16", 'h'),
    ("f32", 'f'),
    ("f64", 'd'),
    ("tf32", 'r'),
    ("f16x2", 'r'),
    ("bf16x2", 'r'),
    ("e4m3x2", 'h'),
    ("e5m2x2", 'h'),
];
/// End of the integers in `CONVERSION_TYPES`, and end of the floats to which integers convert.
const INTEGER_TYPES_END: usize = 8;
const ORDINARY_TYPES_END: usize = 12;

/// Returns every conversion of the sweep.
fn every_conversion() -> Vec<String> {
    let roundings = ["", ".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rmi", ".rpi", ".rna"];
    let mut all = Vec::new();
    for (to_index, to) in CONVERSION_TYPES.iter().enumerate() {
        for (from_index, from) in CONVERSION_TYPES.iter().enumerate() {
            if to_index.max(from_index) >= ORDINARY_TYPES_END && to_index.min(from_index) < INTEGER_TYPES_END {
                continue;
            }
            for rounding in roundings {
                for flush in ["", ".ftz"] {
                    for relu in ["", ".relu"] {
                        for saturation in ["", ".sat", ".satfinite"] {
                            all.push(conversion(*to, *from, &[rounding, flush, relu, saturation].concat()));
                        }
                    }
                }
            }
        }
    }
    all
}

/// Returns one conversion. Between `bf16` and 8-bit integers there are only 8-bit registers; pairs are made of two `f32`.
fn conversion((to, d): (&str, char), (from, a): (&str, char), modifiers: &str) -> String {
    let small = |name: &str, letter: char, other: &str| {
        if matches!(name, "s8" | "u8") && other == "bf16" { 'b' } else { letter }
    };
    let second = if from == "f32" && to.ends_with("x2") { ", f" } else { "" };
    format!("cvt{modifiers}.{to}.{from} {}, {}{second}", small(to, d, from), small(from, a, to))
}

/// First lines of the files.
const HEADERS_FILE_HEAD: &str = "# Instructions of NVIDIA's headers (CUDA 13.0), registers as letters, and whether ptxas 13.0 takes them:\n\
                       # both: for sm_90 and sm_90a; a: for sm_90a only; none: for neither.\n";
const CONVERSIONS_FILE_HEAD: &str =
    "# Conversions that ptxas 13.0 takes for sm_90; it refuses all others of the sweep.\n";

const NEAR_FILE_HEAD: &str = "# Forms of `near/seeds.forms` with one thing changed that ptxas 13.0 takes (both: for sm_90 and sm_90a; a: for sm_90a\n\
                       # only), or of which it says nothing (crash); it refuses all others of the sweep. Asked 2026-11-30.\n";

/// Asks ptxas anew and writes both files.
///
/// # Errors
///
/// When ptxas or a file fails.
pub fn judge(root: &Path, ptxas: &Path) -> Result<(), AcceptedError> {
    let mut headers = verdicts(ptxas, header_forms(root)?)?;
    headers.sort();
    write(&root.join("data/headers.ptxas"), HEADERS_FILE_HEAD, &headers)?;
    let all = every_conversion().into_iter().map(|text| Form { accepted: Acceptance::Neither, text }).collect();
    let mut all = verdicts(ptxas, all)?;
    all.retain(|form| form.accepted == Acceptance::Both);
    write(&root.join("data/conversions.ptxas"), CONVERSIONS_FILE_HEAD, &all)?;
    let all = every_near_miss(root)?.into_iter().map(|text| Form { accepted: Acceptance::Neither, text }).collect();
    let mut all = verdicts(ptxas, all)?;
    all.retain(|form| form.accepted != Acceptance::Neither);
    write(&root.join("data/near.ptxas"), NEAR_FILE_HEAD, &all)
}

fn write(path: &Path, head: &str, forms: &[Form]) -> Result<(), AcceptedError> {
    let lines = forms.iter().fold(head.to_owned(), |all, form| all + &format!("{} {}\n", form.accepted, form.text));
    std::fs::write(path, lines).map_err(|error| file_error(path, error))
}

/// Forms per text; ptxas names the lines of those that it refuses.
const FORMS_PER_TEXT: usize = 500;

/// Seconds of the processor that ptxas has for a text; it takes a tenth of one.
const PTXAS_SECONDS: u32 = 5;

/// What ptxas says of the forms of one target.
#[derive(Default)]
struct Answers {
    refused: HashSet<usize>,
    unknown: HashSet<usize>,
}

/// The forms with what ptxas says.
fn verdicts(ptxas: &Path, mut forms: Vec<Form>) -> Result<Vec<Form>, AcceptedError> {
    for part in forms.chunks_mut(FORMS_PER_TEXT) {
        let all: Vec<usize> = (0..part.len()).collect();
        let [plain, special] = ASKED_TARGETS.map(|arch| {
            let mut answers = Answers::default();
            ask(ptxas, arch, part, &all, &mut answers).map(|()| answers)
        });
        let (plain, special) = (plain?, special?);
        for (index, form) in part.iter_mut().enumerate() {
            form.accepted = match (plain.refused.contains(&index), special.refused.contains(&index)) {
                _ if special.unknown.contains(&index) => Acceptance::Unknown,
                (false, _) => Acceptance::Both,
                (true, false) => Acceptance::ByA,
                (true, true) => Acceptance::Neither,
            };
        }
    }
    Ok(forms)
}

/// Finds which of the forms `indices` ptxas refuses for a target. It stops at what it cannot parse, so it runs until it refuses
/// nothing more. Where it names no line, each half runs alone, down to the form on which it has no verdict.
fn ask(
    ptxas: &Path,
    arch: &str,
    forms: &[Form],
    indices: &[usize],
    answers: &mut Answers,
) -> Result<(), AcceptedError> {
    let path = std::env::temp_dir().join(format!("katydid-forms-{}.ptx", std::process::id()));
    let limited = format!("ulimit -t {PTXAS_SECONDS}; exec \"$@\"");
    loop {
        let left: Vec<usize> = indices.iter().copied().filter(|index| !answers.refused.contains(index)).collect();
        let text = left.iter().fold(head(arch), |all, index| all + &kernel(&forms[*index].text, *index));
        std::fs::write(&path, text).map_err(|error| file_error(&path, error))?;
        let mut command = Command::new("sh");
        command.args(["-c", &limited, "sh"]).arg(ptxas).args(["-O0", "-o", "/dev/null", "-arch", arch]).arg(&path);
        let output = command.output().map_err(|error| file_error(ptxas, error))?;
        // A file of the system's temporary folder: what is left of it harms no process.
        let _ = std::fs::remove_file(&path);
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let before = answers.refused.len();
        answers.refused.extend(errors.lines().filter_map(named_line).filter_map(|line| left.get(line.checked_sub(4)?)));
        if answers.refused.len() == before {
            if let [index] = left.as_slice() {
                answers.refused.insert(*index);
                answers.unknown.insert(*index);
                return Ok(());
            }
            let (first, second) = left.split_at(left.len() / 2);
            ask(ptxas, arch, forms, first, answers)?;
            return ask(ptxas, arch, forms, second, answers);
        }
    }
}

/// Returns the line of a message, if that reports an error.
fn named_line(message: &str) -> Option<usize> {
    let wrong = ["; error", "; fatal", "32-bit address"].iter().any(|word| message.contains(word));
    let (_, rest) = message.split_once("line ").filter(|_| wrong)?;
    let digits = rest.trim_start_matches('\'').split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_become_registers() {
        assert_eq!(
            kernel("mul.f32 f, f, 0f3F800000", 3),
            ".visible .entry k3() { .reg .f32 f0; .reg .f32 f3; mul.f32 f0, f3, 0f3F800000; ret; }\n"
        );
        assert!(kernel("mov.u32 r, %laneid", 0).contains("mov.u32 r0, %laneid;"));
        assert!(kernel("ld.global.v2.u32 {r, r}, [l+8]", 0).contains("{r1, r4}, [l9+8];"));
    }

    #[test]
    fn messages_name_their_lines() {
        assert_eq!(named_line("ptxas t.ptx, line 12; error   : Illegal modifier"), Some(12));
        assert_eq!(named_line("ptxas warning : Program uses 32-bit address on line '7' which"), Some(7));
        assert_eq!(named_line("ptxas fatal   : Ptx assembly aborted due to errors"), None);
    }
}
