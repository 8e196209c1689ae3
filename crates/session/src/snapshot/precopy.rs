//! Prepares a snapshot while the program still runs: takes memory to copy to, and brings what will find no room there to
//! the image.
//!
//! A chunk that is copied while the program runs may be any mixture of what was there before and after. So the hash of the
//! copy itself names it. If the device has a chunk of that hash at the snapshot, the image has it; otherwise the snapshot
//! copies the chunk once more. A chunk that changes all the time would be copied for nothing. So only chunks that stay the
//! same for a while are copied ahead.
//!
//! Memory that is mapped here, or that a snapshot used, is unmapped only while the GPU is at rest. A driver that unmaps
//! waits for every stream. Meanwhile it seems to let no thread in, not even one that could write what a stream waits for:
//! programs hung on an H200.

use std::collections::{BTreeMap, HashSet};
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use katydid_driver::Driver;
use katydid_image::{Region, Sink};
use katydid_session_core::{Failure, Progress};

use super::area::{Area, AreaLocation, CHUNK_BYTES};
use super::areas::Retained;
use super::capture::{free, hash_chunks, room_to_hash};
use super::carrier::Carrier;
use super::error::{SnapshotError, refused};
use super::hash::{Hash, KnownContents};
use super::history::PendingWrite;
use super::precopy_state::PrecopyState;
use super::scratch::Scratch;
use super::transfer::{ChunkLoad, Transfer};
use crate::state::Session;

/// What has not changed for so long may stay as it is; steps of trainings take less.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// Nothing more is brought ahead after this: the thread that waits for the checkpoint waits for it too.
const MAX_PRECOPY_TIME: Duration = Duration::from_secs(300);
/// Chunks between two looks at the clock.
const CHUNKS_PER_CLOCK_CHECK: usize = 512;

/// What is to be done ahead of a snapshot.
pub(crate) struct PrecopyJob {
    driver: Arc<Driver>,
    devices: Vec<Device>,
    /// What the image has already; empty for a full checkpoint.
    known: KnownContents,
    precopy: PrecopyState,
    /// While it lives, contexts are not destroyed.
    pending_write: Option<PendingWrite>,
}

/// A device with memory of the session's.
struct Device {
    carrier: Carrier,
    /// Bytes that the session has on the device, at most.
    held: u64,
    /// Bytes that the device has left.
    free: u64,
    /// Memory for which the device has no room for a copy.
    views: Vec<Area>,
}

impl Session {
    /// What can be done ahead of a snapshot; the program runs. `free` says what a device has left: one that does not answer now
    /// is asked again when its contents are wanted.
    pub(crate) fn precopy_job_within(&self, full: bool, free: &dyn Fn(&Carrier) -> Option<u64>) -> Option<PrecopyJob> {
        // The job still has the results of an earlier precopy: the GPU has been busy since.
        if !self.snapshots.precopy.is_empty() {
            return None;
        }
        let device = |carrier: &Carrier| {
            let (held, free) = (self.device.held_of(carrier.device), free(carrier)?);
            Some(Device { carrier: carrier.clone(), held, free, views: Vec::new() })
        };
        let mut job = PrecopyJob {
            driver: Arc::clone(&self.shared.driver),
            devices: self.snapshots.carriers().iter().filter_map(device).collect(),
            known: if full { KnownContents::default() } else { self.snapshots.known.clone() },
            precopy: self.snapshots.precopy.clone(),
            pending_write: Some(self.snapshots.begin(0)),
        };
        job.see(self);
        (!job.devices.is_empty()).then_some(job)
    }

    /// What can be done ahead of a snapshot, by what devices have left.
    pub(crate) fn precopy_job(&self, full: bool) -> Option<impl katydid_session_core::Precopy + use<>> {
        let job = self.precopy_job_within(full, &|carrier| free(&self.shared.driver, carrier).ok());
        // Devices were asked in their contexts.
        self.reenter();
        job
    }
}

impl Device {
    /// Whether there is less room than the session's memory takes, and what changes of that is known by hashes.
    fn is_full(&self) -> bool {
        self.held > self.free && self.carrier.kernel.is_some()
    }

    /// Takes as much memory as a snapshot may want; bytes.
    fn take_spare(&self, driver: &Arc<Driver>, precopy: &PrecopyState) -> u64 {
        // Beside the contents, room to hash them; there may be more chunks than whole ones.
        let chunks = 2 * (self.held / CHUNK_BYTES) as usize + 1024;
        let room = self.free.min(self.held + room_to_hash(chunks));
        let spare = (room > 0).then(|| Scratch::up_to(driver, self.carrier.device, room).ok()).flatten();
        let size = spare.as_ref().map_or(0, Scratch::size);
        precopy.lock().spare.extend(spare.map(|spare| (self.carrier.device, spare)));
        size
    }

    /// Takes memory to hash what can be seen; its address.
    fn take_room(&self, driver: &Arc<Driver>, precopy: &PrecopyState) -> Option<u64> {
        let chunks: usize = self.views.iter().map(Area::chunks).sum();
        let wanted = Some(room_to_hash(chunks)).filter(|bytes| *bytes > 0)?;
        let room = Scratch::up_to(driver, self.carrier.device, wanted).ok()?;
        let at = Some(room.start()).filter(|_| room.size() >= wanted);
        precopy.lock().used.push(room);
        at
    }

    /// Every chunk that can be seen, with its hash.
    fn look(&self, driver: &Arc<Driver>, room: u64) -> Result<Vec<(ChunkLoad<'_>, Option<Hash>)>, SnapshotError> {
        let chunks = |area| (0..Area::chunks(area)).map(move |index| (area, area.chunk(index)));
        let loads =
            self.views.iter().flat_map(chunks).map(|(area, (offset, length))| ChunkLoad { area, offset, length });
        let loads: Vec<ChunkLoad<'_>> = loads.collect();
        let places: Vec<_> = loads.iter().map(|load| Some((load.area.address(load.offset)?, load.length))).collect();
        let hashes = hash_chunks(driver, &self.carrier, &places, Some(room));
        let hashes = hashes.map_err(refused("hash device memory"))?;
        Ok(loads.into_iter().zip(hashes).collect())
    }
}

impl PrecopyJob {
    /// Maps the session's memory on full devices at addresses of ours. What cannot be mapped waits for the snapshot.
    fn see(&mut self, session: &Session) {
        if !self.devices.iter().any(Device::is_full) {
            return;
        }
        let driver = Arc::clone(&self.driver);
        for (_, address, size) in session.device.ranges() {
            self.map(Retained::of(&driver, None, Some(address)), size);
        }
        let mappings: BTreeMap<u32, u64> =
            session.virtual_memory.mappings().map(|(address, _, block)| (block, address)).collect();
        let blocks = session.virtual_memory.blocks();
        for (id, handle, size) in blocks.into_iter().filter(|(id, ..)| !session.shares.has_block(*id)) {
            self.map(Retained::of(&driver, handle, mappings.get(&id).copied()), size);
        }
    }

    fn map(&mut self, memory: Result<Retained<'_>, SnapshotError>, size: u64) {
        let Some((number, memory)) = memory.ok().and_then(|memory| Some((memory.device().ok()?, memory))) else {
            return;
        };
        let mut full = self.devices.iter_mut().filter(|device| device.is_full());
        let Some(device) = full.find(|device| device.carrier.device == number) else { return };
        let Ok(view) = Scratch::view(&self.driver, number, memory.handle(), size) else { return };
        let region = Region { bytes: size, chunk_bytes: CHUNK_BYTES as u32, ..Region::default() };
        device.views.push(Area {
            region,
            context: device.carrier.context,
            location: AreaLocation::Linear(view.start()),
        });
        self.precopy.lock().used.push(view);
    }

    /// Brings what stays as it is on a device to the image; bytes that the image has then.
    fn bring(&self, device: &Device, room: u64, sink: &dyn Sink) -> Result<u64, SnapshotError> {
        let began = Instant::now();
        let before = device.look(&self.driver, room)?;
        thread::sleep(BATCH_TIME);
        let now = device.look(&self.driver, room)?;
        let mut there: HashSet<(Hash, u64)> = HashSet::new();
        let mut wanted = Vec::new();
        for ((load, hash), (_, earlier)) in now.iter().zip(&before) {
            let Some(key) = hash.filter(|_| hash == earlier).map(|hash| (hash, load.length)) else { continue };
            let is_known = self.known.lock().get(&key).is_some_and(|name| sink.has(name));
            if there.insert(key) && !is_known {
                wanted.push(*load);
            }
        }
        let (progress, precopy) = (Progress::default(), Some(&self.precopy));
        let (carriers, streams) = (slice::from_ref(&device.carrier), slice::from_ref(&device.carrier.streams));
        let lift = Transfer { driver: &self.driver, carriers, streams, progress: &progress, precopy };
        for batch in wanted.chunks(CHUNKS_PER_CLOCK_CHECK) {
            if began.elapsed() > MAX_PRECOPY_TIME {
                break;
            }
            let named = lift.out_hashed(batch, sink)?;
            self.precopy.lock().names.extend(named);
        }
        let precopy = self.precopy.lock();
        let known = self.known.lock();
        let is_there = |(load, hash): &&(ChunkLoad<'_>, Option<Hash>)| {
            hash.is_some_and(|hash| {
                let key = (hash, load.length);
                precopy.names.contains_key(&key) || known.contains_key(&key)
            })
        };
        Ok(now.iter().filter(is_there).map(|(load, _)| load.length).sum())
    }
}

impl katydid_session_core::Precopy for PrecopyJob {
    fn run(&mut self, sink: &dyn Sink) -> Result<u64, Failure> {
        let mut left = 0;
        for device in &self.devices {
            // What a device refuses here it refuses, or not, when the program stands still.
            let spare = device.take_spare(&self.driver, &self.precopy);
            let room = device.take_room(&self.driver, &self.precopy);
            let brought = match room.map_or(Ok(0), |room| self.bring(device, room, sink)) {
                Err(SnapshotError::Image(error)) => return Err(error.into()),
                brought => brought.unwrap_or(0),
            };
            left += device.held.saturating_sub(spare).saturating_sub(brought);
        }
        self.devices.iter_mut().for_each(|device| device.views.clear());
        self.pending_write = None;
        Ok(left)
    }
}
