//! Programs that are measured as well as tested: of the kinds in Figures 4 to 7 of the Cricket paper.
//!
//! Each says of itself, in a line of JSON on standard error, how long it worked and what it copied (`tests/apps/common/measured.h`).
//! How many calls it made of the driver is what `katydid trace` counts.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::catalog::Variant;
use crate::deadline::Limit;
use crate::paths::Paths;
use crate::program::{self, Outcome, ProgramError};
use crate::way::Way;

/// What a program ends with that needs a library which the machine lacks.
const ABSENT_STATUS: i32 = 77;
/// Both versions of the call that finds a function by its name.
const LOOKING_UP: &str = "cuGetProcAddress";
/// The loader's search path.
const SEARCH_PATH_VARIABLE: &str = "LD_LIBRARY_PATH";

/// The middle of figures in any order, of an even number the middle between two; none of none.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (upper, lower) = (figures.len() / 2, figures.len().checked_sub(1)? / 2);
    Some(figures.get(lower)?.midpoint(*figures.get(upper)?))
}

/// One program, and of what kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its name in the catalogue.
    pub name: &'static str,
    /// Name of the program in tables.
    pub title: &'static str,
    /// It brings libraries of NVIDIA's to the device, which hold nothing that softcuda could run.
    pub needs_gpu: bool,
}

/// All of them, in the order of the table.
pub const MEASURED_PROGRAMS: [Program; 7] = [
    Program { name: "matmul_tiled", title: "matrix product, tiles", needs_gpu: false },
    Program { name: "nbody", title: "n-body", needs_gpu: false },
    Program { name: "eigenvalues", title: "eigenvalues, tridiagonal", needs_gpu: false },
    Program { name: "hot_spots", title: "heat of a chip, stencil", needs_gpu: false },
    Program { name: "euler_flow", title: "Euler equations, unstructured", needs_gpu: false },
    Program { name: "sparse_steps", title: "power grid, cuSOLVER", needs_gpu: true },
    Program { name: "bandwidth", title: "copies", needs_gpu: false },
];

/// How much a program has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As in the tests: for a device that is the CPU.
    Small,
    /// Seconds of a GPU's time at most.
    Large,
}

impl Size {
    /// Argument that makes the program take this size.
    pub fn word(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// What a program told of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigures {
    /// Seconds of its first call, which makes the context.
    pub start: f64,
    /// Seconds from there to the end of its work.
    pub work: f64,
    /// Bytes that it copied to the device.
    pub bytes_in: u64,
    /// Bytes that it copied back.
    pub bytes_out: u64,
    /// Bytes a second of each kind of copies; of the program of copies alone.
    pub rates: Vec<(String, f64)>,
}

/// Why a run has no figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The machine lacks a library.
    #[error("absent: {0}")]
    Absent(String),
    /// It failed a check of its own, or ended otherwise than it should.
    #[error("{0}")]
    Failed(String),
    /// It did not run at all, or not to its end.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It ended well, and told nothing that is understood.
    #[error("it told nothing that is understood: {0}")]
    Unclear(String),
}

/// Where programs are run.
#[derive(Debug, Clone)]
pub struct MeasurementSetup {
    /// The installed binaries and the programs.
    pub paths: Paths,
    /// What they have to do.
    pub size: Size,
    /// Folders of NVIDIA's libraries, for programs that need them.
    pub libraries: Vec<PathBuf>,
    /// Limit of the time of one run.
    pub limit: Limit,
}

impl MeasurementSetup {
    /// Runs a program on a way.
    ///
    /// # Errors
    ///
    /// See [`MeasureError`].
    pub fn run(&self, way: &Way, program: Program) -> Result<RunFigures, MeasureError> {
        let mut command = way.command(&self.paths, &self.binary(program));
        let outcome = self.outcome(&mut command, program)?;
        let errors = outcome.errors();
        first_report(&errors).ok_or(MeasureError::Unclear(errors))
    }

    /// Calls of the driver that a program makes on a way through Katydid, but for those by which its runtime looks up some 560
    /// functions before the first one.
    ///
    /// # Errors
    ///
    /// See [`MeasureError`].
    pub fn calls(&self, server: &str, program: Program) -> Result<u64, MeasureError> {
        let file = NamedTempFile::new().map_err(|error| MeasureError::Unclear(error.to_string()))?;
        let mut command = crate::commands::katydid(&self.paths, &["trace", "--no-gpu", "--server", server, "--json"]);
        command.arg(file.path()).arg("--");
        let outcome = self.outcome(command.arg(self.binary(program)), program)?;
        let trace = std::fs::read(file.path()).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        trace.as_ref().and_then(count_calls).ok_or_else(|| MeasureError::Unclear(outcome.errors()))
    }

    fn binary(&self, program: Program) -> PathBuf {
        self.paths.program(program.name, Variant::Static)
    }

    fn outcome(&self, command: &mut Command, program: Program) -> Result<Outcome, MeasureError> {
        command.arg(self.size.word());
        if program.needs_gpu {
            search_too(command, &self.libraries);
        }
        let outcome = program::run(command, self.limit)?;
        match outcome.status.code() {
            Some(0) => Ok(outcome),
            Some(ABSENT_STATUS) => Err(MeasureError::Absent(outcome.errors().trim().to_owned())),
            _ => Err(MeasureError::Failed(format!("{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors()))),
        }
    }
}

/// Lets the loader look into further folders, behind those that the command has already.
fn search_too(command: &mut Command, folders: &[PathBuf]) {
    let set = command.get_envs().find(|(name, _)| *name == SEARCH_PATH_VARIABLE).and_then(|(_, value)| value);
    let known: Vec<PathBuf> = set.map(|value| env::split_paths(value).collect()).unwrap_or_default();
    let all = known.iter().map(PathBuf::as_path).chain(folders.iter().map(PathBuf::as_path));
    // A folder with a colon in its name cannot be joined; the program then says what it misses.
    if let Ok(joined) = env::join_paths(all.filter(|folder| *folder != Path::new(""))) {
        command.env(SEARCH_PATH_VARIABLE, joined);
    }
}

/// The calls of a trace, without those that look functions up.
fn count_calls(trace: &Value) -> Option<u64> {
    let others = trace["functions"].as_array()?.iter().filter(|line| {
        let name = line["function"].as_str().unwrap_or_default();
        !name.starts_with(LOOKING_UP)
    });
    others.map(|line| line["calls"].as_u64()).sum()
}

/// The first line that a program wrote to standard error.
fn first_report(errors: &str) -> Option<RunFigures> {
    let json: Value = serde_json::from_str(errors.lines().next()?).ok()?;
    let number = |key: &str| json[key].as_f64();
    let rates = json.as_object()?.iter().filter(|(key, _)| key.starts_with("htod_") || key.starts_with("dtoh_"));
    Some(RunFigures {
        start: number("start")?,
        work: number("work")?,
        bytes_in: json["bytes_in"].as_u64()?,
        bytes_out: json["bytes_out"].as_u64()?,
        rates: rates.filter_map(|(key, value)| Some((key.clone(), value.as_f64()?))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn every_program_is_built() {
        let apps = catalog::apps().unwrap();
        for program in MEASURED_PROGRAMS {
            let app = apps.iter().find(|app| app.name == program.name).unwrap();
            assert!(app.travels() && app.variants().contains(&Variant::Static), "{}", program.name);
            // What runs on softcuda is a test by itself too.
            assert_eq!(app.is_test(), !program.needs_gpu, "{}", program.name);
        }
    }

    #[test]
    fn figures_parse_whatever_follows() {
        let line = r#"{"start":0.5,"work":2,"bytes_in":3,"bytes_out":4,"htod_pinned":5e10}"#;
        let expected = RunFigures {
            start: 0.5,
            work: 2.0,
            bytes_in: 3,
            bytes_out: 4,
            rates: vec![("htod_pinned".to_owned(), 5e10)],
        };
        assert_eq!(first_report(&format!("{line}\n{{\n  \"calls\": 3\n}}\n")), Some(expected));
        for bad in ["", "no JSON", "{}", r#"{"start":1,"work":1,"bytes_in":-1,"bytes_out":0}"#] {
            assert_eq!(first_report(bad), None, "{bad}");
        }
    }

    #[test]
    fn lookups_are_not_calls() {
        let trace = serde_json::json!({ "calls": 7, "functions": [
            { "function": "cuGetProcAddress_v2", "calls": 4 },
            { "function": "cuLaunchKernel", "calls": 2 },
            { "function": "cuInit", "calls": 1 },
        ]});
        assert_eq!(count_calls(&trace), Some(3));
        assert_eq!(count_calls(&serde_json::json!({ "functions": [{ "function": "cuInit" }] })), None);
    }

    #[test]
    fn further_folders_are_looked_into_last() {
        let mut command = Command::new("true");
        search_too(command.env(SEARCH_PATH_VARIABLE, "/a:/b"), &[PathBuf::from("/c")]);
        let value =
            command.get_envs().find(|(name, _)| *name == SEARCH_PATH_VARIABLE).and_then(|(_, value)| value).unwrap();
        assert_eq!(value, "/a:/b:/c");
    }
}
