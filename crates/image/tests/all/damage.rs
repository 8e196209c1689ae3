//! Images with bytes changed, and files cut, swapped or removed: the result is the right contents or a clear error.
//!
//! The numbers come from a fixed seed, so a failure repeats; `KATYDID_MUTATIONS` sets the number of damages.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../../fuzz/bodies/random.rs"]
mod random;

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::common::{TEST_CHUNK_BYTES, contents, folder, noise, save, tree};
use katydid_image::{CheckpointChoice, CheckpointNumber, Image, ImageError, ImageSource, parse_all};
use random::Random;

/// Default number of damages: a second's work.
const MUTATION_COUNT: usize = 400;

fn memory(version: u64) -> Vec<u8> {
    let mut bytes = vec![0; TEST_CHUNK_BYTES];
    bytes.extend(b"compressible ".iter().cycle().take(2 * TEST_CHUNK_BYTES));
    bytes.extend(noise(version, 2 * TEST_CHUNK_BYTES));
    bytes
}

/// Returns an image with two checkpoints that share chunks.
fn image_in(folder: &Path) -> Image {
    let image = Image::create_or_open(folder).unwrap();
    save(&image, &memory(1)).unwrap();
    save(&image, &memory(2)).unwrap();
    image
}

/// Damages a file's bytes; `None` removes the file.
fn damaged(mut bytes: Vec<u8>, random: &mut Random) -> Option<Vec<u8>> {
    let at = random.index(bytes.len());
    match random.index(6) {
        0 => return None,
        1 => bytes.truncate(at),
        2 => bytes.extend(noise(at as u64, 1 + at % 100)),
        3 => drop(bytes.splice(at..at, [0])),
        _ if bytes.is_empty() => bytes.push(0),
        _ => bytes[at] ^= 1 << random.index(8),
    }
    Some(bytes)
}

/// Reads a whole checkpoint, or fails.
fn read_all(folder: &Path, number: u32) -> Result<(Vec<u8>, Vec<u8>), ImageError> {
    let reader = Image::open(folder)?.checkpoint(CheckpointChoice::Number(CheckpointNumber(number)))?;
    let manifest = reader.manifest().clone();
    Ok((contents(&reader, &manifest)?, reader.state(&manifest.sessions[0].states["journal"])?))
}

#[test]
fn a_damaged_image_gives_the_right_contents_or_an_error() {
    let whole = folder();
    image_in(whole.path());
    let files = tree(whole.path());
    let expected = [1, 2].map(|number| read_all(whole.path(), number).unwrap());
    let mutation_count = env::var("KATYDID_MUTATIONS").map_or(MUTATION_COUNT, |text| text.parse().unwrap());
    let mut random = Random(0x5eed);
    let mut refused = 0;
    for round in 0..mutation_count {
        let (path, bytes) = &files[random.index(files.len())];
        match damaged(bytes.clone(), &mut random) {
            Some(bytes) => fs::write(path, &bytes).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        let read = [1, 2].map(|number| read_all(whole.path(), number));
        let clean = Image::open(whole.path()).and_then(|image| image.verify(None, &|_| {}));
        for (read, expected) in read.iter().zip(&expected) {
            match read {
                Ok(read) => assert!(read == expected, "round {round}: wrong contents after damage to {path:?}"),
                Err(error) => assert!(!error.to_string().contains('\n'), "round {round}: {error}"),
            }
        }
        if read.iter().any(Result::is_err) {
            refused += 1;
            let seen = clean.map_or(true, |report| !report.is_clean() || report.checkpoints.len() < 2);
            assert!(seen, "round {round}: verify does not see the damage to {path:?}");
        } else {
            let problems = clean.map(|report| report.checkpoints.into_values().flatten().collect::<Vec<_>>());
            assert_eq!(problems.unwrap(), [""; 0], "round {round}: verify calls damaged what is read, {path:?}");
        }
        fs::write(path, bytes).unwrap();
    }
    assert!(refused > mutation_count / 4, "most damages matter: {refused} of {mutation_count}");
    assert!(Image::open(whole.path()).unwrap().verify(None, &|_| {}).unwrap().is_clean());
}

#[test]
fn files_of_an_image_are_read_and_so_are_changed_ones_with_right_hashes() {
    let folder = folder();
    image_in(folder.path());
    let mut random = Random(7);
    let mut accepted = 0;
    for (path, bytes) in tree(folder.path()) {
        let is_read = ["katydid-image", "pack", "json"].iter().any(|end| path.to_string_lossy().ends_with(end));
        assert!(!is_read || parse_all(&bytes) > 0, "{path:?}");
        for _ in 0..200 {
            let mut bytes = bytes.clone();
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.index(8);
            accepted += parse_all(&bytes);
        }
        if let Some(manifest) = bytes.strip_prefix(b"{\"format\"") {
            accepted += json_variants(manifest, &mut random);
        }
    }
    assert!(accepted > 100, "changes behind a hash get through when the hash is right: {accepted}");
}

/// Changes digits in the inner object, so that numbers contradict each other.
fn json_variants(rest: &[u8], random: &mut Random) -> usize {
    let text = String::from_utf8(rest.to_vec()).unwrap();
    let content = &text[text.find("\"content\":").unwrap() + 10..text.len() - 1];
    let digits: Vec<usize> =
        content.bytes().enumerate().filter(|(_, b)| b.is_ascii_digit()).map(|(at, _)| at).collect();
    let vary = |_| {
        let mut bytes = content.as_bytes().to_vec();
        bytes[digits[random.index(digits.len())]] = b'0' + random.index(10) as u8;
        parse_all(&bytes)
    };
    (0..500).map(vary).sum()
}

fn only_pack(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("packs/{number:08}.pack"))
}

#[test]
fn a_missing_pack_is_named_and_other_checkpoints_go_on() {
    let folder = folder();
    image_in(folder.path());
    fs::remove_file(only_pack(folder.path(), 2)).unwrap();
    assert!(read_all(folder.path(), 1).is_ok());
    let refused = read_all(folder.path(), 2).unwrap_err().to_string();
    assert!(refused.contains("packs/00000002.pack: missing, and checkpoint 2 needs it"), "{refused}");
}

#[test]
fn a_newer_version_is_refused_by_number() {
    let folder = folder();
    image_in(folder.path());
    let manifest = folder.path().join("checkpoints/000002/manifest.json");
    let newer = fs::read_to_string(&manifest).unwrap().replacen("\"format\":1", "\"format\":9", 1);
    fs::write(&manifest, newer).unwrap();
    let refused = read_all(folder.path(), 2).unwrap_err();
    assert!(matches!(refused, ImageError::TooNew { found: 9, newest: 1, .. }), "{refused}");
    for (path, number) in [(only_pack(folder.path(), 1), 1), (folder.path().join("katydid-image"), 1)] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 2;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(read_all(folder.path(), number), Err(ImageError::TooNew { found: 2, .. })), "{path:?}");
    }
}

#[test]
fn a_pack_of_another_image_is_refused() {
    let (one, other) = (folder(), folder());
    image_in(one.path());
    image_in(other.path());
    fs::copy(only_pack(other.path(), 1), only_pack(one.path(), 1)).unwrap();
    let refused = read_all(one.path(), 1).unwrap_err().to_string();
    assert!(refused.contains("it belongs to another image"), "{refused}");
}

#[test]
fn the_next_checkpoint_writes_again_what_was_in_a_damaged_pack() {
    let folder = folder();
    let image = image_in(folder.path());
    let pack = only_pack(folder.path(), 1);
    let bytes = fs::read(&pack).unwrap();
    fs::write(&pack, &bytes[..bytes.len() / 2]).unwrap();
    save(&image, &memory(1)).unwrap();
    assert_eq!(read_all(folder.path(), 3).unwrap().0, memory(1));
    assert!(read_all(folder.path(), 1).is_ok(), "its chunks are there again");
}

#[test]
fn a_latest_that_holds_no_number_is_noticed_and_one_that_is_old_or_missing_is_not() {
    let whole = folder();
    image_in(whole.path());
    let remarks = || {
        let report = Image::open(whole.path()).unwrap().verify(None, &|_| {}).unwrap();
        assert!(report.is_clean());
        report.remarks
    };
    let latest = whole.path().join("latest");
    fs::write(&latest, "000 02\n").unwrap();
    assert_eq!(remarks(), ["latest: it holds no number: 000002 belongs there"]);
    fs::write(&latest, "000001\n").unwrap();
    assert!(remarks().is_empty());
    fs::remove_file(&latest).unwrap();
    assert!(remarks().is_empty());
}

#[test]
fn an_image_without_a_checkpoint_to_restore_is_not_clean() {
    let whole = folder();
    image_in(whole.path());
    let verify = || Image::open(whole.path()).unwrap().verify(None, &|_| {});
    fs::remove_file(whole.path().join("checkpoints/000002/manifest.json")).unwrap();
    assert!(verify().unwrap().is_clean(), "the first one can be restored");
    fs::remove_file(whole.path().join("checkpoints/000001/manifest.json")).unwrap();
    let report = verify().unwrap();
    assert!(!report.is_clean() && report.remarks.is_empty(), "{report:?}");
    let empty = folder();
    let image = Image::create_or_open(empty.path()).unwrap();
    let report = image.verify(None, &|_| {}).unwrap();
    assert!(report.checkpoints.is_empty() && !report.is_clean(), "{report:?}");
}
