//! Wrong addresses, wrong drivers and missing servers give one clear line and a nonzero status, and never hang.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::gate::SilentAddress;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

fn katydid(arguments: &[&str]) -> Result<Outcome> {
    let paths = Paths::of_this_test()?;
    let mut command = Command::new(paths.katydid());
    Ok(program::run(command.args(arguments), WAIT_TIMEOUT)?)
}

/// Checks that a CUDA program run with `options` fails, and that a line of standard error contains `word`.
fn run_fails(options: &[&str], word: &str) -> Result<()> {
    let paths = Paths::of_this_test()?;
    let fixture = paths.program("fixture", Variant::Static).to_string_lossy().into_owned();
    let outcome = katydid(&[&["run"], options, &["--", &fixture, "count", "1"]].concat())?;
    ensure!(!outcome.status.success(), "it succeeded: {}", outcome.text());
    let errors = outcome.errors();
    ensure!(errors.lines().any(|line| line.contains(word)), "no line names {word}:\n{errors}");
    ensure!(errors.lines().count() <= 2, "more than a line or two:\n{errors}");
    Ok(())
}

#[test]
fn a_socket_that_is_not_there_is_named() -> Result<()> {
    run_fails(&["--server", "unix:/nonexistent/katydid.sock"], "/nonexistent/katydid.sock")
}

#[test]
fn a_port_without_a_listener_is_named() -> Result<()> {
    let silence = SilentAddress::new()?;
    let address = silence.address().to_string();
    run_fails(&["--server", &format!("tcp://{address}")], &address)
}

#[test]
fn a_server_that_never_answers_is_given_up() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = silent.local_addr()?.to_string();
    run_fails(&["--server", &format!("tcp://{address}")], &address)
}

#[test]
fn invalid_address_is_a_usage_error() -> Result<()> {
    run_fails(&["--server", "carrier-pigeon:coop"], "carrier-pigeon")?;
    ensure!(katydid(&["run", "--server", "carrier-pigeon:coop", "--", "true"])?.status.code() == Some(2), "not 2");
    Ok(())
}

#[test]
fn a_driver_that_is_not_there_is_named() -> Result<()> {
    run_fails(&["--driver", "/nonexistent/libcuda.so.1"], "/nonexistent/libcuda.so.1")
}

#[test]
fn the_shim_itself_is_refused_as_a_driver() -> Result<()> {
    let shim = Paths::of_this_test()?.shim().join("libcuda.so.1").to_string_lossy().into_owned();
    run_fails(&["--driver", &shim], &shim)
}

#[test]
fn listening_beyond_loopback_needs_to_be_asked_for() -> Result<()> {
    let outcome = katydid(&["serve", "--listen", "tcp://0.0.0.0:0", "--driver", "soft"])?;
    let errors = outcome.errors();
    ensure!(!outcome.status.success() && errors.contains("--insecure"), "{}\n{errors}", outcome.ending());
    Ok(())
}

#[test]
fn a_program_that_is_not_there_gives_the_shells_status() -> Result<()> {
    let outcome = katydid(&["run", "--driver", "soft", "--", "/nonexistent/program"])?;
    ensure!(outcome.status.code() == Some(127) && outcome.errors().contains("/nonexistent/program"), "{outcome:?}");
    Ok(())
}

#[test]
fn the_status_of_the_program_is_the_status_of_run() -> Result<()> {
    let outcome = katydid(&["run", "--driver", "soft", "--", "sh", "-c", "echo said; exit 7"])?;
    ensure!(outcome.status.code() == Some(7) && outcome.text() == "said\n", "{outcome:?}");
    let outcome = katydid(&["run", "--driver", "soft", "--", "sh", "-c", "kill -TERM $$"])?;
    ensure!(outcome.status.code() == Some(128 + 15), "{outcome:?}");
    Ok(())
}

#[test]
fn a_shared_address_without_a_server_shows_as_a_cuda_error_in_the_program() -> Result<()> {
    // Without `katydid run`, like a program that finds the shim by itself.
    let paths = Paths::of_this_test()?;
    let way = Way::Direct { name: "shim", folder: Some(paths.shim()) };
    let mut command = way.command(&paths, &paths.program("fixture", Variant::Static));
    command.args(["count", "1"]).env("KATYDID_SERVER", "unix:/nonexistent/katydid.sock");
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(3) && outcome.text().starts_with("error "), "{outcome:?}");
    ensure!(outcome.errors().contains("/nonexistent/katydid.sock"), "{}", outcome.errors());
    Ok(())
}

#[test]
fn doctor_says_what_works_without_a_gpu() -> Result<()> {
    let outcome = katydid(&["doctor", "--json"])?;
    let found: serde_json::Value = serde_json::from_str(&outcome.text())?;
    ensure!(found.to_string().contains("soft"), "{found}");
    Ok(())
}

#[test]
fn trace_counts_the_calls_of_a_program_and_writes_a_timeline() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let folder = tempfile::tempdir()?;
    let timeline = folder.path().join("calls.json");
    let fixture = paths.program("fixture", Variant::Static).to_string_lossy().into_owned();
    let file = timeline.to_string_lossy().into_owned();
    let outcome = katydid(&["trace", "--driver", "soft", "-o", &file, "--", &fixture, "count", "25"])?;
    ensure!(outcome.status.success() && outcome.text() == "25\n", "{outcome:?}");
    let row = outcome.errors().lines().find(|line| line.contains("cuLaunchKernel")).map(str::to_owned);
    // Columns are function, calls, errors and round trips. No launch waits for the worker.
    let words: Vec<&str> = row.iter().flat_map(|row| row.split_whitespace()).collect();
    ensure!(words.get(1..4) == Some(&["25", "0", "0"]), "{}", outcome.errors());
    ensure!(outcome.errors().contains(" round trips, "), "{}", outcome.errors());
    ensure!(row.as_ref().is_some_and(|row| row.split_whitespace().any(|word| word == "25")), "{}", outcome.errors());
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(&timeline)?)?;
    let text = events.to_string();
    ensure!(
        text.matches("cuLaunchKernel").count() >= 25,
        "the timeline has {} launches",
        text.matches("cuLaunchKernel").count()
    );
    Ok(())
}
