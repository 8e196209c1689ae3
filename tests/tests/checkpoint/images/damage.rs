//! Damaged images: `images verify` and `restore` report the same for each, whatever was damaged.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use katydid_tests::commands::katydid;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::watch::WAIT_TIMEOUT;

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe};

pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    [("verify_and_restore_say_the_same_of_damaged_images", agree as Scenario, "shm")].into_iter()
}

/// A damage to the largest file of an image whose path contains a given text.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Flips a bit of the byte at this offset, from the end if it is negative.
    Flip(i64),
    /// Cuts off the second half.
    Cut,
    Remove,
    /// Replaces the file's contents.
    Replace(&'static str),
    /// Adds a file of this name beside it.
    Add(&'static str),
}

/// Headers and chunks of a pack are 64 bytes and more; its index and a trailer of 64 bytes are at its end.
const DAMAGES: [(&str, Damage); 24] = [
    (".pack", Damage::Flip(20)),
    (".pack", Damage::Flip(64 + 10)),
    (".pack", Damage::Flip(64 + 64 + 5)),
    (".pack", Damage::Flip(-64 - 20)),
    (".pack", Damage::Flip(-10)),
    (".pack", Damage::Cut),
    (".pack", Damage::Remove),
    (".pack", Damage::Add("00000077.pack")),
    ("manifest.json", Damage::Flip(200)),
    ("manifest.json", Damage::Cut),
    ("manifest.json", Damage::Replace("{}")),
    ("state-", Damage::Flip(9)),
    ("state-", Damage::Remove),
    ("core-", Damage::Flip(30)),
    ("criu/pages-", Damage::Flip(50)),
    ("criu/pages-", Damage::Cut),
    ("criu/files.img", Damage::Remove),
    ("criu/files.img", Damage::Add("more.img")),
    ("dump.log", Damage::Replace("nothing")),
    ("dump.log", Damage::Remove),
    ("image/latest", Damage::Replace("no number\n")),
    ("image/latest", Damage::Remove),
    ("image/lock", Damage::Replace("nothing")),
    ("image/katydid-image", Damage::Flip(40)),
];

impl Damage {
    fn be_done(self, path: &Path) -> Result<()> {
        let bytes = fs::read(path)?;
        match self {
            Self::Flip(at) => {
                let at = if at < 0 { bytes.len() as i64 + at } else { at };
                let mut bytes = bytes;
                *bytes.get_mut(usize::try_from(at)?).context("the file is shorter")? ^= 4;
                fs::write(path, bytes)?;
            }
            Self::Cut => fs::write(path, &bytes[..bytes.len() / 2])?,
            Self::Remove => fs::remove_file(path)?,
            Self::Replace(text) => fs::write(path, text)?,
            Self::Add(name) => fs::write(path.with_file_name(name), "more")?,
        }
        Ok(())
    }
}

/// Returns the largest file of a folder whose path contains `part`: some of CRIU's are empty.
fn file(folder: &Path, part: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = crate::scenarios::files_below(folder)?;
    found.retain(|path| path.to_string_lossy().contains(part));
    found.sort_by_cached_key(|path| (path.metadata().map_or(0, |it| it.len()), path.clone()));
    found.pop().with_context(|| format!("no {part} in {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &there)? } else { fs::copy(entry.path(), there).map(drop)? }
    }
    Ok(())
}

fn agree(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("whole", LOOP, &[], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let expected = expected_of_loop(paths)?;
    let mut checkpoint_count = 0;
    for (number, (part, damage)) in DAMAGES.into_iter().enumerate() {
        let name = format!("{number}/image");
        let damaged = stage.image(&name);
        fs::create_dir(stage.image(&number.to_string()))?;
        copy(&stage.image("image"), &damaged)?;
        damage.be_done(&file(&damaged, part)?).with_context(|| format!("{damage:?} of {part}"))?;
        let verified = program::run(katydid(paths, &["images", "verify"]).arg(&damaged), WAIT_TIMEOUT)?;
        let restored = stage.restore("whole", &name, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        let (is_whole, is_restored) = (verified.status.success(), restored.status.success());
        ensure!(
            is_whole == is_restored,
            "{damage:?} of {part}: verify says {is_whole}, restore {is_restored}\n{}\n{}",
            describe(&verified),
            describe(&restored)
        );
        if is_restored {
            continues(&expected, (written, written), &restored).with_context(|| format!("{damage:?} of {part}"))?;
            checkpoint_count += 1;
        } else {
            ensure!(restored.status.code() == Some(1), "{damage:?} of {part}: {}", describe(&restored));
        }
        fs::remove_dir_all(stage.image(&number.to_string()))?;
    }
    ensure!(
        (2..DAMAGES.len() - 8).contains(&checkpoint_count),
        "{checkpoint_count} of {} damages do no harm",
        DAMAGES.len()
    );
    stage.is_clean()
}
