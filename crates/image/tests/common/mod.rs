//! Contents and checkpoints for the tests.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};

use katydid_image::{ChunkId, CommittedCheckpoint, Image, Manifest, Options, Region, Session, Sink, Writer};

/// Bytes of a chunk in tests: small, so that many fit.
pub(crate) const TEST_CHUNK_BYTES: usize = 4096;

/// Returns a temporary folder, in memory if possible, since tests sync hundreds of checkpoints.
pub(crate) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Returns incompressible bytes, the same for each seed (splitmix64).
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

/// Puts a region of one session chunk by chunk.
pub(crate) fn put_region(sink: &impl Sink, contents: &[u8]) -> katydid_image::Result<Region> {
    let chunks = contents
        .chunks(TEST_CHUNK_BYTES)
        .map(|chunk| sink.put(chunk))
        .collect::<katydid_image::Result<Vec<ChunkId>>>()?;
    let (bytes, chunk_bytes) = (contents.len() as u64, TEST_CHUNK_BYTES as u32);
    Ok(Region { kind: "arena".into(), bytes, chunk_bytes, chunks, ..Region::default() })
}

/// Puts a session with this memory and this journal.
pub(crate) fn put_session(sink: &impl Sink, name: &str, contents: &[u8]) -> katydid_image::Result<Session> {
    let region = put_region(sink, contents)?;
    let journal = sink.session_state(name, &noise(contents.len() as u64, 100))?;
    let states = [("journal".to_owned(), journal)].into();
    Ok(Session { name: name.into(), regions: vec![region], states, ..Session::default() })
}

/// Writes a checkpoint with one session.
pub(crate) fn save(image: &Image, contents: &[u8]) -> katydid_image::Result<CommittedCheckpoint> {
    let writer = image.begin(Options::default())?;
    commit(writer, contents)
}

/// Fills and commits a writer.
pub(crate) fn commit(writer: Writer, contents: &[u8]) -> katydid_image::Result<CommittedCheckpoint> {
    let session = put_session(&writer, "0", contents)?;
    writer.commit(Manifest { sessions: vec![session], ..Manifest::default() })
}

/// Returns the memory of the first session of a checkpoint.
pub(crate) fn contents(
    source: &impl katydid_image::ImageSource,
    manifest: &Manifest,
) -> katydid_image::Result<Vec<u8>> {
    let region = &manifest.sessions[0].regions[0];
    let mut bytes = vec![0; region.bytes as usize];
    for (id, chunk) in region.chunks.iter().zip(bytes.chunks_mut(TEST_CHUNK_BYTES)) {
        source.read(id, chunk)?;
    }
    Ok(bytes)
}

/// Returns every file below a folder, with its contents.
pub(crate) fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}
