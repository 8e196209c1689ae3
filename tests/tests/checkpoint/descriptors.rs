//! Descriptors of which CRIU saves a part: leases, watches, unread datagrams, peers of sockets. For each kind, a program opens
//! some in the middle of its steps, and checks at its end that they are unchanged.

use std::fs;
use std::os::fd::AsRawFd;

use anyhow::{Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::Job;
use katydid_tests::paths::Paths;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::geteuid;

use crate::scenarios::{Scenario, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe};

const PROGRAM: (&str, Variant) = ("open_descriptors", Variant::Static);
/// A frame in the middle of the program's steps.
const MIDDLE: u64 = 40;
const KINDS_KEPT: [&str; 5] = ["leases", "inherited", "senders", "watches", "peers"];
/// Refused kinds, words of the refusal, and whether they need root. Two of them go on between tries, so by the last one they
/// may have read everything and ended.
const REFUSED: [(&str, &str, bool); 8] = [
    ("semaphore", "has an eventfd of the kind EFD_SEMAPHORE", false),
    ("counter", "has an eventfd that counts more than 32 bits hold", false),
    ("messages", "has a queue of POSIX messages open", false),
    ("alarm", "has a timerfd of an alarm clock", true),
    ("deadline", "has a thread with a deadline (SCHED_DEADLINE)", true),
    ("marks", "watches a whole file system", true),
    ("empty", "no checkpoint", false),
    ("queued", "no checkpoint", false),
];

const ON_EVERY_WAY: [(&str, Scenario); 2] = [
    ("what_a_process_has_open_is_so_after_a_restore", kept_descriptors),
    ("what_a_process_has_open_is_so_if_it_goes_on", left_running),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain([("descriptors_that_cannot_be_restored_are_refused_by_name", refused as Scenario, "shm")])
}

/// Starts a job of this kind, and waits until it holds itself at its point.
fn started<'a>(stage: &'a Stage, kind: &str) -> Result<Job<'a>> {
    let mut job = stage.start(kind, PROGRAM, &[kind], &[MIDDLE])?;
    if !job.holds_itself()? {
        bail!("{kind}: the program did not come to its point: {}", describe(&job.finish(CHECKPOINT_TIMEOUT)?));
    }
    Ok(job)
}

/// Returns what the program prints, the same for all kinds.
fn undisturbed(stage: &Stage) -> Result<String> {
    let outcome = stage.start("undisturbed", PROGRAM, &["none"], &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "undisturbed: {}", describe(&outcome));
    Ok(outcome.text())
}

fn kept_descriptors(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let text = undisturbed(&stage)?;
    for kind in KINDS_KEPT {
        let job = started(&stage, kind)?;
        stage.checkpoint(&job, kind, &[])?;
        let written = job.output_so_far()?.len();
        was_stopped(job)?;
        let outcome = stage.restore(kind, kind, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        let errors = outcome.errors();
        ensure!(!errors.contains("not restored"), "{kind}: {errors}");
        continues(&text, (written, written), &outcome)?;
    }
    stage.is_clean()
}

fn left_running(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let text = undisturbed(&stage)?;
    for kind in KINDS_KEPT {
        let job = started(&stage, kind)?;
        stage.checkpoint(&job, kind, &["--leave-running"])?;
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success() && outcome.text() == text, "{kind}: {}", describe(&outcome));
    }
    stage.is_clean()
}

/// Whether the kernel reports which eventfds are semaphores (Linux 6.5).
fn tells_kinds_of_counters() -> Result<bool> {
    let counter = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", counter.as_raw_fd()))?;
    Ok(info.contains("eventfd-semaphore"))
}

fn refused(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    for (kind, texts, takes_root) in REFUSED {
        if takes_root && !geteuid().is_root() || kind == "semaphore" && !tells_kinds_of_counters()? {
            continue;
        }
        let job = started(&stage, kind)?;
        let answer = job.checkpoint(&stage.image("image"), &[])?;
        ensure!(!answer.status.success() && answer.errors().contains(texts), "{kind}: {}", describe(&answer));
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{kind}: {}", describe(&outcome));
    }
    stage.is_clean()
}
