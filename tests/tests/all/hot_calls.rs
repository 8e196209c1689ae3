//! Costs of the most frequent calls, as far as they can be counted: allocations in the program's process.

use anyhow::{Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// Launches, event records, small copies both ways, and waits allocate nothing after a few calls of each, on any link.
#[test]
fn calls_that_are_made_often_allocate_nothing() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    for way in Way::through(&server).into_iter().chain([Way::as_stream(&server)]) {
        let mut command = way.command(&paths, &paths.program("hot_calls", Variant::Static));
        let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
        let text = outcome.text();
        let (counts, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with(" allocations"));
        ensure!(outcome.status.success() && rest == ["PASS hot_calls"], "{way}: {text}{}", outcome.errors());
        let none = counts.iter().filter(|line| line.ends_with(": 0 allocations")).count();
        ensure!(counts.len() == 6 && none == 6, "{way}:\n{text}");
    }
    Ok(())
}
