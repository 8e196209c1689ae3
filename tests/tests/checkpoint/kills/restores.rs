//! Kills during a restore: of CRIU, of the restored processes, of workers, of the server, and of the supervisor, which is
//! interrupted too. They come before the processes are made and as soon as they exist. The restore fails with a message, or was
//! too far advanced to fail and is right. Nothing of it stays, and the image can be restored.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::Outcome;
use katydid_tests::script;
use katydid_tests::server::Server;
use katydid_tests::watch::{children, runs, tree, until};

use crate::jobs::in_place_of_criu;
use crate::scenarios::{LOOP, Scenario, expected_of_loop, images, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, way_to};

const ON_ONE_WAY: [(&str, Scenario); 3] = [
    ("a_guard_whose_supervisor_was_killed_before_it_looked_ends_at_once", late_guard),
    ("restores_of_files_without_a_name_lock_each_other_out", locked),
    ("a_restore_that_is_killed_leaves_files_as_they_were", leaves_files),
];

const ON_EVERY_WAY: [(&str, Scenario); 1] = [("a_kill_during_a_restore_leaves_the_image_and_nothing_else", kills)];

/// Victims and moments of kills.
const KILLS: [(&str, &str); 11] = [
    ("criu", "early"),
    ("criu", "late"),
    ("program", "late"),
    ("workers", "early"),
    ("workers", "late"),
    ("server", "early"),
    ("server", "late"),
    ("supervisor", "early"),
    ("supervisor", "late"),
    ("interrupted", "early"),
    ("interrupted", "late"),
];

/// Victims that end the supervisor. It may leave the folder of its job, which the next one takes over.
const ENDS_THE_SUPERVISOR: [&str; 2] = ["supervisor", "interrupted"];

/// A CRIU that kills before it restores, or has another process kill once CRIU has noted the program's id, while it
/// makes the processes. It stays a child of a guard, whose parent is the supervisor. The file `victims` beside it has
/// the other victims' ids.
const KILLING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" restore "*) ;; *) exec CRIU "$@" ;; esac
note=$(echo "$*" | sed 's/.*--pidfile \([^ ]*\).*/\1/')
inject() {
    case $CRIU_VICTIM in
    criu) kill -9 $$ ;;
    program) kill -9 $(cat "$note") ;;
    supervisor) above=$(cut -d' ' -f4 /proc/$PPID/stat); [ "$above" -gt 1 ] && kill -9 "$above" ;;
    interrupted) above=$(cut -d' ' -f4 /proc/$PPID/stat); [ "$above" -gt 1 ] && kill -15 "$above" ;;
    *) kill -9 $(cat "$(dirname "$0")/victims") ;;
    esac
}
case $CRIU_WHEN in
early) inject ;;
late) (until [ -s "$note" ] || ! [ -e /proc/$$/exe ]; do :; done; inject) 2>/dev/null & ;;
esac
exec CRIU "$@"
"#;

/// Runs a `katydid` that is replaced by another program for all processes that it starts: `bash -c OTHER_FOR_CHILDREN OTHER
/// KATYDID ARGUMENT...`. They find the real one as `OTHER.real`.
const OTHER_FOR_CHILDREN: &str = r#": >"$0.real" && mount --bind "$1" "$0.real" && exec 9<"$1" && mount --bind "$0" "$1" && shift &&
    exec /proc/self/fd/9 "$@""#;

/// Kills the supervisor that starts it as a guard, notes its own id, waits until the supervisor is gone, and becomes the guard.
const LATE_GUARD: &str = r#"#!/bin/bash
[ "$1" = job-guard ] || exec 'OTHER.real' "$@"
echo $$ >'OTHER.note'
kill -9 $PPID
while [ "$(cut -d' ' -f4 /proc/$$/stat)" = $PPID ]; do :; done
exec 'OTHER.real' "$@"
"#;
/// Half of the longest time for which a guard waits for what its supervisor leaves.
const LONG_FOR_A_GUARD: Duration = Duration::from_secs(5);
/// A busy machine may be too slow in some of the attempts.
const GUARD_ATTEMPTS: usize = 3;

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// The guard's parent is then another process, whose end it must not wait for.
fn late_guard(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("late", LOOP, &[], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let (other, note) = (stage.image("late-guard").display().to_string(), stage.image("late-guard.note"));
    script::write(Path::new(&other), &LATE_GUARD.replace("OTHER", &other))?;
    let through = ["unshare", "--mount", "bash", "-c", OTHER_FOR_CHILDREN, &other];
    for _ in 0..GUARD_ATTEMPTS {
        let restore = stage.restore_by("late", "image", &Plan { through: &through, ..Plan::default() })?;
        until("the supervisor has ended", || !runs(restore.pid()))?;
        let killed = Instant::now();
        let guard: u32 = fs::read_to_string(&note).context("it has started no guard")?.trim().parse()?;
        until("its guard has ended", || !runs(guard))?;
        let took = killed.elapsed();
        // The group to which the guard belonged at first is killed only now.
        let outcome = restore.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.signal() == Some(9), "it was not killed: {}", describe(&outcome));
        if took < LONG_FOR_A_GUARD {
            return stage.is_clean();
        }
    }
    bail!("its guard stayed for {LONG_FOR_A_GUARD:?} each time")
}

/// Each restore gives a file without a name the same name for a moment. While another process, here the test, holds the lock
/// for such names, a restore waits and has made no process.
fn locked(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let text = r#"exec 5<>"$1"; rm "$1"; exec "$2""#;
    let (file, program) = (stage.image("file"), paths.program(LOOP.0, LOOP.1));
    let arguments = ["-c", text, "sh", &file.display().to_string(), &program.display().to_string()];
    let plan = Plan { arguments: &arguments, points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "ghost", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let lock = File::create(stage.image("run/katydid/link-remap.lock"))?;
    lock.lock()?;
    let job = stage.restore("ghost", "image", &[])?;
    let us = format!("process {} (", std::process::id());
    until("the restore waits for the lock", || job.errors_so_far().is_ok_and(|text| text.contains(&us)))?;
    let there = tree(job.pid());
    ensure!(there == [job.pid()], "a process was made: {there:?}");
    let hasty = Plan { fault: Some("no-wait"), ..Plan::default() };
    let outcome = stage.restore_by("hasty", "image", &hasty)?.finish(CHECKPOINT_TIMEOUT)?;
    let is_told = outcome.errors().contains("has held the lock") && outcome.errors().contains(&us);
    ensure!(!outcome.status.success() && is_told, "{}", describe(&outcome));
    lock.unlock()?;
    continues(&expected, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// Maps a file so that others see it, until the process that started it ends.
const MAPPER: &str = r#"python3 -c '
import mmap, os, sys, time
above = os.getppid()
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
open(sys.argv[1] + ".up", "w").close()
while os.getppid() == above:
    time.sleep(0.05)
' "$1" & while ! [ -e "$1.up" ]; do sleep 0.05; done; exec "$2""#;

/// A file that the job maps is replaced before CRIU restores. If the supervisor is killed then, its guard puts the file back.
fn leaves_files(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (file, program) = (stage.image("mapped"), paths.program(LOOP.0, LOOP.1));
    fs::write(&file, "then")?;
    let arguments = ["-c", MAPPER, "sh", &file.display().to_string(), &program.display().to_string()];
    let plan = Plan { arguments: &arguments, points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "disturbed", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    fs::write(&file, "now!")?;
    let outcome = disturbed(&stage, "supervisor", "early")?;
    ensure!(!outcome.status.success(), "it was not killed: {}", describe(&outcome));
    let is_as_before = || fs::read_to_string(&file).is_ok_and(|text| text == "now!") && beside(&file) == 2;
    until("the file is as it was", is_as_before)?;
    let outcome = stage.restore("disturbed", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    ensure!(fs::read_to_string(&file)? == "then" && beside(&file) == 2, "the job has the file of the checkpoint");
    stage.is_clean()
}

/// Returns the number of files in a file's folder whose names begin with that file's name.
fn beside(file: &Path) -> usize {
    let begin = file.file_name().unwrap_or_default().as_encoded_bytes();
    let entries = file.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(begin)).count()
}

fn kills(paths: &Paths, way: &str) -> Result<()> {
    for (victim, when) in KILLS {
        run_one(paths, way, victim, when).with_context(|| format!("{victim} killed {when}"))?;
    }
    Ok(())
}

fn run_one(paths: &Paths, way: &str, victim: &str, when: &str) -> Result<()> {
    let (mut stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let mut job = stage.start("disturbed", LOOP, &[], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let outcome = disturbed(&stage, victim, when)?;
    // The kill may have come too late to disturb it.
    if outcome.status.success() {
        continues(&expected, (written, written), &outcome)?;
    } else if victim != "program" && !ENDS_THE_SUPERVISOR.contains(&victim) {
        ensure!(!outcome.errors().is_empty(), "it failed without a word: {}", describe(&outcome));
    }
    if victim == "server" {
        let server = Server::start(paths, &driver_under_test(), &[])?;
        stage.way = way_to(way, &server)?;
        stage.server = server;
    } else if !ENDS_THE_SUPERVISOR.contains(&victim) {
        stage.is_clean()?;
    }
    let outcome = images(paths, "verify", &stage.image("image"))?;
    ensure!(outcome.status.success(), "the image is damaged: {}", describe(&outcome));
    continues(&expected, (written, written), &stage.restore("disturbed", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)
        .context("again")?;
    stage.is_clean()
}

/// Runs a restore to its end while `victim` is killed, and checks that no process of it is left.
fn disturbed(stage: &Stage, victim: &str, when: &str) -> Result<Outcome> {
    let script = in_place_of_criu(&stage.paths, stage, KILLING_CRIU)?;
    let victims = match victim {
        "workers" => children(stage.server.pid()),
        "server" => vec![stage.server.pid()],
        _ => Vec::new(),
    };
    let victims: Vec<String> = victims.iter().map(u32::to_string).collect();
    fs::write(stage.image("victims"), victims.join(" "))?;
    let variables = [("KATYDID_CRIU", script.as_str()), ("CRIU_VICTIM", victim), ("CRIU_WHEN", when)];
    let plan = Plan { variables: &variables, ..Plan::default() };
    let outcome = stage.restore_by("disturbed", "image", &plan)?.finish(CHECKPOINT_TIMEOUT)?;
    let program = stage.paths.program(LOOP.0, LOOP.1);
    until("nothing of the restore is left", || !is_anywhere(&program, &stage.image("")))?;
    Ok(outcome)
}

/// Whether a process of this program runs with an environment that names a folder of this test.
fn is_anywhere(program: &Path, folder: &Path) -> bool {
    let folder = folder.display().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.any(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        runs(pid)
            && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
            && String::from_utf8_lossy(&environment).contains(&folder)
    })
}
