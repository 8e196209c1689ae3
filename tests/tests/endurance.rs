//! Many sessions, one after the other: a server has as many descriptors, threads, children and as much memory after them as
//! before. `KATYDID_ENDURANCE_SESSIONS` has more of them.

use std::env;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::opencl;
use katydid_tests::places::{Places, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::{PATIENCE, children, descriptors, memory_files, resident_kib, runs, threads, until};
use katydid_tests::way::Way;

/// Sessions unless told otherwise.
const SESSIONS: u64 = 36;
/// What memory may differ by, in KiB: an allocator keeps some, however often it is asked.
const SLACK: u64 = 2 << 10;

/// What a server holds while it has no session and its worker is ready.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    memory_files: usize,
    threads: usize,
    children: usize,
}

fn held(server: &Server) -> Result<(Held, u64)> {
    server.workers_of(0)?;
    let pid = server.pid();
    let is_settled = || {
        let view = server.admin("/v1/server").unwrap_or_default();
        view["workers"]["ready"] == 1 && view["workers"]["warming"] == 0 && children(pid).into_iter().all(runs)
    };
    until("a worker is ready, and the others are reaped", is_settled)?;
    let now = || Held {
        descriptors: descriptors(pid),
        memory_files: memory_files(pid),
        threads: threads(pid),
        children: children(pid).len(),
    };
    // Whoever asked and whoever minded a worker is about to be gone.
    let mut last = now();
    until("it stays as it is", || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let before = std::mem::replace(&mut last, now());
        before == last && last.children == 1
    })?;
    Ok((last, resident_kib(pid)))
}

#[test]
fn a_server_holds_no_more_after_many_sessions_than_after_a_few() -> Result<()> {
    let places = Places::of_this_test()?;
    let sessions = env::var("KATYDID_ENDURANCE_SESSIONS").map_or(Ok(SESSIONS), |text| text.parse())?;
    let has_opencl = opencl::has_driver(&places);
    let variables = if has_opencl { opencl::driver(&places) } else { Vec::new() };
    let server = Server::start_with(&places, &driver_under_test(), &[], &variables)?;
    let [shm, tcp] = Way::through(&server);
    let ways = [shm, Way::as_stream(&server), tcp];
    let some = |count: u64| -> Result<()> {
        for number in 0..count {
            let way = &ways[(number % 3) as usize];
            let is_opencl = has_opencl && number % 6 >= 3;
            let path = match is_opencl {
                true => opencl::program(&places, "vector_add"),
                false => places.program("vector_add", Variant::Static),
            };
            let mut command = way.command(&places, &path);
            if is_opencl {
                command.env("LD_LIBRARY_PATH", opencl::libraries(&places));
            }
            let outcome =
                program::run(&mut command, PATIENCE).with_context(|| format!("session {number} over {way}"))?;
            ensure!(outcome.status.success(), "session {number} over {way}: {}", outcome.errors());
        }
        Ok(())
    };
    some(sessions / 3)?;
    let (before, memory_before) = held(&server)?;
    some(sessions - sessions / 3)?;
    let (after, memory_after) = held(&server)?;
    ensure!(before == after, "{before:?} before, {after:?} after {sessions} sessions");
    ensure!(memory_after <= memory_before + SLACK, "{memory_before} KiB before, {memory_after} KiB after");
    println!("{after:?}, {memory_before} and {memory_after} KiB");
    Ok(())
}
