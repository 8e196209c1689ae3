//! A checkpoint that is interrupted at every change of the disk; and one without free space.
//!
//! Whatever happens, complete checkpoints stay complete, and the next one works.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{self, TEST_CHUNK_BYTES, contents, folder, noise, put_session};
use katydid_image::{
    CheckpointChoice, CheckpointNumber, Compression, Faults, Image, ImageError, InjectedFault, Manifest, Options,
    Result, RetentionPolicy,
};

const FIRST: CheckpointNumber = CheckpointNumber(1);

/// Makes at least three packs.
fn options() -> Options {
    Options { compression: Compression::Zstd(1), pack_bytes: 3 * TEST_CHUNK_BYTES as u64, packs_at_once: 2 }
}

fn memory(version: u64) -> Vec<u8> {
    let mut bytes = noise(1, 6 * TEST_CHUNK_BYTES);
    bytes.extend(noise(version, 2 * TEST_CHUNK_BYTES + 5));
    bytes
}

/// Writes a whole checkpoint: a part, an own session, files of another program.
fn save(image: &Image, version: u64) -> Result<CheckpointNumber> {
    let writer = image.begin(options())?;
    let part = image.join(writer.number(), options())?;
    let session = put_session(&part, "part", &memory(version + 100))?;
    part.finish(&session)?;
    let own = put_session(&writer, "own", &memory(version))?;
    let criu = writer.folder("criu")?;
    fs::write(criu.join("core.img"), noise(version, 50)).unwrap();
    writer.adopt_folder("criu")?;
    let sessions = vec![own, writer.take_session("part")?];
    writer.commit(Manifest { sessions, ..Manifest::default() }).map(|committed| committed.number)
}

fn assert_holds(image: &Image, number: CheckpointNumber, version: u64) {
    let reader = image.checkpoint(CheckpointChoice::Number(number)).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(version));
    assert_eq!(fs::read(reader.folder("criu").unwrap().join("core.img")).unwrap(), noise(version, 50));
}

/// Applies a power cut to files that were not synced.
fn lose(folder: &Path, faults: &Faults) {
    for name in faults.unsynced() {
        if let Ok(file) = File::options().write(true).open(folder.join(name)) {
            file.set_len(0).unwrap();
        }
    }
}

/// Runs it once to count the changes, then with each change failing, on an image with one checkpoint.
fn at_every_change(
    fault: InjectedFault,
    power_cut: bool,
    act: impl Fn(&Image) -> Result<()>,
    check: impl Fn(&Image, bool),
) {
    let mut changes = 1;
    let mut at = 0;
    while at < changes {
        let folder = folder();
        save(&Image::create_or_open(folder.path()).unwrap(), 1).unwrap();
        let counting = at == 0 && changes == 1;
        let faults = Arc::new(if counting { Faults::none() } else { Faults::at(at, fault) });
        let done = act(&Image::create_with_faults(folder.path(), Arc::clone(&faults)).unwrap());
        if counting {
            done.unwrap();
            changes = faults.changes();
            assert!(changes > 5, "there are changes to let fail");
            continue;
        }
        if power_cut {
            lose(folder.path(), &faults);
        }
        let image = Image::open(folder.path()).unwrap();
        check(&image, done.is_ok());
        assert!(image.verify(None, &|_| {}).unwrap().is_clean(), "change {at}");
        at += 1;
    }
}

/// Checks that the second checkpoint is complete or absent, and that the next one can be written and read.
fn assert_first_untouched(image: &Image, done: bool) {
    assert_holds(image, FIRST, 1);
    let numbers = image.checkpoints().unwrap();
    assert!(!done || numbers.len() == 2, "what was reported as made is there");
    if numbers.len() == 2 {
        assert_holds(image, numbers[1], 2);
    }
    let next = save(image, 3).unwrap();
    assert_holds(image, next, 3);
    assert_holds(image, FIRST, 1);
    let packs = fs::read_dir(Path::new(&image.location()).join("packs")).unwrap();
    let names: Vec<String> = packs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| name.ends_with(".pack")), "nothing half done is left: {names:?}");
}

#[test]
fn a_process_that_ends_at_any_change_leaves_the_last_checkpoint() {
    at_every_change(InjectedFault::Crash, false, |image| save(image, 2).map(drop), assert_first_untouched);
}

#[test]
fn a_machine_that_stops_at_any_change_leaves_the_last_checkpoint() {
    at_every_change(InjectedFault::Crash, true, |image| save(image, 2).map(drop), assert_first_untouched);
}

#[test]
fn full_disk_is_reported_and_leaves_the_last_checkpoint() {
    let save = |image: &Image| match save(image, 2) {
        Err(ImageError::Full { .. }) | Ok(_) => Ok(()),
        Err(other) => panic!("{other}"),
    };
    let check = |image: &Image, _| {
        assert_holds(image, FIRST, 1);
        let next = common::save(image, &noise(9, 5 * TEST_CHUNK_BYTES)).unwrap();
        assert!(next.number > FIRST);
    };
    at_every_change(InjectedFault::Full, false, save, check);
}

#[test]
fn clearing_up_can_end_at_any_change() {
    let act = |image: &Image| {
        if image.checkpoints()?.len() == 1 {
            // Outside of the plan: as if it had been there before.
            save(&Image::open(image.location())?, 2)?;
        }
        image.collect(&RetentionPolicy { newest: Some(1), ..RetentionPolicy::default() }).map(drop)
    };
    let check = |image: &Image, done: bool| {
        let numbers = image.checkpoints().unwrap();
        assert_holds(image, *numbers.last().unwrap(), 2);
        assert!(!done || numbers.len() == 1);
        image.keep(1).unwrap();
        assert_holds(image, *numbers.last().unwrap(), 2);
        let next = save(image, 3).unwrap();
        assert_holds(image, next, 3);
    };
    at_every_change(InjectedFault::Crash, false, act, check);
    at_every_change(InjectedFault::Crash, true, act, check);
}

#[test]
fn an_image_whose_making_ended_early_is_made_again() {
    let mut at = 0;
    loop {
        let folder = folder();
        let faults = Arc::new(Faults::at(at, InjectedFault::Crash));
        let result = Image::create_with_faults(folder.path(), Arc::clone(&faults));
        lose(folder.path(), &faults);
        let image = Image::create_or_open(folder.path()).unwrap();
        assert_holds(&image, save(&image, 1).unwrap(), 1);
        if result.is_ok() {
            break;
        }
        at += 1;
    }
    assert!(at > 3, "making an image takes more changes than {at}");
}

/// The body of the next test: `KATYDID_IMAGE` is an image with one checkpoint, and files may have at most 64 blocks.
#[test]
#[ignore = "needs a limit, which the next test sets"]
fn under_a_limit() {
    let image = Image::open(env::var_os("KATYDID_IMAGE").unwrap()).unwrap();
    let refused = common::save(&image, &noise(5, 60 * TEST_CHUNK_BYTES)).unwrap_err();
    assert!(matches!(refused, ImageError::Full { .. }), "{refused}");
    assert_holds(&image, FIRST, 1);
    assert_eq!(save(&image, 2).unwrap(), CheckpointNumber(2), "what fits is written");
}

/// A real error of the kernel; a shell sets the limit and ignores its signal.
#[test]
fn efbig_is_reported_as_a_full_disk() {
    let folder = folder();
    save(&Image::create_or_open(folder.path()).unwrap(), 1).unwrap();
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" --ignored --exact faults::under_a_limit";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(env::current_exe().unwrap()).env("KATYDID_IMAGE", folder.path());
    let output = shell.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
