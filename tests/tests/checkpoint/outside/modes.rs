//! Everything with a program's contents belongs to its owner alone, even under a umask of 0. That holds for images in folders,
//! transfers to and from an object store, temporary folders, dumps, logs, sockets, traces and caches.
//!
//! A supervisor killed while it writes leaves the files in its folders for inspection. A watcher also looks all the time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::commands::katydid;
use katydid_tests::job::Plan;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Running};
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;

use crate::images::stores::{credentials, s3};
use crate::scenarios::{LOOP, Scenario, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe};

/// Starts a command under a umask of 0.
const OPEN: [&str; 3] = ["sh", "-c", "umask 000; exec \"$0\" \"$@\""];
/// The images of killed jobs, and of those that come to their end.
const FAR: [&str; 2] = ["s3://bucket/jobs/killed", "s3://bucket/jobs/modes"];
/// Folders that the test itself has made: their modes mean nothing.
const OWN_FOLDERS: [&str; 3] = ["run", "watched", "watched/temporary"];
/// The watcher's interval.
const MODE_POLL_INTERVAL: Duration = Duration::from_millis(1);

pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    [("only_the_owner_can_read_what_has_contents_of_a_program", owners_alone as Scenario, "shm")].into_iter()
}

/// Every path that was ever seen below a folder, except [`OWN_FOLDERS`], with its mode.
#[derive(Debug, Default)]
struct FileModes(BTreeMap<PathBuf, u32>);

impl FileModes {
    fn record(&mut self, folder: &Path) {
        self.record_below(folder);
        OWN_FOLDERS.iter().for_each(|own| {
            self.0.remove(&folder.join(own));
        });
    }

    /// Links have no modes of their own.
    fn record_below(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.path().symlink_metadata() else { continue };
            if !found.is_symlink() {
                *self.0.entry(entry.path()).or_default() |= found.mode() & 0o777;
            }
            if found.is_dir() {
                self.record_below(&entry.path());
            }
        }
    }

    /// Checks that no other user has access to any path, since the path or a folder above it keeps other users out. There must
    /// be a path of each of `kinds`.
    fn is_the_owners(&self, kinds: &[&str]) -> Result<()> {
        let is_open = |path: &Path| self.0.get(path).is_none_or(|mode| mode & 0o077 != 0);
        let open: Vec<String> = self
            .0
            .iter()
            .filter(|(path, _)| path.ancestors().all(is_open))
            .map(|(path, mode)| format!("{mode:o} {}", path.display()))
            .collect();
        ensure!(open.is_empty(), "others may use:\n{}", open.join("\n"));
        for kind in kinds {
            let is_there = self.0.keys().any(|path| path.to_string_lossy().contains(kind));
            ensure!(is_there, "nothing was seen of {kind}, but\n{:#?}", self.0.keys());
        }
        Ok(())
    }
}

/// Does `work` while a thread records modes below `folder`, and once more at the end.
fn watched(folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<FileModes> {
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = FileModes::default();
            while !is_over.load(SeqCst) {
                seen.record(folder);
                sleep(MODE_POLL_INTERVAL);
            }
            seen.record(folder);
            seen
        });
        let done = work();
        is_over.store(true, SeqCst);
        let seen = watcher.join().map_err(|_| anyhow::anyhow!("the watcher has stopped"))?;
        done.map(|()| seen)
    })
}

fn owners_alone(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    // Its socket lies in a temporary folder.
    stage.way = Way::Private { driver: driver_under_test() };
    let endpoint = s3::serve();
    let (home, folder) = (stage.image(""), stage.image("watched"));
    fs::create_dir(&folder)?;
    let [temporary, cache] = ["temporary", "cache"].map(|name| folder.join(name).display().to_string());
    fs::create_dir(&temporary)?;
    close(Path::new(&temporary))?;
    let variables =
        [&credentials(&endpoint)[..], &[("TMPDIR", temporary.as_str()), ("KATYDID_CACHE", cache.as_str())]].concat();
    let plan = Plan { points: &[60, 70], variables: &variables, through: &OPEN, ..Plan::default() };
    let near = ["killed", "near"].map(|name| folder.join(name));
    let far_away = (FAR.map(PathBuf::from), &["katydid.image.", "pages-1.img", "katydid.dump."][..]);
    for ([killed, image], kinds) in [far_away, (near.clone(), &["pages-1.img"][..])] {
        let seen = watched(&home, || {
            let mut job = stage.start_by("killed", LOOP, &Plan { fault: Some("write:kill"), ..plan })?;
            ensure!(job.holds_itself()?, "the job ended before its point");
            let refused = job.checkpoint(&killed, &[])?;
            ensure!(refused.errors().contains("supervisor has ended"), "{}", describe(&refused));
            drop(job.finish(WAIT_TIMEOUT)?);
            Ok(())
        })?;
        seen.is_the_owners(kinds).with_context(|| format!("killed on the way to {}", killed.display()))?;
        let seen = watched(&home, || taken_and_restored(&stage, &image, &plan))?;
        let kinds = [kinds, &["katydid.private.", "katydid.restore.", "restore.log", "run/katydid/jobs"]].concat();
        seen.is_the_owners(&kinds).with_context(|| format!("restored from {}", image.display()))?;
    }
    let seen = watched(&home, || traced(&stage, &folder, &variables))?;
    seen.is_the_owners(&["katydid.trace.", "timeline.json", "calls.txt", "sums.json"])?;
    let seen = watched(&home, || served(&stage, &folder, &variables))?;
    seen.is_the_owners(&["run/katydid.sock", "run/katydid.sock.admin", "cache/", "certs/"])?;
    // The image itself is closed, so it may be moved anywhere.
    let mut left = FileModes::default();
    left.record(&near[1]);
    ensure!(left.0.values().all(|mode| mode & 0o077 == 0), "open files of an image: {left:#?}");
    stage.is_clean()
}

/// Sets mode 0700, as a user's private folder has it.
fn close(path: &Path) -> Result<()> {
    Ok(fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?)
}

fn taken_and_restored(stage: &Stage, image: &Path, plan: &Plan<'_>) -> Result<()> {
    let mut job = stage.start_by("modes", LOOP, plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let checkpoint_outcome = job.checkpoint(image, &[])?;
    ensure!(checkpoint_outcome.status.success(), "{}", describe(&checkpoint_outcome));
    was_stopped(job)?;
    // The job holds itself at its second point, so the watcher sees it for certain.
    let mut restored = stage.restore_from("modes", image, plan)?;
    ensure!(restored.holds_itself()?, "the restored job ended before its point");
    sleep(100 * MODE_POLL_INTERVAL);
    let checkpoint_outcome = restored.checkpoint(image, &["--leave-running"])?;
    ensure!(checkpoint_outcome.status.success(), "{}", describe(&checkpoint_outcome));
    let outcome = restored.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    Ok(())
}

/// Returns `katydid` under a umask of 0.
fn open_katydid(stage: &Stage, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let katydid = katydid(&stage.paths, arguments);
    let mut command = Command::new(OPEN[0]);
    command.args(&OPEN[1..]).arg(katydid.get_program()).args(katydid.get_args());
    command.env("XDG_RUNTIME_DIR", stage.image("run")).envs(variables.iter().copied());
    command
}

fn succeeds(mut command: Command) -> Result<()> {
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{command:?}: {}", describe(&outcome));
    Ok(())
}

fn traced(stage: &Stage, folder: &Path, variables: &[(&str, &str)]) -> Result<()> {
    let [timeline, text, sums] =
        ["timeline.json", "calls.txt", "sums.json"].map(|name| folder.join(name).display().to_string());
    let program = stage.paths.program(LOOP.0, LOOP.1).display().to_string();
    let driver = driver_under_test();
    let line = ["trace", "--driver", &driver, "-o", &timeline, "--text", &text, "--json", &sums, "--", &program];
    succeeds(open_katydid(stage, &line, variables))
}

/// Runs a server at its default address, and creates a certificate authority.
fn served(stage: &Stage, folder: &Path, variables: &[(&str, &str)]) -> Result<()> {
    let certs = folder.join("certs").display().to_string();
    succeeds(open_katydid(stage, &["certs", "init", &certs], variables))?;
    let socket = stage.image("run/katydid.sock");
    let unix = format!("unix:{}", socket.display());
    let mut serve = open_katydid(stage, &["serve", "--driver", &driver_under_test()], variables);
    let mut server = Running::start(&mut serve, Stdio::null())?;
    until("the server listens", || socket.exists())?;
    let program = stage.paths.program(LOOP.0, LOOP.1).display().to_string();
    // Without shared memory, modules are sent and kept.
    let variables = [variables, &[("KATYDID_LINK", "stream")]].concat();
    succeeds(open_katydid(stage, &["run", "--server", &unix, "--", &program], &variables))?;
    succeeds(open_katydid(stage, &["ps"], &variables))?;
    server.kill();
    Ok(())
}
