//! The output of `katydid bench`: a table, or JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::figures::{FIGURES, Figure, Idle, Timing, duration, median};
use super::journal::{self, Costs};
use super::machine;
use super::network::PLAIN_COPIES;
use super::sampling::{Outcomes, Report};
use super::setup::Way;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::probe::ProbedDriver;
use katydid_machine::Machine;

/// Copies to compare with plain ones of the same size.
const BULK_FIGURES: [&str; 4] = ["htod_64m_pageable", "htod_64m_pinned", "dtoh_64m_pageable", "dtoh_64m_pinned"];

/// The runs of all ways.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The driver, the same on all ways.
    driver: ProbedDriver,
    rounds: u32,
    /// One report per round, and those of measurements outside of rounds.
    runs: BTreeMap<Way, Vec<Report>>,
    /// Cost of keeping a journal.
    pub(super) journal: Costs,
}

/// Output of `--json`. Keys are only ever added.
#[derive(Serialize)]
struct Json<'a> {
    machine: Machine,
    driver: &'a ProbedDriver,
    runs: u32,
    figures: Vec<JsonFigure>,
    idle: BTreeMap<Way, Idle>,
    resident_after: BTreeMap<Way, u64>,
    journal: &'a Costs,
    /// Rates of large copies over TCP, by key, as a share of the best plain rate in the same run.
    of_path: BTreeMap<&'static str, f64>,
    /// Reasons for failed figures; figures that were left out have none.
    not_measured: Vec<String>,
}

/// One figure on all ways; null for a way that could not measure it.
#[derive(Serialize)]
struct JsonFigure {
    key: &'static str,
    name: &'static str,
    bytes: u64,
    ways: BTreeMap<Way, Option<Timing>>,
    /// Median over native's median.
    ratio: BTreeMap<Way, f64>,
}

impl Comparison {
    /// Returns a comparison without runs.
    pub(super) fn new(driver: ProbedDriver, ways: impl Iterator<Item = Way>) -> Self {
        Self { driver, rounds: 0, runs: ways.map(|way| (way, Vec::new())).collect(), journal: Costs::new() }
    }

    /// Returns the number of completed rounds.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Counts a completed round.
    pub(super) fn end_round(&mut self) {
        self.rounds += 1;
    }

    /// Adds a figure from outside of rounds: nanoseconds, or why there are none.
    pub(super) fn note(&mut self, way: Way, key: &str, samples: Result<Vec<f64>, String>) {
        let outcome = match samples.map(Timing::of) {
            Ok(Some(timing)) => Outcomes::Timing(timing),
            Ok(None) => Outcomes::Failed("no sample".to_owned()),
            Err(reason) => Outcomes::Failed(reason),
        };
        let figures = [(key.to_owned(), outcome)].into();
        self.add(way, Report { figures, idle: None, resident_after: None });
    }

    /// Adds the report of a run.
    pub(super) fn add(&mut self, way: Way, report: Report) {
        self.runs.entry(way).or_default().push(report);
    }

    /// Returns a figure of a way over all runs; `None` if it was not measured.
    fn timing(&self, way: Way, key: &str) -> Option<Timing> {
        let outcomes = self.runs.get(&way)?.iter().filter_map(|report| report.figures.get(key));
        let timings = outcomes.filter_map(|outcome| match outcome {
            Outcomes::Timing(timing) => Some(*timing),
            Outcomes::Failed(_) => None,
        });
        Timing::over_runs(&timings.collect::<Vec<_>>())
    }

    /// Returns the median over native's median; `None` for native itself, and if one of the two is missing.
    fn ratio(&self, way: Way, key: &str) -> Option<f64> {
        if way == Way::Native {
            return None;
        }
        Some(self.timing(way, key)?.median_ns / self.timing(Way::Native, key)?.median_ns)
    }

    /// Returns why figures are missing, each reason once.
    fn failures(&self) -> Vec<String> {
        let reports = self.runs.iter().flat_map(|(way, reports)| reports.iter().map(move |report| (way, report)));
        let failed = reports.flat_map(|(way, report)| {
            report.figures.iter().filter_map(move |(key, outcome)| match outcome {
                Outcomes::Failed(reason) => Some(format!("{}: {key}: {reason}", way.title())),
                Outcomes::Timing(_) => None,
            })
        });
        let mut lines: Vec<String> = failed.collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Returns the program's cost while idle: the median of memory, the worst of CPU.
    fn idle(&self, way: Way) -> Option<Idle> {
        let idle: Vec<Idle> = self.runs.get(&way)?.iter().filter_map(|report| report.idle).collect();
        let cpu_percent = idle.iter().map(|idle| idle.cpu_percent).max_by(f64::total_cmp)?;
        Some(Idle { cpu_percent, resident: middle(idle.iter().map(|idle| idle.resident))? })
    }

    /// Returns the resident memory after all measurements.
    fn resident_after(&self, way: Way) -> Option<u64> {
        middle(self.runs.get(&way)?.iter().filter_map(|report| report.resident_after))
    }

    /// Writes the table, the cost of an idle session, and what could not be measured.
    pub(super) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let device = self.driver.devices.first().map_or("no device", |(name, _)| name);
        writeln!(out, "driver {} ({device}); times are medians and 99th percentiles\n", self.driver.path.display())?;
        self.table().write(out)?;
        writeln!(out)?;
        for way in self.runs.keys() {
            if let Some(idle) = self.idle(*way) {
                let (title, cpu, resident) = (way.title(), idle.cpu_percent, Size(idle.resident));
                let after = self.resident_after(*way).map_or("-".to_owned(), |bytes| Size(bytes).to_string());
                writeln!(
                    out,
                    "idle program, {title}: {cpu:.2} % CPU, {resident} resident ({after} after all the copies)"
                )?;
            }
        }
        self.bulk().iter().chain(&journal::lines(&self.journal)).try_for_each(|line| writeln!(out, "{line}"))?;
        self.failures().iter().try_for_each(|line| writeln!(out, "not measured: {line}"))
    }

    /// Returns the rates of copies over TCP as shares of the path's own rate: the best plain one, over any number of connections.
    fn bulk(&self) -> Vec<String> {
        let (shares, Some((_, connections))) = (self.of_path(), self.path()) else { return Vec::new() };
        let name = |key: &str| FIGURES.iter().find(|figure| figure.key == key).map_or("", |figure| figure.name);
        let line = |(key, share): (&&str, &f64)| {
            let share = share * 100.0;
            format!("{} over TCP: {share:.0} % of the rate of plain copies ({connections} at a time)", name(key))
        };
        shares.iter().map(line).collect()
    }

    /// Returns the nanoseconds of the fastest plain copy, and its connections.
    fn path(&self) -> Option<(f64, usize)> {
        let plain = |(connections, key)| Some((self.timing(Way::Tcp, key)?.median_ns, connections));
        PLAIN_COPIES.into_iter().filter_map(plain).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Returns the rate of each large copy over TCP, as a share of the path's.
    fn of_path(&self) -> BTreeMap<&'static str, f64> {
        let Some((plain, _)) = self.path() else { return BTreeMap::new() };
        let share = |key: &'static str| Some((key, plain / self.timing(Way::Tcp, key)?.median_ns));
        BULK_FIGURES.into_iter().filter_map(share).collect()
    }

    /// Returns a row per figure: median and tail for each way, and the ratio if native was measured too.
    fn table(&self) -> Table {
        let mut columns = vec![("FIGURE".to_owned(), Align::Left)];
        for way in self.runs.keys() {
            columns.extend([(way.title().to_uppercase(), Align::Right), ("P99".to_owned(), Align::Right)]);
            if self.has_ratio(*way) {
                columns.push(("/ NATIVE".to_owned(), Align::Right));
            }
        }
        let columns: Vec<(&str, Align)> = columns.iter().map(|(title, align)| (title.as_str(), *align)).collect();
        let mut table = Table::new(&columns);
        FIGURES.iter().for_each(|figure| table.row(self.row(figure)));
        table
    }

    fn has_ratio(&self, way: Way) -> bool {
        way != Way::Native && self.runs.contains_key(&Way::Native)
    }

    fn row(&self, figure: &Figure) -> Vec<String> {
        let missing = || "-".to_owned();
        let mut cells = vec![figure.name.to_owned()];
        for way in self.runs.keys() {
            let timing = self.timing(*way, figure.key);
            cells.push(timing.map_or_else(missing, |timing| format_time(figure, timing.median_ns)));
            cells.push(timing.map_or_else(missing, |timing| duration(timing.p99_ns)));
            if self.has_ratio(*way) {
                cells.push(self.ratio(*way, figure.key).map_or_else(missing, |ratio| format!("{ratio:.2}")));
            }
        }
        cells
    }

    /// Returns all numbers, in nanoseconds and bytes.
    pub(super) fn json(&self) -> impl Serialize + '_ {
        Json {
            machine: machine::describe(&self.driver),
            driver: &self.driver,
            runs: self.rounds,
            figures: FIGURES.iter().map(|figure| self.json_figure(figure)).collect(),
            idle: self.runs.keys().filter_map(|way| Some((*way, self.idle(*way)?))).collect(),
            resident_after: self.runs.keys().filter_map(|way| Some((*way, self.resident_after(*way)?))).collect(),
            journal: &self.journal,
            of_path: self.of_path(),
            not_measured: self.failures(),
        }
    }

    fn json_figure(&self, figure: &Figure) -> JsonFigure {
        let ways = self.runs.keys().copied();
        JsonFigure {
            key: figure.key,
            name: figure.name,
            bytes: figure.bytes,
            ways: ways.clone().map(|way| (way, self.timing(way, figure.key))).collect(),
            ratio: ways.filter_map(|way| Some((way, self.ratio(way, figure.key)?))).collect(),
        }
    }
}

/// Returns the median of some numbers.
fn middle(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    median(numbers.map(|number| number as f64).collect()).map(|middle| middle as u64)
}

/// Formats a time, with the rate of large copies.
fn format_time(figure: &Figure, nanoseconds: f64) -> String {
    match figure.bytes {
        large if large >= 1 << 20 => format!("{} ({:.1} GB/s)", duration(nanoseconds), large as f64 / nanoseconds),
        _ => duration(nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn report(key: &str, median_ns: f64) -> Report {
        let timing = Outcomes::Timing(Timing { median_ns, p99_ns: median_ns * 2.0 });
        let failed = Outcomes::Failed("cuEventRecord: CUDA_ERROR_NOT_SUPPORTED".into());
        let figures = [(key.to_owned(), timing), ("event_record".to_owned(), failed)].into();
        Report { figures, idle: Some(Idle { cpu_percent: 0.0, resident: 8 << 20 }), resident_after: Some(9 << 20) }
    }

    fn comparison() -> Comparison {
        let driver = ProbedDriver {
            path: "/soft/libcuda.so.1".into(),
            soft: true,
            version: 13000,
            devices: vec![("softcuda".into(), 1 << 30)],
        };
        let mut comparison = Comparison::new(driver, [Way::Native, Way::Shm].into_iter());
        comparison.end_round();
        comparison.add(Way::Native, report("launch", 4000.0));
        comparison.add(Way::Shm, report("launch", 1000.0));
        comparison
    }

    #[test]
    fn ratios_are_to_native() {
        let mut text = Vec::new();
        comparison().write_table(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.starts_with("enqueue a launch")).unwrap();
        assert!(
            line.split_whitespace().eq("enqueue a launch 4.00 us 8.00 us 1.00 us 2.00 us 0.25".split(' ')),
            "{line}"
        );
        assert!(text.contains("idle program, katydid shm: 0.00 % CPU, 8 MiB resident (9 MiB after"), "{text}");
    }

    #[test]
    fn failed_measurements_are_listed_once() {
        let failures = comparison().failures();
        assert_eq!(failures.len(), 2);
        assert!(failures[1].contains("event_record: cuEventRecord: CUDA_ERROR_NOT_SUPPORTED"), "{failures:?}");
    }

    #[test]
    fn json_has_every_figure_and_the_ratios() {
        let comparison = comparison();
        let json: Value = serde_json::to_value(comparison.json()).unwrap();
        let figures = json["figures"].as_array().unwrap();
        assert_eq!(figures.len(), FIGURES.len());
        let launch = figures.iter().find(|figure| figure["key"] == "launch").unwrap();
        assert_eq!(launch["ratio"]["shm"], 0.25);
        assert_eq!(json["idle"]["native"]["resident"], 8 << 20);
    }

    #[test]
    fn large_copies_show_their_rate() {
        let copy = FIGURES.iter().find(|figure| figure.key == "htod_64m_pinned").unwrap();
        assert_eq!(format_time(copy, 1_342_177.28), "1.34 ms (50.0 GB/s)");
    }

    #[test]
    fn copies_over_tcp_are_held_against_plain_ones() {
        let mut comparison = comparison();
        assert!(comparison.bulk().is_empty());
        comparison.note(Way::Tcp, "plain_64m_1", Ok(vec![20.0]));
        comparison.note(Way::Tcp, "plain_64m_4", Ok(vec![9.0]));
        comparison.note(Way::Tcp, "dtoh_64m_pageable", Ok(vec![10.0]));
        comparison.note(Way::Tcp, "htod_64m_pageable", Err("no memory".to_owned()));
        assert_eq!(
            comparison.bulk(),
            ["DtoH 64 MiB pageable over TCP: 90 % of the rate of plain copies (4 at a time)"]
        );
        assert_eq!(comparison.of_path(), [("dtoh_64m_pageable", 0.9)].into());
    }
}
