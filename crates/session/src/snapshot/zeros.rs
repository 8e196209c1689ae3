//! Chunks of zeros, recognized by their names: memory that no thread has used yet has many of them.

use std::collections::HashMap;

use katydid_image::{ChunkId, Sink};

use super::error::SnapshotError;

/// Names of chunks of zeros, by length: each is hashed once.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    names: HashMap<u64, ChunkId>,
}

impl Zeros {
    /// Stores `length` zeros, and returns their name.
    ///
    /// # Errors
    ///
    /// An error of the image.
    pub(super) fn put(&mut self, length: u64, sink: &dyn Sink) -> Result<ChunkId, SnapshotError> {
        if let Some(name) = self.names.get(&length) {
            return Ok(*name);
        }
        let name = sink.put(&vec![0; length as usize])?;
        self.names.insert(length, name);
        Ok(name)
    }

    /// Returns whether a chunk of this name and length is all zeros.
    pub(super) fn has(&mut self, name: &ChunkId, length: u64) -> bool {
        self.names.entry(length).or_insert_with(|| ChunkId::of(&vec![0; length as usize])) == name
    }
}
