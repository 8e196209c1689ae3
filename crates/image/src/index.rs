//! The index of chunks: which packs hold them, and where. It is loaded from the packs' own indexes, and grows while a checkpoint
//! is written.
//!
//! It is sharded by the first byte of the hash, so that many threads can look up and add at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::error::{ImageError, Result};
use crate::format;
use crate::format::{BLOCK_BYTES, FormatFault, PackEntry, Trailer};
use crate::id::{ChunkId, ImageId};
use crate::store::{Input, Store};

/// The folder of the packs.
pub(crate) const PACKS_FOLDER: &str = "packs";
const INDEX_SHARDS: usize = 64;
/// Most chunks of one pack. It limits the memory that a damaged trailer can request: an index of 64 MiB.
pub(crate) const MAX_PACK_ENTRIES: u32 = 1 << 20;

/// Returns the file name of a pack.
pub(crate) fn pack_name(number: u32) -> String {
    format!("{PACKS_FOLDER}/{number:08}.pack")
}

/// Returns the number in the name of a finished pack.
fn pack_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".pack").filter(|digits| digits.len() == 8)?;
    digits.parse().ok()
}

/// Returns the numbers of all finished packs, in order.
pub(crate) fn pack_numbers(store: &dyn Store) -> Result<Vec<u32>> {
    let mut numbers: Vec<u32> = store.list(PACKS_FOLDER)?.iter().filter_map(|name| pack_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// A chunk and its pack.
#[derive(Debug, Clone)]
pub(crate) struct FoundChunk {
    pub(crate) pack: Arc<Pack>,
    pub(crate) entry: PackEntry,
}

/// A complete pack, with the entry of each chunk.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) number: u32,
    pub(crate) location: String,
    pub(crate) input: Arc<dyn Input>,
}

/// What the index knows of a chunk.
#[derive(Debug, Clone)]
enum ChunkKnowledge {
    /// It is being written, or is in a pack that this writer has not finished.
    Coming,
    Found(FoundChunk),
}

/// The chunks of an image.
#[derive(Debug)]
pub(crate) struct Index {
    shards: [RwLock<HashMap<ChunkId, ChunkKnowledge>>; INDEX_SHARDS],
    packs: Mutex<Packs>,
}

/// The packs that were loaded.
#[derive(Debug, Default)]
struct Packs {
    whole: BTreeMap<u32, Arc<Pack>>,
    /// Packs that cannot be used. Their chunks count as unknown, so the next checkpoint writes them again.
    broken: BTreeMap<u32, ImageError>,
}

impl Index {
    /// Makes an index without packs.
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), packs: Mutex::default() }
    }

    /// Loads the index of the present packs.
    pub(crate) fn load(store: &dyn Store, image: ImageId) -> Result<Self> {
        let index = Self::new();
        index.refresh(store, image).map(|()| index)
    }

    /// Returns the shard of a chunk. Hashes are spread evenly, whatever the chunks are.
    fn shard(&self, id: &ChunkId) -> &RwLock<HashMap<ChunkId, ChunkKnowledge>> {
        &self.shards[usize::from(id.as_bytes()[0]) % INDEX_SHARDS]
    }

    /// Locks the packs, so that two threads do not load the same ones.
    fn packs(&self) -> MutexGuard<'_, Packs> {
        self.packs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads new packs, and forgets removed ones.
    pub(crate) fn refresh(&self, store: &dyn Store, image: ImageId) -> Result<()> {
        let present = pack_numbers(store)?;
        let mut packs = self.packs();
        let before = packs.whole.len();
        packs.whole.retain(|number, _| present.binary_search(number).is_ok());
        if packs.whole.len() < before {
            self.forget(|found| packs.whole.contains_key(&found.pack.number));
        }
        packs.broken.clear();
        for number in present {
            if packs.whole.contains_key(&number) {
                continue;
            }
            match open_pack(store, image, number) {
                Ok(Some((pack, entries))) => {
                    entries.into_iter().for_each(|entry| self.add(FoundChunk { pack: Arc::clone(&pack), entry }));
                    packs.whole.insert(number, pack);
                }
                // A pack that vanishes during the scan belongs to no known writer.
                Ok(None) => {}
                Err(error) => drop(packs.broken.insert(number, error)),
            }
        }
        Ok(())
    }

    /// Returns why the packs of these numbers cannot be used: the first that exists and is broken.
    pub(crate) fn why_broken(&self, numbers: impl IntoIterator<Item = u32>) -> Option<ImageError> {
        let mut packs = self.packs();
        numbers.into_iter().find_map(|number| packs.broken.remove(&number))
    }

    /// Returns numbers and lengths of the usable packs.
    pub(crate) fn pack_sizes(&self) -> Vec<(u32, u64)> {
        self.packs().whole.values().map(|pack| (pack.number, pack.input.size())).collect()
    }

    /// Returns whether a pack exists and is usable.
    pub(crate) fn has_pack(&self, number: u32) -> bool {
        self.packs().whole.contains_key(&number)
    }

    /// Forgets chunks in removed packs, and announced ones, whose writer is done by now.
    fn forget(&self, stays: impl Fn(&FoundChunk) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, known| matches!(known, ChunkKnowledge::Found(found) if stays(found)));
        }
    }

    /// Forgets chunks that were announced and never written.
    pub(crate) fn forget_coming(&self) {
        self.forget(|_| true);
    }

    /// Adds a location of a chunk in place of an earlier one: any will do.
    fn add(&self, found: FoundChunk) {
        let shard = self.shard(&found.entry.id);
        shard.write().unwrap_or_else(PoisonError::into_inner).insert(found.entry.id, ChunkKnowledge::Found(found));
    }

    /// Returns whether the chunk is written or announced.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.shard(id).read().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// Announces a chunk; returns false if it exists or is announced already, so that only one thread writes it.
    pub(crate) fn announce(&self, id: &ChunkId) -> bool {
        if self.has(id) {
            return false;
        }
        let mut shard = self.shard(id).write().unwrap_or_else(PoisonError::into_inner);
        shard.try_insert_coming(*id)
    }

    /// Returns where a chunk is.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<FoundChunk> {
        match self.shard(id).read().unwrap_or_else(PoisonError::into_inner).get(id)? {
            ChunkKnowledge::Found(found) => Some(found.clone()),
            ChunkKnowledge::Coming => None,
        }
    }
}

/// Announces chunks under the lock of their shard.
trait Announce {
    fn try_insert_coming(&mut self, id: ChunkId) -> bool;
}

impl Announce for HashMap<ChunkId, ChunkKnowledge> {
    fn try_insert_coming(&mut self, id: ChunkId) -> bool {
        match self.entry(id) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(ChunkKnowledge::Coming);
                true
            }
        }
    }
}

/// Adds the location of the bytes to a fault.
pub(crate) fn located(location: &str, fault: FormatFault) -> ImageError {
    match fault {
        FormatFault::TooNew(found) => {
            ImageError::TooNew { location: location.to_owned(), found, newest: format::FORMAT_VERSION }
        }
        FormatFault::Damaged(what) => ImageError::damaged(location, what),
    }
}

/// Opens pack `number` and reads its index; `None` if there is no such file.
pub(crate) fn open_pack(store: &dyn Store, image: ImageId, number: u32) -> Result<Option<(Arc<Pack>, Vec<PackEntry>)>> {
    let name = pack_name(number);
    let location = store.location(&name);
    let Some(input) = store.open(&name)? else { return Ok(None) };
    let entries = read_index(&*input, image, number, &location)?;
    Ok(Some((Arc::new(Pack { number, location, input }), entries)))
}

/// Checks header, trailer and index of a pack.
pub(crate) fn read_index(input: &dyn Input, image: ImageId, number: u32, location: &str) -> Result<Vec<PackEntry>> {
    let size = input.size();
    if size < 2 * BLOCK_BYTES as u64 {
        return Err(ImageError::damaged(location, "it is cut off"));
    }
    let mut unit = [0; BLOCK_BYTES];
    input.read(0, &mut unit)?;
    format::check_pack_header(&unit, image, number).map_err(|fault| located(location, fault))?;
    input.read(size - BLOCK_BYTES as u64, &mut unit)?;
    let trailer = Trailer::read(&unit, size).map_err(|fault| located(location, fault))?;
    if trailer.entries > MAX_PACK_ENTRIES {
        return Err(ImageError::damaged(location, "it has more chunks than a pack may have"));
    }
    let mut index = vec![0; trailer.index_bytes() as usize];
    input.read(trailer.index_offset, &mut index)?;
    trailer.read_index(&index).map_err(|fault| located(location, fault))
}
