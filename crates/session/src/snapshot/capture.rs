//! Captures contents: memory that the program could change is copied while it is stopped, the rest is done in the
//! background.
//!
//! ```text
//! paused:  areas ── hash kernel ──▶ changed chunks ──┬─ room on the device ──▶ spare memory
//!                                                    └─ none ──▶ the image, in rounds
//! running: spare memory ──▶ registered host memory ──▶ the image
//! ```

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_image::{ChunkId, FileEntry, Region, Sink};
use katydid_session_core::{CaptureOptions, Progress};

use super::area::{Area, AreaLocation, Direction, WorkerMemory};
use super::areas::{AreaFilter, Areas, areas};
use super::contexts::{Contexts, SwitchableContext};
use super::copy_context::{CopyContext, CopyStreams};
use super::error::{SnapshotError, refused};
use super::hash::{GRAIN_BYTES, HASH_RECORD_BYTES, Hash, KnownContents, hashes, list};
use super::history::PendingWrite;
use super::precopy_state::{PrecopyBuffers, PrecopyState};
use super::soft;
use super::spare_memory::SpareMemory;
use super::transfer::{ChunkLoad, Transfer};
use super::zeros::Zeros;
use crate::state::Session;

/// Bytes of device memory that are left to others.
const DEVICE_MARGIN_BYTES: u64 = 256 << 20;
/// Copies in spare memory begin at multiples of this.
const SPARE_COPY_ALIGN_BYTES: u64 = 512;

/// Marks a chunk without a copy context.
const NO_COPY_CONTEXT: usize = usize::MAX;

/// One chunk of one area.
#[derive(Debug, Clone, Copy)]
struct AreaChunk {
    area: usize,
    /// Index of the device that can hash it and copy it to spare memory, or [`NO_COPY_CONTEXT`].
    copy_context: usize,
    offset: u64,
    length: u64,
    hash: Option<Hash>,
    name: Option<ChunkId>,
    /// Address of its copy.
    spare: Option<u64>,
}

/// Contents that the program can no longer change; [`CapturedContents::write`] writes them to the image. Dropping the value
/// keeps spare memory, which is released when the GPU is at rest: otherwise the driver waits for streams of the running
/// program.
pub(super) struct CapturedContents {
    driver: Arc<Driver>,
    copy_contexts: Vec<CopyContext>,
    progress: Arc<Progress>,
    regions: Vec<Region>,
    records: Vec<u8>,
    chunks: Vec<AreaChunk>,
    /// Memory with copies of chunks, by the device's ordinal.
    spare: BTreeMap<i32, SpareMemory>,
    precopy: PrecopyState,
    changed: u64,
    known_contents: KnownContents,
    /// The end of a context waits for it.
    _pending_write: PendingWrite,
}

impl Drop for CapturedContents {
    fn drop(&mut self) {
        for (device, spare) in std::mem::take(&mut self.spare) {
            self.precopy.keep(device, spare);
        }
    }
}

/// The contents in the session's part of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Contents {
    /// All memory with contents.
    pub(super) regions: Vec<Region>,
    /// Its files, by their contents.
    pub(super) states: BTreeMap<String, FileEntry>,
}

/// Key of the file with [`Records`](super::areas::Records).
pub(super) const RECORDS_KEY: &str = "contents";

impl Session {
    /// Copies the contents of the session's memory, whose GPU is at rest.
    ///
    /// # Errors
    ///
    /// What cannot be saved. The session is unchanged.
    pub(super) fn capture(
        &mut self,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: Arc<Progress>,
    ) -> Result<CapturedContents, SnapshotError> {
        let captured = self.capture_now(options, sink, progress);
        self.reenter();
        captured
    }

    fn capture_now(
        &mut self,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: Arc<Progress>,
    ) -> Result<CapturedContents, SnapshotError> {
        self.snapshots.release_waiting();
        let contexts = Contexts::of(self)?;
        let areas = areas(self, &contexts, AreaFilter { shared_pages: options.device_only })?;
        let (driver, copy_contexts) = (Arc::clone(&self.shared.driver), self.snapshots.copy_contexts().to_vec());
        let ready = self.snapshots.precopy.take();
        let precopy = self.snapshots.precopy.clone();
        let chunks = chunks(&areas, &copy_contexts);
        let streams = &self.snapshots.streams[..];
        let mut work = StoppedCapture {
            driver: &driver,
            copy_contexts: &copy_contexts,
            streams,
            areas: &areas,
            precopy: &precopy,
            chunks,
        };
        work.pass_over_untouched(sink)?;
        let known_contents =
            if options.full { KnownContents::default() } else { self.snapshots.known_contents.clone() };
        work.recognize(&known_contents, &ready, sink)?;
        let changed = work.chunks.iter().filter(|chunk| chunk.name.is_none()).map(|chunk| chunk.length).sum();
        progress.expect(changed);
        let spare = work.copy(ready.spare)?;
        work.rounds(sink, &progress)?;
        let chunks = work.chunks;
        let records = serde_json::to_vec(&areas.records);
        let records =
            records.map_err(|error| SnapshotError::Damaged { what: "contents", reason: error.to_string() })?;
        let regions = areas.all.into_iter().map(|area| area.region).collect();
        let pending_write = self.snapshots.begin(spare.values().map(SpareMemory::size).sum());
        let known_contents = self.snapshots.known_contents.clone();
        Ok(CapturedContents {
            driver,
            copy_contexts,
            progress,
            regions,
            records,
            chunks,
            spare,
            precopy,
            changed,
            known_contents,
            _pending_write: pending_write,
        })
    }
}

/// Returns all chunks of all areas.
fn chunks(areas: &Areas, copy_contexts: &[CopyContext]) -> Vec<AreaChunk> {
    let of = |(number, area): (usize, &Area)| {
        let is_in_reach = |copy_context: &CopyContext| {
            copy_context.context == area.context && !matches!(area.location, AreaLocation::Heap(_))
        };
        let copy_context = copy_contexts.iter().position(is_in_reach).unwrap_or(NO_COPY_CONTEXT);
        let chunk = |index| {
            let (offset, length) = area.chunk(index);
            AreaChunk { area: number, copy_context, offset, length, hash: None, name: None, spare: None }
        };
        (0..area.chunks()).map(chunk).collect::<Vec<_>>()
    };
    areas.all.iter().enumerate().flat_map(of).collect()
}

/// Returns the bytes of device memory that [`hash_chunks`] needs for `count` chunks.
pub(super) fn hash_buffer_bytes(chunks: usize) -> u64 {
    2 * (chunks * HASH_RECORD_BYTES) as u64
}

/// Hashes contiguous device memory. A chunk without an address, or of odd length, gets no hash. `hash_buffer` is device
/// memory of [`hash_buffer_bytes`] bytes. Without it, memory is allocated and released, for which a driver may wait for the
/// program.
pub(super) fn hash_chunks(
    driver: &Arc<Driver>,
    copy_context: &CopyContext,
    chunks: &[Option<(u64, u64)>],
    hash_buffer: Option<u64>,
) -> Result<Vec<Option<Hash>>, CUresult> {
    let mut hashes_found = vec![None; chunks.len()];
    let Some(kernel) = &copy_context.kernel else { return Ok(hashes_found) };
    let fits =
        |(address, length): &(u64, u64)| address.is_multiple_of(GRAIN_BYTES) && length.is_multiple_of(GRAIN_BYTES);
    let aligned = chunks.iter().enumerate().filter_map(|(index, chunk)| Some((index, chunk.filter(fits)?)));
    let aligned: Vec<(usize, (u64, u64))> = aligned.collect();
    if aligned.is_empty() {
        return Ok(hashes_found);
    }
    let listed = list(aligned.iter().map(|(_, chunk)| *chunk));
    let mut records = vec![0_u8; aligned.len() * HASH_RECORD_BYTES];
    let own = match hash_buffer {
        Some(_) => None,
        None => own_hash_buffer(driver, copy_context, hash_buffer_bytes(aligned.len()))?,
    };
    // Hashes are optional: a chunk without a hash is read.
    let Some(at) = hash_buffer.or(own.as_ref().map(SpareMemory::start)) else { return Ok(hashes_found) };
    let out = at + listed.len() as u64;
    let stream = copy_context.streams.of(0);
    // SAFETY: a live context of the worker.
    unsafe { driver.cuCtxSetCurrent(copy_context.context) }.ok()?;
    // SAFETY: list and records fit the buffer; both vectors outlive the wait below.
    unsafe {
        driver.cuMemcpyHtoDAsync_v2(at, listed.as_ptr().cast(), listed.len(), stream).ok()?;
        driver.cuMemsetD8Async(out, 0, records.len(), stream).ok()?;
        kernel.launch(driver, stream, at, out, aligned.len())?;
        driver.cuMemcpyDtoHAsync_v2(records.as_mut_ptr().cast(), out, records.len(), stream).ok()?;
        driver.cuStreamSynchronize(stream).ok()?;
    }
    for ((index, _), hash) in aligned.iter().zip(hashes(&records)) {
        hashes_found[*index] = Some(hash);
    }
    Ok(hashes_found)
}

/// Allocates device memory of `bytes`; none if the device has too little left.
fn own_hash_buffer(
    driver: &Arc<Driver>,
    copy_context: &CopyContext,
    bytes: u64,
) -> Result<Option<SpareMemory>, CUresult> {
    match SpareMemory::up_to(driver, copy_context.device, bytes) {
        Ok(own) => Ok(Some(own).filter(|own| own.size() >= bytes)),
        Err(CUresult::ERROR_OUT_OF_MEMORY) => Ok(None),
        Err(code) => Err(code),
    }
}

/// Returns the bytes that may be taken from a device.
pub(super) fn free(driver: &Driver, copy_context: &CopyContext) -> Result<u64, SnapshotError> {
    // SAFETY: a live context of the worker.
    unsafe { driver.cuCtxSetCurrent(copy_context.context) }.ok().map_err(refused("enter a context"))?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both outputs are locals.
    let status = unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    status.ok().map_err(refused("ask for free memory"))?;
    Ok((free as u64).saturating_sub(DEVICE_MARGIN_BYTES))
}

/// Returns the bytes of spare memory for a chunk.
fn spare_bytes_of(chunk: &AreaChunk) -> u64 {
    chunk.length.next_multiple_of(SPARE_COPY_ALIGN_BYTES)
}

/// The part of a capture while the program is stopped.
struct StoppedCapture<'a> {
    driver: &'a Arc<Driver>,
    copy_contexts: &'a [CopyContext],
    streams: &'a [CopyStreams],
    areas: &'a Areas,
    precopy: &'a PrecopyState,
    chunks: Vec<AreaChunk>,
}

impl<'a> StoppedCapture<'a> {
    fn area(&self, chunk: &AreaChunk) -> &'a Area {
        &self.areas.all[chunk.area]
    }

    /// Names chunks for which a software device has no memory yet: reading would allocate it.
    fn pass_over_untouched(&mut self, sink: &dyn Sink) -> Result<(), SnapshotError> {
        let mut zeros = Zeros::default();
        // The offset in the current area up to which it is known to be untouched.
        let (mut area, mut until) = (usize::MAX, 0);
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            let Some(address) = self.area(&chunk).address(chunk.offset).filter(|_| self.driver.is_soft()) else {
                continue;
            };
            if area != chunk.area || until < chunk.offset + chunk.length {
                let rest = self.area(&chunk).region.bytes - chunk.offset;
                (area, until) = (chunk.area, chunk.offset + soft::untouched(self.driver, address, rest));
            }
            if until >= chunk.offset + chunk.length {
                self.chunks[index].name = Some(zeros.put(chunk.length, sink)?);
            }
        }
        Ok(())
    }

    /// Hashes the unnamed chunks that one device reaches.
    fn hash(&mut self, number: usize, hash_buffer: Option<u64>) -> Result<(), SnapshotError> {
        let range_to_hash = |chunk: &AreaChunk| {
            let address = self.area(chunk).address(chunk.offset).filter(|_| self.needs_copy(chunk, number))?;
            Some((address, chunk.length))
        };
        let ranges: Vec<_> = self.chunks.iter().map(range_to_hash).collect();
        let hashes = hash_chunks(self.driver, &self.copy_contexts[number], &ranges, hash_buffer);
        let hashes = hashes.map_err(refused("hash device memory"))?;
        self.chunks.iter_mut().zip(hashes).for_each(|(chunk, hash)| chunk.hash = chunk.hash.or(hash));
        Ok(())
    }

    /// Names chunks that the image has already, from earlier snapshots or a precopy. If there is nothing to recognize, and
    /// room for copies of a whole device, [`CapturedContents::hash_copies`] hashes later: copying alone is faster.
    fn recognize(
        &mut self,
        known_contents: &KnownContents,
        ready: &PrecopyBuffers,
        sink: &dyn Sink,
    ) -> Result<(), SnapshotError> {
        let known_contents = known_contents.lock();
        let is_new = known_contents.is_empty() && ready.names.is_empty();
        for (number, copy_context) in self.copy_contexts.iter().enumerate() {
            let hash_buffer =
                hash_buffer_bytes(self.chunks.iter().filter(|chunk| chunk.copy_context == number).count());
            let spare = ready.spare.get(&copy_context.device).filter(|spare| spare.size() >= hash_buffer);
            if !(is_new && spare.is_some_and(|spare| spare.size() >= self.needed(number) + hash_buffer)) {
                self.hash(number, spare.map(SpareMemory::start))?;
            }
        }
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.name.is_none()) {
            let key = chunk.hash.map(|hash| (hash, chunk.length));
            let name = key.and_then(|key| ready.names.get(&key).or_else(|| known_contents.get(&key)));
            chunk.name = name.copied().filter(|name| sink.has(name));
        }
        Ok(())
    }

    /// Returns whether a chunk is to be copied to spare memory of a device.
    fn needs_copy(&self, chunk: &AreaChunk, number: usize) -> bool {
        chunk.name.is_none() && chunk.copy_context == number
    }

    /// Returns the bytes of spare memory for all chunks to be copied there.
    fn needed(&self, number: usize) -> u64 {
        self.chunks.iter().filter(|chunk| self.needs_copy(chunk, number)).map(spare_bytes_of).sum()
    }

    /// Copies changed chunks to spare memory of their devices, as far as there is some. `ready` was allocated before. It
    /// stays as long as the snapshot even if nothing changed, since releasing it takes time.
    fn copy(&mut self, mut ready: BTreeMap<i32, SpareMemory>) -> Result<BTreeMap<i32, SpareMemory>, SnapshotError> {
        let mut spares = BTreeMap::new();
        for (number, copy_context) in self.copy_contexts.iter().enumerate() {
            if let Some(spare) = self.spare_for(number, ready.remove(&copy_context.device))? {
                self.assign_spare(number, &spare);
                self.run_copies(number)?;
                spares.insert(copy_context.device, spare);
            }
        }
        Ok(spares)
    }

    /// Returns spare memory for the chunks of a device; none if there is none.
    fn spare_for(&self, number: usize, ready: Option<SpareMemory>) -> Result<Option<SpareMemory>, SnapshotError> {
        let (copy_context, needed) = (&self.copy_contexts[number], self.needed(number));
        match ready {
            Some(ready) if ready.size() >= needed => Ok(Some(ready)),
            None if needed == 0 => Ok(None),
            small => {
                drop(small);
                // If a device has less memory than it reports, the rest goes in rounds.
                let hash_buffer = free(self.driver, copy_context)?.min(needed);
                Ok(SpareMemory::up_to(self.driver, copy_context.device, hash_buffer).ok())
            }
        }
    }

    /// Assigns chunks their places in spare memory.
    fn assign_spare(&mut self, number: usize, spare: &SpareMemory) {
        let (mut at, end) = (spare.start(), spare.start() + spare.size());
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            if self.needs_copy(&chunk, number) && at + spare_bytes_of(&chunk) <= end {
                self.chunks[index].spare = Some(at);
                at += spare_bytes_of(&chunk);
            }
        }
    }

    /// Copies chunks to spare memory of a device, adjacent ones at once, and waits for that.
    fn run_copies(&mut self, number: usize) -> Result<(), SnapshotError> {
        let copy_context = &self.copy_contexts[number];
        let stream = copy_context.streams.of(0);
        // The search for areas ended in a context of any device, which may not reach the memory of this one.
        SwitchableContext(copy_context.context).enter(self.driver)?;
        let mut first = 0;
        while first < self.chunks.len() {
            let (count, length) = self.run_at(first);
            let chunk = self.chunks[first];
            if let Some(to) = chunk.spare.filter(|_| chunk.copy_context == number) {
                // SAFETY: the session is at rest and its areas are alive; the spare memory is no other code's.
                let copied = unsafe {
                    self.area(&chunk).carry(
                        self.driver,
                        stream,
                        (chunk.offset, length),
                        WorkerMemory::Device(to),
                        Direction::Out,
                    )
                };
                match (copied, &self.area(&chunk).location) {
                    (Ok(()), _) => {}
                    // Some drivers copy texels only to memory with certain pitches: then in rounds.
                    (Err(_), AreaLocation::Texels(_)) => {
                        self.chunks[first..first + count].iter_mut().for_each(|chunk| chunk.spare = None)
                    }
                    (Err(code), _) => return Err(refused("copy device memory")(code)),
                }
            }
            first += count;
        }
        // SAFETY: takes a driver handle.
        unsafe { self.driver.cuStreamSynchronize(stream) }.ok().map_err(refused("copy device memory"))
    }

    /// Returns how many chunks from this one on are adjacent, in the area and in spare memory, and their bytes.
    fn run_at(&self, first: usize) -> (usize, u64) {
        let start = self.chunks[first];
        let mut length = start.length;
        let is_row = matches!(self.area(&start).location, AreaLocation::Linear(_));
        let more = self.chunks[first + 1..].iter().take_while(|next| {
            let follows = is_row && next.area == start.area && next.offset == start.offset + length;
            let joins = follows && start.spare.is_some() && next.spare == start.spare.map(|spare| spare + length);
            length += if joins { next.length } else { 0 };
            joins
        });
        (1 + more.count(), length)
    }

    /// Writes the remaining chunks to the image at once.
    fn rounds(&mut self, sink: &dyn Sink, progress: &Progress) -> Result<(), SnapshotError> {
        let batch: Vec<usize> = (0..self.chunks.len())
            .filter(|index| self.chunks[*index].name.is_none() && self.chunks[*index].spare.is_none())
            .collect();
        let load = |index: &usize| {
            let AreaChunk { offset, length, .. } = self.chunks[*index];
            ChunkLoad { area: self.area(&self.chunks[*index]), offset, length }
        };
        let loads: Vec<ChunkLoad<'_>> = batch.iter().map(load).collect();
        let (driver, copy_contexts, streams, precopy) =
            (self.driver, self.copy_contexts, self.streams, Some(self.precopy));
        let names = Transfer { driver, copy_contexts, streams, progress, precopy }.out(&loads, sink)?;
        for (index, name) in batch.into_iter().zip(names) {
            self.chunks[index].name = Some(name);
        }
        Ok(())
    }
}

impl CapturedContents {
    /// Returns the bytes that the session holds.
    pub(super) fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// Returns how many of these bytes may differ from the image.
    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    /// Writes everything to the image; for a separate thread, while the program goes on.
    ///
    /// # Errors
    ///
    /// Any failure; the image is then without this session.
    pub(super) fn write(&mut self, session: &str, sink: &dyn Sink) -> Result<Contents, SnapshotError> {
        self.hash_copies();
        self.drain(sink)?;
        let entry = sink.session_state(&format!("{session}.{RECORDS_KEY}"), &self.records)?;
        let mut names: Vec<Vec<ChunkId>> = self.regions.iter().map(|_| Vec::new()).collect();
        let mut known_contents = HashMap::new();
        for chunk in &self.chunks {
            let name = chunk.name.ok_or(SnapshotError::Cancelled)?;
            names[chunk.area].push(name);
            known_contents.extend(chunk.hash.map(|hash| ((hash, chunk.length), name)));
        }
        *self.known_contents.lock() = known_contents;
        let regions = self.regions.drain(..).zip(names).map(|(region, chunks)| Region { chunks, ..region });
        Ok(Contents { regions: regions.collect(), states: BTreeMap::from([(RECORDS_KEY.to_owned(), entry)]) })
    }

    /// Hashes the copies of chunks without a hash, for the next snapshot. A chunk without a hash is copied then.
    fn hash_copies(&mut self) {
        for (number, copy_context) in self.copy_contexts.iter().enumerate() {
            let Some(spare) = self.spare.get(&copy_context.device) else { continue };
            let copied = |chunk: &AreaChunk| chunk.spare.filter(|_| chunk.copy_context == number);
            let range_to_hash =
                |chunk: &AreaChunk| Some((copied(chunk)?, chunk.length)).filter(|_| chunk.hash.is_none());
            let ranges: Vec<_> = self.chunks.iter().map(range_to_hash).collect();
            let used = self.chunks.iter().filter_map(|chunk| Some(copied(chunk)? + spare_bytes_of(chunk))).max();
            let hash_buffer = used.unwrap_or(spare.start());
            let unhashed = ranges.iter().flatten().count();
            if hash_buffer + hash_buffer_bytes(unhashed) > spare.start() + spare.size() {
                continue;
            }
            let hashes = hash_chunks(&self.driver, copy_context, &ranges, Some(hash_buffer)).unwrap_or_default();
            for (chunk, hash) in self.chunks.iter_mut().zip(hashes) {
                chunk.hash = chunk.hash.or(hash);
            }
        }
    }

    fn drain(&mut self, sink: &dyn Sink) -> Result<(), SnapshotError> {
        // One area for each copy context, over all of its spare memory.
        let area = |copy_context: &CopyContext| {
            let start = self.spare.get(&copy_context.device).map_or(0, SpareMemory::start);
            let region = Region { chunk_bytes: u32::MAX, ..Region::default() };
            Area { region, context: copy_context.context, location: AreaLocation::Linear(start) }
        };
        let areas: Vec<Area> = self.copy_contexts.iter().map(area).collect();
        let pending_write: Vec<usize> =
            (0..self.chunks.len()).filter(|index| self.chunks[*index].spare.is_some()).collect();
        let load = |index: &usize| {
            let chunk = &self.chunks[*index];
            let area = &areas[chunk.copy_context];
            let start = area.address(0).unwrap_or(0);
            ChunkLoad { area, offset: chunk.spare.unwrap_or(0) - start, length: chunk.length }
        };
        let loads: Vec<ChunkLoad<'_>> = pending_write.iter().map(load).collect();
        let streams: Vec<CopyStreams> = self.copy_contexts.iter().map(|copy_context| copy_context.streams).collect();
        let (driver, copy_contexts, streams) = (&self.driver, &self.copy_contexts[..], &streams[..]);
        let names = Transfer { driver, copy_contexts, streams, progress: &self.progress, precopy: Some(&self.precopy) }
            .out(&loads, sink)?;
        for (index, name) in pending_write.into_iter().zip(names) {
            self.chunks[index].name = Some(name);
        }
        Ok(())
    }
}
