//! The tables of `katydid trace`: one line a function, most time first, and one line for each kind of work on the GPU.

use std::collections::BTreeMap;
use std::io::{self, Write};

use katydid_client::trace::{Lookup, Trace, TracedCall};
use katydid_cuda_sys::{CUresult, Function};
use serde::Serialize;

use katydid_cli_core::output::table::{Align, Table};

/// Time that a program spent in CUDA.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TraceSummary {
    /// Functions, most total time first.
    functions: Vec<FunctionLine>,
    /// Number of calls of all functions.
    calls: u64,
    errors: u64,
    round_trips: u64,
    total_ns: u64,
    /// Work on the GPU, most time first.
    gpu: Vec<GpuWork>,
    /// Functions and tables that were looked up by name, in order of the names.
    lookups: Vec<LookupLine>,
    /// Processes that the trace covers.
    processes: Vec<TracedProcess>,
}

/// A function or private table that was looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct LookupLine {
    name: String,
    /// Version, as `cuGetProcAddress` takes it: 13020 for 13.2; 0 for a table.
    version: u32,
    is_found: bool,
    count: u64,
}

/// Work of one name on the GPU: a kernel, or the function that copies or fills.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
struct GpuWork {
    name: String,
    count: u64,
    bytes: u64,
    total_ns: u64,
    mean_ns: u64,
    max_ns: u64,
}

/// A process that the trace covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct TracedProcess {
    pid: u32,
    program: String,
    calls: usize,
    /// Number of calls that found no room in the trace.
    left_out: u64,
}

/// Time that the program spent in one function. Times are those of the caller, who waits; threads add up.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
struct FunctionLine {
    function: &'static str,
    calls: u64,
    /// Calls that returned an error. `CUDA_ERROR_NOT_READY` does not count: it is a query's negative answer.
    errors: u64,
    /// Answers of the worker that the function waited for: each is a round trip of the network, if there is one.
    round_trips: u64,
    total_ns: u64,
    mean_ns: u64,
    max_ns: u64,
}

impl FunctionLine {
    /// Adds a call. Sums that overflow stay at the largest number: 584 years of calls.
    fn add(&mut self, call: &TracedCall) {
        self.calls += 1;
        self.errors += u64::from(is_error(call.result));
        self.round_trips += u64::from(call.round_trips);
        self.total_ns = self.total_ns.saturating_add(call.duration);
        self.max_ns = self.max_ns.max(call.duration);
        self.mean_ns = self.total_ns / self.calls;
    }
}

/// Whether a code counts as an error: all but success and "not ready".
pub(super) fn is_error(result: u32) -> bool {
    ![CUresult::SUCCESS, CUresult::ERROR_NOT_READY].contains(&CUresult(result))
}

/// The name of a traced function; an unknown number comes from another build's trace.
pub(super) fn name(function: u16) -> &'static str {
    Function::from_number(function).map_or("(unknown)", Function::name)
}

/// Formats a CUDA version: 13.2 for 13020.
pub(super) fn describe_version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Name of a call's work on the GPU: the kernel's, or the function's.
pub(super) fn work_name(trace: &Trace, call: &TracedCall) -> String {
    let detail = trace.details.get(&(call.thread, call.start));
    let kernel = detail.and_then(|detail| detail.kernel.clone());
    kernel.unwrap_or_else(|| name(call.function).to_owned())
}

/// Work of all processes on the GPU, as far as it was timed.
fn gpu(traces: &[Trace]) -> Vec<GpuWork> {
    let mut works: BTreeMap<String, GpuWork> = BTreeMap::new();
    for trace in traces {
        for call in &trace.calls {
            let Some(detail) = trace.details.get(&(call.thread, call.start)) else { continue };
            let Some((_, took)) = detail.gpu else { continue };
            let name = work_name(trace, call);
            let work = works.entry(name.clone()).or_insert_with(|| GpuWork { name, ..GpuWork::default() });
            work.count += 1;
            work.bytes = work.bytes.saturating_add(detail.bytes.unwrap_or(0));
            work.total_ns = work.total_ns.saturating_add(took);
            work.max_ns = work.max_ns.max(took);
            work.mean_ns = work.total_ns / work.count;
        }
    }
    let mut works: Vec<GpuWork> = works.into_values().collect();
    works.sort_by(|one, other| (other.total_ns, &one.name).cmp(&(one.total_ns, &other.name)));
    works
}

/// Lookups of all processes.
fn lookups(traces: &[Trace]) -> Vec<LookupLine> {
    let mut counts: BTreeMap<&Lookup, u64> = BTreeMap::new();
    let all = traces.iter().flat_map(|trace| trace.details.values()).filter_map(|detail| detail.lookup.as_ref());
    all.for_each(|lookup| *counts.entry(lookup).or_default() += 1);
    let line = |(lookup, count): (&Lookup, u64)| LookupLine {
        name: lookup.name.clone(),
        version: lookup.version,
        is_found: lookup.is_found,
        count,
    };
    counts.into_iter().map(line).collect()
}

impl TraceSummary {
    /// Sums up all calls of all processes.
    pub(super) fn of(traces: &[Trace]) -> Self {
        let mut lines: BTreeMap<u16, FunctionLine> = BTreeMap::new();
        for call in traces.iter().flat_map(|trace| &trace.calls) {
            lines
                .entry(call.function)
                .or_insert_with(|| FunctionLine { function: name(call.function), ..FunctionLine::default() })
                .add(call);
        }
        let mut functions: Vec<FunctionLine> = lines.into_values().collect();
        functions.sort_by_key(|line| (std::cmp::Reverse(line.total_ns), line.function));
        let sum = |field: fn(&FunctionLine) -> u64| functions.iter().map(field).fold(0, u64::saturating_add);
        let [calls, errors] = [sum(|line| line.calls), sum(|line| line.errors)];
        let [round_trips, total_ns] = [sum(|line| line.round_trips), sum(|line| line.total_ns)];
        let process = |Trace { pid, program, calls, left_out, .. }: &Trace| TracedProcess {
            pid: *pid,
            program: program.clone(),
            calls: calls.len(),
            left_out: *left_out,
        };
        let processes = traces.iter().map(process).collect();
        Self { functions, calls, errors, round_trips, total_ns, gpu: gpu(traces), lookups: lookups(traces), processes }
    }

    /// Writes the table; times are in microseconds.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let numbers =
            ["CALLS", "ERRORS", "TRIPS", "TOTAL us", "MEAN us", "MAX us", "%"].map(|title| (title, Align::Right));
        let mut table = Table::new(&[[("FUNCTION", Align::Left)].as_slice(), &numbers].concat());
        self.functions.iter().for_each(|line| table.row(self.row(line)));
        table.write(out)?;
        let (calls, errors, trips, total) = (self.calls, self.errors, self.round_trips, micros(self.total_ns));
        writeln!(out, "{calls} calls, {errors} errors, {trips} round trips, {total} us inside CUDA")?;
        if !self.gpu.is_empty() {
            writeln!(out)?;
            self.write_gpu(out)?;
        }
        if self.lookups.iter().all(|line| line.is_found) {
            return Ok(());
        }
        writeln!(out)?;
        self.write_not_found(out)
    }

    /// Writes the table of failed lookups.
    fn write_not_found(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new(&[("NOT FOUND", Align::Left), ("VERSION", Align::Right), ("COUNT", Align::Right)]);
        for line in self.lookups.iter().filter(|line| !line.is_found) {
            let version = if line.version == 0 { "-".to_owned() } else { describe_version(line.version) };
            table.row(vec![line.name.clone(), version, line.count.to_string()]);
        }
        table.write(out)
    }

    /// Writes the table of the GPU's work.
    fn write_gpu(&self, out: &mut impl Write) -> io::Result<()> {
        let numbers = ["COUNT", "BYTES", "TOTAL us", "MEAN us", "MAX us"].map(|title| (title, Align::Right));
        let mut table = Table::new(&[[("ON THE GPU", Align::Left)].as_slice(), &numbers].concat());
        for work in &self.gpu {
            table.row(vec![
                work.name.clone(),
                work.count.to_string(),
                if work.bytes == 0 { "-".to_owned() } else { work.bytes.to_string() },
                micros(work.total_ns),
                micros(work.mean_ns),
                micros(work.max_ns),
            ]);
        }
        table.write(out)
    }

    /// A row of the table. Shares are of the time inside CUDA, not of the program's.
    fn row(&self, line: &FunctionLine) -> Vec<String> {
        let share = line.total_ns as f64 / self.total_ns.max(1) as f64 * 100.0;
        vec![
            line.function.to_owned(),
            line.calls.to_string(),
            line.errors.to_string(),
            line.round_trips.to_string(),
            micros(line.total_ns),
            micros(line.mean_ns),
            micros(line.max_ns),
            format!("{share:.1}"),
        ]
    }
}

/// Formats microseconds, in which CUDA calls have two to four digits.
fn micros(nanoseconds: u64) -> String {
    format!("{:.2}", nanoseconds as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use katydid_client::trace::Detail;

    use super::*;

    fn call(function: Function, duration: u64, result: u32) -> TracedCall {
        TracedCall { function: function.number(), thread: 1, start: 0, duration, result, round_trips: 2 }
    }

    fn traces() -> [Trace; 1] {
        let calls = vec![
            call(Function::cuInit, 3_000, 0),
            call(Function::cuMemAlloc_v2, 1_000, 0),
            call(Function::cuMemAlloc_v2, 6_000, 2),
            call(Function::cuStreamQuery, 500, 600),
        ];
        let details = [((1, 0), Detail { gpu: Some((0, 2_500)), kernel: Some("saxpy".into()), ..Detail::default() })];
        let (pid, program) = (7, "p".to_owned());
        [Trace { pid, program, wall_start: 0, start: 0, calls, left_out: 0, details: details.into() }]
    }

    #[test]
    fn calls_add_up_by_function_most_time_first() {
        let summary = TraceSummary::of(&traces());
        let names: Vec<_> = summary.functions.iter().map(|line| line.function).collect();
        assert_eq!(names, ["cuMemAlloc_v2", "cuInit", "cuStreamQuery"]);
        let (errors, round_trips, total_ns) = (1, 4, 7_000);
        let (function, mean_ns, max_ns) = ("cuMemAlloc_v2", 3_500, 6_000);
        let first = FunctionLine { function, calls: 2, errors, round_trips, total_ns, mean_ns, max_ns };
        assert_eq!(summary.functions[0], first);
        let sums = (summary.calls, summary.errors, summary.round_trips, summary.total_ns);
        assert_eq!(sums, (4, 1, 8, 10_500));
    }

    #[test]
    fn not_ready_query_is_not_an_error() {
        assert!(!is_error(600) && !is_error(0) && is_error(700));
    }

    #[test]
    fn the_table_shows_microseconds_and_shares() {
        let mut text = Vec::new();
        TraceSummary::of(&traces()).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(line, ["cuMemAlloc_v2", "2", "1", "4", "7.00", "3.50", "6.00", "66.7"]);
        assert!(text.contains("4 calls, 1 errors, 8 round trips, 10.50 us inside CUDA\n\nON THE GPU"), "{text}");
        assert!(text.lines().last().unwrap().starts_with("saxpy"), "{text}");
    }

    #[test]
    fn failed_lookups_have_their_own_table() {
        let lookup = |name: &str, version, is_found| Detail {
            lookup: Some(Lookup { name: name.to_owned(), version, is_found }),
            ..Detail::default()
        };
        let mut traces = traces();
        let lookups = [
            lookup("cuNew", 13_020, false),
            lookup("cuNew", 13_020, false),
            lookup("cuInit", 2_000, true),
            lookup("table OTHER", 0, false),
        ];
        traces[0].details.extend(lookups.into_iter().enumerate().map(|(at, detail)| ((2, at as u64), detail)));
        let summary = TraceSummary::of(&traces);
        let counts: Vec<_> = summary.lookups.iter().map(|line| (line.name.as_str(), line.count)).collect();
        assert_eq!(counts, [("cuInit", 1), ("cuNew", 2), ("table OTHER", 1)]);
        let mut text = Vec::new();
        summary.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().rev().take(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["table", "OTHER", "-", "1"]);
        assert_eq!((&lines[1][..], lines[2][0]), (&["cuNew", "13.2", "2"][..], "NOT"));
    }

    #[test]
    fn a_function_of_another_build_is_shown_as_unknown() {
        assert_eq!(name(u16::MAX), "(unknown)");
    }
}
