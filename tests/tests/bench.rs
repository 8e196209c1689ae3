//! `katydid bench` in its shortest form: every figure that it promises is there, on every way, whatever the times are.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use katydid_tests::places::Places;
use katydid_tests::program;
use serde_json::Value;

/// It takes ten seconds on two cores that have nothing else to do.
const PATIENCE: Duration = Duration::from_secs(900);
/// What a quick run leaves out.
const LEFT_OUT: [&str; 5] = ["256m", "1g", "objects", "sessions_64", "plain"];

#[test]
fn a_quick_run_measures_everything_on_every_way() -> Result<()> {
    let places = Places::of_this_test()?;
    let mut command = Command::new(places.katydid());
    command.args(["bench", "--quick", "--rounds", "1", "--driver", "soft", "--json"]);
    let outcome = program::run(&mut command, PATIENCE)?;
    ensure!(outcome.status.success(), "it failed: {}", outcome.text());
    let json: Value = serde_json::from_slice(&outcome.stdout)?;
    ensure!(json["not_measured"] == Value::Array(Vec::new()), "not measured: {}", json["not_measured"]);
    let figures = json["figures"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(figures.len() > 60, "{} figures", figures.len());
    for figure in figures {
        let key = figure["key"].as_str().unwrap_or_default();
        let ways: &[&str] = match key {
            _ if LEFT_OUT.iter().any(|part| key.contains(part)) => continue,
            "first_call_cold" | "sessions_1" | "sessions_8" => &["native", "shm"],
            _ => &["native", "shm", "unix", "tcp"],
        };
        for way in ways {
            let median = figure["ways"][way]["median_ns"].as_f64();
            ensure!(median.is_some_and(|median| median > 0.0), "{key} over {way}: {median:?}");
        }
    }
    let plain = figures.iter().filter(|figure| figure["ways"]["tcp"].is_object() && figure["key"] == "plain_64m_4");
    ensure!(plain.count() == 1, "no plain copy beside those over TCP");
    Ok(())
}
