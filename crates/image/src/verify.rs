//! Reads a whole image, and reports which of its checkpoints can be restored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::{ImageError, Result};
use crate::format::BLOCK_BYTES;
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::{CheckpointChoice, Image, LATEST_FILE, latest};
use crate::index::FoundChunk;
use crate::reader::{CheckpointReader, read_chunk};
use crate::threads::in_threads;

/// Threads that read and hash in parallel, each with a chunk in memory.
const VERIFY_THREADS: usize = 16;
/// The fault of an incomplete checkpoint.
const NO_MANIFEST: &str = "has no manifest: it was never completed, or is damaged";

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Every checkpoint, with its faults.
    pub checkpoints: BTreeMap<CheckpointNumber, Vec<String>>,
    /// Number of distinct chunks that were read.
    pub chunks: u64,
    /// Their stored bytes, and those of the files.
    pub bytes: u64,
    /// Differences that prevent no restore on this machine.
    pub remarks: Vec<String>,
    /// Holder of the image's lock, as [`Image::writer`] reports it.
    pub writer: Option<String>,
}

impl Report {
    /// Returns whether there are checkpoints and all of them can be restored; remarks do not count.
    pub fn is_clean(&self) -> bool {
        !self.checkpoints.is_empty() && self.checkpoints.values().all(Vec::is_empty)
    }
}

/// Progress of a verification, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were read.
    pub done: u64,
    /// Bytes to read in all.
    pub total: u64,
}

/// The chunks to read, each once.
struct VerifyWork<'a> {
    chunks: Vec<FoundChunk>,
    next: AtomicUsize,
    done: AtomicU64,
    total: u64,
    faults: Mutex<HashMap<ChunkId, String>>,
    /// Headers that differ from their entries: no reader uses them.
    headers: Mutex<Vec<String>>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Image {
    /// Reads every byte of one checkpoint, or of all, and compares it with its hash. An image without a restorable checkpoint is
    /// never clean.
    pub fn verify(&self, only: Option<CheckpointNumber>, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report> {
        let numbers = match only {
            Some(number) => vec![self.resolve(CheckpointChoice::Number(number))?],
            None => self.checkpoints()?,
        };
        let mut report = Report { writer: self.writer()?, ..Report::default() };
        let mut readers = Vec::new();
        for number in numbers {
            let faults = report.checkpoints.entry(number).or_default();
            match CheckpointReader::open(self, CheckpointChoice::Number(number)) {
                Ok(reader) => readers.push(reader),
                Err(locked @ ImageError::Locked { .. }) => return Err(locked),
                Err(error) => faults.push(error.to_string()),
            }
        }
        if report.checkpoints.is_empty() {
            // Without a complete checkpoint, leftovers of others are faults, not remarks: a restore finds nothing.
            let lost = self.newer_than(CheckpointNumber(0))?;
            report.checkpoints.extend(lost.map(|lost| (lost, vec![NO_MANIFEST.to_owned()])));
        }
        let faults = self.read_chunks(&readers, &mut report, progress);
        for reader in &readers {
            let list = report.checkpoints.entry(reader.number()).or_default();
            list.extend(wrong_files(reader));
            let manifest = reader.manifest();
            let needed: BTreeSet<&ChunkId> = manifest.session_chunks().map(|(id, _)| id).collect();
            list.extend(needed.iter().filter_map(|id| faults.get(*id)).cloned());
            let carried: BTreeSet<&ChunkId> = manifest.chunks().map(|(id, _)| id).collect();
            let wrong = carried.difference(&needed).filter_map(|id| faults.get(*id));
            report.remarks.extend(wrong.map(|fault| {
                format!(
                    "checkpoint {}: {fault}: a library of Katydid's, which is needed where another build is installed",
                    reader.number()
                )
            }));
            report.bytes += manifest.sizes.files;
        }
        if only.is_none() {
            report.remarks.extend(self.remarks(&report)?);
        }
        Ok(report)
    }

    /// Returns remarks about the image as a whole. A number in `latest` that is not the newest is no remark: a crash may leave
    /// it.
    fn remarks(&self, report: &Report) -> Result<Vec<String>> {
        let newest = report.checkpoints.last_key_value().map(|(number, _)| *number);
        let named = newest.filter(|_| latest(&*self.store) == Some(None));
        let named = named.map(|newest| format!("{LATEST_FILE}: it holds no number: {:06} belongs there", newest.0));
        let lost = self.newer_than(newest.unwrap_or(CheckpointNumber(0)))?;
        let lost = lost.map(|lost| format!("checkpoint {lost} {NO_MANIFEST}"));
        Ok(named.into_iter().chain(lost).collect())
    }

    /// Returns the fault of each damaged chunk of these checkpoints.
    fn read_chunks(
        &self,
        readers: &[CheckpointReader],
        report: &mut Report,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> HashMap<ChunkId, String> {
        let mut different = HashMap::new();
        for reader in readers {
            different.extend(reader.found_chunks().map(|found| (found.entry.id, found)));
        }
        let mut chunks: Vec<FoundChunk> = different.into_values().collect();
        // In the order of the packs, so that a disk reads sequentially.
        chunks.sort_by_key(|found| (found.pack.number, found.entry.offset));
        let total = chunks.iter().map(|found| u64::from(found.entry.stored)).sum();
        (report.chunks, report.bytes) = (chunks.len() as u64, total);
        let (next, done, faults, headers) =
            (AtomicUsize::new(0), AtomicU64::new(0), Mutex::default(), Mutex::default());
        let work = VerifyWork { chunks, next, done, total, faults, headers, progress };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(VERIFY_THREADS);
        for outcome in in_threads(threads, || work.run()) {
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let mut headers = work.headers.into_inner().unwrap_or_else(PoisonError::into_inner);
        headers.sort();
        report.remarks.extend(headers);
        work.faults.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VerifyWork<'_> {
    /// Checks the next chunks until none are left; runs on each thread.
    fn run(&self) {
        let mut buffer = Vec::new();
        while let Some(chunk) = self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            buffer.resize(chunk.entry.raw as usize, 0);
            if let Err(error) = read_chunk(chunk, &mut buffer) {
                let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                faults.insert(chunk.entry.id, error.to_string());
            } else if let Some(remark) = wrong_header(chunk) {
                self.headers.lock().unwrap_or_else(PoisonError::into_inner).push(remark);
            }
            let stored = u64::from(chunk.entry.stored);
            let done = self.done.fetch_add(stored, Ordering::Relaxed) + stored;
            (self.progress)(Progress { done, total: self.total });
        }
    }
}

/// Returns how a chunk's header differs from the index, which alone is used for reading.
fn wrong_header(chunk: &FoundChunk) -> Option<String> {
    let mut header = [0; BLOCK_BYTES];
    let read = chunk.pack.input.read(chunk.entry.offset, &mut header);
    let is_right = read.is_ok() && header == chunk.entry.header();
    (!is_right).then(|| {
        let (location, at) = (&chunk.pack.location, chunk.entry.offset);
        format!("{location}: the header at byte {at} differs from the index, and its chunk is whole")
    })
}

/// Checks the files of processes and states, one after the other: they are few.
fn wrong_files(reader: &CheckpointReader) -> Vec<String> {
    let files = reader.manifest().files.iter();
    files.filter_map(|file| reader.check_file(file).err()).map(|error| error.to_string()).collect()
}
