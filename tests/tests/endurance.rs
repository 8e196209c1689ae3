//! Runs many sessions one after the other, and good ones beside hostile clients. Afterwards the server has as many descriptors,
//! threads and children, and as much memory, as before.
//!
//! `KATYDID_ENDURANCE_SESSIONS` sets the number of sessions. `KATYDID_ENDURANCE_MINUTES` sets how long good and hostile clients
//! run, and `KATYDID_ENDURANCE_GOOD` how many good ones run at a time.

#[path = "endurance/hostile.rs"]
mod hostile;
#[path = "support/peer.rs"]
mod peer;

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::opencl;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, children, descriptors, memory_files, resident_kib, runs, threads, until};
use katydid_tests::way::Way;

/// Default number of sessions.
const SESSION_COUNT: u64 = 36;
/// Allowed difference of memory, in KiB: an allocator keeps some, however often it is asked.
const SLACK_KIB: u64 = 2 << 10;

/// Resources of a server that has no session and whose worker is ready.
#[derive(Debug)]
struct HeldResources {
    descriptors: usize,
    memory_files: usize,
    threads: usize,
    children: usize,
    memory_kib: u64,
}

impl HeldResources {
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

    fn is_no_more_than(&self, earlier: &Self) -> bool {
        self.descriptors <= earlier.descriptors
            && self.memory_files <= earlier.memory_files
            && self.threads <= earlier.threads
            && self.children <= earlier.children
            && self.memory_kib <= earlier.memory_kib + SLACK_KIB
    }
}

/// Waits until the sessions are gone and one worker is ready for the next.
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
    let paths = Paths::of_this_test()?;
    let sessions = env::var("KATYDID_ENDURANCE_SESSIONS").map_or(Ok(SESSION_COUNT), |text| text.parse())?;
    let has_opencl = opencl::has_driver(&paths);
    let variables = if has_opencl { opencl::driver_without_cache(&paths) } else { Vec::new() };
    let server = Server::start_with(&paths, &driver_under_test(), &[], &variables)?;
    let [shm, tcp] = Way::through(&server);
    let ways = [shm, Way::as_stream(&server), tcp];
    let some = |count: u64| -> Result<()> {
        for number in 0..count {
            let way = &ways[(number % 3) as usize];
            let is_opencl = has_opencl && number % 6 >= 3;
            let path = match is_opencl {
                true => opencl::program(&paths, "vector_add"),
                false => paths.program("vector_add", Variant::Static),
            };
            let mut command = way.command(&paths, &path);
            if is_opencl {
                command.env("LD_LIBRARY_PATH", opencl::libraries(&paths));
            }
            let outcome =
                program::run(&mut command, WAIT_TIMEOUT).with_context(|| format!("session {number} over {way}"))?;
            ensure!(outcome.status.success(), "session {number} over {way}: {}", outcome.errors());
        }
        Ok(())
    };
    some(sessions / 3)?;
    settle(&server)?;
    let resources_before = HeldResources::by(&server);
    some(sessions - sessions / 3)?;
    settle(&server)?;
    let mut after = HeldResources::by(&server);
    // Threads that asked or supervised a worker may be about to end.
    let is_flat = until("the server holds no more", || {
        after = HeldResources::by(&server);
        after.is_no_more_than(&resources_before)
    });
    is_flat.with_context(|| format!("before: {resources_before:?}; after {sessions} sessions: {after:?}"))?;
    println!("{after:?}");
    Ok(())
}

/// Number of programs at a time beside the hostile clients.
const GOOD_SESSIONS: u64 = 3;
/// Rounds of each hostile client and each good one, unless a duration is set.
const ENDURANCE_ROUND_COUNT: u64 = 4;

/// The server's message when the machine was too busy to make a worker ready.
const NO_WORKER: &str = "no worker became ready";

/// How long clients go on.
struct StressRun {
    until: Option<Instant>,
    /// In a soak the machine may be too busy: a server that refuses a program in time has not failed.
    is_soak: bool,
    failed: AtomicBool,
    sessions: AtomicU64,
    /// Programs that the server refused in time because no worker was ready: the machine was too busy.
    refused: AtomicU64,
    attacks: AtomicU64,
}

impl StressRun {
    fn new(minutes: Option<u64>, is_soak: bool) -> Self {
        let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let [sessions, refused, attacks] = [(); 3].map(|()| AtomicU64::new(0));
        Self { until, is_soak, failed: AtomicBool::new(false), sessions, refused, attacks }
    }

    fn goes_on(&self, round: u64) -> bool {
        let is_time = self.until.map_or(round < ENDURANCE_ROUND_COUNT, |until| Instant::now() < until);
        is_time && !self.failed.load(Ordering::Relaxed)
    }
}

/// Runs programs on all ways, one after the other; each must end well.
fn good(paths: &Paths, ways: &[Way], number: u64, span: &StressRun) -> Result<()> {
    let mut round = 0;
    while span.goes_on(round) {
        let way = &ways[((number + round) % ways.len() as u64) as usize];
        let mut command = way.command(paths, &paths.program("vector_add", Variant::Static));
        // On a busier machine than expected, a server may take longer than a user would wait.
        command.env("KATYDID_CONNECT_TIMEOUT", "0s");
        let outcome = program::run(&mut command, WAIT_TIMEOUT).with_context(|| format!("over {way}"));
        let outcome = outcome.inspect_err(|_| span.failed.store(true, Ordering::Relaxed))?;
        if span.is_soak && outcome.errors().contains(NO_WORKER) {
            span.refused.fetch_add(1, Ordering::Relaxed);
        } else if !outcome.status.success() {
            span.failed.store(true, Ordering::Relaxed);
            anyhow::bail!("session {number}.{round} over {way}: {}\n{}", outcome.ending(), outcome.errors());
        } else {
            span.sessions.fetch_add(1, Ordering::Relaxed);
        }
        round += 1;
    }
    Ok(())
}

/// Repeats one kind of attack.
fn bad(attack: hostile::Attack, target: &hostile::Target, span: &StressRun) {
    let mut round = 0;
    while span.goes_on(round) {
        // The server may hang up at any moment.
        let _ = attack(target, round);
        span.attacks.fetch_add(1, Ordering::Relaxed);
        round += 1;
    }
}

/// Runs all attacks and good programs at once.
fn together(server: &Server, paths: &Paths, span: &StressRun, count: u64) -> Result<()> {
    let [shm, tcp] = Way::through(server);
    let ways: Vec<Way> = [shm, Way::as_stream(server), tcp].into_iter().chain(Way::tls(server)).collect();
    let target = hostile::Target::of(server, paths);
    thread::scope(|scope| {
        for attack in hostile::ATTACKS {
            let target = &target;
            scope.spawn(move || bad(attack, target, span));
        }
        let ways = &ways;
        let good: Vec<_> = (0..count).map(|number| scope.spawn(move || good(paths, ways, number, span))).collect();
        good.into_iter().try_for_each(|thread| {
            let outcome = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")));
            outcome.inspect_err(|_| span.failed.store(true, Ordering::Relaxed))
        })
    })
}

fn number(name: &str) -> Result<Option<u64>> {
    env::var(name).ok().map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}

#[test]
fn a_server_holds_no_more_after_hostile_clients_and_kills_beside_good_sessions() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let minutes = number("KATYDID_ENDURANCE_MINUTES")?;
    let count = number("KATYDID_ENDURANCE_GOOD")?.unwrap_or(GOOD_SESSIONS);
    let server = Server::start_tls(&paths, &driver_under_test(), &[])?;
    // Run once to warm up, since an allocator keeps what most sessions at once have used.
    together(&server, &paths, &StressRun::new(None, minutes.is_some()), count)?;
    settle(&server)?;
    let resources_before = HeldResources::by(&server);
    let span = StressRun::new(minutes, minutes.is_some());
    together(&server, &paths, &span, count)?;
    settle(&server)?;
    let mut after = HeldResources::by(&server);
    let is_flat = until("the server holds no more", || {
        after = HeldResources::by(&server);
        after.is_no_more_than(&resources_before)
    });
    let [sessions, refused, attacks] =
        [&span.sessions, &span.refused, &span.attacks].map(|n| n.load(Ordering::Relaxed));
    println!(
        "{sessions} sessions, {refused} refused, {attacks} attacks; before: {resources_before:?}; after: {after:?}"
    );
    ensure!(refused <= sessions / 10, "{refused} programs of {sessions} found no worker in time");
    is_flat.with_context(|| format!("before: {resources_before:?}; after: {after:?}"))?;
    Ok(())
}
