//! Stored images, whole and with every possible damage by one byte or one cut: a short run of the fuzz target `image` without a
//! fuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../../fuzz/bodies/image.rs"]
mod image;

use std::fs;
use std::path::Path;

use image::parse_all;
use katydid_fatbin::ModuleImage;

/// Reads the stored images: nvcc's output for a small kernel, with each of its compressions.
fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/image");
    fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

#[test]
fn kept_images_hold_the_same_text_whatever_their_compression() {
    let images = corpus();
    let texts: Vec<String> = images
        .iter()
        .map(|bytes| {
            ModuleImage::from_bytes(bytes)
                .unwrap()
                .ptx(Some(90))
                .unwrap()
                .iter()
                .map(|ptx| ptx.text.clone().into_owned())
                .collect()
        })
        .collect();
    assert!(texts.len() >= 3);
    assert!(texts.iter().all(|text| *text == texts[0] && text.contains(".visible .entry k(")), "{texts:?}");
}

#[test]
fn every_cut_is_survived() {
    for bytes in corpus() {
        assert!(parse_all(&bytes) > 0);
        for end in 0..bytes.len() {
            parse_all(&bytes[..end]);
        }
    }
}

#[test]
fn every_byte_may_be_wrong() {
    for bytes in corpus() {
        for at in 0..bytes.len() {
            for wrong in [0, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] = wrong;
                parse_all(&damaged);
            }
        }
    }
}
