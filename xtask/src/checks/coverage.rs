//! `cargo xtask coverage`: checks that a program under test calls every function of the driver API through Katydid.
//!
//! Each program runs once under `katydid trace` on softcuda, and its calls are compared with the table of
//! `docs/reference/api-coverage.md`. A function that softcuda has counts as called if it succeeded. A function that softcuda
//! lacks, or that always returns an error code, counts as soon as it is called. Functions that are refused are left out, and so
//! are the forms for per-thread default streams. A trace shows those under the names of the others. `own_streams` prints each one
//! that it has called, and a test here compares that list with the table.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App, Kind};
use katydid_tests::commands;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist, jobs};

/// Time without progress after which a traced program is given up (`katydid_tests::deadline`).
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(180);
/// Number of programs at a time: most wait more than they compute.
const PARALLEL_PROGRAMS: usize = 4;
/// Program that needs several devices, and the variable that sets how many softcuda shows.
const OF_SEVERAL: &str = "several_devices";
const DEVICES_VARIABLE: (&str, &str) = ("KATYDID_SOFT_DEVICES", "3");
/// Functions of softcuda that always return an error code. No array has planes there, and a variable's 32-bit address is refused
/// after a check of its name.
const NEVER_SUCCEED: [&str; 2] = ["cuArrayGetPlane", "cuModuleGetGlobal"];
/// Table with a row for each function.
const COVERAGE_TABLE: &str = include_str!("../../../docs/reference/api-coverage.md");
/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    name: &'static str,
    /// Whether the function counts only if a call succeeded.
    can_succeed: bool,
}

/// A function in a trace.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TracedFunction {
    name: String,
    succeeded: bool,
}

/// Builds everything needed, and fails if no program calls some function.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    dist::run(tree, false)?;
    apps::run(tree)?;
    check(tree)
}

/// Fails if no program calls some function.
pub(crate) fn check(tree: &Tree) -> Result<()> {
    step("tracing every program: which functions are called");
    let apps = catalog::apps()?;
    let traced = apps.iter().filter(|app| app.is_test() && app.kind != Kind::Mpi).collect();
    let called = called_functions(&tree.paths(), traced)?;
    let promised = rows(|row| !is_form(row));
    let missing: Vec<&str> = promised.iter().filter(|row| !is_called(row, &called)).map(|row| row.name).collect();
    line(&format!("{} of {} functions are called", promised.len() - missing.len(), promised.len()));
    if missing.is_empty() {
        return Ok(());
    }
    bail!("no program under test calls {}, with success where softcuda has it", missing.join(", "))
}

fn is_called(row: &Row, called: &BTreeSet<TracedFunction>) -> bool {
    called.iter().any(|it| it.name == row.name && (it.succeeded || !row.can_succeed))
}

/// Returns the functions that the programs call, several programs at a time.
fn called_functions(paths: &Paths, apps: Vec<&App>) -> Result<BTreeSet<TracedFunction>> {
    let of = |app: &App| calls(paths, app).with_context(|| format!("{} cannot be traced", app.name));
    let called: Vec<Vec<TracedFunction>> =
        jobs::each(apps, PARALLEL_PROGRAMS, of).into_iter().collect::<Result<_>>()?;
    Ok(called.into_iter().flatten().collect())
}

/// Returns the functions that a program calls.
fn calls(paths: &Paths, app: &App) -> Result<Vec<TracedFunction>> {
    let variant = app.variants().first().context("it has no variant")?;
    if let Some(why) = paths.why_not_built(&app.name, *variant) {
        bail!("{why}");
    }
    let file = NamedTempFile::new().context("cannot make a file for the trace")?;
    let mut command = commands::katydid(paths, &["trace", "--no-gpu", "--driver", "soft", "--json"]);
    command.arg(file.path()).arg("--");
    if app.name == OF_SEVERAL {
        command.env(DEVICES_VARIABLE.0, DEVICES_VARIABLE.1);
    }
    let outcome = program::run(command.arg(paths.program(&app.name, *variant)), PROGRAM_TIMEOUT)?;
    let trace = std::fs::read_to_string(file.path()).context("cannot read the trace")?;
    traced(&trace).with_context(|| format!("no trace: {}", outcome.errors()))
}

fn traced(trace: &str) -> Option<Vec<TracedFunction>> {
    let trace: Value = serde_json::from_str(trace).ok()?;
    let called = trace["functions"].as_array()?.iter().filter_map(|line| {
        let name = line["function"].as_str()?.to_owned();
        Some(TracedFunction { name, succeeded: line["calls"].as_u64()? > line["errors"].as_u64()? })
    });
    Some(called.collect())
}

/// Returns the functions that a program has to call: those that are not refused.
fn rows(is_wanted: fn(&str) -> bool) -> Vec<Row> {
    let lines = COVERAGE_TABLE.lines().filter_map(|line| line.strip_prefix("| cu").map(|_| line));
    let rows = lines.filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (name, class, is_soft) = (cells.next()?, cells.next()?, cells.nth(2)? == "yes");
        let has_code = class.contains(' ') || NEVER_SUCCEED.contains(&name);
        (class != "refused").then_some(Row { name, can_succeed: is_soft && !has_code })
    });
    rows.filter(|row| is_wanted(row.name)).collect()
}

/// Returns whether a function is a form for a per-thread default stream.
fn is_form(name: &str) -> bool {
    name.ends_with("_ptsz") || name.ends_with("_ptds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected output of the program of that name.
    const OWN_STREAMS: &str = include_str!("../../../tests/apps/streams/expected/own_streams.txt");

    #[test]
    fn refused_functions_and_forms_are_left_out() {
        let rows = rows(|name| !is_form(name));
        let find = |name| rows.iter().find(|row| row.name == name).map(|row| row.can_succeed);
        assert!(rows.len() > 450);
        assert_eq!([find("cuInit"), find("cuLaunchKernel"), find("cuProfilerStart")], [Some(true); 3]);
        assert_eq!([find("cuProfilerInitialize"), find("cuCheckpointProcessLock")], [Some(false); 2]);
        assert_eq!([find("cuLaunchKernel_ptsz"), find("cuGraphicsMapResources")], [None; 2]);
    }

    #[test]
    fn every_form_for_per_thread_default_streams_is_called() {
        let calls: BTreeSet<&str> = OWN_STREAMS.lines().filter(|line| line.starts_with("cu")).collect();
        let promised: BTreeSet<&str> = rows(is_form).iter().map(|row| row.name).collect();
        assert!(promised.len() > 90);
        assert_eq!(promised.difference(&calls).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn a_trace_tells_what_was_called_with_success() {
        let trace = "{\n  \"functions\": [{ \"function\": \"cuInit\", \"calls\": 2, \"errors\": 1 }, \
                    { \"function\": \"cuMemAlloc\", \"calls\": 1, \"errors\": 1 }],\n  \"calls\": 1\n}\n";
        let found: BTreeSet<TracedFunction> = traced(trace).unwrap().into_iter().collect();
        let row = |name, can_succeed| Row { name, can_succeed };
        assert!(is_called(&row("cuInit", true), &found) && is_called(&row("cuMemAlloc", false), &found));
        assert!(!is_called(&row("cuMemAlloc", true), &found) && !is_called(&row("cuMemFree", false), &found));
        assert_eq!(traced("nothing"), None);
    }
}
