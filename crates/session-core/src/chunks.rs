//! Writes chunks of host memory to an image, and reads them back: several threads hash, compress and check them.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use katydid_image::{ChunkId, ImageError, ImageSource, Sink};

use crate::progress::Progress;
use crate::snapshot::Failure;

/// Bytes of a chunk: 2 MiB, as devices map memory.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Most threads; fewer with fewer processors.
const MAX_CHUNK_THREADS: usize = 16;

/// Why chunks could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The image cannot be read or written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A chunk's bytes cannot be loaded.
    #[error(transparent)]
    Load(Failure),
    /// The work was cancelled.
    #[error("it was cancelled")]
    Cancelled,
}

/// Fills memory with the chunk of a number.
pub type Load<'a> = dyn Fn(usize, &mut [u8]) -> Result<(), ChunkError> + Sync + 'a;

/// Writes chunks of these lengths to an image; returns the names, in the order of the chunks. `load` fills memory of the
/// chunk's length with the bytes of the chunk of a number, wherever they are.
///
/// # Errors
///
/// The first error of any thread.
pub fn put_each(
    lengths: &[usize],
    load: &Load<'_>,
    sink: &dyn Sink,
    progress: &Progress,
) -> Result<Vec<ChunkId>, ChunkError> {
    let names: Vec<Mutex<Option<ChunkId>>> = lengths.iter().map(|_| Mutex::new(None)).collect();
    // Unused buffers: one for each thread in the end.
    let rooms: Mutex<Vec<Vec<u8>>> = Mutex::default();
    let put = |index: usize| {
        let mut room = rooms.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        room.resize(lengths[index], 0);
        load(index, &mut room)?;
        let name = sink.put(&room)?;
        *names[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(name);
        progress.add(room.len() as u64);
        rooms.lock().unwrap_or_else(PoisonError::into_inner).push(room);
        Ok(())
    };
    each(lengths.len(), progress, &put)?;
    let name = |name: Mutex<Option<ChunkId>>| name.into_inner().unwrap_or_else(PoisonError::into_inner);
    names.into_iter().map(|slot| name(slot).ok_or(ChunkError::Cancelled)).collect()
}

/// Reads every chunk back from an image.
///
/// # Errors
///
/// The image's error for a chunk, or a cancellation.
pub fn read_all(
    chunks: Vec<(ChunkId, &mut [u8])>,
    source: &dyn ImageSource,
    progress: &Progress,
) -> Result<(), ChunkError> {
    let count = chunks.len();
    let chunks: Vec<Mutex<(ChunkId, &mut [u8])>> = chunks.into_iter().map(Mutex::new).collect();
    let read = |index: usize| {
        // Each index is taken by one thread.
        let mut chunk = chunks[index].lock().unwrap_or_else(PoisonError::into_inner);
        let (name, bytes) = &mut *chunk;
        source.read(name, bytes)?;
        progress.add(bytes.len() as u64);
        Ok(())
    };
    each(count, progress, &read)
}

/// Runs `work` in threads for every number below `count`.
fn each(
    count: usize,
    progress: &Progress,
    work: &(dyn Fn(usize) -> Result<(), ChunkError> + Sync),
) -> Result<(), ChunkError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_CHUNK_THREADS).min(count);
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let run = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || progress.is_cancelled() {
                return;
            }
            if let Err(error) = work(index) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                next.store(count, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without this thread, the others have more to do.
            let _ = thread::Builder::new().name("chunks".into()).spawn_scoped(scope, run);
        }
        run();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None if progress.is_cancelled() => Err(ChunkError::Cancelled),
        None => Ok(()),
    }
}
