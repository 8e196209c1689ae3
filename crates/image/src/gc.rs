//! Clean-up: removes old checkpoints and unneeded packs, and rewrites packs with more waste than use.
//!
//! Needed chunks are copied to new packs before the old packs are removed. So every chunk of every remaining checkpoint exists at
//! least once, whatever happens in between.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::chunks::{Chunks, Options};
use crate::error::{ImageError, Result};
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::{Image, MANIFEST_FILE, check_private, folder_of};
use crate::index::{FoundChunk, Index, PACKS_FOLDER, pack_name, pack_numbers};
use crate::reader::read_manifest;
use crate::store::local::PARTIAL_FILE_SUFFIX;
use crate::store::{Guard, Lock, Store};

/// A shorter pack is small; many small packs are joined.
const SMALL_PACK_BYTES: u64 = 64 << 20;
/// This many small packs may stay as they are.
const MAX_SMALL_PACKS: usize = 32;

/// How long a part of an earlier checkpoint may take to remove its files.
const WRITERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks for that.
const WRITERS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Which checkpoints of an image to keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// How many of the newest checkpoints to keep, at least one; `None`: all.
    pub newest: Option<usize>,
    /// Numbers of further checkpoints to remove, even if they cannot be read.
    pub remove: Vec<CheckpointNumber>,
    /// Only reports what would be done.
    pub dry_run: bool,
}

/// Result of a clean-up, or of a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CollectReport {
    /// Numbers of the removed checkpoints.
    pub checkpoints: Vec<CheckpointNumber>,
    /// Number of packs that were not needed.
    pub packs_removed: usize,
    /// Number of packs whose needed chunks were copied to new ones.
    pub packs_rewritten: usize,
    /// Bytes of all packs before.
    pub bytes_before: u64,
    /// Bytes of all packs after.
    pub bytes_after: u64,
}

/// The needed part of one pack.
#[derive(Debug, Default)]
struct PackUse {
    size: u64,
    live: Vec<FoundChunk>,
    live_bytes: u64,
}

/// The packs to remove and to rewrite, by number.
#[derive(Debug, Default)]
struct Plan {
    remove: Vec<u32>,
    rewrite: Vec<u32>,
}

impl Image {
    /// Removes all but the `newest` checkpoints, and what only they needed.
    pub fn keep(&self, newest: usize) -> Result<CollectReport> {
        self.collect(&RetentionPolicy { newest: Some(newest), ..RetentionPolicy::default() })
    }

    /// Cleans up. Refused while a checkpoint is being written or read.
    pub fn collect(&self, keep: &RetentionPolicy) -> Result<CollectReport> {
        let _writer = self.store.lock(Lock::Writer)?;
        let _sweeper = self.store.lock(Lock::Sweeper)?;
        check_private(&*self.store)?;
        let _alone = wait_until_alone(&*self.store)?;
        let checkpoints = self.checkpoints()?;
        let (removed, stay) = divided(self, &checkpoints, keep)?;
        if !keep.dry_run {
            clear_leftovers(self)?;
        }
        // Read before anything is removed: a checkpoint that cannot be read may need any chunk.
        let live = live_chunks(self, &stay)?;
        if !keep.dry_run {
            removed.iter().try_for_each(|number| remove_checkpoint(self, *number))?;
        }
        let index = Index::load(&*self.store, self.id)?;
        let uses = uses(self, &index, &live)?;
        let plan = Plan::of(&uses);
        let mut cleared = plan.cleared(&uses, removed);
        if !keep.dry_run {
            cleared.bytes_after = plan.carry_out(self, &uses)?;
        }
        Ok(cleared)
    }
}

/// Splits the checkpoints into those to remove and those to keep.
fn divided(
    image: &Image,
    checkpoints: &[CheckpointNumber],
    keep: &RetentionPolicy,
) -> Result<(Vec<CheckpointNumber>, Vec<CheckpointNumber>)> {
    let first_kept = checkpoints.len().saturating_sub(keep.newest.unwrap_or(checkpoints.len()).max(1));
    for number in &keep.remove {
        image.resolve(crate::image::CheckpointChoice::Number(*number))?;
    }
    let goes = |(at, number): &(usize, CheckpointNumber)| *at < first_kept || keep.remove.contains(number);
    let (removed, stay): (Vec<_>, Vec<_>) = checkpoints.iter().copied().enumerate().partition(goes);
    let numbers = |list: Vec<(usize, CheckpointNumber)>| list.into_iter().map(|(_, number)| number).collect();
    Ok((numbers(removed), numbers(stay)))
}

/// Removes a checkpoint. Its manifest goes first: without it, the rest is no checkpoint.
pub(crate) fn remove_checkpoint(image: &Image, number: CheckpointNumber) -> Result<()> {
    let folder = folder_of(number);
    image.store.remove(&format!("{folder}/{MANIFEST_FILE}"))?;
    image.store.sync_folder(&folder)?;
    image.store.remove_folder(&folder)
}

/// Returns every chunk that these checkpoints name.
fn live_chunks(image: &Image, checkpoints: &[CheckpointNumber]) -> Result<HashSet<ChunkId>> {
    let mut live = HashSet::new();
    for number in checkpoints {
        live.extend(read_manifest(image, *number)?.chunks().map(|(id, _)| *id));
    }
    Ok(live)
}

/// Returns the use of each pack. A pack that cannot be read stays, since its chunks may be recovered by hand.
fn uses(image: &Image, index: &Index, live: &HashSet<ChunkId>) -> Result<BTreeMap<u32, PackUse>> {
    let mut uses = BTreeMap::new();
    for (number, size) in index.pack_sizes() {
        uses.insert(number, PackUse { size, ..PackUse::default() });
    }
    let mut unknown = live.iter().filter(|id| index.find(id).is_none());
    if let Some(id) = unknown.next() {
        // The image is damaged already: keep everything that a user might still repair.
        return Err(ImageError::UnknownChunk { location: image.store.location(PACKS_FOLDER), chunk: *id });
    }
    for found in live.iter().filter_map(|id| index.find(id)) {
        let used = uses.entry(found.pack.number).or_default();
        used.live_bytes += u64::from(found.entry.stored);
        used.live.push(found);
    }
    Ok(uses)
}

impl Plan {
    /// Plans removals and rewrites. A removal costs nothing; a rewrite copies the needed bytes, so it must free at least as many.
    fn of(uses: &BTreeMap<u32, PackUse>) -> Self {
        let is_small = |used: &PackUse| used.size < SMALL_PACK_BYTES;
        let many_small = uses.values().filter(|used| !used.live.is_empty() && is_small(used)).count() > MAX_SMALL_PACKS;
        let mut plan = Self::default();
        for (&number, used) in uses {
            if used.live.is_empty() {
                plan.remove.push(number);
            } else if used.live_bytes < used.size / 2 || (many_small && is_small(used)) {
                plan.rewrite.push(number);
            }
        }
        plan
    }

    /// Returns the report of the plan, without the headers of new packs.
    fn cleared(&self, uses: &BTreeMap<u32, PackUse>, checkpoints: Vec<CheckpointNumber>) -> CollectReport {
        let size = |numbers: &[u32]| numbers.iter().filter_map(|number| uses.get(number)).map(|used| used.size).sum();
        let live: u64 = self.rewrite.iter().filter_map(|number| uses.get(number)).map(|used| used.live_bytes).sum();
        let bytes_before: u64 = uses.values().map(|used| used.size).sum();
        let (removed, rewritten): (u64, u64) = (size(&self.remove), size(&self.rewrite));
        CollectReport {
            checkpoints,
            packs_removed: self.remove.len(),
            packs_rewritten: self.rewrite.len(),
            bytes_before,
            bytes_after: bytes_before - removed - rewritten + live,
        }
    }

    /// Executes the plan, and returns the bytes of all packs afterwards.
    fn carry_out(&self, image: &Image, uses: &BTreeMap<u32, PackUse>) -> Result<u64> {
        let live = self.rewrite.iter().filter_map(|number| uses.get(number)).flat_map(|used| &used.live);
        copy(image, live)?;
        for number in self.remove.iter().chain(&self.rewrite) {
            image.store.remove(&pack_name(*number))?;
        }
        image.store.sync_folder(PACKS_FOLDER)?;
        let index = Index::load(&*image.store, image.id)?;
        Ok(index.pack_sizes().iter().map(|(_, size)| size).sum())
    }
}

/// Copies stored chunks to new packs, in their order. A damaged chunk stops it before anything is lost.
fn copy<'a>(image: &Image, live: impl Iterator<Item = &'a FoundChunk>) -> Result<()> {
    let mut live: Vec<&FoundChunk> = live.collect();
    if live.is_empty() {
        return Ok(());
    }
    live.sort_by_key(|found| (found.pack.number, found.entry.offset));
    let empty = Arc::new(Index::new());
    let chunks = Chunks::new(Arc::clone(&image.store), image.id, empty, Options::default())?;
    let copied = live.iter().try_for_each(|found| chunks.copy(found)).and_then(|()| chunks.finish());
    if copied.is_err() {
        chunks.discard();
    }
    copied
}

/// Removes packs that no complete checkpoint needs, and returns their number. The caller holds the writer's lock.
pub(crate) fn sweep(image: &Image) -> Result<usize> {
    let live = live_chunks(image, &image.checkpoints()?)?;
    let index = Index::load(&*image.store, image.id)?;
    let needed: HashMap<u32, ()> =
        live.iter().filter_map(|id| index.find(id)).map(|found| (found.pack.number, ())).collect();
    let mut removed = 0;
    for number in pack_numbers(&*image.store)? {
        if index.has_pack(number) && !needed.contains_key(&number) {
            image.store.remove(&pack_name(number))?;
            removed += 1;
        }
    }
    image.store.sync_folder(PACKS_FOLDER)?;
    Ok(removed)
}

/// Waits until no process writes or removes a part of an earlier checkpoint: its writer may have ended first or been killed.
pub(crate) fn wait_until_alone(store: &dyn Store) -> Result<Guard> {
    let end = Instant::now() + WRITERS_TIMEOUT;
    loop {
        match store.lock(Lock::Alone) {
            Err(ImageError::Locked { .. }) if Instant::now() < end => thread::sleep(WRITERS_POLL_INTERVAL),
            locked => return locked,
        }
    }
}

/// Returns whether a file in the packs' folder has the name of a pack.
fn is_pack_name(name: &str) -> bool {
    let number = name.strip_suffix(".pack").and_then(|digits| digits.parse().ok());
    number.is_some_and(|number| pack_name(number).rsplit('/').next() == Some(name))
}

/// Removes the leftovers of a writer that was interrupted. The caller holds the writer's lock and that of [`wait_until_alone`].
pub(crate) fn clear_leftovers(image: &Image) -> Result<()> {
    let complete = image.checkpoints()?;
    let mut any = false;
    for number in image.folders()? {
        if complete.binary_search(&number).is_err() {
            image.store.remove_folder(&folder_of(number))?;
            any = true;
        }
    }
    for name in image.store.list(PACKS_FOLDER)? {
        if name.strip_suffix(PARTIAL_FILE_SUFFIX).is_some_and(is_pack_name) {
            image.store.remove(&format!("{PACKS_FOLDER}/{name}"))?;
            any = true;
        }
    }
    if any { sweep(image).map(drop) } else { Ok(()) }
}
