//! Asks a GPU, softcuda or the interpreter what is in the catalogue: records answers, or holds them against kept ones.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use katydid_ptx_forms::{
    AcceptedError, Case, Device, DeviceAnswer, DeviceError, Gpu, Group, Interpreter, Origin, RecordedAnswers,
    StoreError, SuiteError, compare, conversions, differing, header_forms, judge, near_misses, recorded, suite,
    written,
};

/// Instruction forms and small programs, compared with what a GPU made of them.
#[derive(Parser)]
#[command(name = "katydid-forms")]
struct Flags {
    /// The folder with `catalog`, `programs` and `data`.
    #[arg(long, default_value = env!("CARGO_MANIFEST_DIR"))]
    root: PathBuf,
    #[command(subcommand)]
    command: Action,
}

/// What to do.
#[derive(Subcommand)]
enum Action {
    /// Asks a GPU everything and writes its answers.
    Record {
        /// A folder for one file a group.
        #[arg(long)]
        out: PathBuf,
        /// Only groups whose names begin so.
        #[arg(long, default_value = "")]
        group: String,
        /// The driver library, if not the system's.
        #[arg(long)]
        library: Option<PathBuf>,
    },
    /// Holds what the interpreter (or a driver library) answers against what is kept.
    Run {
        /// Only cases whose names contain this.
        #[arg(default_value = "")]
        pattern: String,
        /// A driver library in place of the interpreter.
        #[arg(long)]
        library: Option<PathBuf>,
        /// Says what agrees as well.
        #[arg(long)]
        all: bool,
    },
    /// Asks ptxas which instructions of NVIDIA's headers, and which conversions, it takes, and writes down what it says.
    Ptxas {
        /// The program.
        #[arg(default_value = "target/cuda-toolkit/nvidia/cu13/bin/ptxas")]
        program: PathBuf,
    },
    /// Lists the forms that the interpreter and ptxas do not agree on.
    Differing,
    /// Prints the forms that are almost right, with what is kept of ptxas.
    Near,
    /// Asks one case, which may leave the driver of no use, and prints the code of its failure.
    Probe {
        /// Its whole name.
        name: String,
        /// The driver library, if not the system's.
        #[arg(long)]
        library: Option<PathBuf>,
    },
    /// Prints the text of a case, or every row of a form: operands, result, kept result.
    Show {
        /// Its whole name.
        name: String,
        /// The rows.
        #[arg(long)]
        rows: bool,
    },
}

/// Failures of the program.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Suite(#[from] SuiteError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Accepted(#[from] AcceptedError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("there is no case {0} in the catalogue; name one of its forms")]
    NoCase(String),
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let done = suite(&flags.root).map_err(Failure::from).and_then(|groups| match &flags.command {
        Action::Record { out, group, library } => record(&flags.root, &groups, group, library.as_deref(), out),
        Action::Run { pattern, library, all } => hold(&flags.root, &groups, pattern, library.as_deref(), *all),
        Action::Ptxas { program } => Ok(judge(&flags.root, program)?).map(|()| true),
        Action::Near => list_near(&flags.root),
        Action::Differing => differ(&flags.root),
        Action::Probe { name, library } => probe(&groups, name, library.as_deref()),
        Action::Show { name, rows } => show(&flags.root, &groups, name, *rows),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("katydid-forms: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the first line of a system command's output.
fn first_line_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

/// Records the answers of a GPU, and lists the cases that it refused.
fn record(root: &Path, groups: &[Group], only: &str, library: Option<&Path>, out: &Path) -> Result<bool, Failure> {
    let mut gpu = Gpu::open(library)?;
    let origin = Origin {
        device: gpu.name()?,
        driver: first_line_of("nvidia-smi", &["--query-gpu=driver_version", "--format=csv,noheader"]),
        date: first_line_of("date", &["-u", "+%Y-%m-%d"]),
    };
    for group in groups.iter().filter(|group| group.name.starts_with(only)) {
        let mut answers = RecordedAnswers::new(origin.clone());
        for case in &group.cases {
            let answer = if case.fault == 0 { gpu.ask(case)? } else { ask_in_process(root, case, library) };
            if !expected(case, &answer) {
                println!("{}: {answer:?}", case.name);
            }
            answers.keep(case, answer);
        }
        answers.write(&out.join(&group.name).with_extension("kept"))?;
        println!("{}: {} answers", group.name, answers.len());
    }
    Ok(true)
}

/// Prints the forms that are almost right.
fn list_near(root: &Path) -> Result<bool, Failure> {
    for form in near_misses(root)? {
        println!("{} {}", form.accepted, form.text);
    }
    Ok(true)
}

/// Lists where the interpreter and ptxas differ.
fn differ(root: &Path) -> Result<bool, Failure> {
    let forms = [header_forms(root)?, conversions(root)?, near_misses(root)?].concat();
    let lines = differing(&forms);
    lines.iter().for_each(|line| println!("{line}"));
    println!("{} forms, {} lines", forms.len(), lines.len());
    Ok(lines.is_empty())
}

/// Asks a case that fails in a process of its own: no new context can be had in one whose kernel failed.
fn ask_in_process(root: &Path, case: &Case, library: Option<&Path>) -> DeviceAnswer {
    let program = std::env::current_exe().unwrap_or_default();
    let mut command = Command::new(program);
    command.arg("--root").arg(root).args(["probe", &case.name]);
    if let Some(library) = library {
        command.arg("--library").arg(library);
    }
    let output = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let log = output.unwrap_or_else(|error| error.to_string());
    DeviceAnswer::Faulted { code: log.trim().parse().unwrap_or(u32::MAX), log }
}

/// Prints the code of a case that fails.
fn probe(groups: &[Group], name: &str, library: Option<&Path>) -> Result<bool, Failure> {
    let (_, case) = find(groups, name)?;
    // The failed launch already gives the answer. The device then gets no new context, which is why this is a separate process.
    match Gpu::open(library)?.ask(case)? {
        DeviceAnswer::Faulted { code, .. } => println!("{code}"),
        other => println!("{other:?}"),
    }
    Ok(true)
}

/// Returns a case by its name, with its group.
fn find<'a>(groups: &'a [Group], name: &str) -> Result<(&'a Group, &'a Case), Failure> {
    let entry = groups.iter().find_map(|group| Some((group, group.cases.iter().find(|case| case.name == name)?)));
    entry.ok_or_else(|| Failure::NoCase(name.to_owned()))
}

/// Returns whether an answer is what the author of the case expects. A refusal is worth a look.
fn expected(case: &Case, answer: &DeviceAnswer) -> bool {
    match answer {
        DeviceAnswer::Done(_) => case.fault == 0,
        DeviceAnswer::Faulted { code, .. } => *code == case.fault,
        DeviceAnswer::Refused { .. } => false,
    }
}

/// Compares answers, and lists all differences.
fn hold(root: &Path, groups: &[Group], pattern: &str, library: Option<&Path>, all: bool) -> Result<bool, Failure> {
    let mut device: Box<dyn Device> = match library {
        Some(path) => Box::new(Gpu::open(Some(path))?),
        None => Box::new(Interpreter),
    };
    let (mut asked_count, mut differing) = (0, 0);
    for group in groups {
        let answers = recorded(root, group)?;
        let cases = group.cases.iter().filter(|case| case.name.contains(pattern));
        for case in cases.filter(|case| library.is_some() || !case.needs_driver) {
            asked_count += 1;
            let got = match (case.fault, library) {
                (1.., Some(_)) => ask_in_process(root, case, library),
                _ => device.ask(case)?,
            };
            let known = answers.as_ref().and_then(|answers| answers.answer(case));
            let line = match known.map(|known| compare(case, known, &got)) {
                Some(Err(difference)) => {
                    differing += 1;
                    Some(difference.to_string())
                }
                None if !expected(case, &got) => Some(format!("not kept; {got:?}")),
                verdict => all.then(|| format!("{verdict:?}")),
            };
            if let Some(line) = line {
                println!("{}: {line}", case.name);
            }
        }
    }
    println!("{asked_count} asked, {differing} differ");
    Ok(differing == 0)
}

/// Prints a text, or rows.
fn show(root: &Path, groups: &[Group], name: &str, rows: bool) -> Result<bool, Failure> {
    let (group, case) = find(groups, name)?;
    if !rows {
        println!("{}", case.text);
        return Ok(true);
    }
    let answers = recorded(root, group)?;
    let got = Interpreter.ask(case)?;
    match (answers.as_ref().and_then(|answers| answers.answer(case)), &got) {
        (Some(DeviceAnswer::Done(recorded_output)), DeviceAnswer::Done(got)) => {
            written(case, recorded_output, got).iter().for_each(|row| println!("{row}"));
        }
        (recorded_answer, got) => println!("kept: {recorded_answer:?}\ngot: {got:?}"),
    }
    Ok(true)
}
