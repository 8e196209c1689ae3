//! `katydid bench` in its shortest form reports every promised figure on every way, whatever the times are, and
//! so do measured programs.

use std::process::Command;

use anyhow::{Result, ensure};
use katydid_tests::measured::{MEASURED_PROGRAMS, MeasurementSetup, Size};
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;
use serde_json::Value;

/// Parts that a quick run leaves out.
const LEFT_OUT: [&str; 5] = ["256m", "1g", "objects", "sessions_64", "plain"];
/// The reason given for these parts where the rest took too long, as on a busy machine.
const NO_TIME: &str = "there was no time left for it";

#[test]
fn a_quick_run_measures_everything_on_every_way() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let mut command = Command::new(paths.katydid());
    command.args(["bench", "--quick", "--rounds", "1", "--driver", "soft", "--json"]);
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "it failed: {}", outcome.text());
    let json: Value = serde_json::from_slice(&outcome.stdout)?;
    let lines = json["not_measured"].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    let failed: Vec<&str> = lines.filter(|line| !may_be_left_out(line)).collect();
    ensure!(json["not_measured"].is_array() && failed.is_empty(), "not measured: {failed:?}");
    let figures = json["figures"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(figures.len() > 60, "{} figures", figures.len());
    for figure in figures {
        let key = figure["key"].as_str().unwrap_or_default();
        let ways: &[&str] = match key {
            _ if LEFT_OUT.iter().any(|part| key.contains(part)) => continue,
            "by_hand_64m_8" => &["native"],
            "first_call_cold" | "sessions_1" | "sessions_8" => &["native", "shm"],
            _ => &["native", "shm", "unix", "tcp"],
        };
        for way in ways {
            let [median, p99] = ["median_ns", "p99_ns"].map(|number| figure["ways"][way][number].as_f64());
            let is_tail = median.zip(p99).is_some_and(|(median, p99)| median > 0.0 && p99 >= median);
            ensure!(is_tail, "{key} over {way}: median {median:?}, 99th percentile {p99:?}");
        }
    }
    let plain = figures.iter().filter(|figure| figure["ways"]["tcp"].is_object() && figure["key"] == "plain_64m_4");
    ensure!(plain.count() == 1, "no plain copy beside those over TCP");
    Ok(())
}

/// Whether a line leaves out a figure that takes seconds, for lack of time and not for an error.
fn may_be_left_out(line: &str) -> bool {
    line.ends_with(NO_TIME) && LEFT_OUT.iter().any(|part| line.contains(part))
}

/// The bench counts the calls of every program, and each program copies the same bytes on every way.
#[test]
fn programs_that_are_measured_tell_of_their_copies() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let direct = Way::Direct { name: "soft", folder: Some(paths.soft()) };
    let ground = MeasurementSetup { paths, size: Size::Small, libraries: Vec::new(), limit: WAIT_TIMEOUT.into() };
    for program in MEASURED_PROGRAMS.into_iter().filter(|program| !program.needs_gpu) {
        let natively = ground.run(&direct, program)?;
        ensure!(natively.work > 0.0 && natively.bytes_in > 0 && natively.bytes_out > 0, "{natively:?}");
        for way in Way::through(&server) {
            let figures = ground.run(&way, program)?;
            let same = (figures.bytes_in, figures.bytes_out) == (natively.bytes_in, natively.bytes_out);
            ensure!(same && figures.rates.len() == natively.rates.len(), "{}: {figures:?}", program.name);
        }
        // At least the calls for the context, memory, and copies there and back.
        let calls = ground.calls(&server.unix(), program)?;
        ensure!(calls > 5, "{}: {calls} calls", program.name);
    }
    Ok(())
}
