//! The output of `katydid bench checkpoint`: a row per program and a row per size, as tables and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::native::Native;
use crate::figures::median;
use crate::machine;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::probe::ProbedDriver;
use katydid_machine::Machine;

/// One checkpoint, as reported by the command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct CheckpointFigures {
    /// Bytes of GPU memory in it.
    pub(super) content: u64,
    /// Bytes by which the image grew, as stored.
    pub(super) added: u64,
    /// Bytes of the processes' files.
    pub(super) files: u64,
    /// Time for which the program stood still.
    pub(super) stopped_us: u64,
    /// Duration of the checkpoint in the supervisor.
    pub(super) took_us: u64,
    /// Duration of the command, from start to end.
    pub(super) command_us: u64,
    /// Duration of each stage.
    pub(super) stages_us: serde_json::Value,
    /// Largest growth of host memory, if the program went on.
    pub(super) growth: Option<u64>,
}

/// A figure, or the reason why it is missing.
pub(super) type Measurement<T> = Result<T, String>;

/// A program that computes.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProgramRow {
    /// Name of the computation and its size.
    pub(super) program: String,
    /// Its checkpoints, which ended it, one per round.
    #[serde(rename = "taken")]
    pub(super) checkpoints: Vec<CheckpointFigures>,
    /// Its restores: from the command to an answer of the program, with a warm server.
    pub(super) restore_us: Vec<u64>,
    /// Reason why there are no more rounds.
    pub(super) missing: Option<String>,
}

/// All figures of one size.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SizeRow {
    /// Bytes that the program holds.
    pub(super) held: u64,
    /// The first checkpoint, into an empty image.
    #[serde(serialize_with = "measured")]
    pub(super) first: Measurement<CheckpointFigures>,
    /// The second one, after one chunk in a hundred has changed.
    #[serde(serialize_with = "measured")]
    pub(super) second: Measurement<CheckpointFigures>,
    /// Bytes of the changed chunks.
    pub(super) changed: u64,
    /// From the command to an answer of the program, with a warm server.
    #[serde(serialize_with = "measured")]
    pub(super) restore_us: Measurement<u64>,
    /// The first checkpoint of a program on a device without free memory.
    #[serde(serialize_with = "measured")]
    pub(super) crowded: Measurement<CheckpointFigures>,
    /// The native checkpoint, by the driver itself.
    #[serde(serialize_with = "measured")]
    pub(super) native: Measurement<Native>,
}

/// Serializes the figure itself, or `{"reason": …}`.
fn measured<T: Serialize, S: serde::Serializer>(it: &Measurement<T>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Missing<'a> {
        reason: &'a str,
    }
    match it {
        Ok(figure) => figure.serialize(serializer),
        Err(reason) => Missing { reason }.serialize(serializer),
    }
}

impl SizeRow {
    /// Returns a row without figures.
    pub(super) fn new(held: u64) -> Self {
        Self {
            held,
            first: Err(NOT_YET.to_owned()),
            second: Err(NOT_YET.to_owned()),
            changed: 0,
            restore_us: Err(NOT_YET.to_owned()),
            crowded: Err(NOT_YET.to_owned()),
            native: Err(NOT_YET.to_owned()),
        }
    }

    /// Notes the reason for the first missing figure of the two checkpoints and the restore.
    pub(super) fn fail(&mut self, reason: String) {
        let is_open = |missing: Option<&String>| missing.is_some_and(|reason| reason == NOT_YET);
        if self.first.is_err() {
            self.first = Err(reason);
        } else if self.second.is_err() {
            self.second = Err(reason);
        } else if is_open(self.restore_us.as_ref().err()) {
            self.restore_us = Err(reason);
        }
    }
}

/// Reason for figures after the one that failed.
const NOT_YET: &str = "what comes before it failed";

/// All figures, with machine and driver.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    machine: Machine,
    driver: &'a ProbedDriver,
    /// Kind of bytes that the holder of memory holds.
    content: &'static str,
    programs: Vec<ProgramRow>,
    rows: Vec<SizeRow>,
}

impl<'a> Report<'a> {
    /// The rows of both tables.
    pub(super) fn new(driver: &'a ProbedDriver, programs: Vec<ProgramRow>, rows: Vec<SizeRow>) -> Self {
        let machine = machine::describe(driver);
        Self { machine, driver, content: "noise, which nothing compresses; no two chunks are the same", programs, rows }
    }

    /// Writes the tables, and the reasons for missing figures.
    pub(super) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let device = self.driver.devices.first().map_or("no device", |(name, _)| name);
        writeln!(out, "driver {} ({device})\n", self.driver.path.display())?;
        writeln!(out, "Programs that compute; medians of the rounds. CHECKPOINT and RESTORE are the commands' times,")?;
        writeln!(out, "processes (CPU PART) included; a checkpoint ends the program. WRITTEN is what is stored.\n")?;
        let titles = ["ROUNDS", "CHECKPOINT", "STOP", "RESTORE", "GPU PART", "WRITTEN", "CPU PART"];
        let mut table = Table::new(&columns(&["PROGRAM"], &titles));
        self.programs.iter().for_each(|row| table.row(program_cells(row)));
        table.write(out)?;
        writeln!(out, "\nA program that holds memory: {}. It stands still", self.content)?;
        writeln!(
            out,
            "for the time of STOP. HOST: how far host memory grew; the memory of a software device is part.\n"
        )?;
        let titles = [
            "HELD",
            "STOP",
            "TOOK",
            "GPU PART",
            "CPU PART",
            "RATE",
            "HOST",
            "2ND STOP",
            "2ND TOOK",
            "CHANGED",
            "WRITTEN",
            "RESTORE",
            "CROWDED STOP",
            "NATIVE OUT",
            "NATIVE IN",
        ];
        let mut table = Table::new(&columns(&[], &titles));
        self.rows.iter().for_each(|row| table.row(cells(row)));
        table.write(out)?;
        let mut missing: Vec<String> = self.programs.iter().filter_map(why_fewer).collect();
        missing.extend(self.rows.iter().flat_map(reasons));
        missing.iter().try_for_each(|line| writeln!(out, "not measured: {line}"))
    }
}

fn columns<'t>(titles: &[&'t str], numbers: &[&'t str]) -> Vec<(&'t str, Align)> {
    let titles = titles.iter().map(|title| (*title, Align::Left));
    titles.chain(numbers.iter().map(|title| (*title, Align::Right))).collect()
}

fn program_cells(row: &ProgramRow) -> Vec<String> {
    let of = |figure: &dyn Fn(&CheckpointFigures) -> u64| {
        median(row.checkpoints.iter().map(|checkpoint| figure(checkpoint) as f64).collect())
    };
    let restored = median(row.restore_us.iter().map(|restore| *restore as f64).collect());
    let format_figure = |figure: Option<f64>, show: fn(u64) -> String| {
        figure.map_or_else(|| "-".to_owned(), |figure| show(figure as u64))
    };
    let size = |bytes: u64| Size(bytes).to_string();
    vec![
        row.program.clone(),
        row.checkpoints.len().to_string(),
        format_figure(of(&|it| it.command_us), time),
        format_figure(of(&|it| it.stopped_us), time),
        format_figure(restored, time),
        format_figure(of(&|it| it.content), size),
        format_figure(of(&|it| it.added), size),
        format_figure(of(&|it| it.files), size),
    ]
}

fn why_fewer(row: &ProgramRow) -> Option<String> {
    let reason = row.missing.as_ref()?;
    Some(format!("{}, round {}: {reason}", row.program, row.checkpoints.len() + 1))
}

fn cells(row: &SizeRow) -> Vec<String> {
    let first = |figure: &dyn Fn(&CheckpointFigures) -> String| format_figure(&row.first, figure);
    let second = |figure: &dyn Fn(&CheckpointFigures) -> String| format_figure(&row.second, figure);
    vec![
        Size(row.held).to_string(),
        first(&|it| time(it.stopped_us)),
        first(&|it| time(it.took_us)),
        first(&|it| Size(it.content).to_string()),
        first(&|it| Size(it.files).to_string()),
        first(&|it| format!("{:.1} GB/s", it.content as f64 / 1e3 / it.took_us.max(1) as f64)),
        first(&|it| it.growth.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string())),
        second(&|it| time(it.stopped_us)),
        second(&|it| time(it.took_us)),
        Size(row.changed).to_string(),
        second(&|it| Size(it.added).to_string()),
        format_figure(&row.restore_us, &|it| time(*it)),
        format_figure(&row.crowded, &|it| time(it.stopped_us)),
        format_figure(&row.native, &|it| time(it.out_us)),
        format_figure(&row.native, &|it| time(it.in_us)),
    ]
}

fn format_figure<T>(figure: &Measurement<T>, show: &dyn Fn(&T) -> String) -> String {
    figure.as_ref().map_or_else(|_| "-".to_owned(), show)
}

fn time(micros: u64) -> String {
    match micros {
        long if long >= 1_000_000 => format!("{:.2} s", long as f64 / 1e6),
        short => format!("{:.1} ms", short as f64 / 1e3),
    }
}

fn reasons(row: &SizeRow) -> Vec<String> {
    let rows = [
        ("checkpoint", row.first.as_ref().err()),
        ("second checkpoint", row.second.as_ref().err()),
        ("restore", row.restore_us.as_ref().err()),
        ("checkpoint without free memory", row.crowded.as_ref().err()),
        ("native", row.native.as_ref().err()),
    ];
    rows.into_iter().filter_map(|(what, reason)| Some(format!("{what}, {}: {}", Size(row.held), reason?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_figures() -> CheckpointFigures {
        CheckpointFigures {
            content: 1 << 30,
            added: 1 << 30,
            files: 3 << 20,
            stopped_us: 20_500,
            took_us: 1_500_000,
            command_us: 1_502_000,
            stages_us: serde_json::json!({"dump": 15_000}),
            growth: Some(64 << 20),
        }
    }

    fn row() -> SizeRow {
        SizeRow {
            first: Ok(sample_figures()),
            second: Ok(CheckpointFigures { added: 11 << 20, ..sample_figures() }),
            changed: 10 << 20,
            restore_us: Err("no CRIU".to_owned()),
            crowded: Ok(sample_figures()),
            native: Err("softcuda has no checkpoint of its own".to_owned()),
            ..SizeRow::new(1 << 30)
        }
    }

    fn program() -> ProgramRow {
        let [quick, slow] = [90_000, 140_000].map(|command_us| CheckpointFigures { command_us, ..sample_figures() });
        ProgramRow {
            program: "heat".to_owned(),
            checkpoints: vec![slow, quick.clone(), quick],
            restore_us: vec![200_000, 300_000, 210_000],
            missing: Some("interrupted".to_owned()),
        }
    }

    fn driver() -> ProbedDriver {
        ProbedDriver { path: "/soft/libcuda.so.1".into(), soft: true, version: 13000, devices: Vec::new() }
    }

    #[test]
    fn a_missing_figure_is_a_dash_with_a_reason() {
        let mut text = Vec::new();
        Report::new(&driver(), vec![program()], vec![row()]).write_table(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("20.5 ms") && text.contains("1.50 s") && text.contains("0.7 GB/s"), "{text}");
        assert!(text.contains("90.0 ms") && text.contains("210.0 ms"), "{text}");
        assert!(text.contains("not measured: restore, 1 GiB: no CRIU"), "{text}");
        assert!(text.contains("not measured: heat, round 4: interrupted"), "{text}");
    }

    #[test]
    fn json_has_figures_and_reasons() {
        let driver = driver();
        let report = Report::new(&driver, vec![program()], vec![row()]);
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["first"]["stopped_us"], 20_500);
        assert_eq!(json["rows"][0]["restore_us"]["reason"], "no CRIU");
        assert_eq!(json["programs"][0]["restore_us"][1], 300_000);
    }

    #[test]
    fn a_failure_belongs_to_the_first_figure_that_is_missing() {
        let mut late = SizeRow { first: Ok(sample_figures()), ..SizeRow::new(1) };
        late.fail("full".to_owned());
        assert_eq!((late.first.is_ok(), late.second.err().as_deref()), (true, Some("full")));
    }
}
