//! Images across upgrades of Katydid. Another build at another path restores an image after the first build is gone. A library
//! is replaced while a program runs with it. An image of a build with another interface is refused.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use tempfile::TempDir;

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, way_to};

const ON_EVERY_WAY: [(&str, Scenario); 1] =
    [("an_image_outlives_the_installation_it_was_made_with", another_installation)];

const ON_ONE_WAY: [(&str, Scenario); 2] = [
    ("a_library_that_was_replaced_while_a_program_ran_is_in_its_image", replaced_library),
    ("an_image_of_a_build_with_another_interface_is_refused", another_interface),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// An installation for these tests alone, removed on drop.
pub(crate) struct Installation {
    pub(crate) paths: Paths,
    folder: TempDir,
}

impl Installation {
    /// Copies the files under test to a path of their own.
    pub(crate) fn new(paths: &Paths) -> Result<Self> {
        let beside = paths.dist.parent().context("the installation under test lies nowhere")?;
        let folder = tempfile::Builder::new().prefix("installation-").tempdir_in(beside)?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let dist = folder.path().join("katydid");
        let outcome =
            program::run(Command::new("cp").args(["--archive", "--link"]).arg(&paths.dist).arg(&dist), WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}", describe(&outcome));
        Ok(Self { paths: Paths { dist, ..paths.clone() }, folder })
    }

    /// Makes another build of the library for programs, with other bytes and another length.
    fn rebuilt(self) -> Result<Self> {
        self.change_library(|library| Ok(library.write_all(&[0; 4099])?))?;
        Ok(self)
    }

    fn change_library(&self, change: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
        self.change(&self.paths.shim().join("libcuda.so.1"), change)
    }

    /// Replaces a file by a changed copy with a new inode, as an upgrade does. `change` starts writing at the copy's end.
    pub(crate) fn change(&self, path: &Path, change: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
        let fresh = path.with_file_name(".fresh");
        fs::copy(path, &fresh)?;
        let mut file = File::options().write(true).open(&fresh)?;
        file.seek(SeekFrom::End(0))?;
        change(&mut file)?;
        Ok(fs::rename(&fresh, path)?)
    }

    pub(crate) fn remove(self) -> Result<()> {
        Ok(self.folder.close()?)
    }
}

/// A second build restores a job of the first build and takes another checkpoint, which a third build restores.
fn another_installation(paths: &Paths, way: &str) -> Result<()> {
    let expected = expected_of_loop(paths)?;
    let first = Installation::new(paths)?;
    let stage = Stage::new(&first.paths, way)?;
    let mut job = stage.start("upgraded", LOOP, &[], &[30, 60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let bytes_before = job.output_so_far()?.len();
    was_stopped(job)?;
    first.remove()?;

    let second = Installation::new(paths)?.rebuilt()?;
    let server = Server::start(&second.paths, &driver_under_test(), &[])?;
    let plan = Plan { points: &[30, 60], ..Plan::default() };
    let to = way_to(way, &server)?;
    let mut job = Job::restore(&second.paths, &stage.home, &to, "upgraded", &stage.image("image"), &plan)?;
    ensure!(job.holds_itself()?, "the restored job ended before its point: {}", job.errors_so_far()?);
    let outcome = job.checkpoint(&stage.image("image"), &[])?;
    ensure!(outcome.status.success(), "the second checkpoint failed: {}", describe(&outcome));
    let written = bytes_before + job.output_so_far()?.len();
    was_stopped(job)?;
    server.workers_of(0)?;
    drop(server);
    second.remove()?;

    let third = Installation::new(paths)?;
    let server = Server::start(&third.paths, &driver_under_test(), &[])?;
    let to = way_to(way, &server)?;
    let image = stage.image("image");
    let job = Job::restore(&third.paths, &stage.home, &to, "upgraded", &image, &Plan::default())?;
    continues(&expected, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    server.workers_of(0)?;
    stage.is_clean()
}

/// Two jobs are restored at once; one of them has namespaces of its own.
fn replaced_library(paths: &Paths, way: &str) -> Result<()> {
    let expected = expected_of_loop(paths)?;
    let installation = Installation::new(paths)?;
    let stage = Stage::new(&installation.paths, way)?;
    let mut job = stage.start("replaced", LOOP, &[], &[30])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let installation = installation.rebuilt()?;
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let restored = [stage.restore("replaced", "image", &[])?, stage.restore("replaced-2", "image", &[])?];
    for job in restored {
        continues(&expected, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    }
    stage.is_clean()?;
    installation.remove()
}

/// Acts as if the library had been built from another description of the API. Nothing starts, so nothing is left.
fn another_interface(paths: &Paths, way: &str) -> Result<()> {
    /// The owner of the note. After its begin, at this offset, is the hash of the API description.
    const OWNER: &[u8] = b"Katydid\0";
    const HASH: usize = 16;
    let installation = Installation::new(paths)?;
    installation.change_library(|library| {
        let bytes = fs::read(installation.paths.shim().join("libcuda.so.1"))?;
        let notes = bytes
            .windows(12)
            .enumerate()
            .filter(|(_, window)| window[..4] == 1_u32.to_le_bytes() && &window[4..] == OWNER);
        for (at, _) in notes {
            library.write_all_at(&[0xee; 4], (at + 4 + HASH) as u64)?;
        }
        Ok(())
    })?;
    let stage = Stage::new(&installation.paths, way)?;
    let mut job = stage.start("other", LOOP, &[], &[30])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let bytes_before = files(&stage.image("image"))?;
    let outcome = stage.restore("other", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    let errors = outcome.errors();
    ensure!(!outcome.status.success() && errors.contains("interface eeeeeeee"), "{}", describe(&outcome));
    ensure!(errors.contains("restore it with"), "no remedy: {}", describe(&outcome));
    ensure!(files(&stage.image("image"))? == bytes_before, "the image has changed");
    stage.is_clean()
}

/// Returns names and lengths of all files in an image.
fn files(folder: &Path) -> Result<String> {
    let outcome =
        program::run(Command::new("find").arg(folder).args(["-type", "f", "-printf", "%p %s %T@\n"]), WAIT_TIMEOUT)?;
    Ok(outcome.text())
}
