//! `gpu-test programs`: programs of the kinds in Figures 4 to 7 of the Cricket paper, natively and through Katydid.
//!
//! Each round has one run of each way, so that a machine that slows down slows all of them. New rounds begin while there is time,
//! and each figure is the median over all rounds. Calls are counted once in a separate run, since counting takes time. On a
//! machine without a GPU, `--driver soft` runs the small form of each program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use katydid_tests::deadline::Limit;
use katydid_tests::measured::{MEASURED_PROGRAMS, MeasureError, MeasurementSetup, Program, RunFigures, Size, median};
use katydid_tests::paths::Paths;
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::gpu::frameworks::Options;
use crate::gpu::machine;
use crate::output::{line, step};
use crate::tables::reports::{self, COPY_KINDS};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// Default time for all programs, counting included.
const PROGRAMS_TIME_BUDGET: Duration = Duration::from_secs(210);
/// Largest number of rounds; more would hardly change a median.
const MAX_PROGRAM_ROUNDS: usize = 5;
/// Time limit of a program; one that takes longer hangs.
const WHOLE_PROGRAM_LIMIT: Limit = Limit::Budget(Duration::from_secs(60));
/// Script that asks a Python where its wheels have NVIDIA's libraries.
const FIND_WHEELS_SCRIPT: &str =
    "import glob, sysconfig; print('\\n'.join(glob.glob(sysconfig.get_paths()['purelib'] + '/nvidia/*/lib')))";
/// Known figures of the paper.
const CRICKET_NOTE: &str = "The paper on Cricket (P40, 2021) has 23 to 26 µs added to each call, and of native bandwidth 33 % kept \
                       (HtoD) and 42 % (DtoH), pageable. Its run times of each program are not at hand, and stand in no column.";

/// Runs the programs from a checkout, after building their prerequisites.
pub(crate) fn run_here(tree: &Tree, options: &Options) -> Result<ExitCode> {
    dist::run(tree, false)?;
    apps::run(tree)?;
    let report = env::var_os("OUT").map_or_else(|| tree.target.join("programs"), PathBuf::from);
    fs::create_dir_all(&report).with_context(|| format!("cannot make {}", report.display()))?;
    run(tree.paths(), &report, options)
}

/// Runs the programs from a pack.
pub(crate) fn run_packed(folder: &Path, report: &Path, options: &Options) -> Result<ExitCode> {
    run(Paths::of_pack(folder), report, options)
}

/// Results of one program: its calls, the figures of each run by way, and the reason if there are none.
struct Row {
    program: Program,
    calls: Option<u64>,
    rounds: Vec<Vec<RunFigures>>,
    missing: Option<MeasureError>,
}

fn run(paths: Paths, report: &Path, options: &Options) -> Result<ExitCode> {
    let start = Instant::now();
    let deadline = start + PROGRAMS_TIME_BUDGET.min(Duration::from_secs(options.within));
    let size = if options.is_soft() { Size::Small } else { Size::Large };
    let server = Server::start(&paths, &options.driver, &[])?;
    let [shm, tcp] = Way::through(&server);
    let native = Way::Direct { name: "native", folder: options.is_soft().then(|| paths.soft()) };
    let ways = [native, shm, tcp];
    let ground = MeasurementSetup { paths, size, libraries: wheels(options), limit: WHOLE_PROGRAM_LIMIT };
    let mut rows: Vec<Row> =
        MEASURED_PROGRAMS.iter().map(|program| count_row(&ground, &server, *program, options)).collect();
    let mut rounds = 0;
    while rounds < MAX_PROGRAM_ROUNDS {
        let started = Instant::now();
        rows.iter_mut().filter(|row| row.missing.is_none()).for_each(|row| one_round(&ground, &ways, row));
        rounds += 1;
        step(&format!("round {rounds}: {:.1} s", started.elapsed().as_secs_f64()));
        // Another round would take as long.
        if Instant::now() + started.elapsed() > deadline {
            break;
        }
    }
    let machine = machine::describe();
    let names: Vec<String> = ways.iter().map(ToString::to_string).collect();
    let figures: Vec<Value> = rows.iter().map(|row| as_json(row, &names)).collect();
    let all = json!({ "machine": machine, "size": size.word(), "rounds": rounds, "programs": figures });
    let text = text(&all, &rows)?;
    fs::write(report.join("programs.json"), serde_json::to_vec_pretty(&all)?).context("cannot write to the report")?;
    fs::write(report.join("programs.md"), &text).context("cannot write to the report")?;
    line(&text);
    let failed = rows.iter().filter(|row| row.missing.as_ref().is_some_and(|why| !is_absent(why))).count();
    line(&format!("{} programs, {failed} failed, {:.0} s", rows.len(), start.elapsed().as_secs_f64()));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_absent(error: &MeasureError) -> bool {
    matches!(error, MeasureError::Absent(_))
}

/// Returns where a Python's wheels have NVIDIA's libraries; nothing without such a Python.
fn wheels(options: &Options) -> Vec<PathBuf> {
    let python = options.python.clone().unwrap_or_else(|| PathBuf::from("python3"));
    let output = shell::read(Command::new(python).args(["-c", FIND_WHEELS_SCRIPT])).unwrap_or_default();
    output.lines().map(PathBuf::from).collect()
}

/// Returns a program with its calls, or with the reason why it is not measured.
fn count_row(ground: &MeasurementSetup, server: &Server, program: Program, options: &Options) -> Row {
    let counted = match program.needs_gpu && options.is_soft() {
        true => Err(MeasureError::Absent("softcuda runs PTX, which NVIDIA's libraries do not have".to_owned())),
        false => ground.calls(&server.unix(), program),
    };
    let (calls, missing) = match counted {
        Ok(calls) => (Some(calls), None),
        Err(why) => (None, Some(why)),
    };
    let summary = missing.as_ref().map_or_else(|| format!("{} calls", calls.unwrap_or(0)), ToString::to_string);
    line(&format!("{} ... {summary}", program.name));
    Row { program, calls, rounds: Vec::new(), missing }
}

/// Runs one round with each way. A failure ends the measurement of this program, whose ways could not be compared.
fn one_round(ground: &MeasurementSetup, ways: &[Way], row: &mut Row) {
    let result: Result<Vec<RunFigures>, MeasureError> = ways.iter().map(|way| ground.run(way, row.program)).collect();
    match result {
        Ok(figures) => row.rounds.push(figures),
        Err(why) => {
            line(&format!("{} ... {why}", row.program.name));
            row.missing = Some(why);
        }
    }
}

impl Row {
    /// Returns the median over the rounds of a figure of a way's runs.
    fn median(&self, way: usize, of: impl Fn(&RunFigures) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| round.get(way)).filter_map(of).collect())
    }

    fn work(&self, way: usize) -> Option<f64> {
        self.median(way, |figures| Some(figures.work))
    }

    /// Returns the seconds that a way adds to each call; negative if it saves time.
    fn added(&self, way: usize) -> Option<f64> {
        Some((self.work(way)? - self.work(0)?) / self.calls? as f64)
    }

    fn rate(&self, way: usize, key: &str) -> Option<f64> {
        self.median(way, |figures| figures.rates.iter().find(|(name, _)| name == key).map(|(_, rate)| *rate))
    }

    fn bytes(&self) -> Option<(u64, u64)> {
        self.rounds.first().and_then(|round| round.first()).map(|figures| (figures.bytes_in, figures.bytes_out))
    }
}

/// Returns the tables that pages have of such a report, and the reasons why programs have no figures.
fn text(report: &Value, rows: &[Row]) -> Result<String> {
    let machine = reports::table(report, "machine")?;
    let mut out = format!("{machine}Rounds: {}.\n\n{}", report["rounds"], reports::table(report, "programs")?);
    // A run of selected programs has no rates.
    if let Ok(rates) = reports::table(report, "bandwidth") {
        out += &format!("\n{rates}\n{CRICKET_NOTE}\n");
    }
    for row in rows {
        if let Some(why) = &row.missing {
            out += &format!("\n{}: {why}\n", row.program.name);
        }
    }
    Ok(out)
}

fn as_json(row: &Row, ways: &[String]) -> Value {
    let way = |(index, name): (usize, &String)| {
        let rates: serde_json::Map<String, Value> =
            COPY_KINDS.iter().filter_map(|(key, ..)| Some(((*key).to_owned(), json!(row.rate(index, key)?)))).collect();
        let start = row.median(index, |figures| Some(figures.start));
        let added = row.added(index).filter(|_| index > 0);
        let figures = json!({
            "first_call_s": start, "work_s": row.work(index), "added_to_a_call_s": added, "bytes_per_s": rates,
        });
        (name.clone(), figures)
    };
    let ways: serde_json::Map<String, Value> = ways.iter().enumerate().map(way).collect();
    json!({
        "program": row.program.name,
        "calls": row.calls,
        "bytes_in": row.bytes().map(|(into, _)| into),
        "bytes_out": row.bytes().map(|(_, out)| out),
        "ways": ways,
        "missing": row.missing.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(work: f64, rate: f64) -> RunFigures {
        let rates = vec![("htod_pinned".to_owned(), rate)];
        RunFigures { start: 0.1, work, bytes_in: 2_000_000, bytes_out: 0, rates }
    }

    fn row(rounds: &[[f64; 2]], calls: Option<u64>) -> Row {
        let figures = rounds.iter().map(|[native, shm]| vec![report_of(*native, 2e9), report_of(*shm, 1e9)]).collect();
        Row { program: MEASURED_PROGRAMS[0], calls, rounds: figures, missing: None }
    }

    #[test]
    fn overhead_of_a_way_is_reported_per_call() {
        let row = row(&[[1.0, 1.5], [1.1, 9.0], [1.2, 1.6]], Some(1_000_000));
        // The medians are 1.1 s and 1.6 s.
        assert!((row.added(1).unwrap() - 0.5e-6).abs() < 1e-12);
        let report = as_json(&row, &["native".to_owned(), "shm".to_owned()]);
        assert_eq!((&report["calls"], &report["bytes_in"]), (&json!(1_000_000), &json!(2_000_000)));
        assert_eq!(
            (&report["ways"]["shm"]["work_s"], &report["ways"]["native"]["added_to_a_call_s"]),
            (&json!(1.6), &Value::Null)
        );
        assert_eq!(report["ways"]["shm"]["bytes_per_s"]["htod_pinned"], json!(1e9));
    }

    #[test]
    fn a_program_without_figures_has_its_row_and_its_reason() {
        let mut row = row(&[], None);
        row.missing = Some(MeasureError::Absent("no library".to_owned()));
        let figures = as_json(&row, &["native".to_owned(), "shm".to_owned()]);
        let machine = json!({"gpu": "", "driver": "", "date": "", "kernel": "6.1", "processors": "2"});
        let text = text(&json!({"machine": machine, "rounds": 1, "programs": [figures]}), &[row]).unwrap();
        assert!(text.contains("\n| `") && text.contains("absent: no library"), "{text}");
    }
}
