//! `cargo xtask coverage`: whether every function of the driver API is called by a program under test, through Katydid.
//!
//! Each program runs once under `katydid trace`, on softcuda, and what it called is held against the table of
//! `docs/api-coverage.md`. Functions that are refused are left out. So are the forms for per-thread default streams, which a
//! trace shows under the names of the others; `host_threads_ptds` and `copy_forms_ptds` call them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App, Kind};
use katydid_tests::places::Places;
use katydid_tests::program;
use katydid_tests::way;
use serde_json::Value;

use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist};

/// Longer than any program takes, traced and on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// A row a function.
const TABLE: &str = include_str!("../../docs/api-coverage.md");
/// How the trace begins, behind what the program itself wrote to standard error.
const TRACE: &str = "{\n  \"functions\"";

/// Fails when a function is called by no program.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    dist::run(tree, false)?;
    apps::run(tree)?;
    step("tracing every program");
    let mut called = BTreeSet::new();
    for app in catalog::apps()?.iter().filter(|app| app.is_test() && app.kind != Kind::Mpi) {
        called.extend(calls(&tree.places(), app).with_context(|| format!("{} cannot be traced", app.name))?);
    }
    let promised = promised();
    let missing: Vec<&str> = promised.iter().copied().filter(|name| !called.contains(*name)).collect();
    line(&format!("{} of {} functions are called", promised.len() - missing.len(), promised.len()));
    if missing.is_empty() { Ok(()) } else { bail!("no program calls {}", missing.join(", ")) }
}

/// The functions that a program calls.
fn calls(places: &Places, app: &App) -> Result<Vec<String>> {
    let variant = app.variants().first().context("it has no variant")?;
    let mut command = way::katydid(places, &["trace", "--json", "--driver", "soft", "--"]);
    let outcome = program::run(command.arg(places.program(&app.name, *variant)), LIMIT)?;
    traced(&outcome.errors()).with_context(|| format!("no trace in what it said: {}", outcome.errors()))
}

fn traced(errors: &str) -> Option<Vec<String>> {
    let trace = errors.get(errors.find(TRACE)?..)?;
    // What the server says at its end may follow.
    let trace: Value = serde_json::Deserializer::from_str(trace).into_iter().next()?.ok()?;
    let names = trace["functions"].as_array()?.iter().filter_map(|line| line["function"].as_str());
    Some(names.map(str::to_owned).collect())
}

/// The functions that somebody has to call.
fn promised() -> Vec<&'static str> {
    let rows = TABLE.lines().filter_map(|line| line.strip_prefix("| cu").map(|_| line));
    let cells = rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        Some((cells.next()?, cells.next()?))
    });
    let is_form = |name: &str| name.ends_with("_ptsz") || name.ends_with("_ptds");
    cells.filter(|(name, class)| *class != "refused" && !is_form(name)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_functions_and_forms_are_left_out() {
        let promised = promised();
        assert!(promised.len() > 450 && promised.contains(&"cuInit") && promised.contains(&"cuLaunchKernel"));
        assert!(!promised.contains(&"cuLaunchKernel_ptsz") && !promised.contains(&"cuGraphicsMapResources"));
    }

    #[test]
    fn a_trace_is_found_behind_other_words() {
        let said =
            "a word {\n{\n  \"functions\": [{ \"function\": \"cuInit\", \"calls\": 1 }],\n  \"calls\": 1\n}\nthe end\n";
        assert_eq!(traced(said), Some(vec!["cuInit".to_owned()]));
        assert_eq!(traced("nothing"), None);
    }
}
