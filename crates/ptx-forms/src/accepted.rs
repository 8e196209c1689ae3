//! The verdicts of ptxas on instructions: those of NVIDIA's headers, and every conversion.
//!
//! A form is an instruction whose registers are letters for their types; its module declares a register for each. The verdicts in
//! `data/*.ptxas` are those of ptxas for `sm_90` and `sm_90a`; `katydid-forms ptxas` renews them.

use crate::interpreter;
use katydid_ptx_exec::LoadError;
use std::collections::HashSet;
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
}

impl Acceptance {
    const NAMES: [(Self, &'static str); 3] = [(Self::Both, "both"), (Self::ByA, "a"), (Self::Neither, "none")];

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
    /// ptxas refused a text without naming a line.
    #[error("ptxas refuses a text and names no line of it: {0}")]
    Unexplained(String),
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

/// Asks ptxas again and writes both files.
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
    write(&root.join("data/conversions.ptxas"), CONVERSIONS_FILE_HEAD, &all)
}

fn write(path: &Path, head: &str, forms: &[Form]) -> Result<(), AcceptedError> {
    let lines = forms.iter().fold(head.to_owned(), |all, form| all + &format!("{} {}\n", form.accepted, form.text));
    std::fs::write(path, lines).map_err(|error| file_error(path, error))
}

/// Forms per text; ptxas names the lines of those that it refuses.
const FORMS_PER_TEXT: usize = 500;

/// Returns the forms with the verdicts of ptxas.
fn verdicts(ptxas: &Path, mut forms: Vec<Form>) -> Result<Vec<Form>, AcceptedError> {
    for part in forms.chunks_mut(FORMS_PER_TEXT) {
        let [plain, special] = ASKED_TARGETS.map(|arch| refused(ptxas, arch, part));
        let (plain, special) = (plain?, special?);
        for (index, form) in part.iter_mut().enumerate() {
            form.accepted = match (plain.contains(&index), special.contains(&index)) {
                (false, _) => Acceptance::Both,
                (true, false) => Acceptance::ByA,
                (true, true) => Acceptance::Neither,
            };
        }
    }
    Ok(forms)
}

/// Returns the forms that ptxas refuses for a target. It stops at a syntax error, so it runs until it refuses nothing more.
fn refused(ptxas: &Path, arch: &str, forms: &[Form]) -> Result<HashSet<usize>, AcceptedError> {
    let mut refused = HashSet::new();
    let path = std::env::temp_dir().join(format!("katydid-forms-{}.ptx", std::process::id()));
    loop {
        let left: Vec<usize> = (0..forms.len()).filter(|index| !refused.contains(index)).collect();
        let text = left.iter().fold(head(arch), |all, index| all + &kernel(&forms[*index].text, *index));
        std::fs::write(&path, text).map_err(|error| file_error(&path, error))?;
        let output = Command::new(ptxas).args(["-O0", "-o", "/dev/null", "-arch"]).arg(arch).arg(&path).output();
        let output = output.map_err(|error| file_error(ptxas, error))?;
        if output.status.success() {
            // The file is in the system's temporary folder, so a leftover harms no process.
            let _ = std::fs::remove_file(&path);
            return Ok(refused);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let before = refused.len();
        refused.extend(stderr.lines().filter_map(named_line).filter_map(|line| left.get(line.checked_sub(4)?)));
        if refused.len() == before {
            return Err(AcceptedError::Unexplained(stderr.lines().take(3).collect()));
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
