//! Reading all of an image, to say which of its checkpoints can be restored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::checkpoint::latest;
use crate::error::{ImageError, Result};
use crate::format::UNIT;
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::{Image, LATEST, Which};
use crate::index::Found;
use crate::reader::{Reader, read_chunk};

/// Threads that read and hash side by side, each with a chunk in memory.
const THREADS: usize = 16;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Every checkpoint, with what is wrong with it.
    pub checkpoints: BTreeMap<CheckpointNumber, Vec<String>>,
    /// Different chunks that were read.
    pub chunks: u64,
    /// Their stored bytes, and those of the files.
    pub bytes: u64,
    /// As [`Image::writer`] has it.
    pub writer: Option<String>,
}

impl Report {
    /// Whether every checkpoint can be restored.
    pub fn is_clean(&self) -> bool {
        self.checkpoints.values().all(Vec::is_empty)
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were read.
    pub done: u64,
    /// Bytes to read.
    pub total: u64,
}

/// The chunks to read, each once.
struct Work<'a> {
    chunks: Vec<Found>,
    next: AtomicUsize,
    done: AtomicU64,
    total: u64,
    faults: Mutex<HashMap<ChunkId, String>>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Image {
    /// Reads every byte of one checkpoint, or of all, and compares it with its hash.
    pub fn verify(&self, only: Option<CheckpointNumber>, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report> {
        let numbers = match only {
            Some(number) => vec![self.resolve(Which::Number(number))?],
            None => self.checkpoints()?,
        };
        let mut report = Report { writer: self.writer()?, ..Report::default() };
        let mut readers = Vec::new();
        for number in numbers {
            let faults = report.checkpoints.entry(number).or_default();
            match Reader::open(self, Which::Number(number)) {
                Ok(reader) => readers.push(reader),
                Err(locked @ ImageError::Locked { .. }) => return Err(locked),
                Err(error) => faults.push(error.to_string()),
            }
        }
        let faults = self.read_chunks(&readers, &mut report, progress);
        for reader in &readers {
            let list = report.checkpoints.entry(reader.number()).or_default();
            list.extend(wrong_files(reader));
            let named: BTreeSet<&ChunkId> = reader.manifest().chunks().map(|(id, _)| id).collect();
            list.extend(named.into_iter().filter_map(|id| faults.get(id)).cloned());
            report.bytes += reader.manifest().sizes.files;
        }
        // A number that is not the newest is what a crash may leave; none at all is damage.
        if let Some((newest, faults)) = report.checkpoints.last_entry().map(|entry| (*entry.key(), entry.into_mut()))
            && only.is_none()
            && latest(&*self.store) == Some(None)
        {
            faults.push(format!("{LATEST}: it holds no number: {:06} belongs there", newest.0));
        }
        Ok(report)
    }

    /// What is wrong with each chunk of these checkpoints.
    fn read_chunks(
        &self,
        readers: &[Reader],
        report: &mut Report,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> HashMap<ChunkId, String> {
        let mut different = HashMap::new();
        for reader in readers {
            different.extend(reader.found_chunks().map(|found| (found.entry.id, found)));
        }
        let mut chunks: Vec<Found> = different.into_values().collect();
        // In the order of the packs, so that a disk reads forward.
        chunks.sort_by_key(|found| (found.pack.number, found.entry.offset));
        let total = chunks.iter().map(|found| u64::from(found.entry.stored)).sum();
        (report.chunks, report.bytes) = (chunks.len() as u64, total);
        let (next, done, faults) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::default());
        let work = Work { chunks, next, done, total, faults, progress };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| work.run()))));
        work.faults.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work<'_> {
    /// One thread's share: whatever chunk is next.
    fn run(&self) {
        let mut buffer = Vec::new();
        while let Some(found) = self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = check(found, &mut buffer) {
                let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                faults.insert(found.entry.id, error.to_string());
            }
            let stored = u64::from(found.entry.stored);
            let done = self.done.fetch_add(stored, Ordering::Relaxed) + stored;
            (self.progress)(Progress { done, total: self.total });
        }
    }
}

/// Compares a chunk with its hash, and its header with the index.
fn check(found: &Found, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.resize(found.entry.raw as usize, 0);
    read_chunk(found, buffer)?;
    let mut header = [0; UNIT];
    found.pack.input.read(found.entry.offset, &mut header)?;
    if header != found.entry.header() {
        let what = format!("the header at byte {} differs from the index", found.entry.offset);
        return Err(ImageError::damaged(&found.pack.place, what));
    }
    Ok(())
}

/// Files of the processes and states, one after the other: they are few.
fn wrong_files(reader: &Reader) -> Vec<String> {
    let files = reader.manifest().files.iter();
    files.filter_map(|file| reader.check_file(file).err()).map(|error| error.to_string()).collect()
}
