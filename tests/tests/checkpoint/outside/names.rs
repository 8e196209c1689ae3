//! Files that have lost the name under which they were opened, and have others. The tests cover a program's semaphores,
//! restored twice at once; CRIU's names for such files, of which none stays; and a file that is written again and again.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::Paths;
use katydid_tests::program::{Outcome, Running};
use katydid_tests::watch::until;

use crate::is_sweep;
use crate::jobs::{KILLED_CRIU, guard_of, in_place_of_criu};
use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe, expected_of};

const ON_ONE_WAY: [(&str, Scenario); 8] = [
    ("a_restore_that_fails_gives_its_turn_back", failed_restore),
    ("semaphores_are_restored_twice_at_once", restored_twice),
    ("a_file_comes_back_under_the_name_that_it_has_left", comes_back),
    ("a_killed_criu_leaves_no_name_that_it_gave", killed),
    ("what_was_written_to_a_file_under_another_name_is_written_again", written_again),
    ("names_that_could_not_be_removed_hinder_no_dump", left_behind),
    ("names_of_another_criu_stay", of_others),
    ("a_dump_without_the_lock_is_told_who_holds_it", no_turn),
];

/// The supervisor's end has not yet been right many times in a row, so only the sweep runs it.
const IN_THE_SWEEP: (&str, Scenario) =
    ("a_supervisor_killed_in_a_restore_leaves_no_name_that_it_made", killed_supervisor);

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let sweep = is_sweep().then_some(IN_THE_SWEEP);
    ON_ONE_WAY.into_iter().chain(sweep).map(|(name, scenario)| (name, scenario, "shm"))
}

/// The second restore has a `/dev/shm` of its own, because the first has the ids. Each job has checkpoints of its own.
fn restored_twice(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, "kept_names")?);
    let points = [10, 14];
    let mut job = stage.start("named", ("kept_names", Variant::Static), &[], &points)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    let written = (before, job.output_so_far()?.len());
    was_stopped(job)?;
    let plan = Plan { points: &points, ..Plan::default() };
    let mut jobs = Vec::new();
    for name in ["named", "named-2"] {
        let mut job = stage.restore_by(name, "image", &plan)?;
        ensure!(job.holds_itself()?, "{name} ended before its point");
        jobs.push((job, name));
    }
    for (mut job, name) in jobs {
        // Its processes count their frames separately, so there may be several points.
        while job.holds_itself()? {
            stage.checkpoint(&job, name, &["--leave-running"])?;
        }
        continues(&expected, written, &job.finish(CHECKPOINT_TIMEOUT)?).with_context(|| name.to_owned())?;
    }
    for name in ["named", "named-2"] {
        let outcome = stage.restore(name, name, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(
            outcome.status.success() && expected.ends_with(&outcome.text()),
            "{name} again: {}",
            describe(&outcome)
        );
    }
    stage.is_clean()
}

/// Opens a file, gives it another name, removes the first one, and becomes a program that keeps the file open.
const OPENING: &str = r#"cd "$1" && exec 5<>first && echo text >&5 && ln first other && rm first && exec "$2""#;

/// Starts `OPENING` with the file in the folder `files`.
fn opening<'a>(stage: &'a Stage, points: &[u64], variables: &[(&str, &str)]) -> Result<Job<'a>> {
    fs::create_dir(stage.image("files"))?;
    opening_by(stage, "opens", &Plan { points, variables, ..Plan::default() })
}

/// Starts `OPENING` as the job `name`, which is also the file's other name.
fn opening_by<'a>(stage: &'a Stage, name: &str, plan: &Plan<'_>) -> Result<Job<'a>> {
    let (files, program) = (stage.image("files"), stage.paths.program(LOOP.0, LOOP.1));
    let own = || OPENING.replace("other", name).replace("first", &format!("{name}-first"));
    let text = if name == "opens" { OPENING.to_owned() } else { own() };
    let arguments = ["-c", &text, "sh", &files.display().to_string(), &program.display().to_string()];
    let plan = Plan { arguments: &arguments, ..*plan };
    Ok(Job::start(&stage.paths, &stage.home, &stage.way, name, Path::new("/bin/sh"), &plan)?)
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = entries.collect::<Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// The file comes back after a checkpoint that lets the job go on, and after one that ends it. The restores run where the file
/// exists, and where it is gone.
fn comes_back(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let mut job = opening(&stage, &[60, 70], &[])?;
    let files = stage.image("files");
    for options in [&["--leave-running"][..], &[]] {
        ensure!(job.holds_itself()?, "the job ended before its point");
        stage.checkpoint(&job, "image", options)?;
        ensure!(names(&files)? == ["other"], "{:?} after a checkpoint, {options:?}", names(&files)?);
    }
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    for is_there in [true, false] {
        if !is_there {
            fs::remove_file(files.join("other"))?;
        }
        let outcome = stage.restore("opens", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (written, written), &outcome)?;
        ensure!(names(&files)? == ["other"], "{:?} after a restore", names(&files)?);
        ensure!(fs::read_to_string(files.join("other"))? == "text\n", "it holds something else");
    }
    stage.is_clean()
}

/// CRIU is killed as soon as it has noted which file it gave a name.
fn killed(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let script = in_place_of_criu(paths, &stage, KILLED_CRIU)?;
    let variables = [("KATYDID_CRIU", script.as_str()), ("CRIU_FILE", "remap-fpath")];
    let mut job = opening(&stage, &[60], &variables)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    fs::write(stage.image("armed"), "")?;
    let outcome = job.checkpoint(&stage.image("image"), &["--leave-running"])?;
    ensure!(
        outcome.status.success() || outcome.errors().contains("CRIU was killed"),
        "a killed CRIU is not named: {}",
        describe(&outcome)
    );
    ensure!(names(&stage.image("files"))? == ["other"], "{:?} are left", names(&stage.image("files"))?);
    // Another test covers what then becomes of the program.
    job.finish(CHECKPOINT_TIMEOUT)?;
    stage.is_clean()
}

/// Takes the place of a CRIU that needs the name, before that makes any process or removes the name. It lists the names, kills
/// the supervisor, and waits to be killed.
const LOOKING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" restore "*) ;; *) exec CRIU "$@" ;; esac
[ -e "$(dirname "$0")/armed" ] || exec CRIU "$@"
ls "$FILES" > "$(dirname "$0")/seen"
kill -9 "$(cut -d' ' -f4 /proc/$PPID/stat)"
exec sleep 600
"#;

/// The guard removes the name that the supervisor made for CRIU. The image is as good as before.
fn killed_supervisor(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (script, files) = (in_place_of_criu(paths, &stage, LOOKING_CRIU)?, stage.image("files"));
    let variables = [("KATYDID_CRIU", script.as_str()), ("FILES", &files.display().to_string())];
    let mut job = opening(&stage, &[60], &variables)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    fs::write(stage.image("armed"), "")?;
    let plan = Plan { variables: &variables, ..Plan::default() };
    let job = stage.restore_by("opens", "image", &plan)?;
    until("CRIU has looked for the name", || stage.image("seen").exists())?;
    // Before the restore is finished: the test then ends the whole process group, and the guard with it.
    until("the name is gone", || names(&files).is_ok_and(|names| names == ["other"]))
        .with_context(|| format!("there are {:?}", names(&files)))?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success(), "a killed supervisor has come to its end: {}", describe(&outcome));
    let seen = fs::read_to_string(stage.image("seen"))?;
    ensure!(seen.contains("link_remap."), "CRIU has found no name of its own: {seen}");
    fs::remove_file(stage.image("armed"))?;
    continues(&expected, (written, written), &stage.restore_by("opens", "image", &plan)?.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// The file is written again at a position of its own. The restore removes what was written after it since the checkpoint.
fn written_again(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (first, other) = (stage.image("first"), stage.image("other"));
    let text = r#""$0" | (exec 3>"$1" && ln "$1" "$2" && rm "$1" && exec cat >&3) && echo over"#;
    let program = paths.program(LOOP.0, LOOP.1).display().to_string();
    let arguments = ["-c", text, &program, &first.display().to_string(), &other.display().to_string()];
    let plan = Plan { arguments: &arguments, points: &[60], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "writes", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    ensure!(fs::read_to_string(&other)? == expected, "the program that went on wrote something else");
    fs::OpenOptions::new().append(true).open(&other)?.write_all(b"of another run")?;
    let outcome = stage.restore("writes", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "over\n", "{}", describe(&outcome));
    ensure!(fs::read_to_string(&other)? == expected, "the restored program wrote something else");
    ensure!(!first.exists(), "the first name is back");
    stage.is_clean()
}

/// A CRIU that restores nothing while there is a file `armed` beside it.
const FAILING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" restore "*) ;; *) exec CRIU "$@" ;; esac
[ -e "$(dirname "$0")/armed" ] || exec CRIU "$@"
exit 1
"#;

/// A failed restore leaves none of the names that it made for CRIU. Other jobs can dump and restore in the same folder.
fn failed_restore(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (script, files) = (in_place_of_criu(paths, &stage, FAILING_CRIU)?, stage.image("files"));
    let variables = [("KATYDID_CRIU", script.as_str())];
    let mut job = opening(&stage, &[60], &[])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    fs::write(stage.image("armed"), "")?;
    let plan = Plan { variables: &variables, ..Plan::default() };
    let outcome = stage.restore_by("opens", "image", &plan)?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("CRIU"), "{}", describe(&outcome));
    ensure!(names(&files)? == ["other"], "{:?} are left", names(&files)?);
    fs::remove_file(stage.image("armed"))?;
    continues(&expected, (written, written), &stage.restore_by("opens", "image", &plan)?.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// Kills CRIU as soon as it has noted which file it gave a name, with all processes that might remove the name: the supervisor,
/// and the guard, whose id is in a file. CRIU has a low priority and must not go on first, so the loop that polls starts no
/// process for the kill.
const LEAVING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" swrk "*) ;; *) exec CRIU "$@" ;; esac
[ -e "$(dirname "$0")/armed" ] || exec CRIU "$@"
folder=$(echo "$*" | sed 's/.*--images-dir \([^ ]*\).*/\1/')
read guard < "$(dirname "$0")/guard"
exec 3<&0
nice -n 19 CRIU "$@" <&3 3<&- &
until [ -e "$folder/remap-fpath.img" ]; do kill -0 $! 2>/dev/null || break; done
kill -9 $! $PPID "$guard"
"#;

/// A program is killed in a dump, with its supervisor and its guard. Another one in the same folder is checkpointed and
/// restored as if the first had never existed, and the first one's names are gone.
fn left_behind(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let (script, files) = (in_place_of_criu(paths, &stage, LEAVING_CRIU)?, stage.image("files"));
    let job = opening(&stage, &[60], &[("KATYDID_CRIU", script.as_str())]);
    let (mut job, mut other) = (job?, opening_by(&stage, "left", &Plan { points: &[60], ..Plan::default() })?);
    ensure!(job.holds_itself()? && other.holds_itself()?, "a job ended before its point");
    fs::write(stage.image("guard"), guard_of(&job)?.to_string())?;
    fs::write(stage.image("armed"), "")?;
    let outcome = job.checkpoint(&stage.image("lost"), &["--leave-running"])?;
    ensure!(!outcome.status.success(), "no process was killed: {}", describe(&outcome));
    job.finish(CHECKPOINT_TIMEOUT)?;
    let left = names(&files)?;
    ensure!(left.iter().any(|name| name.starts_with("link_remap.")), "nothing was left: {left:?}");
    stage.checkpoint(&other, "image", &[])?;
    ensure!(names(&files)? == ["left", "other"], "{:?} after a checkpoint", names(&files)?);
    let written = other.output_so_far()?.len();
    was_stopped(other)?;
    continues(&expected, (written, written), &stage.restore("left", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)?;
    ensure!(names(&files)? == ["left", "other"], "{:?} after a restore", names(&files)?);
    // The next job clears away what else they have left.
    went_on(paths, stage.start("next", LOOP, &[], &[])?)?;
    stage.is_clean()
}

/// Numbers that CRIU would give next.
const NUMBERS: std::ops::Range<u32> = 1..100;

/// Names of another CRIU stay, since an image may need them.
fn of_others(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let mut job = opening(&stage, &[60, 70], &[])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let files = stage.image("files");
    for number in NUMBERS {
        fs::write(files.join(format!("link_remap.{number}")), number.to_string())?;
    }
    let all = names(&files)?;
    let are_there = |when: &str| {
        let is_whole = |number: u32| fs::read_to_string(files.join(format!("link_remap.{number}")));
        let mut are_whole = NUMBERS.map(|number| is_whole(number).is_ok_and(|text| text == number.to_string()));
        ensure!(are_whole.all(|is_whole| is_whole) && names(&files)? == all, "{:?} {when}", names(&files)?);
        Ok(())
    };
    for options in [&["--leave-running"][..], &[]] {
        ensure!(job.holds_itself()?, "the job ended before its point");
        stage.checkpoint(&job, "image", options)?;
        are_there("after a checkpoint")?;
    }
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    continues(&expected, (written, written), &stage.restore("opens", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)?;
    are_there("after a restore")?;
    stage.is_clean()
}

/// A CRIU that waits before it works, until there is a file `told`, while there is a file `armed` beside it.
const WAITING_CRIU: &str = r#"#!/bin/sh
case " $* " in *" swrk "*) ;; *) exec CRIU "$@" ;; esac
cd "$(dirname "$0")"
[ -e armed ] || exec CRIU "$@"
: > there
until [ -e told ]; do sleep 0.01; done
exec CRIU "$@"
"#;

/// Another process, here the test, holds the lock. Checkpoint and restore then fail with a message, and the program goes on to
/// its end, whether it was running or stopped. Once the lock is released, a checkpoint succeeds.
fn no_turn(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    fs::create_dir(stage.image("files"))?;
    let script = in_place_of_criu(paths, &stage, WAITING_CRIU)?;
    let variables = [("KATYDID_CRIU", script.as_str())];
    let hasty = Plan { points: &[60, 70, 80], fault: Some("no-wait"), variables: &variables, ..Plan::default() };
    let mut job = opening_by(&stage, "opens", &hasty)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let (files, us) = (stage.image("files"), format!("process {} (", std::process::id()));
    let lock = File::open(&files)?;
    lock.lock()?;
    let is_told = |outcome: &Outcome| {
        let text = outcome.errors();
        !outcome.status.success() && text.contains(&us) && text.contains(&files.display().to_string())
    };
    let outcome = job.checkpoint(&stage.image("image"), &["--leave-running"])?;
    ensure!(is_told(&outcome), "{}", describe(&outcome));
    lock.unlock()?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    let outcome = taken_late(&stage, &job, &lock)?;
    ensure!(is_told(&outcome), "while it stands still: {}", describe(&outcome));
    lock.unlock()?;
    ensure!(job.holds_itself()?, "the job ended before its third point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    lock.lock()?;
    went_on(paths, job)?;
    let outcome = stage.restore_by("opens", "image", &Plan { points: &[], ..hasty })?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(is_told(&outcome), "{}", describe(&outcome));
    lock.unlock()?;
    ensure!(names(&files)? == ["other"], "{:?} are left", names(&files)?);
    stage.is_clean()
}

/// Asks for a checkpoint, and takes the lock as soon as the supervisor has checked whether another process holds it.
fn taken_late(stage: &Stage, job: &Job<'_>, lock: &File) -> Result<Outcome> {
    fs::write(stage.image("armed"), "")?;
    let command = &mut job.checkpoint_command(&stage.image("image"), &["--leave-running"]);
    let asking = Running::start(command, Stdio::null())?;
    until("CRIU is there", || stage.image("there").exists())?;
    lock.lock()?;
    fs::write(stage.image("told"), "")?;
    let outcome = asking.finish(CHECKPOINT_TIMEOUT)?;
    fs::remove_file(stage.image("armed"))?;
    Ok(outcome)
}
