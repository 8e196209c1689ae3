//! Images of released formats stay readable: `tests/earlier_formats` has one of each.
//!
//! `KATYDID_BLESS=1` writes the image of the present format, if there is none yet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::common::{contents, noise, put_session, tree};
use katydid_image::{
    CheckpointChoice, CheckpointNumber, ChunkId, FORMAT_VERSION, Image, ImageSource, Job, Manifest, Options, parse_all,
};

fn stored_image(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/earlier_formats/format-{format}"))
}

/// Returns all three encodings of a chunk, in both checkpoints; the second shares with the first.
fn memory(version: u64) -> Vec<u8> {
    let text = b"kept for those to come ".iter().copied().cycle().take(8192);
    [vec![0; 4096], text.collect(), noise(1, 4096), noise(version, 300)].concat()
}

fn write(folder: &Path) {
    let image = Image::create_or_open(folder).unwrap();
    for version in [1, 2] {
        let writer = image.begin(Options::default()).unwrap();
        fs::write(writer.folder("criu").unwrap().join("core-1.img"), b"registers").unwrap();
        writer.adopt_folder("criu").unwrap();
        let sessions = vec![put_session(&writer, "0", &memory(version)).unwrap()];
        let job = Job { name: "kept".into(), host: "here".into(), command: vec!["./kept".into()] };
        writer.commit(Manifest { job, sessions, ..Manifest::default() }).unwrap();
    }
    fs::remove_file(folder.join("lock")).unwrap();
}

#[test]
fn every_format_that_was_ever_written_is_read() {
    if env::var_os("KATYDID_BLESS").is_some() && !stored_image(FORMAT_VERSION).exists() {
        write(&stored_image(FORMAT_VERSION));
    }
    for format in 1..=FORMAT_VERSION {
        let image = Image::open(stored_image(format)).unwrap();
        assert_eq!(image.checkpoints().unwrap(), [CheckpointNumber(1), CheckpointNumber(2)]);
        for version in [1, 2] {
            let reader = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(version))).unwrap();
            let manifest = reader.manifest();
            assert_eq!(contents(&reader, manifest).unwrap(), memory(version.into()));
            assert_eq!(reader.state(&manifest.sessions[0].states["journal"]).unwrap(), noise(16684, 100));
            assert_eq!(fs::read(reader.folder("criu").unwrap().join("core-1.img")).unwrap(), b"registers");
            assert_eq!(manifest.job.name, "kept");
        }
        assert!(image.verify(None, &|_| {}).unwrap().is_clean());
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_is_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/store");
    for (path, bytes) in tree(&corpus) {
        assert!(parse_all(&bytes) > 0, "{path:?}");
    }
}

/// Checks the numbers in `docs/reference/image-format.md` without the code that it describes.
#[test]
fn the_documented_offsets_are_those_of_the_files() {
    let field = |bytes: &[u8], at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let image = fs::read(stored_image(1).join("katydid-image")).unwrap();
    assert_eq!((&image[..8], field(&image, 8, 4), image.len()), (&b"KATYDIMG"[..], 1, 64));
    assert_eq!(image[32..], *ChunkId::of(&image[..32]).as_bytes());
    let pack = fs::read(stored_image(1).join("packs/00000001.pack")).unwrap();
    assert_eq!((&pack[..8], field(&pack, 8, 4), field(&pack, 12, 4)), (&b"KATYPACK"[..], 1, 1));
    assert_eq!(pack[16..32], image[16..32]);
    let trailer = &pack[pack.len() - 64..];
    let (index_at, lines) = (field(trailer, 32, 8) as usize, field(trailer, 40, 4) as usize);
    let index = &pack[index_at..pack.len() - 64];
    assert_eq!((&trailer[56..], index.len()), (&b"KATYTAIL"[..], 64 * lines));
    assert_eq!(trailer[..32], *ChunkId::of(index).as_bytes());
    let mut kinds = Vec::new();
    for line in index.chunks(64) {
        let (header_at, stored) = (field(line, 40, 8) as usize, field(line, 52, 4) as usize);
        let header = &pack[header_at..header_at + 64];
        assert_eq!((&header[..4], &header[32..]), (&b"KCHK"[..], &line[..32]));
        assert_eq!((field(header, 4, 4), field(header, 8, 4)), (field(line, 56, 4), field(line, 48, 4)));
        assert_eq!(header[16..24], ChunkId::of(&pack[header_at + 64..header_at + 64 + stored]).as_bytes()[..8]);
        kinds.push(field(line, 56, 4));
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, [0, 1, 2], "chunks of every kind");
    let manifest = fs::read_to_string(stored_image(1).join("checkpoints/000002/manifest.json")).unwrap();
    let content = manifest.strip_prefix("{\"format\":1,\"blake3\":\"").unwrap();
    let (hash, content) = content.split_at(64);
    let content = content.strip_prefix("\",\"content\":").unwrap().strip_suffix('}').unwrap();
    assert_eq!(hash, ChunkId::of(content.as_bytes()).to_string());
}
