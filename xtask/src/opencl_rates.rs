//! clpeak natively and through Katydid, in turns: what kernels reach, and the latency of launches.
//!
//! Of each figure the best of all rounds counts, since what disturbs makes everything slower.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::opencl as programs;
use katydid_tests::places::Places;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::output::line;

const ROUNDS: usize = 2;
/// Of one run.
const LIMIT: Duration = Duration::from_secs(40);
/// What is measured: kernels and launches. Copies are part of `katydid bench opencl`.
const ARGUMENTS: [&str; 4] = ["--global-bandwidth", "--compute-sp", "--compute-integer", "--kernel-latency"];
/// The section of the figure that is better when it is smaller.
const LATENCY: &str = "latency";

/// The program in a pack.
pub(crate) fn program(places: &Places) -> PathBuf {
    places.opencl().join("others/clpeak")
}

/// Measures, and says each figure with its ratio to the native one.
pub(crate) fn measure(places: &Places, server: &Server) -> Result<Value> {
    ensure!(program(places).exists(), "there is no clpeak in this pack");
    let native = Way::Direct { name: "native", folder: None };
    let ways: Vec<Way> = [native].into_iter().chain(Way::through(server)).collect();
    let mut best: Vec<BTreeMap<String, f64>> = vec![BTreeMap::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (way, best) in ways.iter().zip(&mut best) {
            for (key, figure) in run(places, way)? {
                let known = best.entry(key.clone()).or_insert(figure);
                *known = if key.contains(LATENCY) { known.min(figure) } else { known.max(figure) };
            }
        }
    }
    let [native, shm, tcp] = &best[..] else { return Ok(Value::Null) };
    let ratio = |key: &str, figure: f64, native: f64| {
        if key.contains(LATENCY) { native / figure } else { figure / native }
    };
    for (key, figure) in native {
        let of = |way: &BTreeMap<String, f64>| way.get(key).map_or(0.0, |other| ratio(key, *other, *figure));
        line(&format!("{key:<60} {figure:>12.2} native, shm {:.3}, tcp {:.3}", of(shm), of(tcp)));
    }
    Ok(json!({ "native": native, "shm": shm, "tcp": tcp }))
}

fn run(places: &Places, way: &Way) -> Result<BTreeMap<String, f64>> {
    let mut command: Command = way.command(places, &program(places));
    command.args(ARGUMENTS);
    match way {
        Way::Direct { .. } => drop(command.envs(programs::driver(places))),
        _ => drop(command.env("LD_LIBRARY_PATH", programs::libraries(places))),
    }
    let outcome = program::run(&mut command, LIMIT)?;
    ensure!(outcome.status.success(), "{way}: {}\n{}", outcome.ending(), outcome.errors());
    let figures = figures(&outcome.text());
    (!figures.is_empty()).then_some(figures).with_context(|| format!("no figures: {}", outcome.text()))
}

/// Numbers by section and name: `name : number`, below a line without a colon. Only those of the first device are read.
fn figures(text: &str) -> BTreeMap<String, f64> {
    let (mut figures, mut section) = (BTreeMap::new(), String::new());
    for line in text.lines().map(str::trim) {
        let Some((name, value)) = line.split_once(" : ") else {
            line.clone_into(&mut section);
            continue;
        };
        let number = value.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        let is_fact = ["Compute units", "Clock frequency", "Driver version"].contains(&name.trim());
        if let (Some(number), false) = (number, is_fact) {
            figures.entry(format!("{section}: {}", name.trim())).or_insert(number);
        }
    }
    figures
}

/// Where `cargo xtask test` has put the program.
pub(crate) fn fetched(target: &Path) -> PathBuf {
    target.join("opencl-programs/root/usr/bin/clpeak")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_with_their_sections() {
        let text = "\nPlatform: One\n  Device: Two\n    Driver version  : 3.1 (Linux x64)\n    Compute units   : 2\n\n    \
                    Global memory bandwidth (GBPS)\n      float   : 12.50\n      float2  : 13\n\n    No half precision support! Skipped\n\n    \
                    Kernel launch latency : 4.75 us\n";
        let read = figures(text);
        let of = |key: &str| read.get(key).copied();
        assert_eq!(of("Global memory bandwidth (GBPS): float"), Some(12.5));
        assert_eq!(of("Global memory bandwidth (GBPS): float2"), Some(13.0));
        assert_eq!((of(": Kernel launch latency"), read.len()), (Some(4.75), 3));
    }
}
