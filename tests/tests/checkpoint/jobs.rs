//! Jobs of several processes, and what can happen to processes: ranks of MPI, shell scripts, namespaces, a CRIU or a supervisor
//! that is killed, and a control socket that any process may use.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::deadline::PatientStream;
use katydid_tests::job::{self, Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{Outcome, Running, run};
use katydid_tests::script;
use katydid_tests::server::Server;
use katydid_tests::watch::{go_on, is_stopped, kill, runs, stand_still, tree, until};
use katydid_tests::way::Way;
use rustix::pty::{OpenptFlags, openpt};
use serde_json::{Value, json};

use crate::scenarios::{LOOP, Scenario, expected_of_loop, images, was_stopped, went_on};
use crate::signals;
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, expected_of, way_to};

/// A program whose child SIGTSTP has stopped.
const SUSPENDS: ((&str, Variant), &str) = (CHANGED, "suspended");
const CHANGED: (&str, Variant) = ("changed_process", Variant::Static);
/// Kinds of `changed_process` with settings that no other process can make for them.
const OWN_SETTINGS: [&str; 7] = ["machine", "flusher", "merging", "guessing", "policy", "bound", "spread"];
/// More terminals than an otherwise idle machine has.
const TERMINALS: usize = 16;

/// Scenarios that need Open MPI.
const RANKS: [(&str, Scenario); 2] = [
    ("ranks_of_mpi_are_killed_and_restored_whole", ranks),
    ("ranks_that_each_begin_by_katydid_run_are_one_job", ranks_by_katydid),
];

/// Ranks of Open MPI with a private server.
const RANKS_ALONE: (&str, Scenario) = ("ranks_share_a_server_of_their_own", ranks_alone);

/// Ranks of Open MPI where no checkpoint can include their processes.
const RANKS_OUTSIDE: (&str, Scenario) = ("ranks_whose_session_is_from_outside_are_refused_by_name", ranks_from_outside);

const ON_EVERY_WAY: [(&str, Scenario); 4] = [
    RANKS[0],
    RANKS[1],
    ("a_job_in_its_own_namespaces_is_checkpointed_again", again_in_namespaces),
    ("a_script_and_what_it_starts_later_are_restored", script),
];

const ON_ONE_WAY: [(&str, Scenario); 22] = [
    RANKS_ALONE,
    RANKS_OUTSIDE,
    ("a_job_whose_session_is_from_outside_its_namespace_is_restored", from_outside),
    ("a_supervisor_killed_while_its_job_is_stopped_takes_it_along", killed_while_stopped),
    ("a_guard_that_is_killed_takes_the_job_along", killed_guard),
    ("a_guard_that_is_killed_takes_a_restored_job_along", killed_guard_of_a_restore),
    ("what_a_killed_supervisor_and_its_guard_leave_goes_with_the_next_job", killed_both),
    ("a_port_in_use_is_waited_for_at_a_restore", taken_port),
    ("a_port_is_not_waited_for_when_there_is_no_session", taken_port_for_nothing),
    ("a_job_for_which_a_server_has_too_few_places_is_3_and_goes_on", too_few_places),
    ("a_connection_on_its_way_is_waited_for", on_its_way),
    ("what_a_program_wrote_after_a_checkpoint_is_written_again", written_again),
    ("a_file_that_the_job_still_writes_is_not_cut_back", still_written),
    ("a_process_that_a_signal_had_stopped_stays_so", stopped_child),
    ("a_process_that_a_terminal_had_stopped_is_so_by_the_same_signal", suspended_child),
    ("what_a_process_has_set_for_itself_is_set_again", own_settings),
    ("connections_that_one_end_has_shut_down_are_restored", half_closed),
    ("a_criu_killed_at_any_moment_leaves_the_last_image_and_no_riddle", killed_criu),
    ("a_program_may_end_before_it_is_back_from_a_checkpoint", ended_away),
    ("a_program_that_a_signal_has_stopped_is_kept_and_stays_so", stopped_by_a_signal),
    ("any_process_can_ask_over_the_control_socket", control_socket),
    ("a_program_of_the_job_can_ask_for_a_checkpoint", asked_from_within),
];

/// Runs a command in a pid namespace in which no session was made.
///
/// CRIU must know the mounts of all files, so the command inherits none from before `unshare`. A shell reopens the streams, and
/// closes all other descriptors.
const ANEW: &str = "at() { readlink /proc/$$/fd/$1; }; exec </dev/null >>\"$(at 1)\" 2>>\"$(at 2)\"
    for fd in /proc/$$/fd/*; do n=${fd##*/}; if [ $n -gt 2 ]; then eval \"exec $n>&-\"; fi; done; exec \"$@\"";
const OUTSIDE: [&str; 9] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", ANEW, "bash"];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// Whether something that a scenario needs was not built.
pub(crate) fn is_missing(paths: &Paths, name: &str) -> bool {
    let takes = [RANKS[0].0, RANKS[1].0, RANKS_ALONE.0, RANKS_OUTSIDE.0, signals::RANKS.0];
    takes.contains(&name) && paths.why_not_built("mpi_ring", Variant::Mpi).is_some()
}

/// `mpirun`, its ranks and their workers: killed after a checkpoint; run on to their end after one, which needs the ranks
/// to talk to each other; and stopped by one. Each time they are restored. The last time, other processes have the
/// numbers of their terminals.
fn ranks(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, "mpi_ring")?);
    let mut terminals = Vec::new();
    for image in ["killed", "ended", "stopped"] {
        let mut job = stage.start("ring", ("mpi_ring", Variant::Mpi), &[], &[50])?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let bytes_before = job.output_so_far()?.len();
        let options = if image == "stopped" { &[][..] } else { &["--leave-running"] };
        stage.checkpoint(&job, image, options)?;
        let after = job.output_so_far()?.len();
        match image {
            "killed" => {
                job.kill_everything(&stage.server)?;
                drop(job);
            }
            "ended" => {
                let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
                ensure!(
                    outcome.status.success() && outcome.text() == expected,
                    "the job that went on: {}",
                    describe(&outcome)
                );
            }
            _ => {
                was_stopped(job)?;
                terminals = (0..TERMINALS).map(|_| openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)).collect();
            }
        }
        let outcome = stage.restore("ring", image, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (bytes_before, after), &outcome).context(image)?;
        stage.is_clean()?;
    }
    ensure!(terminals.iter().all(Result::is_ok), "there were no terminals to be taken");
    Ok(())
}

/// `mpirun -n 2 katydid run`: killed with its supervisor after a checkpoint, and ended by one. Each time it is restored.
fn ranks_by_katydid(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (expected, launcher) = (expected_of(paths, "mpi_ring")?, paths.program("mpi_ring", Variant::Mpi));
    for image in ["killed", "stopped"] {
        let mut job = stage.start_ranks("ring", &launcher, &Plan { points: &[50], ..Plan::default() })?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let bytes_before = job.output_so_far()?.len();
        let options = if image == "stopped" { &[][..] } else { &["--leave-running"] };
        stage.checkpoint(&job, image, options)?;
        let after = job.output_so_far()?.len();
        if image == "killed" {
            job.kill_everything(&stage.server)?;
            drop(job);
        } else {
            was_put_away(job)?;
        }
        let outcome = stage.restore("ring", image, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (bytes_before, after), &outcome).context(image)?;
        stage.is_clean()?;
    }
    Ok(())
}

/// The first rank starts the server, which serves the others too and lasts until the job's end.
fn ranks_alone(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage { way: Way::Private { driver: driver_under_test() }, ..Stage::new(paths, way)? };
    let (expected, launcher) = (expected_of(paths, "mpi_ring")?, paths.program("mpi_ring", Variant::Mpi));
    let outcome = stage.start_ranks("ring", &launcher, &Plan::default())?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "undisturbed: {}", describe(&outcome));
    stage.is_clean()?;
    let mut job = stage.start_ranks("ring", &launcher, &Plan { points: &[50], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let view = job.view().context("nothing answers for the job")?;
    ensure!(view["members"].as_array().is_some_and(|members| members.len() == 2), "not two ranks: {view}");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    let until = job.output_so_far()?.len();
    was_put_away(job)?;
    continues(&expected, (written, until), &stage.restore("ring", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// A launcher that CRIU would refuse is refused before anything stops, and the ranks come to their end.
fn ranks_from_outside(paths: &Paths, way: &str) -> Result<()> {
    // Process 1 adopts orphans, as the supervisor does, so it must not end before the supervisor.
    const FIRST: &str = "\"$@\"; s=$?; while set -- /proc/[0-9]*; [ $# -gt 1 ]; do sleep 0.1; done; exit $s";
    let through: Vec<&str> = OUTSIDE.iter().chain(&["bash", "-c", FIRST, "bash"]).copied().collect();
    let stage = Stage::new(paths, way)?;
    let (expected, launcher) = (expected_of(paths, "mpi_ring")?, paths.program("mpi_ring", Variant::Mpi));
    let mut job =
        stage.start_ranks("ring", &launcher, &Plan { through: &through, points: &[50], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let refused = run(&mut job.checkpoint_command(&stage.image("image"), &["--leave-running"]), CHECKPOINT_TIMEOUT)?;
    let remedy = "start it with `setsid`, or with `katydid run`";
    ensure!(!refused.status.success() && refused.errors().contains(remedy), "no word of it: {}", describe(&refused));
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the ranks: {}", describe(&outcome));
    stage.is_clean()
}

/// Checks that a launcher was killed by its checkpoint, and that its supervisor names the image.
fn was_put_away(job: Job<'_>) -> Result<()> {
    let word = "was ended as checkpoint 1: `katydid restore ";
    until("it is told where the job is", || job.errors_so_far().is_ok_and(|errors| errors.contains(word)))?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.signal() == Some(9), "a launcher that was ended: {}", describe(&outcome));
    Ok(())
}

/// The first run still has its ids and its folder, so the job restored beside it gets namespaces. A checkpoint stops the
/// restored job, which is then restored once more.
fn again_in_namespaces(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let points = [60, 70, 80];
    let mut first = stage.start("again", LOOP, &[], &points)?;
    ensure!(first.holds_itself()?, "the job ended before its point");
    let output_len = first.output_so_far()?.len();
    stage.checkpoint(&first, "image", &["--leave-running"])?;
    ensure!(first.holds_itself()?, "the job ended before its second point");
    let mut second = stage.restore_by("again-2", "image", &Plan { points: &points, ..Plan::default() })?;
    ensure!(second.holds_itself()?, "the restored job ended before its second point");
    stage.checkpoint(&second, "other", &["--leave-running"])?;
    ensure!(second.holds_itself()?, "the restored job ended before its third point");
    stage.checkpoint(&second, "other", &[])?;
    let written = output_len + second.output_so_far()?.len();
    was_stopped(second)?;
    let outcome = stage.restore("again-2", "other", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    // None of this disturbed the first run; it never reaches its last point.
    stage.checkpoint(&first, "image", &["--leave-running"])?;
    ensure!(first.holds_itself()?, "the first job ended before its last point");
    stage.checkpoint(&first, "image", &[])?;
    was_stopped(first)?;
    stage.is_clean()
}

/// As below `docker exec` or process 1 of a machine: `getsid` of the supervisor is 0. The image is restored there and here.
fn from_outside(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let there = Plan { points: &[60], through: &OUTSIDE, ..Plan::default() };
    let mut job = stage.start_by("outside", LOOP, &there)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    for plan in [Plan { through: &OUTSIDE, ..Plan::default() }, Plan::default()] {
        let outcome = stage.restore_by("outside", "image", &plan)?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (written, written), &outcome)?;
    }
    stage.is_clean()
}

/// A shell, a program with a pipe to another process, and a program that begins only after the restore. The restore uses
/// another server, whose address only the first program has.
fn script(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    let program = paths.program(LOOP.0, LOOP.1);
    let text = format!("set -e\n'{0}' | cat\n'{0}' 3\necho over $?\n", program.display());
    let plan = Plan { arguments: &["-c", &text], points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "script", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let bytes_before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    let after = job.output_so_far()?.len();
    was_stopped(job)?;
    let server = Server::start(paths, &driver_under_test(), &[])?;
    stage.way = way_to(way, &server)?;
    stage.server = server;
    let outcome = stage.restore("script", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    let short = stage.start("short", LOOP, &["3"], &[])?.finish(CHECKPOINT_TIMEOUT)?.text();
    continues(&format!("{}{short}over 0\n", expected_of_loop(paths)?), (bytes_before, after), &outcome)?;
    stage.is_clean()
}

/// The supervisor is killed with SIGKILL while the processes are stopped, from the dump to their end. Neither the program nor
/// its children stay, with and without namespaces of their own, and the image is unchanged.
fn killed_while_stopped(paths: &Paths, way: &str) -> Result<()> {
    for program in [LOOP.0, "kept_processes"] {
        for fault in ["write:kill", "commit:kill"] {
            killed_at(paths, way, program, fault).with_context(|| format!("{program} at {fault}"))?;
        }
    }
    Ok(())
}

fn killed_at(paths: &Paths, way: &str, program: &str, fault: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, program)?);
    let plan = Plan { points: &[12, 16], fault: None, ..Plan::default() };
    let mut job = stage.start_by("victim", (program, Variant::Static), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let bytes_before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let plan = Plan { points: &[12, 16], fault: Some(fault), ..Plan::default() };
    // Beside the first run, so the restored job gets namespaces.
    let mut restored = stage.restore_by("victim-2", "image", &plan)?;
    if !restored.holds_itself()? {
        bail!("the restored job ended before its point: {}", describe(&restored.finish(CHECKPOINT_TIMEOUT)?));
    }
    dies_whole(&stage, &restored)?;
    drop(restored);
    job.kill_everything(&stage.server)?;
    drop(job);
    // In the namespaces of the machine.
    let mut job = stage.restore_by("victim", "image", &plan)?;
    if !job.holds_itself()? {
        bail!("the restored job ended before its point: {}", describe(&job.finish(CHECKPOINT_TIMEOUT)?));
    }
    dies_whole(&stage, &job)?;
    drop(job);
    let outcome = stage.restore("victim", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (bytes_before, bytes_before), &outcome)?;
    Ok(stage.server.workers_of(0).map(drop)?)
}

/// Checks that a supervisor dies with all processes during a checkpoint that would end the job.
fn dies_whole(stage: &Stage, job: &Job<'_>) -> Result<()> {
    let processes = tree(job.pid());
    let outcome = job.checkpoint(&stage.image("image"), &[])?;
    ensure!(!outcome.status.success(), "the checkpoint succeeded: {}", describe(&outcome));
    until("all processes of the job are gone", || !processes.iter().any(|pid| runs(*pid)))?;
    Ok(())
}

/// The guard's death ends its program, and the program's children, with and without namespaces of their own.
fn killed_guard(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, "kept_processes")?);
    let plan = Plan { points: &[12, 16], ..Plan::default() };
    let mut job = stage.start_by("victim", ("kept_processes", Variant::Static), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let bytes_before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let mut restored = stage.restore_by("victim-2", "image", &plan)?;
    ensure!(restored.holds_itself()?, "the restored job ended before its point");
    guard_dies(restored)?;
    guard_dies(job)?;
    let outcome = stage.restore("victim", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (bytes_before, bytes_before), &outcome)?;
    stage.is_clean()
}

/// Restored in the namespaces of the machine, the program is not the one with which the guard was started.
fn killed_guard_of_a_restore(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let plan = Plan { points: &[60, 80], ..Plan::default() };
    let mut job = stage.start_by("victim", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let mut job = stage.restore_by("victim", "image", &plan)?;
    ensure!(job.holds_itself()?, "the restored job ended before its point");
    guard_dies(job)?;
    stage.is_clean()
}

/// Both are killed in the middle of a checkpoint. A supervisor killed alone leaves nothing. Killed with its guard, it leaves
/// nothing that outlives the start of another job, of another name.
fn killed_both(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let temporary = stage.image("temporary");
    fs::create_dir(&temporary)?;
    let leftover_count = || fs::read_dir(&temporary).map_or(0, Iterator::count);
    let folder = temporary.display().to_string();
    let variables = [("TMPDIR", folder.as_str())];
    for with_guard in [false, true] {
        let plan = Plan { points: &[60], fault: Some("pause:stop"), variables: &variables, ..Plan::default() };
        let mut job = stage.start_by("victim", LOOP, &plan)?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let asking = Running::start(&mut job.checkpoint_command(&stage.image("image"), &[]), Stdio::null())?;
        until("the supervisor stands still", || is_stopped(job.pid()))?;
        ensure!(leftover_count() > 0, "there was nothing temporary to be left");
        let processes = tree(job.pid());
        if with_guard {
            kill(guard_of(&job)?);
        }
        kill(job.pid());
        asking.finish(CHECKPOINT_TIMEOUT)?;
        until("all processes of the job are gone", || !processes.iter().any(|pid| runs(*pid)))?;
        let leftovers = (leftover_count(), stage.home.jobs());
        // Guards of other tests' jobs clear away abandoned jobs of this user, and what is temporary in their own folder only.
        ensure!(
            (leftovers.0 > 0) == with_guard && (with_guard || leftovers.1.is_empty()),
            "guard killed: {with_guard}; temporary folders and jobs that are left: {leftovers:?}"
        );
    }
    let other = Plan { points: &[60], variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("other", LOOP, &other)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    ensure!(stage.home.jobs() == ["other"], "{:?}", stage.home.jobs());
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(leftover_count() == 0, "something temporary is left");
    went_on(paths, job)?;
    stage.is_clean()
}

pub(crate) fn guard_of(job: &Job<'_>) -> Result<u32> {
    let is_guard = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| holds(&line, b"job-guard"));
    tree(job.pid()).into_iter().find(is_guard).context("there is no guard")
}

/// Kills the guard of a job of several processes.
fn guard_dies(job: Job<'_>) -> Result<()> {
    let processes = tree(job.pid());
    kill(guard_of(&job)?);
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(128 + 9), "{}", describe(&outcome));
    Ok(until("all processes of the job are gone", || !processes.iter().any(|pid| runs(*pid)))?)
}

/// Whether `word` is among these bytes.
fn holds(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// Listens at a port that the system chooses, writes its number to a file, and becomes a program that keeps it.
const LISTENING: &str = r#"#!/usr/bin/env python3
import os, socket, sys
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
os.set_inheritable(listener.fileno(), True)
with open(sys.argv[1], "w") as note:
    note.write(str(listener.getsockname()[1]))
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// Starts a child that connects, accepts the connection one second after a file appears, and becomes a program.
const CONNECTING: &str = r#"#!/usr/bin/env python3
import os, socket, sys, time
program = os.getpid()
if os.fork() == 0:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    time.sleep(1)
    accepted, _ = listener.accept()
    while os.getppid() == program:
        time.sleep(0.05)
    os._exit(0)
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// CRIU cannot dump a connection that is not accepted yet.
fn on_its_way(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (script, go) = (stage.image("connect.py"), stage.image("go"));
    script::write(&script, CONNECTING)?;
    let program = paths.program(LOOP.0, LOOP.1).display().to_string();
    let go_text = go.display().to_string();
    // Slow enough to still run when the connection comes.
    let plan = Plan { arguments: &[&go_text, &program, "60", "100"], points: &[30], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "connects", &script, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    fs::write(&go, "")?;
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let restored = stage.restore("connects", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, expected.len()), &restored)?;
    stage.is_clean()
}

/// The test holds the port at the restore's first try, and releases it when the restore reports another try.
fn taken_port(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (image, listener, written) = listened(&stage)?;
    let job = stage.restore("listens", &image, &[])?;
    until("the port is waited for", || job.errors_so_far().is_ok_and(|text| text.contains("still in use")))?;
    drop(listener);
    continues(&expected, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// No process releases the port, and the server takes no session: the error names the latter.
fn taken_port_for_nothing(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    let (image, _listener, _) = listened(&stage)?;
    let full = Server::start(paths, &driver_under_test(), &["--max-sessions", "1"])?;
    stage.way = way_to(way, &full)?;
    stage.server = full;
    let mut fixture = stage.way.command(paths, &paths.program("fixture", Variant::Static));
    let mut other = Running::start(fixture.arg("idle"), Stdio::piped())?;
    other.wait_for("ready", CHECKPOINT_TIMEOUT)?;
    let outcome = stage.restore("listens", &image, &[])?.finish(CHECKPOINT_TIMEOUT)?;
    let is_told = outcome.errors().contains("the server allows 1 sessions at a time");
    ensure!(!outcome.status.success() && is_told, "{}", describe(&outcome));
    other.close_input();
    ensure!(other.finish(CHECKPOINT_TIMEOUT)?.status.success(), "the other session was disturbed");
    stage.is_clean()
}

/// Two programs, and a server that admits one of them. A restore asks it for a slot before it rebuilds the other session, as
/// when another job takes the last slot meanwhile. Output that the job has written since the checkpoint stays.
fn too_few_places(paths: &Paths, way: &str) -> Result<()> {
    let (mut stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (script, log) = (stage.image("both"), stage.image("log"));
    let log_name = log.display();
    let text = format!(
        "#!/bin/sh\nexec 7>{log_name}\necho before >&7\n\"$@\" > /dev/null &\n\"$@\"\nstatus=$?\necho after >&7\nwait && exit $status\n"
    );
    script::write(&script, &text)?;
    let program = paths.program(LOOP.0, LOOP.1).display().to_string();
    let plan = Plan { arguments: &[&program], points: &[60, 70], ..Plan::default() };
    let job = Job::start(paths, &stage.home, &stage.way, "both", &script, &plan)?;
    let hold = |view: Value| {
        let members = view["members"].as_array().cloned().unwrap_or_default();
        members.len() == 2 && members.iter().all(job::holds_itself)
    };
    until("both programs hold themselves", || job.view().is_some_and(hold))?;
    let is_refused = |outcome: &Outcome, words: &[&str]| -> Result<()> {
        let errors = outcome.errors();
        ensure!(outcome.status.code() == Some(3), "a job without a place: {}", describe(outcome));
        let last = errors.lines().last().unwrap_or_default();
        ensure!(words.iter().all(|word| last.contains(word)), "no {words:?} in the last line: {}", describe(outcome));
        Ok(())
    };
    let small = Server::start(paths, &driver_under_test(), &["--max-sessions", "1"])?;
    let second_way = way_to(way, &small)?;
    let Way::Served { address, .. } = &second_way else { bail!("{second_way:?} is not a server") };
    let refused = run(&mut job.migrate_command(address, &[]), CHECKPOINT_TIMEOUT)?;
    is_refused(&refused, &["everything goes on", "--max-sessions"])?;
    small.workers_of(0)?;
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    let after = job.output_so_far()?.len();
    was_stopped(job)?;
    fs::write(&log, "before\nand what a run since then has written\n")?;
    let home = std::mem::replace(&mut stage.way, second_way);
    is_refused(&stage.restore("both", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?, &["--max-sessions"])?;
    small.workers_of(0)?;
    ensure!(fs::read_to_string(&log)?.contains("since then"), "a restore that was refused has cut a file back");
    stage.way = home;
    continues(&expected, (written, after), &stage.restore("both", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)?;
    ensure!(fs::read_to_string(&log)? == "before\nafter\n", "the restored job has written something else");
    stage.is_clean()
}

/// Returns the image of a program that listened at a port, a listener that now holds that port, and the bytes that
/// the program had written.
fn listened(stage: &Stage) -> Result<(String, TcpListener, usize)> {
    let (script, note) = (stage.image("listen.py"), stage.image("port"));
    script::write(&script, LISTENING)?;
    let program = stage.paths.program(LOOP.0, LOOP.1).display().to_string();
    let note_text = note.display().to_string();
    let plan = Plan { arguments: &[&note_text, &program], points: &[60], ..Plan::default() };
    // Another process may get the port first; then the test tries another one.
    for attempt in 0..20 {
        let image = format!("image-{attempt}");
        let mut job = Job::start(&stage.paths, &stage.home, &stage.way, "listens", &script, &plan)?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let written = job.output_so_far()?.len();
        stage.checkpoint(&job, &image, &[])?;
        was_stopped(job)?;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", fs::read_to_string(&note)?.parse()?)) {
            return Ok((image, listener, written));
        }
    }
    bail!("another process had the port each time")
}

/// Restores beside the job that goes on: output that the job has written since the checkpoint stays.
fn still_written(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (file, program) = (stage.image("file"), paths.program(LOOP.0, LOOP.1));
    let text = format!("'{}' > '{}'; echo over", program.display(), file.display());
    let plan = Plan { arguments: &["-c", &text], points: &[60, 120], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "writes", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let length = || fs::metadata(&file).map(|stat| stat.len());
    let bytes_before = length()?;
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    ensure!(length()? > bytes_before, "the program has written nothing between its points");
    let outcome = stage.restore("writes-2", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    let (name, errors) = (file.display().to_string(), outcome.errors());
    let is_told = errors.contains(&name) && errors.contains("has it open for writing");
    ensure!(!outcome.status.success() && is_told, "{}", describe(&outcome));
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    ensure!(fs::read_to_string(&file)? == expected, "something was taken from the program that went on");
    let outcome = stage.restore("writes", "image", &["--at", "1"])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    ensure!(fs::read_to_string(&file)? == expected, "the restored program wrote something else");
    stage.is_clean()
}

/// A shell has stopped one of its children. After the restore it lists the child as stopped, and kills it.
fn stopped_child(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let program = paths.program(LOOP.0, LOOP.1);
    let text = format!(
        "sleep 1000 & child=$!; kill -STOP $child; '{}'; cut -d' ' -f3 /proc/$child/stat; kill -9 $child; wait $child; echo over $?",
        program.display()
    );
    let plan = Plan { arguments: &["-c", &text], points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "stops", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("stops", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&format!("{expected}T\nover 137\n"), (written, written), &outcome)?;
    stage.is_clean()
}

/// At its end, the program learns which signal has stopped its child.
fn suspended_child(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("suspends", SUSPENDS.0, &[SUSPENDS.1], &[40])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("suspends", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "the restored program: {}", describe(&outcome));
    stage.is_clean()
}

/// At its end, the program checks that its settings hold, and that bound memory is where it was.
fn own_settings(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    for kind in OWN_SETTINGS {
        let mut job = stage.start(kind, CHANGED, &[kind], &[40])?;
        if !job.holds_itself()? {
            bail!("{kind}: the program did not come to its point: {}", describe(&job.finish(CHECKPOINT_TIMEOUT)?));
        }
        stage.checkpoint(&job, kind, &[])?;
        was_stopped(job)?;
        let outcome = stage.restore(kind, kind, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        let is_whole = outcome.status.success() && !outcome.errors().contains("is not restored");
        ensure!(is_whole, "{kind}, restored: {}", describe(&outcome));
    }
    stage.is_clean()
}

/// Over IPv4 and IPv6. Both restores must hold the packets of the other end back until it exists; before the second one, CRIU
/// has let them through.
fn half_closed(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("halves", CHANGED, &["halves"], &[40])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    for time in ["first", "second"] {
        let outcome = stage.restore("halves", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "restored, {time} time: {}", describe(&outcome));
    }
    stage.is_clean()
}

/// A program independent of Katydid writes at positions of its own. The restore removes what lies after these positions.
fn written_again(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (file, program) = (stage.image("file"), paths.program(LOOP.0, LOOP.1));
    let text = format!("'{}' | dd of='{}' bs=10 seek=10 status=none && echo over", program.display(), file.display());
    let plan = Plan { arguments: &["-c", &text], points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "writes", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    let whole = format!("{}{expected}", "\0".repeat(100));
    ensure!(fs::read_to_string(&file)? == whole, "the program that went on wrote something else");
    fs::OpenOptions::new().append(true).open(&file)?.write_all(b"of another run")?;
    let outcome = stage.restore("writes", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    ensure!(fs::read_to_string(&file)? == whole, "the restored program wrote something else");
    stage.is_clean()
}

/// A CRIU that is killed as soon as it has written the file that the environment names, or has just ended. Without a file
/// `armed` beside the script, it is not killed.
pub(crate) const KILLED_CRIU: &str = r#"#!/bin/sh
case " $* " in *" swrk "*) ;; *) exec CRIU "$@" ;; esac
[ -e "$(dirname "$0")/armed" ] || exec CRIU "$@"
folder=$(echo "$*" | sed 's/.*--images-dir \([^ ]*\).*/\1/')
exec 3<&0
CRIU "$@" <&3 3<&- &
until ls "$folder" | grep -q "$CRIU_FILE"; do kill -0 $! 2>/dev/null || break; done
kill -9 $!
wait $!
kill -9 $$
"#;

/// Returns the command of the CRIU that tests use: from Katydid's own folder, or the system's.
pub(crate) fn criu(paths: &Paths) -> String {
    let root = paths.dist.join("lib/katydid/criu");
    if !root.exists() {
        return "criu".to_owned();
    }
    let (root, libraries) = (root.display(), root.join("usr/lib/x86_64-linux-gnu"));
    let libraries = libraries.display();
    format!("'{libraries}/ld-linux-x86-64.so.2' --library-path '{libraries}' '{root}/usr/sbin/criu'")
}

/// A CRIU that writes the file that the environment names after its dump.
const TELLING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" swrk "*) ;; *) exec CRIU "$@" ;; esac
folder=$(echo "$*" | sed 's/.*--images-dir \([^ ]*\).*/\1/')
exec 3<&0
CRIU "$@" <&3 3<&- &
until [ -e "$folder/inventory.img" ] || ! kill -0 $! 2>/dev/null; do :; done
: > "$CRIU_FILE"
wait $!
"#;

/// Puts a script in place of CRIU, with `CRIU` as the name of the real one.
pub(crate) fn in_place_of_criu(paths: &Paths, stage: &Stage, script: &str) -> Result<String> {
    let path = stage.image("criu.sh");
    script::write(&path, &script.replace("CRIU \"", &format!("{} \"", criu(paths))))?;
    Ok(path.display().to_string())
}

/// The program's threads run as soon as it is dumped, and end with or without its session, also in a job that goes on. The
/// checkpoint is whole.
fn ended_away(paths: &Paths, way: &str) -> Result<()> {
    let program = paths.program("fixture", Variant::Static);
    ended_away_by(paths, way, &program, &["quits", "FILE"], "")?;
    let text = format!("'{}' quits FILE; echo over", program.display());
    ended_away_by(paths, way, Path::new("/bin/sh"), &["-c", &text], "over\n")
}

fn ended_away_by(paths: &Paths, way: &str, program: &Path, arguments: &[&str], after: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (script, file) = (in_place_of_criu(paths, &stage, TELLING_CRIU)?, stage.image("file"));
    let file = file.to_string_lossy();
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("FILE", &file)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let variables = [("KATYDID_CRIU", script.as_str()), ("CRIU_FILE", &file)];
    let plan = Plan { arguments: &arguments, variables: &variables, ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "brief", program, &plan)?;
    job.wait_for("ready")?;
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let (outcome, rest) = (job.finish(CHECKPOINT_TIMEOUT)?, format!("quits\n{after}"));
    ensure!(outcome.status.success() && outcome.text() == format!("ready\n{rest}"), "{}", describe(&outcome));
    let outcome = stage.restore("brief", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == rest, "{}", describe(&outcome));
    stage.is_clean()
}

fn killed_criu(paths: &Paths, way: &str) -> Result<()> {
    for file in ["fdinfo", "pstree", "mm-", "pages-", "core-", "files.img"] {
        for options in [&["--leave-running"][..], &[]] {
            killed_criu_at(paths, way, file, options).with_context(|| format!("CRIU killed at {file}, {options:?}"))?;
        }
    }
    Ok(())
}

/// The program goes on as if nothing had happened, unless CRIU had just injected a call or had an order for it. Then the
/// resulting signal ends the program, and the error has the reason. The previous checkpoint is whole either way.
fn killed_criu_at(paths: &Paths, way: &str, file: &str, options: &[&str]) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let script = in_place_of_criu(paths, &stage, KILLED_CRIU)?;
    let variables = [("KATYDID_CRIU", script.as_str()), ("CRIU_FILE", file)];
    let plan = Plan { points: &[50, 60], variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("survivor", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let bytes_before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    fs::write(stage.image("armed"), "")?;
    let outcome = job.checkpoint(&stage.image("image"), options)?;
    // CRIU may have done its part before it is killed. Then it only held a program that is to be killed anyway, or is ending.
    let is_done = outcome.status.success();
    if is_done && options.is_empty() {
        was_stopped(job)?;
        stage.restore("survivor", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
        return stage.is_clean();
    }
    ensure!(
        is_done || outcome.errors().contains("CRIU was killed"),
        "a killed CRIU is not named: {}",
        describe(&outcome)
    );
    let (expected, outcome) = (expected_of_loop(paths)?, job.finish(CHECKPOINT_TIMEOUT)?);
    let went_on = outcome.status.success() && outcome.text() == expected;
    let is_told = outcome.errors().contains("which a killed CRIU leaves behind");
    let (trap, fault, pipe) = (Some(128 + 5), Some(128 + 11), Some(128 + 13));
    let was_ended =
        [trap, fault, pipe].contains(&outcome.status.code()) && is_told && expected.starts_with(&outcome.text());
    ensure!(went_on || was_ended, "{}", describe(&outcome));
    let outcome = images(paths, "verify", &stage.image("image"))?;
    ensure!(outcome.status.success(), "the image is damaged: {}", describe(&outcome));
    continues(
        &expected,
        (bytes_before, bytes_before),
        &stage.restore("survivor", "image", &["--at", "1"])?.finish(CHECKPOINT_TIMEOUT)?,
    )?;
    stage.is_clean()
}

/// Sends `request` to a job's control socket, and returns the whole answer.
pub(crate) fn exchange(socket: &Path, request: &str) -> Result<String> {
    let mut connection = PatientStream::new(UnixStream::connect(socket)?, CHECKPOINT_TIMEOUT)?;
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns a POST request as any client sends it.
pub(crate) fn post(path: &str, version: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/{version}\r\nHost: job\r\nConnection: close");
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Returns the JSON lines of an answer, chunked or not.
pub(crate) fn lines(answer: &str) -> Vec<Value> {
    answer.lines().filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Sends the requests of `docs/reference/admin-api.md` by hand.
fn control_socket(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("asked", LOOP, &[], &[60, 70])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let (socket, image) = (job.control(), stage.image("image"));
    for (request, status, word) in [
        (post("/v1/checkpoints", "1.1", &json!({"image": "relative"})), "200", "absolute path"),
        (post("/v1/checkpoints", "1.1", &json!({"image": image, "leaves": true})), "400", "leaves"),
        (post("/v1/checkpoints", "1.1", &json!({})), "400", "image"),
        ("GET /v1/checkpoints HTTP/1.0\r\n\r\n".to_owned(), "405", "POST"),
        ("GET /v2 HTTP/1.0\r\n\r\n".to_owned(), "404", "/v1/job"),
    ] {
        let answer = exchange(&socket, &request)?;
        let is_so = answer.split(' ').nth(1) == Some(status) && answer.contains(word) && answer.contains("\"error\"");
        ensure!(is_so, "{request}\n{answer}");
    }
    // The first of these failed, which let the program go on: it is at its second point.
    ensure!(job.holds_itself()?, "the job ended before its second point");
    let answer = exchange(
        &socket,
        &post("/v1/checkpoints", "1.0", &json!({"image": image, "leave_running": true, "level": 3})),
    )?;
    let progress = lines(&answer);
    let stages: Vec<&str> = progress.iter().filter_map(|line| line["stage"].as_str()).collect();
    let order =
        ["prepare", "hold", "pause", "capture", "leave", "dump", "resume", "write", "rehearse", "commit", "done"];
    let mut found = stages.clone();
    found.dedup();
    ensure!(found == order, "{stages:?}");
    let done = progress.last().context("no last line")?;
    for field in ["bytes_content", "bytes_added", "bytes_files", "stopped_us", "took_us"] {
        ensure!(done[field].as_u64().is_some(), "no {field} in {done}");
    }
    ensure!(done["checkpoint"] == 1 && done["running"] == true && done["pids"].as_array().is_some(), "{done}");
    went_on(paths, job)?;
    stage.is_clean()
}

/// A signal has stopped the program. The checkpoint saves it so; it stays stopped, and goes on after SIGCONT.
fn stopped_by_a_signal(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    // The program runs for a moment before it is stopped again, in which it must not come to its second point.
    let plan = Plan { arguments: &["60", "20"], points: &[60, 130], ..Plan::default() };
    let mut job = stage.start_by("still", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let program = job.view().and_then(|view| view["program"].as_u64()).context("the job has no program")?;
    let program = u32::try_from(program)?;
    stand_still(program);
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    until("it is stopped again", || is_stopped(program))?;
    let bytes_before = job.output_so_far()?.len();
    go_on(program);
    until("it is beyond its point", || job.output_so_far().is_ok_and(|text| text.len() > bytes_before))?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let outcome = stage.restore("still", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    stage.is_clean()
}

/// A program of the job asks for a checkpoint and hangs up before the dump, since CRIU could not save a connection to the
/// supervisor. It waits for the checkpoint by asking whichever supervisor it then has.
fn asked_from_within(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (image, program) = (stage.image("image"), paths.program(LOOP.0, LOOP.1));
    let asks = asking(&stage)?;
    let text = format!("'{0}' 3; '{1}' {2}; '{0}' 4", program.display(), asks.display(), image.display());
    let plan = Plan { arguments: &["-c", &text], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "self", Path::new("/bin/sh"), &plan)?;
    until("the checkpoint is there", || stage.image("image/checkpoints/000001/manifest.json").exists())?;
    job.wait_for("asked\n")?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    let text = outcome.text();
    // The program may have asked twice, so there may be another checkpoint.
    let restored = stage.restore("self", "image", &["--at", "1"])?.finish(CHECKPOINT_TIMEOUT)?;
    // The program was dumped while it waited for the checkpoint.
    let at = text.find("asked\n").context("it did not ask")?;
    ensure!(restored.status.success() && restored.text() == text[at..], "{}", describe(&restored));
    stage.is_clean()
}

/// Writes a script that asks its job's supervisor for a checkpoint into its argument, and waits until the checkpoint exists.
/// The dump may come before the script has hung up, and fail, so the script asks again after a long wait.
fn asking(stage: &Stage) -> Result<PathBuf> {
    let path = stage.image("ask.py");
    script::write(
        &path,
        r#"#!/usr/bin/env python3
import json, os, socket, sys, time
body = json.dumps({"image": sys.argv[1], "leave_running": True})
def is_there():
    return os.path.exists(os.path.join(sys.argv[1], "checkpoints/000001/manifest.json"))
looks = 0
while not is_there():
    if looks % 2000 == 0:
        control = socket.socket(socket.AF_UNIX)
        control.connect(os.path.join(os.path.dirname(os.environ["KATYDID_JOB"]), "control"))
        control.sendall(f"POST /v1/checkpoints HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        control.close()
    looks += 1
    time.sleep(0.01)
print("asked", flush=True)
"#,
    )?;
    Ok(path)
}
