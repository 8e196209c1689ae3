//! Programs that lock their memory against swapping lock only as much of Katydid's memory as is in use.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// The most shared memory, in MiB, that a program of one thread may have locked. There is room for the replies of 1024 threads,
/// 1 MiB each.
const MAX_LOCKED_MIB: u64 = 128;
/// Command that starts a program without the right to lock more than 64 KiB.
const LIMITED: [&str; 5] =
    ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536"];

fn ways(server: &Server) -> [Way; 3] {
    let [shm, tcp] = Way::through(server);
    [shm, Way::as_stream(server), tcp]
}

fn locks(paths: &Paths, way: &Way) -> Command {
    let mut command = way.command(paths, &paths.program("fixture", Variant::Static));
    command.args(["locks", "5"]);
    command
}

/// Returns `command` with `prefix` as the command that starts it.
fn through(prefix: &[&str], command: &Command) -> Command {
    let mut whole = Command::new(prefix[0]);
    whole.args(&prefix[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole
}

#[test]
fn a_program_that_locks_its_memory_locks_what_is_in_use() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &[])?;
    for way in ways(&server) {
        let outcome = program::run(&mut locks(&paths, &way), WAIT_TIMEOUT)?;
        let text = outcome.text();
        let locked = text.strip_suffix(" MiB\n5\n").and_then(|number| number.parse::<u64>().ok());
        // A user without the right to lock memory has none locked.
        let is_little = locked.is_some_and(|locked| locked <= MAX_LOCKED_MIB) || text == "may not lock\n5\n";
        ensure!(outcome.status.success() && is_little, "{way}: {text}{}", outcome.errors());
    }
    Ok(())
}

#[test]
fn a_program_that_may_lock_nothing_runs() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &[])?;
    for way in ways(&server) {
        let mut command = through(&LIMITED, &locks(&paths, &way));
        let outcome = program::run(&mut command, WAIT_TIMEOUT).with_context(|| way.to_string())?;
        ensure!(outcome.text() == "may not lock\n5\n", "{way}: {}{}", outcome.text(), outcome.errors());
    }
    Ok(())
}
