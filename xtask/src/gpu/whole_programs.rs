//! `gpu-test programs`: programs of the kinds in Figures 4 to 7 of the Cricket paper, natively and through Katydid.
//!
//! The ways take turns within a round, so that a machine that slows down slows all of them; rounds are begun while time is
//! left, and each figure is the median over them. Calls are counted once, in a run of their own, since counting takes
//! time. On a machine without a GPU `--driver soft` runs the small form of each.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use katydid_tests::deadline::Limit;
use katydid_tests::measured::{Ground, NotMeasured, PROGRAMS, Program, Size, Told, median};
use katydid_tests::places::Places;
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::gpu::frameworks::Options;
use crate::gpu::machine;
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// All of it, counting included; less if the options say so.
const ALL: Duration = Duration::from_secs(210);
/// More rounds than this change no median by much.
const MOST_ROUNDS: usize = 5;
/// A program that takes longer hangs.
const LIMIT: Limit = Limit::Budget(Duration::from_secs(60));
/// Asks a Python where its wheels have NVIDIA's libraries.
const WHEELS: &str =
    "import glob, sysconfig; print('\\n'.join(glob.glob(sysconfig.get_paths()['purelib'] + '/nvidia/*/lib')))";
/// The kinds of copies: the key of each, its name, and what the paper says Cricket kept of it, in percent.
pub(crate) const COPIES: [(&str, &str, Option<f64>); 4] = [
    ("htod_pageable", "to the device, pageable", Some(33.0)),
    ("dtoh_pageable", "from the device, pageable", Some(42.0)),
    ("htod_pinned", "to the device, pinned", None),
    ("dtoh_pinned", "from the device, pinned", None),
];
/// What is known of the paper's figures.
const CRICKET: &str = "The paper on Cricket (P40, 2021) has 23 to 26 µs added to each call, and of native bandwidth 33 % kept \
                       (HtoD) and 42 % (DtoH), pageable. Its run times of each program are not at hand, and stand in no column.";

/// Runs them out of a checkout, after building what is needed.
pub(crate) fn run_here(tree: &Tree, options: &Options) -> Result<ExitCode> {
    dist::run(tree, false)?;
    apps::run(tree)?;
    let report = env::var_os("OUT").map_or_else(|| tree.target.join("programs"), PathBuf::from);
    fs::create_dir_all(&report).with_context(|| format!("cannot make {}", report.display()))?;
    run(tree.places(), &report, options)
}

/// Runs them out of a pack.
pub(crate) fn run_packed(folder: &Path, report: &Path, options: &Options) -> Result<ExitCode> {
    run(Places::of_pack(folder), report, options)
}

/// What is known of one program: its calls, what each run told by way, and why there is nothing.
struct Row {
    program: Program,
    calls: Option<u64>,
    told: Vec<Vec<Told>>,
    missing: Option<NotMeasured>,
}

fn run(places: Places, report: &Path, options: &Options) -> Result<ExitCode> {
    let begun = Instant::now();
    let deadline = begun + ALL.min(Duration::from_secs(options.within));
    let size = if options.is_soft() { Size::Small } else { Size::Large };
    let server = Server::start(&places, &options.driver, &[])?;
    let [shm, tcp] = Way::through(&server);
    let native = Way::Direct { name: "native", folder: options.is_soft().then(|| places.soft()) };
    let ways = [native, shm, tcp];
    let ground = Ground { places, size, libraries: wheels(options), limit: LIMIT };
    let mut rows: Vec<Row> = PROGRAMS.iter().map(|program| counted(&ground, &server, *program, options)).collect();
    let mut rounds = 0;
    while rounds < MOST_ROUNDS {
        let started = Instant::now();
        rows.iter_mut().filter(|row| row.missing.is_none()).for_each(|row| one_round(&ground, &ways, row));
        rounds += 1;
        step(&format!("round {rounds}: {:.1} s", started.elapsed().as_secs_f64()));
        // Another one would take as long.
        if Instant::now() + started.elapsed() > deadline {
            break;
        }
    }
    let machine = machine::describe();
    let names: Vec<String> = ways.iter().map(ToString::to_string).collect();
    let text = table(&machine, &names, &rows, rounds);
    let figures: Vec<Value> = rows.iter().map(|row| as_json(row, &names)).collect();
    let all = json!({ "machine": machine, "size": size.word(), "rounds": rounds, "programs": figures });
    fs::write(report.join("programs.json"), serde_json::to_vec_pretty(&all)?).context("cannot write to the report")?;
    fs::write(report.join("programs.md"), &text).context("cannot write to the report")?;
    line(&text);
    let failed = rows.iter().filter(|row| row.missing.as_ref().is_some_and(|why| !is_absent(why))).count();
    line(&format!("{} programs, {failed} failed, {:.0} s", rows.len(), begun.elapsed().as_secs_f64()));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_absent(why: &NotMeasured) -> bool {
    matches!(why, NotMeasured::Absent(_))
}

/// Where a Python's wheels have NVIDIA's libraries; nowhere without such a Python.
fn wheels(options: &Options) -> Vec<PathBuf> {
    let python = options.python.clone().unwrap_or_else(|| PathBuf::from("python3"));
    let said = shell::read(Command::new(python).args(["-c", WHEELS])).unwrap_or_default();
    said.lines().map(PathBuf::from).collect()
}

/// A program with its calls, or with the reason why it will not be measured.
fn counted(ground: &Ground, server: &Server, program: Program, options: &Options) -> Row {
    let counted = match program.needs_gpu && options.is_soft() {
        true => Err(NotMeasured::Absent("softcuda runs PTX, which NVIDIA's libraries do not have".to_owned())),
        false => ground.calls(&server.unix(), program),
    };
    let (calls, missing) = match counted {
        Ok(calls) => (Some(calls), None),
        Err(why) => (None, Some(why)),
    };
    let told = missing.as_ref().map_or_else(|| format!("{} calls", calls.unwrap_or(0)), ToString::to_string);
    line(&format!("{} ... {told}", program.name));
    Row { program, calls, told: Vec::new(), missing }
}

/// One run on each way; one that fails ends the measurement of this program, whose ways could not be compared.
fn one_round(ground: &Ground, ways: &[Way], row: &mut Row) {
    let told: Result<Vec<Told>, NotMeasured> = ways.iter().map(|way| ground.run(way, row.program)).collect();
    match told {
        Ok(told) => row.told.push(told),
        Err(why) => {
            line(&format!("{} ... {why}", row.program.name));
            row.missing = Some(why);
        }
    }
}

impl Row {
    /// The median over the rounds of a number that runs on a way told.
    fn median(&self, way: usize, of: impl Fn(&Told) -> Option<f64>) -> Option<f64> {
        median(self.told.iter().filter_map(|round| round.get(way)).filter_map(of).collect())
    }

    fn work(&self, way: usize) -> Option<f64> {
        self.median(way, |told| Some(told.work))
    }

    /// Seconds that a way adds to each call; less than nothing where it takes time away.
    fn added(&self, way: usize) -> Option<f64> {
        Some((self.work(way)? - self.work(0)?) / self.calls? as f64)
    }

    fn rate(&self, way: usize, key: &str) -> Option<f64> {
        self.median(way, |told| told.rates.iter().find(|(name, _)| name == key).map(|(_, rate)| *rate))
    }

    fn bytes(&self) -> Option<(u64, u64)> {
        self.told.first().and_then(|round| round.first()).map(|told| (told.bytes_in, told.bytes_out))
    }
}

/// The first way is the native one.
fn table(machine: &Value, ways: &[String], rows: &[Row], rounds: usize) -> String {
    let text = |key: &str| machine[key].as_str().filter(|text| !text.is_empty()).unwrap_or("none").to_owned();
    let mut out = format!("GPU {}, driver {}, {}, rounds: {rounds}\n\n", text("gpu"), text("driver"), text("date"));
    let others = ways.get(1..).unwrap_or_default();
    let titles: Vec<String> = ways.iter().map(|way| format!("{way}: first call + work, ms")).collect();
    let added: Vec<String> = others.iter().map(|way| format!("{way}: added to a call, µs")).collect();
    let head = [&titles[..], &added].concat();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "| program | calls | MB in | MB out | {} |", head.join(" | "));
    let _ = writeln!(out, "|---|{}", "---:|".repeat(head.len() + 3));
    for row in rows {
        let _ = writeln!(out, "{}", program_row(row, ways.len()));
    }
    out += "\nOf bandwidth, in GB/s and in percent of native:\n\n";
    let _ = writeln!(
        out,
        "| copies | {} | Cricket (paper, P40) |\n|---|{}",
        ways.join(" | "),
        "---:|".repeat(ways.len() + 1)
    );
    for (key, title, cricket) in COPIES {
        let cells: Vec<String> = (0..ways.len()).map(|way| rate_cell(rows, way, key)).collect();
        let cricket = cricket.map_or("-".to_owned(), |kept| format!("{kept:.0} %"));
        let _ = writeln!(out, "| {title} | {} | {cricket} |", cells.join(" | "));
    }
    let _ = writeln!(out, "\n{CRICKET}");
    for row in rows {
        if let Some(why) = &row.missing {
            let _ = writeln!(out, "\n{}: {why}", row.program.name);
        }
    }
    out
}

fn program_row(row: &Row, ways: usize) -> String {
    let told = |way: usize| {
        let (start, work) = (row.median(way, |told| Some(told.start))?, row.work(way)?);
        let ratio = row.work(0).filter(|_| way > 0).map_or(String::new(), |native| format!(" = {:.2}×", work / native));
        Some(format!("{:.1} + {:.1}{ratio}", start * 1e3, work * 1e3))
    };
    let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let mega = |bytes: Option<u64>| number(bytes.map(|bytes| bytes as f64 / 1e6), 2);
    let mut cells = vec![row.calls.map_or("-".to_owned(), |calls| calls.to_string())];
    cells.extend([mega(row.bytes().map(|(into, _)| into)), mega(row.bytes().map(|(_, out)| out))]);
    cells.extend((0..ways).map(|way| told(way).unwrap_or_else(|| "-".to_owned())));
    cells.extend((1..ways).map(|way| number(row.added(way).map(|added| added * 1e6), 2)));
    format!("| {} | {} |", row.program.title, cells.join(" | "))
}

fn rate_cell(rows: &[Row], way: usize, key: &str) -> String {
    let rate = |way| rows.iter().find_map(|row| row.rate(way, key));
    match (rate(way), rate(0)) {
        (Some(rate), Some(native)) if way > 0 => format!("{:.1} = {:.0} %", rate / 1e9, rate / native * 100.0),
        (Some(rate), _) => format!("{:.1}", rate / 1e9),
        (None, _) => "-".to_owned(),
    }
}

fn as_json(row: &Row, ways: &[String]) -> Value {
    let way = |(index, name): (usize, &String)| {
        let rates: serde_json::Map<String, Value> =
            COPIES.iter().filter_map(|(key, ..)| Some(((*key).to_owned(), json!(row.rate(index, key)?)))).collect();
        let start = row.median(index, |told| Some(told.start));
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

    fn told(work: f64, rate: f64) -> Told {
        let rates = vec![("htod_pinned".to_owned(), rate)];
        Told { start: 0.1, work, bytes_in: 2_000_000, bytes_out: 0, rates }
    }

    fn row(rounds: &[[f64; 2]], calls: Option<u64>) -> Row {
        let told = rounds.iter().map(|[native, shm]| vec![told(*native, 2e9), told(*shm, 1e9)]).collect();
        Row { program: PROGRAMS[0], calls, told, missing: None }
    }

    #[test]
    fn what_a_way_adds_is_told_for_each_call() {
        let row = row(&[[1.0, 1.5], [1.1, 9.0], [1.2, 1.6]], Some(1_000_000));
        // Medians: 1.1 s and 1.6 s.
        assert!((row.added(1).unwrap() - 0.5e-6).abs() < 1e-12);
        let text = program_row(&row, 2);
        assert!(text.contains("| 1000000 | 2.00 | 0.00 | 100.0 + 1100.0 | 100.0 + 1600.0 = 1.45× | 0.50 |"), "{text}");
        assert_eq!(rate_cell(&[row], 1, "htod_pinned"), "1.0 = 50 %");
    }

    #[test]
    fn a_program_without_figures_has_its_row_and_its_reason() {
        let mut row = row(&[], None);
        row.missing = Some(NotMeasured::Absent("no library".to_owned()));
        let text = table(&json!({}), &["native".to_owned(), "shm".to_owned()], &[row], 1);
        assert!(text.contains("| - | - | - | - | - | - |") && text.contains("absent: no library"), "{text}");
    }
}
