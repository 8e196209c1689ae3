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
#[derive(Debug)]
struct Held {
    descriptors: usize,
    memory_files: usize,
    threads: usize,
    children: usize,
    memory_kib: u64,
}

impl Held {
    fn by(server: &Server) -> Self {
        let pid = server.pid();
        Self {
            descriptors: descriptors(pid),
            memory_files: memory_files(pid),
            threads: threads(pid),
            children: children(pid).len(),
            memory_kib: resident_kib(pid),
        }
    }

    fn is_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.memory_files <= before.memory_files
            && self.threads <= before.threads
            && self.children <= before.children
            && self.memory_kib <= before.memory_kib + SLACK
    }
}

/// Waits until the sessions are gone, and one worker is ready for the next.
fn settle(server: &Server) -> Result<()> {
    server.workers_of(0)?;
    let is_settled = || {
        let view = server.admin("/v1/server").unwrap_or_default();
        let is_ready = view["workers"]["ready"] == 1 && view["workers"]["warming"] == 0;
        is_ready && matches!(children(server.pid())[..], [worker] if runs(worker))
    };
    Ok(until("a worker is ready, and the others are reaped", is_settled)?)
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
    settle(&server)?;
    let before = Held::by(&server);
    some(sessions - sessions / 3)?;
    settle(&server)?;
    let mut after = Held::by(&server);
    // Whoever asked and whoever minded a worker may be about to be gone.
    let is_flat = until("the server holds no more", || {
        after = Held::by(&server);
        after.is_no_more_than(&before)
    });
    is_flat.with_context(|| format!("before: {before:?}; after {sessions} sessions: {after:?}"))?;
    println!("{after:?}");
    Ok(())
}
