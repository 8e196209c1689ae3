//! Which chunks the packs hold, and where: filled from the packs' own indexes, added to while a checkpoint is written.
//!
//! Split by the first byte of the hash, so that many threads look up and add at once.

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
/// Most chunks of one pack, which bounds the memory that a damaged trailer can ask for: an index of 64 MiB.
pub(crate) const MAX_PACK_ENTRIES: u32 = 1 << 20;

/// The file of a pack.
pub(crate) fn pack_name(number: u32) -> String {
    format!("{PACKS_FOLDER}/{number:08}.pack")
}

/// The number in the name of a finished pack.
fn pack_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".pack").filter(|digits| digits.len() == 8)?;
    digits.parse().ok()
}

/// Numbers of all finished packs, in order.
pub(crate) fn pack_numbers(store: &dyn Store) -> Result<Vec<u32>> {
    let mut numbers: Vec<u32> = store.list(PACKS_FOLDER)?.iter().filter_map(|name| pack_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// A chunk and the pack it is in.
#[derive(Debug, Clone)]
pub(crate) struct FoundChunk {
    pub(crate) pack: Arc<Pack>,
    pub(crate) entry: PackEntry,
}

/// A pack that is complete, with the entry of each chunk.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) number: u32,
    pub(crate) location: String,
    pub(crate) input: Arc<dyn Input>,
}

/// What is known of a chunk.
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

/// The packs that have been looked at.
#[derive(Debug, Default)]
struct Packs {
    whole: BTreeMap<u32, Arc<Pack>>,
    /// The packs that cannot be used. Their chunks are not known, and so are written again by the next checkpoint.
    broken: BTreeMap<u32, ImageError>,
}

impl Index {
    /// The index of no packs.
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), packs: Mutex::default() }
    }

    /// The index of what is in the packs now.
    pub(crate) fn load(store: &dyn Store, image: ImageId) -> Result<Self> {
        let index = Self::new();
        index.refresh(store, image).map(|()| index)
    }

    /// Hashes are spread evenly, whatever the chunks are.
    fn shard(&self, id: &ChunkId) -> &RwLock<HashMap<ChunkId, ChunkKnowledge>> {
        &self.shards[usize::from(id.as_bytes()[0]) % INDEX_SHARDS]
    }

    /// Held while packs are looked at, so that two threads do not look at the same ones.
    fn packs(&self) -> MutexGuard<'_, Packs> {
        self.packs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in packs that have come, and forgets those that have gone.
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
                // One that goes away while we look belongs to no known writer.
                Ok(None) => {}
                Err(error) => drop(packs.broken.insert(number, error)),
            }
        }
        Ok(())
    }

    /// Why the packs of these numbers cannot be used; the first that is there and broken.
    pub(crate) fn why_broken(&self, numbers: impl IntoIterator<Item = u32>) -> Option<ImageError> {
        let mut packs = self.packs();
        numbers.into_iter().find_map(|number| packs.broken.remove(&number))
    }

    /// Numbers and lengths of the packs that can be used.
    pub(crate) fn pack_sizes(&self) -> Vec<(u32, u64)> {
        self.packs().whole.values().map(|pack| (pack.number, pack.input.size())).collect()
    }

    /// Whether a pack is there and can be used.
    pub(crate) fn has_pack(&self, number: u32) -> bool {
        self.packs().whole.contains_key(&number)
    }

    /// Forgets chunks in packs that have gone, and announced ones, whose writer is done by now.
    fn forget(&self, stays: impl Fn(&FoundChunk) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, known| matches!(known, ChunkKnowledge::Found(found) if stays(found)));
        }
    }

    /// Forgets what was announced and never came.
    pub(crate) fn forget_coming(&self) {
        self.forget(|_| true);
    }

    /// A later place of the same chunk takes the place of an earlier one: any will do.
    fn add(&self, found: FoundChunk) {
        let shard = self.shard(&found.entry.id);
        shard.write().unwrap_or_else(PoisonError::into_inner).insert(found.entry.id, ChunkKnowledge::Found(found));
    }

    /// Whether a writer has written the chunk or is about to.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.shard(id).read().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// Announces a chunk; false when it is there or announced already, so that one thread writes it.
    pub(crate) fn announce(&self, id: &ChunkId) -> bool {
        if self.has(id) {
            return false;
        }
        let mut shard = self.shard(id).write().unwrap_or_else(PoisonError::into_inner);
        shard.try_insert_coming(*id)
    }

    /// Where a chunk is.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<FoundChunk> {
        match self.shard(id).read().unwrap_or_else(PoisonError::into_inner).get(id)? {
            ChunkKnowledge::Found(found) => Some(found.clone()),
            ChunkKnowledge::Coming => None,
        }
    }
}

/// Announcing under the lock of the shard.
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

/// Adds where the bytes lie to what is wrong with them.
pub(crate) fn located(location: &str, fault: FormatFault) -> ImageError {
    match fault {
        FormatFault::TooNew(found) => {
            ImageError::TooNew { location: location.to_owned(), found, newest: format::FORMAT_VERSION }
        }
        FormatFault::Damaged(what) => ImageError::damaged(location, what),
    }
}

/// Opens pack `number` and reads its index; `None` when there is no such file.
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
