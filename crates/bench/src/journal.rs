//! What the journal costs, in two figures. The first is the processor time of the journal's notes, as a share of all
//! processor time of the worker for the same calls. The second compares the same work, in turns, through a worker with a
//! journal and a worker without one.
//!
//! The first figure decides. It times the notes alone, over enough of them that the time is exact; the worker's processor time is
//! exact for the same reason. It does not see what else a journal may do, to caches above all; the second figure does.
//!
//! The second figure uses pairs of programs. One program works for some milliseconds while the other waits, so a slow
//! machine slows both. A pair's cost is the median ratio of two adjacent turns. Where a program's memory happens to lie
//! makes more difference than a journal does, so there are many pairs. The figure is the median of all pairs, with its 95 %
//! confidence interval (by ranks, whatever the distribution).

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, thread};

use katydid_worker::BenchedCall;
use serde::Serialize;

use super::cuda::{Cuda, CudaError};
use super::empty_kernel::{EMPTY_KERNEL_NAME, EMPTY_KERNEL_PTX};
use super::figures::median;
use super::sampling::CALLS_PER_BATCH;
use super::sessions::Program;
use super::setup::{Setup, Way};
use crate::flags::BenchFlags;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::server::private_server::PrivateServer;

/// How long a program works at a time.
const ROUND_TIME: Duration = Duration::from_millis(5);
/// Pairs of programs; the second number is that of quick runs.
const PROGRAM_PAIRS: [u32; 2] = [24, 6];
/// How often each of a pair does each work.
const ROUNDS_PER_PAIR: u32 = 5;
/// Turns in which the worker's processor time is counted.
const ROUNDS_ALONE: u32 = 40;
/// How long workers of programs that have ended may take to end.
const WORKER_EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A thing to do once, what it is called in JSON, and what for people.
struct JournalWorkload {
    key: &'static str,
    name: &'static str,
    noted: BenchedCall,
    once: fn(&Cuda) -> Result<(), CudaError>,
}

const JOURNAL_WORKLOADS: [JournalWorkload; 3] = [
    JournalWorkload { key: "launch", name: "launches", noted: BenchedCall::Launch, once: Cuda::launch },
    JournalWorkload {
        key: "event",
        name: "events made and ended",
        noted: BenchedCall::Event,
        once: |cuda| cuda.new_event().map(drop),
    },
    JournalWorkload {
        key: "stream",
        name: "streams made and ended",
        noted: BenchedCall::Stream,
        once: |cuda| cuda.new_stream().map(drop),
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Time with a journal over time without: the median of all pairs, and the interval around it.
    ratio: f64,
    low: f64,
    high: f64,
    /// Nanoseconds of the notes of one call, and their share of the worker's processor time for it.
    notes_ns: f64,
    share: f64,
}

/// Costs by the key of a workload.
pub(super) type Costs = BTreeMap<&'static str, Cost>;

/// Runs one program of a pair. It runs the workload that a line on its standard input names, and prints the nanoseconds per call
/// and the number of calls.
pub(super) fn body(cuda: &mut Cuda) -> Outcome {
    let fail = |error| Failure::work(format!("cannot measure: {error}"));
    cuda.load(EMPTY_KERNEL_PTX, EMPTY_KERNEL_NAME).map_err(fail)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let work = JOURNAL_WORKLOADS.iter().find(|work| work.key == line);
        let work = work.ok_or_else(|| Failure::usage(format!("bench-body: {line}: no such work")))?;
        let (each, count) = measure_round(cuda, work.once).map_err(fail)?;
        writeln!(io::stdout(), "{each} {count}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the nanoseconds per call, with the worker's part, and the number of calls.
fn measure_round(cuda: &Cuda, once: fn(&Cuda) -> Result<(), CudaError>) -> Result<(f64, u32), CudaError> {
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < ROUND_TIME {
        (0..CALLS_PER_BATCH).try_for_each(|_| once(cuda))?;
        cuda.synchronize()?;
        count += CALLS_PER_BATCH;
    }
    Ok((start.elapsed().as_nanos() as f64 / f64::from(count), count))
}

/// Makes a program run a workload for one turn.
fn ask(program: &mut Program, work: &JournalWorkload) -> Result<(f64, u32), String> {
    let answer = program.ask(work.key)?;
    let parsed = answer.split_once(' ').and_then(|(each, count)| Some((each.parse().ok()?, count.parse().ok()?)));
    parsed.ok_or_else(|| format!("a program answered {answer:?}"))
}

/// Measures over shared memory, with two servers: one with a journal, one without.
pub(super) fn measure(driver: &str, layout: &Layout, quick: bool) -> Result<Costs, Failure> {
    let servers = [PrivateServer::start_with(driver, &[], None)?, PrivateServer::start_without_journal(driver)?];
    let mut pairs: [Vec<f64>; JOURNAL_WORKLOADS.len()] = Default::default();
    for _ in 0..PROGRAM_PAIRS[usize::from(quick)] {
        let ratios = pair(&servers, layout).map_err(Failure::work)?;
        pairs.iter_mut().zip(ratios).for_each(|(pairs, ratios)| pairs.extend(median(ratios)));
    }
    let worker_times = worker_nanoseconds(&servers[0], layout).map_err(Failure::work)?;
    servers.into_iter().for_each(PrivateServer::stop);
    let cost = |((work, pairs), worker_time): ((&JournalWorkload, _), f64)| {
        Some((work.key, Cost::of(pairs, work.noted.nanoseconds(), worker_time)?))
    };
    Ok(JOURNAL_WORKLOADS.iter().zip(pairs).zip(worker_times).filter_map(cost).collect())
}

/// Returns the processor time of a worker for each workload, in nanoseconds.
fn worker_nanoseconds(server: &PrivateServer, layout: &Layout) -> Result<[f64; JOURNAL_WORKLOADS.len()], String> {
    let mut program = start(server, layout)?;
    JOURNAL_WORKLOADS.iter().try_for_each(|work| ask(&mut program, work).map(drop))?;
    let worker = only_worker(server)?;
    let mut times = [0.0; JOURNAL_WORKLOADS.len()];
    for (work, time) in JOURNAL_WORKLOADS.iter().zip(&mut times) {
        let (time_before, mut count) = (processor_time(worker)?, 0);
        for _ in 0..ROUNDS_ALONE {
            count += ask(&mut program, work)?.1;
        }
        *time = (processor_time(worker)? - time_before) as f64 / f64::from(count);
    }
    Ok(times)
}

/// Returns the worker of the only program, once those of earlier ones have ended.
fn only_worker(server: &PrivateServer) -> Result<u32, String> {
    let end = Instant::now() + WORKER_EXIT_TIMEOUT;
    loop {
        match server.worker_pids()[..] {
            [worker] => return Ok(worker),
            _ if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            ref several => return Err(format!("the workers {several:?} do not end")),
        }
    }
}

/// Returns the run time of a process's present threads, in nanoseconds.
fn processor_time(process: u32) -> Result<u64, String> {
    let folder = format!("/proc/{process}/task");
    let of = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
    Ok(tasks.flatten().filter_map(of).sum::<u64>())
}

/// Measures only the journal, and prints the result.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let costs = measure(&flags.driver, &layout, flags.quick)?;
    if flags.json {
        document::write(&costs)?;
    } else {
        let mut out = io::stdout().lock();
        lines(&costs).into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a program that works for a turn on request.
fn start(server: &PrivateServer, layout: &Layout) -> Result<Program, String> {
    let (search, server) = (Some(layout.program_search()), Some(server.address().clone()));
    let setup = Setup { way: Way::Shm, search, server, stream: false };
    Program::start(&setup, &["--on-request"]).map_err(|error| error.to_string())
}

/// Runs a pair of programs, and returns the ratios of each workload. Which of them begins changes from turn to turn.
fn pair(servers: &[PrivateServer; 2], layout: &Layout) -> Result<[Vec<f64>; JOURNAL_WORKLOADS.len()], String> {
    let mut programs = [start(&servers[0], layout)?, start(&servers[1], layout)?];
    let mut samples: [Vec<f64>; JOURNAL_WORKLOADS.len()] = Default::default();
    for round in 0..=ROUNDS_PER_PAIR {
        for (work, ratios) in JOURNAL_WORKLOADS.iter().zip(&mut samples) {
            let mut times = [0.0; 2];
            for which in [round as usize % 2, (round as usize + 1) % 2] {
                times[which] = ask(&mut programs[which], work)?.0;
            }
            // The first turn is cold.
            if round > 0 {
                ratios.push(times[0] / times[1]);
            }
        }
    }
    Ok(samples)
}

impl Cost {
    /// Computes the cost. The bounds are the ranks below and above which the median of the rounds lies in 2.5 % of all cases
    /// each: 0.98 roots of the number from the middle.
    fn of(mut pairs: Vec<f64>, notes_ns: f64, taken_ns: f64) -> Option<Self> {
        pairs.sort_by(f64::total_cmp);
        let last = pairs.len().checked_sub(1)?;
        let low = ((last as f64 / 2.0 - 0.98 * (pairs.len() as f64).sqrt()).max(0.0)) as usize;
        let (ratio, low, high) = (pairs[pairs.len() / 2], pairs[low], pairs[last - low]);
        Some(Self { ratio, low, high, notes_ns, share: notes_ns / taken_ns })
    }
}

/// Returns lines for people: the notes' share of the worker's work, and the extra cost of each workload with a journal.
pub(super) fn lines(costs: &Costs) -> Vec<String> {
    let percent = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
    let share = |cost: &Cost| format!("{:.2} % ({:.1} ns)", cost.share * 100.0, cost.notes_ns);
    let added = |cost: &Cost| format!("{} % ({} to {})", percent(cost.ratio), percent(cost.low), percent(cost.high));
    let parts = |of: &dyn Fn(&Cost) -> String| {
        let parts =
            JOURNAL_WORKLOADS.iter().filter_map(|work| Some(format!("{} {}", work.name, of(costs.get(work.key)?))));
        parts.collect::<Vec<String>>().join(", ")
    };
    if costs.is_empty() {
        return Vec::new();
    }
    vec![
        format!("what the journal's notes are of the worker's processor time: {}", parts(&share)),
        format!("what a journal adds to the time of calls, over shared memory: {}", parts(&added)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_the_middle_of_all_pairs_between_the_bounds_of_chance() {
        let cost = Cost::of(vec![1.04, 1.0, 1.01, 1.03, 1.02], 10.0, 2000.0).unwrap();
        assert_eq!(cost, Cost { ratio: 1.02, low: 1.0, high: 1.04, notes_ns: 10.0, share: 0.005 });
        let of_many = Cost::of((0..=100).rev().map(f64::from).collect(), 0.0, 1.0).unwrap();
        assert_eq!(of_many, Cost { ratio: 50.0, low: 40.0, high: 60.0, notes_ns: 0.0, share: 0.0 });
        assert_eq!(Cost::of(Vec::new(), 1.0, 1.0), None);
        let lines = lines(&Costs::from([("event", cost)]));
        assert!(lines[0].ends_with("time: events made and ended 0.50 % (10.0 ns)"), "{lines:?}");
        assert!(lines[1].ends_with("memory: events made and ended +2.0 % (+0.0 to +4.0)"), "{lines:?}");
        assert!(super::lines(&Costs::new()).is_empty());
    }
}
