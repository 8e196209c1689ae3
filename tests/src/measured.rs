//! Programs that are measured as well as tested, of the kinds in Figures 4 to 7 of the Cricket paper.
//!
//! Each reports its working time and its copied bytes in a line of JSON on standard error (`tests/apps/common/measured.h`).
//! `katydid trace` counts its driver calls.

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

/// Exit status of a program that needs a library which the machine lacks.
const ABSENT_STATUS: i32 = 77;
/// Prefix of both versions of the function that looks up driver functions.
const LOOKING_UP: &str = "cuGetProcAddress";
/// The loader's search path.
const SEARCH_PATH_VARIABLE: &str = "LD_LIBRARY_PATH";

/// Returns the median; of an even number, the mean of the middle two; `None` without figures.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (upper, lower) = (figures.len() / 2, figures.len().checked_sub(1)? / 2);
    Some(figures.get(lower)?.midpoint(*figures.get(upper)?))
}

/// A measured program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its name in the catalog.
    pub name: &'static str,
    /// Name of the program in tables.
    pub title: &'static str,
    /// Whether it uses NVIDIA libraries on the device, whose code softcuda cannot run.
    pub needs_gpu: bool,
}

/// All measured programs, in the order of the table.
pub const MEASURED_PROGRAMS: [Program; 7] = [
    Program { name: "matmul_tiled", title: "matrix product, tiles", needs_gpu: false },
    Program { name: "nbody", title: "n-body", needs_gpu: false },
    Program { name: "eigenvalues", title: "eigenvalues, tridiagonal", needs_gpu: false },
    Program { name: "hot_spots", title: "heat of a chip, stencil", needs_gpu: false },
    Program { name: "euler_flow", title: "Euler equations, unstructured", needs_gpu: false },
    Program { name: "sparse_steps", title: "power grid, cuSOLVER", needs_gpu: true },
    Program { name: "bandwidth", title: "copies", needs_gpu: false },
];

/// The amount of work of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As in the tests: for a CPU as the device.
    Small,
    /// At most some seconds of GPU time.
    Large,
}

impl Size {
    /// Returns the argument that selects this size.
    pub fn word(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// The figures that a program reported of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigures {
    /// Seconds of its first call, which creates the context.
    pub start: f64,
    /// Seconds from there to the end of its work.
    pub work: f64,
    /// Bytes that it copied to the device.
    pub bytes_in: u64,
    /// Bytes that it copied back.
    pub bytes_out: u64,
    /// Bytes per second of each kind of copy; only from the copy program.
    pub rates: Vec<(String, f64)>,
}

/// Why a run has no figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The machine lacks a library.
    #[error("absent: {0}")]
    Absent(String),
    /// It failed its own check, or ended in an unexpected way.
    #[error("{0}")]
    Failed(String),
    /// It did not start, or did not finish.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It succeeded, but its report cannot be parsed.
    #[error("it told nothing that is understood: {0}")]
    Unclear(String),
}

/// Settings for running programs.
#[derive(Debug, Clone)]
pub struct MeasurementSetup {
    /// The installed binaries and the programs.
    pub paths: Paths,
    /// Amount of work.
    pub size: Size,
    /// Folders of NVIDIA's libraries, for programs that need them.
    pub libraries: Vec<PathBuf>,
    /// Limit of the time of one run.
    pub limit: Limit,
}

impl MeasurementSetup {
    /// Runs a program on a way, and returns its figures.
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

    /// Returns the number of a program's driver calls on a way through Katydid, without the lookups of some 560 functions that
    /// its runtime makes before the first one.
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

/// Appends further folders to the command's library search path.
fn search_too(command: &mut Command, folders: &[PathBuf]) {
    let set = command.get_envs().find(|(name, _)| *name == SEARCH_PATH_VARIABLE).and_then(|(_, value)| value);
    let known: Vec<PathBuf> = set.map(|value| env::split_paths(value).collect()).unwrap_or_default();
    let all = known.iter().map(PathBuf::as_path).chain(folders.iter().map(PathBuf::as_path));
    // Only a folder with a colon in its name cannot be joined; the program then reports what it misses.
    if let Ok(joined) = env::join_paths(all.filter(|folder| *folder != Path::new(""))) {
        command.env(SEARCH_PATH_VARIABLE, joined);
    }
}

/// Returns the number of calls in a trace, without function lookups.
fn count_calls(trace: &Value) -> Option<u64> {
    let others = trace["functions"].as_array()?.iter().filter(|line| {
        let name = line["function"].as_str().unwrap_or_default();
        !name.starts_with(LOOKING_UP)
    });
    others.map(|line| line["calls"].as_u64()).sum()
}

/// Parses the first line of a program's standard error.
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
            // A program that runs on softcuda is also a test itself.
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
