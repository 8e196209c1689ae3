//! Prepares a snapshot while the program still runs: allocates memory for copies, and writes what will find no room there to
//! the image.
//!
//! A chunk that is copied while the program runs may be any mixture of old and new bytes. So the hash of the copy itself
//! names it. If the device has a chunk of that hash at the snapshot, the image has it; otherwise the snapshot copies the
//! chunk once more. A chunk that changes all the time would be copied for nothing. So only chunks that stay the same for a
//! while are copied ahead.
//!
//! Memory that is mapped here, or that a snapshot used, is unmapped only while the GPU is at rest. A driver that unmaps
//! waits for every stream. Meanwhile it seems to block every other thread, even one that could write what a stream waits
//! for: programs hung on an H200.

use std::collections::{BTreeMap, HashSet};
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use katydid_driver::Driver;
use katydid_image::{Region, Sink};
use katydid_session_core::{Failure, Progress};

use super::area::{Area, AreaLocation, CHUNK_BYTES};
use super::areas::RetainedHandle;
use super::capture::{free, hash_buffer_bytes, hash_chunks};
use super::copy_context::CopyContext;
use super::error::{SnapshotError, refused};
use super::hash::{Hash, KnownContents};
use super::history::PendingWrite;
use super::precopy_state::PrecopyState;
use super::spare_memory::SpareMemory;
use super::transfer::{ChunkLoad, Transfer};
use crate::state::Session;

/// A chunk that stays unchanged for so long may stay so; training steps take less.
const STABLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Nothing more is copied ahead after this: the thread that waits for the checkpoint waits for it too.
const MAX_PRECOPY_TIME: Duration = Duration::from_secs(300);
/// Chunks between two checks of the clock.
const CHUNKS_PER_CLOCK_CHECK: usize = 512;

/// The work ahead of a snapshot.
pub(crate) struct PrecopyJob {
    driver: Arc<Driver>,
    devices: Vec<Device>,
    /// Contents that the image has already; empty for a full checkpoint.
    known_contents: KnownContents,
    precopy: PrecopyState,
    /// While it lives, contexts are not destroyed.
    pending_write: Option<PendingWrite>,
}

/// A device with memory of the session.
struct Device {
    copy_context: CopyContext,
    /// Most bytes that the session has on the device.
    held: u64,
    /// Bytes that the device has left.
    free: u64,
    /// Memory for whose copies the device has no room.
    views: Vec<Area>,
}

impl Session {
    /// Returns the work ahead of a snapshot while the program runs. `free` returns the bytes that a device has left: if it
    /// fails now, it is repeated when the contents are needed.
    pub(crate) fn precopy_job_within(
        &self,
        full: bool,
        free: &dyn Fn(&CopyContext) -> Option<u64>,
    ) -> Option<PrecopyJob> {
        // The results of an earlier precopy are still there: the GPU has been busy since.
        if !self.snapshots.precopy.is_empty() {
            return None;
        }
        let device = |copy_context: &CopyContext| {
            let (held, free) = (self.device.held_of(copy_context.device), free(copy_context)?);
            Some(Device { copy_context: copy_context.clone(), held, free, views: Vec::new() })
        };
        let mut job = PrecopyJob {
            driver: Arc::clone(&self.shared.driver),
            devices: self.snapshots.copy_contexts().iter().filter_map(device).collect(),
            known_contents: if full { KnownContents::default() } else { self.snapshots.known_contents.clone() },
            precopy: self.snapshots.precopy.clone(),
            pending_write: Some(self.snapshots.begin(0)),
        };
        job.map_views(self);
        (!job.devices.is_empty()).then_some(job)
    }

    /// Returns the work ahead of a snapshot, by what devices have left.
    pub(crate) fn precopy_job(&self, full: bool) -> Option<impl katydid_session_core::Precopy + use<>> {
        let job = self.precopy_job_within(full, &|copy_context| free(&self.shared.driver, copy_context).ok());
        // The queries entered contexts of the devices.
        self.reenter();
        job
    }
}

impl Device {
    /// Returns whether the device has less room than the session's memory takes, and a kernel to hash it.
    fn is_full(&self) -> bool {
        self.held > self.free && self.copy_context.kernel.is_some()
    }

    /// Allocates as much memory as a snapshot may need; returns the bytes.
    fn take_spare(&self, driver: &Arc<Driver>, precopy: &PrecopyState) -> u64 {
        // Beside the contents, memory for their hashes; there may be more chunks than whole ones.
        let chunks = 2 * (self.held / CHUNK_BYTES) as usize + 1024;
        let hash_buffer = self.free.min(self.held + hash_buffer_bytes(chunks));
        let spare =
            (hash_buffer > 0).then(|| SpareMemory::up_to(driver, self.copy_context.device, hash_buffer).ok()).flatten();
        let size = spare.as_ref().map_or(0, SpareMemory::size);
        precopy.lock().spare.extend(spare.map(|spare| (self.copy_context.device, spare)));
        size
    }

    /// Allocates memory for the hashes of the mapped views; returns its address.
    fn allocate_hash_buffer(&self, driver: &Arc<Driver>, precopy: &PrecopyState) -> Option<u64> {
        let chunks: usize = self.views.iter().map(Area::chunks).sum();
        let needed_bytes = Some(hash_buffer_bytes(chunks)).filter(|bytes| *bytes > 0)?;
        let hash_buffer = SpareMemory::up_to(driver, self.copy_context.device, needed_bytes).ok()?;
        let at = Some(hash_buffer.start()).filter(|_| hash_buffer.size() >= needed_bytes);
        precopy.lock().used.push(hash_buffer);
        at
    }

    /// Returns every chunk of the mapped views, with its hash.
    fn hash_views(
        &self,
        driver: &Arc<Driver>,
        hash_buffer: u64,
    ) -> Result<Vec<(ChunkLoad<'_>, Option<Hash>)>, SnapshotError> {
        let chunks = |area| (0..Area::chunks(area)).map(move |index| (area, area.chunk(index)));
        let loads =
            self.views.iter().flat_map(chunks).map(|(area, (offset, length))| ChunkLoad { area, offset, length });
        let loads: Vec<ChunkLoad<'_>> = loads.collect();
        let ranges: Vec<_> = loads.iter().map(|load| Some((load.area.address(load.offset)?, load.length))).collect();
        let hashes = hash_chunks(driver, &self.copy_context, &ranges, Some(hash_buffer));
        let hashes = hashes.map_err(refused("hash device memory"))?;
        Ok(loads.into_iter().zip(hashes).collect())
    }
}

impl PrecopyJob {
    /// Maps the session's memory on full devices at addresses of the worker. Memory that cannot be mapped waits for the
    /// snapshot.
    fn map_views(&mut self, session: &Session) {
        if !self.devices.iter().any(Device::is_full) {
            return;
        }
        let driver = Arc::clone(&self.driver);
        for (_, address, size) in session.device.ranges() {
            self.map(RetainedHandle::of(&driver, None, Some(address)), size);
        }
        let mappings: BTreeMap<u32, u64> =
            session.virtual_memory.mappings().map(|(address, _, block)| (block, address)).collect();
        let blocks = session.virtual_memory.blocks();
        for (id, handle, size) in blocks.into_iter().filter(|(id, ..)| !session.shares.has_block(*id)) {
            self.map(RetainedHandle::of(&driver, handle, mappings.get(&id).copied()), size);
        }
    }

    fn map(&mut self, memory: Result<RetainedHandle<'_>, SnapshotError>, size: u64) {
        let Some((number, memory)) = memory.ok().and_then(|memory| Some((memory.device().ok()?, memory))) else {
            return;
        };
        let mut full = self.devices.iter_mut().filter(|device| device.is_full());
        let Some(device) = full.find(|device| device.copy_context.device == number) else { return };
        let Ok(view) = SpareMemory::view(&self.driver, number, memory.handle(), size) else { return };
        let region = Region { bytes: size, chunk_bytes: CHUNK_BYTES as u32, ..Region::default() };
        device.views.push(Area {
            region,
            context: device.copy_context.context,
            location: AreaLocation::Linear(view.start()),
        });
        self.precopy.lock().used.push(view);
    }

    /// Writes stable chunks of a device to the image; returns the bytes written.
    fn copy_stable(&self, device: &Device, hash_buffer: u64, sink: &dyn Sink) -> Result<u64, SnapshotError> {
        let began = Instant::now();
        let first_look = device.hash_views(&self.driver, hash_buffer)?;
        thread::sleep(STABLE_CHECK_INTERVAL);
        let second_look = device.hash_views(&self.driver, hash_buffer)?;
        let mut unique: HashSet<(Hash, u64)> = HashSet::new();
        let mut new_chunks = Vec::new();
        for ((load, hash), (_, earlier)) in second_look.iter().zip(&first_look) {
            let Some(key) = hash.filter(|_| hash == earlier).map(|hash| (hash, load.length)) else { continue };
            let is_known = self.known_contents.lock().get(&key).is_some_and(|name| sink.has(name));
            if unique.insert(key) && !is_known {
                new_chunks.push(*load);
            }
        }
        let (progress, precopy) = (Progress::default(), Some(&self.precopy));
        let (copy_contexts, streams) =
            (slice::from_ref(&device.copy_context), slice::from_ref(&device.copy_context.streams));
        let transfer = Transfer { driver: &self.driver, copy_contexts, streams, progress: &progress, precopy };
        for batch in new_chunks.chunks(CHUNKS_PER_CLOCK_CHECK) {
            if began.elapsed() > MAX_PRECOPY_TIME {
                break;
            }
            let named = transfer.out_hashed(batch, sink)?;
            self.precopy.lock().names.extend(named);
        }
        let precopy = self.precopy.lock();
        let known_contents = self.known_contents.lock();
        let is_there = |(load, hash): &&(ChunkLoad<'_>, Option<Hash>)| {
            hash.is_some_and(|hash| {
                let key = (hash, load.length);
                precopy.names.contains_key(&key) || known_contents.contains_key(&key)
            })
        };
        Ok(second_look.iter().filter(is_there).map(|(load, _)| load.length).sum())
    }
}

impl katydid_session_core::Precopy for PrecopyJob {
    fn run(&mut self, sink: &dyn Sink) -> Result<u64, Failure> {
        let mut changed_bytes = 0;
        for device in &self.devices {
            // A device that refuses here may refuse, or not, when the program is paused.
            let spare = device.take_spare(&self.driver, &self.precopy);
            let hash_buffer = device.allocate_hash_buffer(&self.driver, &self.precopy);
            let brought = match hash_buffer.map_or(Ok(0), |hash_buffer| self.copy_stable(device, hash_buffer, sink)) {
                Err(SnapshotError::Image(error)) => return Err(error.into()),
                brought => brought.unwrap_or(0),
            };
            changed_bytes += device.held.saturating_sub(spare).saturating_sub(brought);
        }
        self.devices.iter_mut().for_each(|device| device.views.clear());
        self.pending_write = None;
        Ok(changed_bytes)
    }
}
