//! What a clean-up removes, joins and keeps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

use crate::common::{TEST_CHUNK_BYTES, contents, folder, noise, save};
use katydid_image::{CheckpointChoice, CheckpointNumber, Image, ImageError, RetentionPolicy};

fn packs(folder: &Path) -> usize {
    fs::read_dir(folder.join("packs")).unwrap().count()
}

/// Returns noise of `chunks` chunks, of which each step replaces the next one.
fn memory(chunks: usize, step: usize) -> Vec<u8> {
    let chunk = |index: usize| noise((index + if index < step { 1000 * step } else { 0 }) as u64 * 7, TEST_CHUNK_BYTES);
    (0..chunks).flat_map(chunk).collect()
}

/// Writes a checkpoint for each state of the memory.
fn saved(image: &Image, states: impl Iterator<Item = Vec<u8>>) {
    for state in states {
        save(image, &state).unwrap();
    }
}

#[test]
fn only_the_newest_are_kept_and_can_be_read() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    saved(&image, (0..6).map(|step| memory(20, step)));
    let cleared = image.keep(2).unwrap();
    assert_eq!(cleared.checkpoints, (1..=4).map(CheckpointNumber).collect::<Vec<_>>());
    assert!(cleared.bytes_after < cleared.bytes_before);
    assert_eq!(image.checkpoints().unwrap(), [CheckpointNumber(5), CheckpointNumber(6)]);
    for (number, step) in [(5, 4), (6, 5)] {
        let reader = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(number))).unwrap();
        assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(20, step));
    }
    assert!(image.verify(None, &|_| {}).unwrap().is_clean());
    assert_eq!(save(&image, &memory(20, 6)).unwrap().number, CheckpointNumber(7));
}

#[test]
fn a_pack_of_mostly_waste_is_written_again() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    save(&image, &memory(40, 0)).unwrap();
    save(&image, &memory(40, 30)).unwrap();
    let cleared = image.keep(1).unwrap();
    assert_eq!((cleared.packs_removed, cleared.packs_rewritten), (0, 1));
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(40, 30));
    // 10 old chunks, 30 new ones, and little else.
    assert!(cleared.bytes_after < 41 * (TEST_CHUNK_BYTES as u64 + 128), "{cleared:?}");
}

#[test]
fn many_small_packs_become_one() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    saved(&image, (0..40).map(|step| memory(40, step)));
    assert_eq!(packs(folder.path()), 40);
    image.collect(&RetentionPolicy::default()).unwrap();
    assert_eq!(packs(folder.path()), 1);
    assert!(image.verify(None, &|_| {}).unwrap().is_clean());
    assert_eq!(image.checkpoints().unwrap().len(), 40);
}

#[test]
fn a_dry_run_says_and_does_nothing() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    saved(&image, (0..3).map(|step| memory(10, 2 * step)));
    let preview =
        image.collect(&RetentionPolicy { newest: Some(1), dry_run: true, ..RetentionPolicy::default() }).unwrap();
    assert_eq!(image.checkpoints().unwrap().len(), 3);
    let done = image.keep(1).unwrap();
    assert_eq!((preview.checkpoints, preview.packs_removed), (done.checkpoints, done.packs_removed));
}

#[test]
fn a_damaged_checkpoint_stops_clearing_until_it_is_removed_by_name() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    saved(&image, (0..3).map(|step| memory(10, step)));
    fs::write(folder.path().join("checkpoints/000002/manifest.json"), "{}").unwrap();
    assert!(matches!(image.collect(&RetentionPolicy::default()), Err(ImageError::Damaged { .. })));
    let keep = RetentionPolicy { remove: vec![CheckpointNumber(2)], ..RetentionPolicy::default() };
    assert_eq!(image.collect(&keep).unwrap().checkpoints, [CheckpointNumber(2)]);
    assert!(image.verify(None, &|_| {}).unwrap().is_clean());
    let absent = RetentionPolicy { remove: vec![CheckpointNumber(9)], ..RetentionPolicy::default() };
    assert!(matches!(image.collect(&absent), Err(ImageError::NoCheckpoint { .. })));
}

#[test]
fn nothing_is_cleared_under_a_reader() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    saved(&image, (0..2).map(|step| memory(10, step)));
    let first = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(1))).unwrap();
    let second = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(1))).unwrap();
    assert!(matches!(image.keep(1), Err(ImageError::Locked { .. })));
    assert_eq!(save(&image, &memory(10, 2)).unwrap().number, CheckpointNumber(3));
    assert_eq!(contents(&first, first.manifest()).unwrap(), contents(&second, second.manifest()).unwrap());
    drop((first, second));
    assert_eq!(image.keep(1).unwrap().checkpoints.len(), 2);
}
