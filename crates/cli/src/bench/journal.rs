//! What the journal costs: the same work through a worker that keeps one and through a worker that does not, in turns.
//!
//! Two programs are there at a time, of which one works for some milliseconds while the other waits: what slows the machine
//! down slows both. A pair's cost is the median ratio of two turns that follow each other. Each program has its memory where
//! it happens to lie, which makes more of a difference than a journal does; so there are many pairs, and the figure is the
//! median of theirs, with the bounds between which it lies with a certainty of 95 % (by ranks, whatever the distribution).

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::body::BATCH;
use super::cuda::{Cuda, CudaError};
use super::figures::median;
use super::parts::{KERNEL, PTX};
use super::sessions::Program;
use super::{Setup, Way};
use crate::failure::{Failure, Outcome};
use crate::flags::BenchFlags;
use crate::layout::Layout;
use crate::private::PrivateServer;

/// How long a program works at a time.
const TURN: Duration = Duration::from_millis(5);
/// Pairs of programs; the second number is that of quick runs.
const PAIRS: [u32; 2] = [24, 6];
/// How often each of a pair does each work.
const TURNS: u32 = 5;
/// Bytes of an allocation: so many that no worker has them at hand.
const LARGE: usize = 256 << 20;

/// A thing to do once, what it is called in JSON, and what for people.
struct Work {
    key: &'static str,
    name: &'static str,
    once: fn(&Cuda) -> Result<(), CudaError>,
}

const WORKS: [Work; 4] = [
    Work { key: "launch", name: "launches", once: Cuda::launch },
    Work { key: "event", name: "events made and ended", once: |cuda| cuda.new_event().map(drop) },
    Work { key: "stream", name: "streams made and ended", once: |cuda| cuda.new_stream().map(drop) },
    Work { key: "memory", name: "memory allocated and freed", once: |cuda| cuda.free(cuda.allocate(LARGE)?) },
];

/// Time with a journal over time without: the median of all pairs, and between what it lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cost {
    ratio: f64,
    low: f64,
    high: f64,
}

/// By key of a work.
pub(super) type Costs = BTreeMap<&'static str, Cost>;

/// One of a pair: does the work that a line on its standard input names, and says how many nanoseconds it took each.
pub(super) fn body(cuda: &mut Cuda) -> Outcome {
    let fail = |error| Failure::work(format!("cannot measure: {error}"));
    cuda.load(PTX, KERNEL).map_err(fail)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let work = WORKS.iter().find(|work| work.key == line);
        let work = work.ok_or_else(|| Failure::usage(format!("bench-body: {line}: no such work")))?;
        writeln!(io::stdout(), "{}", turn(cuda, work.once).map_err(fail)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Nanoseconds each, what the worker does for it included.
fn turn(cuda: &Cuda, once: fn(&Cuda) -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < TURN {
        (0..BATCH).try_for_each(|_| once(cuda))?;
        cuda.synchronise()?;
        count += BATCH;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
}

/// Measures over shared memory, with a server for each of both.
pub(super) fn measure(driver: &str, layout: &Layout, quick: bool) -> Result<Costs, Failure> {
    let servers = [PrivateServer::start_with(driver, &[], None)?, PrivateServer::start_without_journal(driver)?];
    let mut pairs: [Vec<f64>; WORKS.len()] = Default::default();
    for _ in 0..PAIRS[usize::from(quick)] {
        let ratios = pair(&servers, layout).map_err(Failure::work)?;
        pairs.iter_mut().zip(ratios).for_each(|(pairs, ratios)| pairs.extend(median(ratios)));
    }
    servers.into_iter().for_each(PrivateServer::stop);
    Ok(WORKS.iter().zip(pairs).filter_map(|(work, pairs)| Some((work.key, Cost::of(pairs)?))).collect())
}

/// Measures nothing else, and says it.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let costs = measure(&flags.driver, &layout, flags.quick)?;
    let mut out = io::stdout().lock();
    if flags.json {
        serde_json::to_writer_pretty(&mut out, &costs).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        line(&costs).into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A pair of programs: the ratios of each work. Which of them begins changes from turn to turn.
fn pair(servers: &[PrivateServer; 2], layout: &Layout) -> Result<[Vec<f64>; WORKS.len()], String> {
    let start = |server: &PrivateServer| {
        let (search, server) = (Some(layout.program_search()), Some(server.address().clone()));
        Program::start(&Setup { way: Way::Shm, search, server, stream: false }, &["--turns"])
            .map_err(|error| error.to_string())
    };
    let mut programs = [start(&servers[0])?, start(&servers[1])?];
    let mut all: [Vec<f64>; WORKS.len()] = Default::default();
    for turn in 0..=TURNS {
        for (work, ratios) in WORKS.iter().zip(&mut all) {
            let mut taken = [0.0; 2];
            for which in [turn as usize % 2, (turn as usize + 1) % 2] {
                let answer = programs[which].ask(work.key)?;
                taken[which] = answer.parse().map_err(|_| format!("a program answered {answer:?}"))?;
            }
            // The first one finds everything cold.
            if turn > 0 {
                ratios.push(taken[0] / taken[1]);
            }
        }
    }
    Ok(all)
}

impl Cost {
    /// The bounds are those ranks below and above which a median of so many lies in 2.5 % of all cases each: 0.98 roots of
    /// the number from the middle.
    fn of(mut pairs: Vec<f64>) -> Option<Self> {
        pairs.sort_by(f64::total_cmp);
        let last = pairs.len().checked_sub(1)?;
        let low = ((last as f64 / 2.0 - 0.98 * (pairs.len() as f64).sqrt()).max(0.0)) as usize;
        Some(Self { ratio: pairs[pairs.len() / 2], low: pairs[low], high: pairs[last - low] })
    }
}

/// A line for people: what each work costs more than without a journal.
pub(super) fn line(costs: &Costs) -> Option<String> {
    let percent = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
    let parts = WORKS.iter().filter_map(|work| {
        let cost = costs.get(work.key)?;
        let (low, high) = (percent(cost.low), percent(cost.high));
        Some(format!("{} {} % ({low} to {high})", work.name, percent(cost.ratio)))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| format!("what the journal adds, over shared memory: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_the_middle_of_all_pairs_between_the_bounds_of_chance() {
        let cost = Cost::of(vec![1.04, 1.0, 1.01, 1.03, 1.02]).unwrap();
        assert_eq!(cost, Cost { ratio: 1.02, low: 1.0, high: 1.04 });
        let of_many = Cost::of((0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!(of_many, Cost { ratio: 50.0, low: 40.0, high: 60.0 });
        assert_eq!(Cost::of(Vec::new()), None);
        let costs = Costs::from([("event", cost)]);
        let line = line(&costs).unwrap();
        assert!(line.ends_with("events made and ended +2.0 % (+0.0 to +4.0)"), "{line}");
        assert_eq!(super::line(&Costs::new()), None);
    }
}
