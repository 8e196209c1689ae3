//! Writes a checkpoint: in the process that began it, and in others that take part.
//!
//! The process that began it holds the lock and commits. Others, such as the workers of several sessions, write their own chunks
//! and states, and leave a description of them. There is no checkpoint until `manifest.json` has its name. A writer that is
//! dropped earlier removes what it wrote.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::chunks::{Chunks, Options, WriteTotals};
use crate::error::{ImageError, Result};
use crate::files::Files;
use crate::gc;
use crate::gc::clear_leftovers;
use crate::gc::wait_until_alone;
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::latest;
use crate::image::{CHECKPOINTS_FOLDER, Image, LATEST_FILE, MANIFEST_FILE, check_private, folder_of};
use crate::index::{Index, PACKS_FOLDER, located};
use crate::manifest::{FileEntry, Identity, Manifest, PackUse, Session, Sizes, seal};
use crate::reader::CheckpointReader;
use crate::store::{Guard, Lock};

/// The destination of a session's chunks and states: an image, or a connection to the process that writes it.
pub trait Sink: Send + Sync {
    /// Stores a chunk unless it is known, and returns its id. Any number of threads may call this at once.
    fn put(&self, chunk: &[u8]) -> Result<ChunkId>;

    /// Returns whether a chunk need not be put.
    fn has(&self, id: &ChunkId) -> bool;

    /// Stores a file of the session; the entry belongs into [`Session::states`].
    fn session_state(&self, name: &str, bytes: &[u8]) -> Result<FileEntry>;
}

impl Image {
    /// Begins a checkpoint; no other process can begin one until the writer is dropped.
    pub fn begin(&self, options: Options) -> Result<Writer> {
        Writer::begin(self, options)
    }

    /// Joins a checkpoint that another process has begun.
    pub fn join(&self, number: CheckpointNumber, options: Options) -> Result<CheckpointPart> {
        CheckpointPart::join(self, number, options)
    }
}

/// A checkpoint being written, with the lock of its image.
#[derive(Debug)]
pub struct Writer {
    image: Image,
    number: CheckpointNumber,
    parent: Option<CheckpointNumber>,
    index: Arc<Index>,
    chunks: Chunks,
    files: Files,
    committed: bool,
    _guard: Guard,
}

/// One process's part of a checkpoint that another process has begun.
#[derive(Debug)]
pub struct CheckpointPart {
    number: CheckpointNumber,
    chunks: Chunks,
    files: Files,
    finished: bool,
    /// Dropped last: until then files are accessed by names that the next checkpoint may reuse.
    _guard: Guard,
}

/// A complete checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedCheckpoint {
    /// Number of the checkpoint in its image, from 1.
    pub number: CheckpointNumber,
    /// Sizes of the checkpoint, in bytes.
    pub sizes: Sizes,
}

impl Writer {
    /// Takes the lock, removes an earlier writer's leftovers, and makes the folder of the next number.
    pub(crate) fn begin(image: &Image, options: Options) -> Result<Self> {
        let store = Arc::clone(&image.store);
        let guard = store.lock(Lock::Writer)?;
        check_private(&*store)?;
        // Parts of this checkpoint cannot join before this lock is released.
        let _alone = wait_until_alone(&*store)?;
        clear_leftovers(image)?;
        let parent = image.checkpoints()?.last().copied();
        // `latest` counts too: the newest checkpoint may have been removed, and its number is not reused.
        let last = parent.map_or(0, |parent| parent.0).max(latest(&*store).flatten().unwrap_or(0));
        let number = last.checked_add(1).map(CheckpointNumber).ok_or_else(|| {
            let what = format!("checkpoint {last} has the last possible number: choose another folder");
            ImageError::unfit(&store.location(CHECKPOINTS_FOLDER), what)
        })?;
        let index = Arc::new(Index::load(&*store, image.id)?);
        store.make_folder(&folder_of(number))?;
        store.check_private(&folder_of(number))?;
        let chunks = Chunks::new(Arc::clone(&store), image.id, Arc::clone(&index), options);
        let files = Files::new(store, number);
        let chunks = chunks?;
        Ok(Self { image: image.clone(), number, parent, index, chunks, files, committed: false, _guard: guard })
    }

    /// Returns the number that the checkpoint will have.
    pub fn number(&self) -> CheckpointNumber {
        self.number
    }

    /// Returns the checkpoint before it.
    pub fn parent(&self) -> Option<CheckpointNumber> {
        self.parent
    }

    /// Returns what this process has written so far; others count their own.
    pub fn written(&self) -> WriteTotals {
        self.chunks.written()
    }

    /// Returns the image's folder, for a process that takes part: [`Image::open_at`] and [`Image::join`] there. `None` in an
    /// object store, to which only this process writes.
    pub fn directory(&self) -> Result<Option<OwnedFd>> {
        self.image.store.descriptor()
    }

    /// Makes a folder for files of another program; [`Writer::adopt_folder`] adds them to the checkpoint.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = format!("{}/{name}", folder_of(self.number));
        self.image.store.make_folder(&folder)?;
        self.image.store.check_private(&folder)?;
        Ok(self.image.store.path(&folder))
    }

    /// Hashes the files in [`Writer::folder`] and adds them to the checkpoint.
    pub fn adopt_folder(&self, name: &str) -> Result<()> {
        let folder = format!("{}/{name}", folder_of(self.number));
        let adopted = self.image.store.check_private(&folder).and_then(|()| self.files.adopt(name));
        self.chunks.note_failure(adopted)
    }

    /// Returns the session that a [`CheckpointPart`] has left under this name.
    pub fn take_session(&self, name: &str) -> Result<Session> {
        self.files.take_session(name)
    }

    /// Opens the checkpoint as a reader will find it once this manifest is committed, so that a restore can be tried before.
    /// Writes no manifest.
    pub fn draft(&self, mut manifest: Manifest) -> Result<CheckpointReader> {
        self.chunks.finish()?;
        manifest.identity = Some(Identity { image: self.image.id, number: self.number, parent: self.parent });
        CheckpointReader::draft(&self.image, self.number, manifest)
    }

    /// Commits the checkpoint: this process or a part must have put all chunks that the manifest names.
    ///
    /// Fills in identity, sizes, files and packs of the manifest.
    pub fn commit(mut self, manifest: Manifest) -> Result<CommittedCheckpoint> {
        self.complete(manifest)
    }

    /// Commits the checkpoint as [`Self::commit`] does. After a failure, the written files stay until the writer is dropped, for
    /// later readers.
    pub fn complete(&mut self, mut manifest: Manifest) -> Result<CommittedCheckpoint> {
        self.chunks.finish()?;
        let packs_before = self.index.pack_sizes();
        // Parts have added packs since, and this process's chunks now have locations.
        self.index.refresh(&*self.image.store, self.image.id)?;
        manifest.files = self.files.finish(&manifest.sessions)?;
        manifest.identity = Some(Identity { image: self.image.id, number: self.number, parent: self.parent });
        self.count(&mut manifest)?;
        let new = self.index.pack_sizes().into_iter().filter(|pack| packs_before.binary_search(pack).is_err());
        manifest.sizes.added = new.map(|(_, size)| size).sum();
        let folder = folder_of(self.number);
        manifest.check().map_err(|fault| located(&self.image.store.location(&folder), fault))?;
        self.write_manifest(&folder, &manifest)?;
        self.committed = true;
        // Only a hint: readers look at the folders, and the next checkpoint writes it again.
        let _ = self.write_latest();
        Ok(CommittedCheckpoint { number: self.number, sizes: manifest.sizes })
    }

    /// Fills in sizes and packs, and refuses chunks that were never put.
    fn count(&self, manifest: &mut Manifest) -> Result<()> {
        let regions = manifest.sessions.iter().flat_map(|session| &session.regions);
        let mut sizes = Sizes {
            content: regions.map(|region| region.bytes).fold(0, u64::saturating_add),
            files: manifest.files.iter().map(|file| file.bytes).sum(),
            ..Sizes::default()
        };
        let mut packs = BTreeMap::new();
        let mut seen = HashSet::new();
        for (id, _) in manifest.chunks() {
            if !seen.insert(*id) {
                continue;
            }
            let location = || self.image.store.location(PACKS_FOLDER);
            let found =
                self.index.find(id).ok_or_else(|| ImageError::UnknownChunk { location: location(), chunk: *id })?;
            sizes.chunks += u64::from(found.entry.raw);
            sizes.stored += u64::from(found.entry.stored);
            let number = found.pack.number;
            let used = packs.entry(number).or_insert(PackUse { number, chunks: 0, stored: 0 });
            used.chunks += 1;
            used.stored += u64::from(found.entry.stored);
        }
        manifest.packs = packs.into_values().collect();
        manifest.sizes = sizes;
        Ok(())
    }

    /// Writes the manifest. Its rename is the moment at which the checkpoint exists.
    fn write_manifest(&self, folder: &str, manifest: &Manifest) -> Result<()> {
        let store = &*self.image.store;
        let name = format!("{folder}/{MANIFEST_FILE}");
        let sealed = seal(manifest).map_err(|error| ImageError::unfit(&store.location(&name), error.to_string()))?;
        // The folder must survive a power cut before a file says that it is complete.
        store.sync_folder(CHECKPOINTS_FOLDER)?;
        let mut output = store.create(&name)?;
        output.write(&[&sealed])?;
        output.finish()?;
        store.sync_folder(folder)
    }

    /// Writes the file `latest`, for people and scripts.
    fn write_latest(&self) -> Result<()> {
        let mut output = self.image.store.create(LATEST_FILE)?;
        output.write(&[format!("{:06}\n", self.number.0).as_bytes()])?;
        output.finish()?;
        self.image.store.sync_folder(".")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.committed {
            self.chunks.discard();
            // Leftovers are no checkpoint; the next writer removes them.
            let _ = gc::remove_checkpoint(&self.image, self.number);
            let _ = gc::sweep(&self.image);
        }
    }
}

impl CheckpointPart {
    /// Joins the checkpoint of this number, which must be begun and not complete.
    pub(crate) fn join(image: &Image, number: CheckpointNumber, options: Options) -> Result<Self> {
        let store = Arc::clone(&image.store);
        let folder = folder_of(number);
        if store.descriptor()?.is_none() {
            let what = "only the process that began a checkpoint writes to an object store";
            return Err(ImageError::unfit(&store.location(&folder), what));
        }
        let guard = store.lock(Lock::Part)?;
        let name = folder.rsplit('/').next().unwrap_or_default();
        if !store.list(CHECKPOINTS_FOLDER)?.iter().any(|found| found == name) {
            return Err(ImageError::unfit(&store.location(&folder), "this checkpoint has not been begun"));
        }
        if store.open(&format!("{folder}/{MANIFEST_FILE}"))?.is_some() {
            return Err(ImageError::unfit(&store.location(&folder), "this checkpoint is complete already"));
        }
        let index = Arc::new(Index::load(&*store, image.id)?);
        let chunks = Chunks::new(Arc::clone(&store), image.id, index, options)?;
        Ok(Self { number, chunks, files: Files::new(store, number), finished: false, _guard: guard })
    }

    /// Returns the checkpoint that it is part of.
    pub fn number(&self) -> CheckpointNumber {
        self.number
    }

    /// Returns what it has written so far.
    pub fn written(&self) -> WriteTotals {
        self.chunks.written()
    }

    /// Syncs everything, and leaves the description for [`Writer::take_session`].
    pub fn finish(mut self, session: &Session) -> Result<WriteTotals> {
        self.chunks.finish()?;
        self.files.session(session)?;
        self.finished = true;
        Ok(self.chunks.written())
    }
}

impl Drop for CheckpointPart {
    fn drop(&mut self) {
        if !self.finished {
            self.chunks.discard();
        }
    }
}

/// Methods that both writers share.
macro_rules! sink {
    ($name:ident) => {
        impl $name {
            /// Preallocates `bytes` for new chunks, so that later puts cost less: in a folder in memory this allocates pages now.
            /// It takes at most half of what the system can spare, and returns the unused rest.
            pub fn preallocate(&self, bytes: u64) -> Result<()> {
                self.chunks.preallocate(bytes)
            }
        }

        impl Sink for $name {
            fn put(&self, chunk: &[u8]) -> Result<ChunkId> {
                self.chunks.put(chunk)
            }

            fn has(&self, id: &ChunkId) -> bool {
                self.chunks.has(id)
            }

            fn session_state(&self, name: &str, bytes: &[u8]) -> Result<FileEntry> {
                let written = self.files.state(name, bytes);
                self.chunks.note_failure(written)
            }
        }
    };
}

sink!(Writer);
sink!(CheckpointPart);
