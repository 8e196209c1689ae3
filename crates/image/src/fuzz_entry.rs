//! Entry points for fuzzing: parse untrusted bytes as each kind of file of an image.
//!
//! A hash protects nearly everything, so hardly any random bytes would pass. They are also parsed with the right hash, which an
//! attacker would write.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::error::{ImageError, Result};
use crate::format;
use crate::format::{BLOCK_BYTES, Trailer};
use crate::id::{ChunkId, ImageId};
use crate::index::{FoundChunk, Pack, read_index};
use crate::manifest::{Manifest, Session, seal, unseal};
use crate::reader::read_chunk;
use crate::store::Input;

/// Parses the bytes as image file, pack, manifest and session; returns how many parses succeeded.
pub fn parse_all(bytes: &[u8]) -> usize {
    let image = bytes.as_array::<BLOCK_BYTES>().is_some_and(|bytes| format::read_image_file(bytes).is_ok());
    let packs = [bytes.to_vec(), resealed_pack(bytes)].into_iter().filter(|bytes| reads_pack(bytes));
    let manifests = [Some(bytes.to_vec()), resealed_json(bytes)].into_iter().flatten();
    usize::from(image) + packs.count() + manifests.map(|bytes| readings(&bytes)).sum::<usize>()
}

/// A file in memory.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Input for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = self.0.get(start..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or_else(|| ImageError::damaged("bytes", "it is cut off"))?);
        Ok(())
    }
}

/// Returns whether every chunk of a pack can be read; its header may name any image and number.
fn reads_pack(bytes: &[u8]) -> bool {
    // The test is about parsing, not about whether a pack lies in the right image.
    let id = bytes.get(16..32).and_then(|id| id.first_chunk()).copied().unwrap_or_default();
    let number = bytes.get(12..16).and_then(|number| number.first_chunk()).copied().map_or(0, u32::from_le_bytes);
    let input = Arc::new(Bytes(bytes.to_vec()));
    let Ok(entries) = read_index(&*input, ImageId::from_bytes(id), number, "bytes") else { return false };
    let pack = Arc::new(Pack { number, location: "bytes".to_owned(), input });
    for entry in entries {
        let mut raw = vec![0; entry.raw as usize];
        if read_chunk(&FoundChunk { pack: Arc::clone(&pack), entry }, &mut raw).is_ok() {
            assert_eq!(ChunkId::of(&raw), entry.id, "what is accepted has the hash that its name says");
        }
    }
    true
}

/// Returns the bytes as a pack with a matching trailer.
fn resealed_pack(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some((rest, last)) = bytes.split_last_chunk_mut::<BLOCK_BYTES>() else { return bytes };
    let Ok(trailer) = Trailer::read(last, (rest.len() + BLOCK_BYTES) as u64) else { return bytes };
    // The trailer's offset was checked against the length.
    let index = rest.get(trailer.index_offset as usize..).unwrap_or_default();
    *last = Trailer::of(index, trailer.index_offset).bytes();
    bytes
}

/// Returns the bytes as the contents of a sealed file, if they are JSON.
fn resealed_json(bytes: &[u8]) -> Option<Vec<u8>> {
    let content: &RawValue = serde_json::from_slice(bytes).ok()?;
    seal(content).ok()
}

/// Counts accepted parses, and checks that accepted contents survive a round trip.
fn readings(bytes: &[u8]) -> usize {
    let manifest = Manifest::decode(bytes).ok();
    if let Some(manifest) = &manifest {
        // Walks all regions with the lengths of their chunks.
        let content = manifest.chunks().map(|(_, length)| length as u64).fold(0, u64::wrapping_add);
        let sessions = manifest.sessions.iter().flat_map(|session| &session.regions);
        let regions = sessions.chain(manifest.libraries.iter().map(|library| &library.contents));
        assert_eq!(content, regions.map(|region| region.bytes).fold(0, u64::wrapping_add), "chunks fill their region");
    }
    usize::from(manifest.is_some()) + usize::from(unseal::<Session>(bytes).is_ok())
}
