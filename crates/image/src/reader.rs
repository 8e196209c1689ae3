//! Reads a checkpoint: every byte that it returns has been compared with its hash.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::{check_of, decompress, zero_id};
use crate::error::{ImageError, Result};
use crate::files::{MAX_SESSION_STATE_BYTES, hash_of, hash_of_path};
use crate::format::Codec;
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::{CheckpointChoice, Image, MANIFEST_FILE, folder_of, read_whole};
use crate::index::{FoundChunk, Index, PACKS_FOLDER, located, pack_name};
use crate::manifest::{FileEntry, MAX_MANIFEST_BYTES, Manifest};
use crate::store::{Guard, Lock, Store};

/// The source of a session's chunks and states: an image, or a connection to the process that reads it.
pub trait ImageSource: Send + Sync {
    /// Fills the buffer, which must be as long as the chunk, with its bytes. Any number of threads may read at once.
    fn read(&self, id: &ChunkId, buffer: &mut [u8]) -> Result<()>;

    /// Returns a file of a session.
    fn state(&self, entry: &FileEntry) -> Result<Vec<u8>>;
}

impl Image {
    /// Opens a checkpoint for reading.
    pub fn checkpoint(&self, which: CheckpointChoice) -> Result<CheckpointReader> {
        CheckpointReader::open(self, which)
    }

    /// Returns the manifest of a checkpoint; does not check that its chunks exist.
    pub fn manifest(&self, which: CheckpointChoice) -> Result<Manifest> {
        read_manifest(self, self.resolve(which)?)
    }
}

/// A checkpoint whose chunks all exist. While it is open, no clean-up removes what it needs.
#[derive(Debug)]
pub struct CheckpointReader {
    store: Arc<dyn Store>,
    number: CheckpointNumber,
    manifest: Manifest,
    index: Index,
    _guard: Guard,
}

/// Reads a manifest, and checks that it belongs to this image and number.
pub(crate) fn read_manifest(image: &Image, number: CheckpointNumber) -> Result<Manifest> {
    let name = format!("{}/{MANIFEST_FILE}", folder_of(number));
    let location = image.store.location(&name);
    let input = image.store.open(&name)?;
    let input = input.ok_or_else(|| ImageError::Missing { location: location.clone(), checkpoint: number })?;
    let bytes = read_whole(&*input, &location, MAX_MANIFEST_BYTES)?;
    let manifest = Manifest::decode(&bytes).map_err(|fault| located(&location, fault))?;
    match manifest.identity {
        Some(identity) if identity.image == image.id && identity.number == number => Ok(manifest),
        _ => Err(ImageError::damaged(&location, "it belongs to another checkpoint")),
    }
}

impl CheckpointReader {
    /// Opens a checkpoint, and locates all of its chunks before the caller changes anything.
    pub(crate) fn open(image: &Image, which: CheckpointChoice) -> Result<Self> {
        let guard = image.store.lock(Lock::Reader)?;
        let number = image.resolve(which)?;
        let manifest = read_manifest(image, number)?;
        Self::of(image, number, manifest, guard)
    }

    /// Opens a checkpoint that is complete except for its manifest.
    pub(crate) fn draft(image: &Image, number: CheckpointNumber, manifest: Manifest) -> Result<Self> {
        let guard = image.store.lock(Lock::Reader)?;
        Self::of(image, number, manifest, guard)
    }

    fn of(image: &Image, number: CheckpointNumber, manifest: Manifest, guard: Guard) -> Result<Self> {
        let index = Index::load(&*image.store, image.id)?;
        let reader = Self { store: Arc::clone(&image.store), number, manifest, index, _guard: guard };
        reader.check_chunks().map(|()| reader)
    }

    /// Checks that packs hold all chunks, with the lengths in the manifest.
    fn check_chunks(&self) -> Result<()> {
        let mut seen = HashSet::new();
        for (id, length) in self.manifest.chunks() {
            if seen.insert((id, length)) {
                self.find(id, length)?;
            }
        }
        Ok(())
    }

    /// Returns the number of the checkpoint.
    pub fn number(&self) -> CheckpointNumber {
        self.number
    }

    /// Returns the image's folder, for a process that reads there itself; `None` in an object store.
    pub fn directory(&self) -> Result<Option<OwnedFd>> {
        self.store.descriptor()
    }

    /// Returns the manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns where a chunk of this length is.
    fn find(&self, id: &ChunkId, length: usize) -> Result<FoundChunk> {
        let found = self.index.find(id).ok_or_else(|| self.why_unknown(id))?;
        if found.entry.raw as usize != length {
            let what = format!("chunk {id} has {} bytes instead of {length}", found.entry.raw);
            return Err(ImageError::damaged(&found.pack.location, what));
        }
        Ok(found)
    }

    /// Returns the location of every chunk; repeated chunks come each time.
    pub(crate) fn found_chunks(&self) -> impl Iterator<Item = FoundChunk> {
        self.manifest.chunks().filter_map(|(id, _)| self.index.find(id))
    }

    /// Returns the error for an unknown chunk; it names the pack at fault, if there is one.
    fn why_unknown(&self, id: &ChunkId) -> ImageError {
        let numbers = || self.manifest.packs.iter().map(|used| used.number);
        if let Some(error) = self.index.why_broken(numbers()) {
            return error;
        }
        match numbers().find(|number| !self.index.has_pack(*number)) {
            Some(gone) => {
                ImageError::Missing { location: self.store.location(&pack_name(gone)), checkpoint: self.number }
            }
            None => ImageError::UnknownChunk { location: self.store.location(PACKS_FOLDER), chunk: *id },
        }
    }

    /// Returns the folder of the files that were adopted under this name. Their lengths and then their hashes have been checked.
    /// The files stay there for as long as the reader, or its image, is open.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = format!("{}/{name}", folder_of(self.number));
        let below = |entry: &'_ FileEntry| entry.name.strip_prefix(name)?.strip_prefix('/').map(str::to_owned);
        let entries: Vec<(String, &FileEntry)> =
            self.manifest.files.iter().filter_map(|entry| Some((below(entry)?, entry))).collect();
        for (name, entry) in &entries {
            let (_, input) = self.open_file(entry)?;
            self.store.export_file(&folder, name, &*input)?;
        }
        let path = self.store.path(&folder);
        for (name, entry) in &entries {
            if hash_of_path(&path.join(name))? != (entry.bytes, entry.blake3) {
                return Err(ImageError::damaged(&self.store.location(&format!("{folder}/{name}")), "hash mismatch"));
            }
        }
        Ok(path)
    }

    /// Compares a file with its manifest entry.
    pub(crate) fn check_file(&self, entry: &FileEntry) -> Result<()> {
        let (location, input) = self.open_file(entry)?;
        if hash_of(&*input)? != entry.blake3 {
            return Err(ImageError::damaged(&location, "hash mismatch"));
        }
        Ok(())
    }

    /// Opens a file and checks its length, before memory is allocated for it.
    fn open_file(&self, entry: &FileEntry) -> Result<(String, Arc<dyn crate::store::Input>)> {
        let name = format!("{}/{}", folder_of(self.number), entry.name);
        let location = self.store.location(&name);
        let input = self.store.open(&name)?;
        let input = input.ok_or_else(|| ImageError::Missing { location: location.clone(), checkpoint: self.number })?;
        if input.size() != entry.bytes {
            let what = format!("{} bytes instead of {}", input.size(), entry.bytes);
            return Err(ImageError::damaged(&location, what));
        }
        Ok((location, input))
    }
}

impl ImageSource for CheckpointReader {
    fn read(&self, id: &ChunkId, buffer: &mut [u8]) -> Result<()> {
        read_chunk(&self.find(id, buffer.len())?, buffer)
    }

    fn state(&self, entry: &FileEntry) -> Result<Vec<u8>> {
        let (location, input) = self.open_file(entry)?;
        let bytes = read_whole(&*input, &location, MAX_SESSION_STATE_BYTES)?;
        if ChunkId::of(&bytes) != entry.blake3 {
            return Err(ImageError::damaged(&location, "hash mismatch"));
        }
        Ok(bytes)
    }
}

/// Reads a chunk into a buffer of its length, and compares it with its id.
pub(crate) fn read_chunk(chunk: &FoundChunk, buffer: &mut [u8]) -> Result<()> {
    let (entry, input) = (&chunk.entry, &chunk.pack.input);
    let damaged = || {
        let what = format!("chunk {} at byte {} is not what was written", entry.id, entry.offset);
        ImageError::damaged(&chunk.pack.location, what)
    };
    match entry.codec {
        Codec::Raw => input.read(entry.data(), buffer)?,
        Codec::Zero => {
            buffer.fill(0);
            return if zero_id(buffer.len()) == entry.id { Ok(()) } else { Err(damaged()) };
        }
        Codec::Zstd => {
            // Checked before a decompressor sees it: no bytes that Katydid did not write may reach that by accident.
            let mut stored = vec![0; entry.stored as usize];
            input.read(entry.data(), &mut stored)?;
            if check_of(&stored) != entry.check || !decompress(&stored, buffer) {
                return Err(damaged());
            }
        }
    }
    // The decisive check: whatever happened on the way, the caller gets the bytes that were put.
    if ChunkId::of(buffer) == entry.id { Ok(()) } else { Err(damaged()) }
}
