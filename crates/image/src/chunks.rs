//! Writes chunks: the calling threads hash and compress them, and append them to several packs at once.
//!
//! A kernel lets only one writer at a time append to a file. So the number of open packs grows with the written bytes, up to
//! [`Options::packs_at_once`]; a small checkpoint has one. Chunks are written directly from the caller's memory: only the
//! compressors' buffers are held here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::codec::{Compression, EncodedChunk, Packer, check_of, is_zero, zero_id};
use crate::error::{ImageError, Result};
use crate::format::{BLOCK_BYTES, Codec, MAX_CHUNK_BYTES, PackEntry, Trailer};
use crate::id::{ChunkId, ImageId};
use crate::index::{FoundChunk, Index, MAX_PACK_ENTRIES, PACKS_FOLDER, pack_name};
use crate::store::{Output, Store};
use crate::threads::in_threads;
use crate::{format, index};

/// Options for writing chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether chunks are compressed.
    pub compression: Compression,
    /// A pack of at least this many bytes gets no further chunk.
    pub pack_bytes: u64,
    /// Most packs that are written in parallel.
    pub packs_at_once: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { compression: Compression::default(), pack_bytes: 1 << 30, packs_at_once: 16 }
    }
}

/// One more pack may be open for each of these bytes.
const BYTES_PER_PACK: u64 = 16 << 20;
/// Most packs that are preallocated.
const MAX_PREALLOCATED_PACKS: u64 = 256;

/// Numbers of bytes written so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteTotals {
    /// Bytes handed in, known or not.
    pub raw: u64,
    /// Bytes of the packs: the new chunks as stored, with their headers.
    pub stored: u64,
}

/// The chunks of a checkpoint being written.
#[derive(Debug)]
pub(crate) struct Chunks {
    store: Arc<dyn Store>,
    image: ImageId,
    index: Arc<Index>,
    options: Options,
    packer: Packer,
    open: Mutex<OpenPacks>,
    /// Signals that an open pack was returned.
    returned: Condvar,
    /// Message of the first failed write: chunks that were announced may not exist.
    failure: OnceLock<String>,
    /// Whether all packs were finished.
    finished: AtomicBool,
    raw: AtomicU64,
    stored: AtomicU64,
}

/// The packs being written.
#[derive(Debug, Default)]
struct OpenPacks {
    /// Used in turn, so that the preallocated room in each is used.
    idle: VecDeque<OpenPack>,
    /// Number of idle packs and of packs that a thread is writing.
    count: usize,
    /// Numbers of this writer's packs that have their names, or will soon: only these may be removed by name.
    named: Vec<u32>,
    next_number: u32,
}

/// A pack being written.
#[derive(Debug)]
struct OpenPack {
    number: u32,
    output: Box<dyn Output>,
    offset: u64,
    index: Vec<u8>,
}

impl Chunks {
    /// Makes a writer for packs of `store`; the index knows the existing chunks.
    pub(crate) fn new(store: Arc<dyn Store>, image: ImageId, index: Arc<Index>, options: Options) -> Result<Self> {
        let last = index::pack_numbers(&*store)?.last().copied().unwrap_or(0);
        let open = Mutex::new(OpenPacks { next_number: last.saturating_add(1), ..OpenPacks::default() });
        let packer = Packer::new(options.compression);
        let (returned, failure, finished) = (Condvar::new(), OnceLock::new(), AtomicBool::new(false));
        let (raw, stored) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { store, image, index, options, packer, open, returned, failure, finished, raw, stored })
    }

    /// Preallocates `bytes` for new chunks, if that makes writes faster; the unused rest is freed.
    pub(crate) fn preallocate(&self, bytes: u64) -> Result<()> {
        let bytes = bytes.min(self.store.spare_bytes());
        if bytes < BYTES_PER_PACK {
            return Ok(());
        }
        let full_ones = bytes.div_ceil(self.options.pack_bytes.max(1));
        let count = full_ones.max((self.packs_at_once() as u64).min(bytes / BYTES_PER_PACK));
        // Fewer are made if the system gives fewer threads.
        let roomy = in_threads(count.min(MAX_PREALLOCATED_PACKS) as usize, || self.roomy_pack(bytes / count));
        self.note_failure(self.first_failure(roomy))
    }

    /// Begins an idle pack, preallocated to `bytes`.
    fn roomy_pack(&self, bytes: u64) -> Result<()> {
        let mut pack = {
            let mut open = self.open();
            open.count += 1;
            self.begin_pack(&mut open)?
        };
        pack.output.preallocate(bytes);
        self.open().idle.push_back(pack);
        Ok(())
    }

    /// Stores a chunk unless it is known, and returns its id.
    pub(crate) fn put(&self, raw: &[u8]) -> Result<ChunkId> {
        if raw.is_empty() || raw.len() > MAX_CHUNK_BYTES {
            let what = format!("a chunk of {} bytes: 1 to {MAX_CHUNK_BYTES} are possible", raw.len());
            return Err(ImageError::unfit(&self.store.location(PACKS_FOLDER), what));
        }
        self.check_whole()?;
        let zero = is_zero(raw);
        let id = if zero { zero_id(raw.len()) } else { ChunkId::of(raw) };
        self.raw.fetch_add(raw.len() as u64, Ordering::Relaxed);
        if self.index.announce(&id) {
            let stored = self.packer.pack(raw, zero);
            let written = self.append(entry_of(id, raw, &stored), stored.bytes());
            self.packer.finish(stored);
            self.note_failure(written)?;
        }
        Ok(id)
    }

    /// Copies a chunk as stored in another pack, after a check of its bytes.
    pub(crate) fn copy(&self, chunk: &FoundChunk) -> Result<()> {
        let entry = chunk.entry;
        if !self.index.announce(&entry.id) {
            return Ok(());
        }
        let mut stored = vec![0; entry.stored as usize];
        chunk.pack.input.read(entry.data(), &mut stored)?;
        if check_of(&stored) != entry.check {
            let what = format!("chunk {} at byte {} is not what was written", entry.id, entry.offset);
            return Err(ImageError::damaged(&chunk.pack.location, what));
        }
        let appended = self.append(entry, &stored);
        self.note_failure(appended)
    }

    /// Returns whether a chunk need not be put.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.index.has(id)
    }

    /// Returns the bytes written so far, before and after compression.
    pub(crate) fn written(&self) -> WriteTotals {
        WriteTotals { raw: self.raw.load(Ordering::Relaxed), stored: self.stored.load(Ordering::Relaxed) }
    }

    /// Fails with the reason of the first failed write, if there was one.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.failure.get() {
            Some(cause) => Err(ImageError::WriteFailed { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Returns the error for a thread that panicked.
    fn panicked(&self) -> ImageError {
        ImageError::WriteFailed {
            cause: format!("{}: a thread that writes panicked", self.store.location(PACKS_FOLDER)),
        }
    }

    /// Remembers the first failure.
    pub(crate) fn note_failure<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failure.get_or_init(|| error.to_string());
            // Threads that wait for a pack must learn of it.
            self.returned.notify_all();
        }
        result
    }

    /// Appends to a pack, and fills in the chunk's offset there.
    fn append(&self, entry: PackEntry, bytes: &[u8]) -> Result<()> {
        let mut pack = self.take_pack()?;
        let appended = pack.append(&PackEntry { offset: pack.offset, ..entry }, bytes);
        self.stored.fetch_add((BLOCK_BYTES + bytes.len()) as u64, Ordering::Relaxed);
        match appended {
            Ok(()) => self.give_back(pack),
            Err(error) => {
                self.open().count -= 1;
                Err(error)
            }
        }
    }

    /// Locks the list of packs. A thread that panics leaves it consistent.
    fn open(&self) -> MutexGuard<'_, OpenPacks> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle pack, a new one if another may be open, or the next that is returned.
    fn take_pack(&self) -> Result<OpenPack> {
        let mut open = self.open();
        loop {
            self.check_whole()?;
            if let Some(pack) = open.idle.pop_front() {
                return Ok(pack);
            }
            let pack_target = 1 + self.stored.load(Ordering::Relaxed) / BYTES_PER_PACK;
            if (open.count as u64) < pack_target.min(self.packs_at_once() as u64) {
                let pack = self.begin_pack(&mut open)?;
                open.count += 1;
                return Ok(pack);
            }
            open = self.returned.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the caller's limit, as far as the store benefits from it.
    fn packs_at_once(&self) -> usize {
        self.options.packs_at_once.min(self.store.max_parallel_writes()).max(1)
    }

    /// Begins a pack under the first free number. The held lock gives two threads two numbers.
    fn begin_pack(&self, open: &mut OpenPacks) -> Result<OpenPack> {
        loop {
            let number = open.next_number;
            // A name has eight digits.
            if number >= 100_000_000 {
                return Err(ImageError::unfit(&self.store.location(PACKS_FOLDER), "all pack numbers are used up"));
            }
            open.next_number += 1;
            if let Some(mut output) = self.store.create_new(&pack_name(number))? {
                output.write(&[&format::pack_header(self.image, number)])?;
                self.stored.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
                return Ok(OpenPack { number, output, offset: BLOCK_BYTES as u64, index: Vec::new() });
            }
        }
    }

    /// Returns a pack to the idle list, or finishes a full one; no other thread waits for that.
    fn give_back(&self, pack: OpenPack) -> Result<()> {
        let is_full =
            pack.offset >= self.options.pack_bytes || pack.index.len() >= MAX_PACK_ENTRIES as usize * BLOCK_BYTES;
        if is_full {
            self.open().count -= 1;
            self.finish_pack(pack)?;
        } else {
            self.open().idle.push_back(pack);
        }
        self.returned.notify_one();
        Ok(())
    }

    /// Counts the bytes of a pack besides its chunks, and finishes it.
    fn finish_pack(&self, pack: OpenPack) -> Result<()> {
        self.stored.fetch_add((pack.index.len() + BLOCK_BYTES) as u64, Ordering::Relaxed);
        self.open().named.push(pack.number);
        pack.finish()
    }

    /// Finishes and syncs all packs. Later chunks go to other packs, which need another call; without any, the call costs
    /// nothing.
    pub(crate) fn finish(&self) -> Result<()> {
        self.check_whole()?;
        if self.finished.load(Ordering::SeqCst) && self.open().idle.is_empty() {
            return Ok(());
        }
        let mut packs = {
            let mut open = self.open();
            open.count -= open.idle.len();
            std::mem::take(&mut open.idle)
        };
        // Packs without a chunk leave no trace.
        let pack_count = packs.len();
        packs.retain(|pack| !pack.index.is_empty());
        self.stored.fetch_sub(((pack_count - packs.len()) * BLOCK_BYTES) as u64, Ordering::Relaxed);
        let any = !packs.is_empty() || !self.open().named.is_empty();
        // Each thread waits for its disk, so they wait in parallel.
        let (count, rest) = (packs.len(), Mutex::new(packs));
        let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || std::iter::from_fn(next).try_for_each(|pack| self.finish_pack(pack));
        self.note_failure(self.first_failure(in_threads(count, work)))?;
        let synced = if any { self.store.sync_folder(PACKS_FOLDER) } else { Ok(()) };
        self.note_failure(synced)?;
        self.warm_page_cache();
        self.finished.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Warms the page cache for this writer's packs, several at a time.
    fn warm_page_cache(&self) {
        let numbers = self.open().named.clone();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.store.warm_page_cache(&pack_name(*number));
            }
        };
        // Files that are not in the cache are only slower to read.
        drop(in_threads(self.packs_at_once().min(numbers.len()), work));
    }

    /// The first failure of several threads.
    fn first_failure(&self, outcomes: Vec<std::thread::Result<Result<()>>>) -> Result<()> {
        outcomes.into_iter().try_for_each(|outcome| outcome.unwrap_or_else(|_| Err(self.panicked())))
    }

    /// Removes everything written; the checkpoint is given up.
    pub(crate) fn discard(&self) {
        self.failure.get_or_init(|| format!("{}: the checkpoint was given up", self.store.location(PACKS_FOLDER)));
        let numbers = {
            let mut open = self.open();
            open.idle.clear();
            std::mem::take(&mut open.named)
        };
        for number in numbers {
            // A pack that cannot be removed belongs to no checkpoint; the next writer removes it.
            let _ = self.store.remove(&pack_name(number));
        }
        self.index.forget_coming();
    }
}

/// Returns the index entry of a chunk, before it has an offset.
fn entry_of(id: ChunkId, raw: &[u8], stored: &EncodedChunk<'_>) -> PackEntry {
    let bytes = stored.bytes();
    // Bytes that are stored uncompressed have their hash already.
    let check = match stored.codec {
        Codec::Raw => id.as_bytes().first_chunk().copied().unwrap_or_default(),
        _ => check_of(bytes),
    };
    PackEntry { id, check, offset: 0, raw: raw.len() as u32, stored: bytes.len() as u32, codec: stored.codec }
}

impl OpenPack {
    /// Writes header and bytes in one call, and keeps the index entry in memory until the pack is finished.
    fn append(&mut self, entry: &PackEntry, stored: &[u8]) -> Result<()> {
        self.output.write(&[&entry.header(), stored])?;
        self.index.extend_from_slice(&entry.line());
        self.offset += (BLOCK_BYTES + stored.len()) as u64;
        Ok(())
    }

    /// Writes index and trailer, which make the pack readable, and renames it, which makes it known.
    fn finish(mut self) -> Result<()> {
        let trailer = Trailer::of(&self.index, self.offset);
        self.output.write(&[&self.index, &trailer.bytes()])?;
        self.output.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;

    #[test]
    fn every_thread_says_why_the_first_write_failed() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::create_or_open(folder.path()).unwrap();
        let chunks =
            Chunks::new(Arc::clone(&image.store), image.id, Arc::new(Index::new()), Options::default()).unwrap();
        let full = ImageError::io("/image", "write", std::io::ErrorKind::StorageFull.into());
        assert!(matches!(chunks.note_failure::<()>(Err(full)), Err(ImageError::Full { .. })));
        for refused in [chunks.put(b"chunk").map(drop), chunks.finish()] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("/image: no free space for the image: free some space"), "{refused}");
        }
    }

    #[test]
    fn only_packs_that_got_their_names_from_us_are_removed_by_these() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::create_or_open(folder.path()).unwrap();
        let chunks =
            || Chunks::new(Arc::clone(&image.store), image.id, Arc::new(Index::new()), Options::default()).unwrap();
        let (first, second) = (chunks(), chunks());
        // A pack without a chunk frees its number.
        first.roomy_pack(0).unwrap();
        first.finish().unwrap();
        second.put(b"chunk").unwrap();
        second.finish().unwrap();
        first.discard();
        assert_eq!(index::pack_numbers(&*image.store).unwrap(), [1]);
        second.discard();
        assert!(index::pack_numbers(&*image.store).unwrap().is_empty());
    }
}
