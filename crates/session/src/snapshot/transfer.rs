//! Transfers bytes between devices and an image: by several threads, each with two chunks of registered memory.
//!
//! While one chunk is on the link, the thread hashes and writes the other, or reads it. So no thread waits for the link
//! while the processors have work. The memory of all threads is bounded: [`CHUNKS_PER_THREAD`] times
//! [`MAX_TRANSFER_THREADS`] chunks.
//!
//! Registered memory stays registered for the next snapshot. A driver that unregisters it waits for every stream and blocks
//! every other thread meanwhile. A program would hang if its stream waited for a host function that waits for the program's
//! next call.

#![expect(unsafe_code, reason = "calls the driver, and lends registered memory to the image")]

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use katydid_cuda_sys::{CU_STREAM_PER_THREAD, CUcontext, CUstream};
use katydid_driver::Driver;
use katydid_image::{ChunkId, ImageSource, Sink};
use katydid_session_core::Progress;

use super::area::{Area, AreaLocation, CHUNK_BYTES, Direction, WorkerMemory};
use super::buffers::{Buffers, CHUNKS_PER_THREAD, MAX_TRANSFER_THREADS};
use super::copy_context::{CopyContext, CopyStreams};
use super::error::{SnapshotError, refused};
use super::hash::Names;
use super::precopy_state::PrecopyState;

/// One chunk of an area.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLoad<'a> {
    pub(super) area: &'a Area,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The shared data of the threads.
pub(super) struct Transfer<'a> {
    pub(super) driver: &'a Arc<Driver>,
    pub(super) copy_contexts: &'a [CopyContext],
    /// The worker's own streams, one entry for each context.
    pub(super) streams: &'a [CopyStreams],
    pub(super) progress: &'a Progress,
    /// Provides registered memory, and gets it back. Without it, the memory is freed at the end, when the GPU should be at
    /// rest.
    pub(super) precopy: Option<&'a PrecopyState>,
}

impl Transfer<'_> {
    /// Writes every chunk to an image; returns the names, in the order of the loads.
    ///
    /// # Errors
    ///
    /// The first error of any thread.
    pub(super) fn out(&self, loads: &[ChunkLoad<'_>], sink: &dyn Sink) -> Result<Vec<ChunkId>, SnapshotError> {
        self.each_out(loads, &|bytes| Ok(sink.put(bytes)?))
    }

    /// Writes chunks that the program may change meanwhile to an image: each name comes with the hash of the copy. Writes
    /// nothing without a hash kernel.
    ///
    /// # Errors
    ///
    /// As [`Transfer::out`].
    pub(super) fn out_hashed(&self, loads: &[ChunkLoad<'_>], sink: &dyn Sink) -> Result<Names, SnapshotError> {
        let Some(kernel) = self.copy_contexts.iter().find_map(|copy_context| copy_context.kernel) else {
            return Ok(Names::new());
        };
        let named = |bytes: &[u8]| Ok(((kernel.of_bytes(bytes), bytes.len() as u64), sink.put(bytes)?));
        Ok(self.each_out(loads, &named)?.into_iter().collect())
    }

    /// Copies every chunk, and returns the results of `keep`.
    fn each_out<T: Send>(&self, loads: &[ChunkLoad<'_>], keep: &ChunkSink<'_, T>) -> Result<Vec<T>, SnapshotError> {
        let outputs: Vec<Mutex<Option<T>>> = loads.iter().map(|_| Mutex::new(None)).collect();
        let begin = |half: &mut PinnedChunk<'_>, index: usize| half.carry(&loads[index], Direction::Out);
        let end = |half: &mut PinnedChunk<'_>, index: usize| {
            let output = keep(half.bytes(loads[index].length)?)?;
            *outputs[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
            Ok(())
        };
        self.each(loads, &begin, &end)?;
        let output = |slot: Mutex<Option<T>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        outputs.into_iter().map(|slot| output(slot).ok_or(SnapshotError::Cancelled)).collect()
    }

    /// Reads every chunk back from an image.
    ///
    /// # Errors
    ///
    /// As [`Transfer::out`].
    pub(super) fn back(
        &self,
        loads: &[(ChunkLoad<'_>, ChunkId)],
        source: &dyn ImageSource,
    ) -> Result<(), SnapshotError> {
        let plain: Vec<ChunkLoad<'_>> = loads.iter().map(|(load, _)| *load).collect();
        let begin = |half: &mut PinnedChunk<'_>, index: usize| {
            let (load, name) = &loads[index];
            source.read(name, half.bytes_mut(load.length)?)?;
            half.carry(load, Direction::In)
        };
        self.each(&plain, &begin, &|half, _| half.wait())
    }

    /// Runs `begin` in threads for every load, and `end` after the thread has begun its next one.
    fn each(&self, loads: &[ChunkLoad<'_>], begin: &ThreadStep<'_>, end: &ThreadStep<'_>) -> Result<(), SnapshotError> {
        let Some(first) = loads.first() else { return Ok(()) };
        let count = threads().min(loads.len());
        enter(self.driver, self.copy_contexts.first().map_or(first.area.context, |copy_context| copy_context.context))?;
        let buffers = self.buffers(count * CHUNKS_PER_THREAD)?;
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let run = |number: usize| {
            let half = |half: usize| PinnedChunk {
                transfer: self,
                number: number * CHUNKS_PER_THREAD + half,
                buffer: buffers.chunk(number * CHUNKS_PER_THREAD + half),
                under_way: None,
            };
            let (mut filling, mut draining) = (half(0), half(1));
            let mut pending_index = None;
            while !self.progress.is_cancelled() {
                let index = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < loads.len());
                if let Some(index) = index {
                    begin(&mut filling, index)?;
                }
                if let Some(index) = pending_index {
                    end(&mut draining, index)?;
                    self.progress.add(loads[index].length);
                }
                if index.is_none() {
                    return Ok(());
                }
                pending_index = index;
                std::mem::swap(&mut filling, &mut draining);
            }
            Err(SnapshotError::Cancelled)
        };
        let run = |number| {
            if let Err(error) = run(number) {
                // Other threads need not begin more loads after a failure.
                next.store(loads.len(), Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        let run = &run;
        let spawned = thread::scope(|scope| {
            for number in 1..count {
                thread::Builder::new().name(format!("transfer {number}")).spawn_scoped(scope, move || run(number))?;
            }
            run(0);
            Ok(())
        });
        if let Some(precopy) = self.precopy {
            precopy.keep_buffers(buffers);
        }
        spawned.map_err(|source| SnapshotError::System { what: "start a thread", source })?;
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Returns memory of `count` chunks: idle memory, or new one. It has one of few sizes, so that memory that is never
    /// freed is at most twice the largest.
    fn buffers(&self, count: usize) -> Result<Buffers, SnapshotError> {
        match self.precopy.and_then(|precopy| precopy.take_buffers(count)) {
            Some(ready) => Ok(ready),
            None => Buffers::make(self.driver, count.next_power_of_two()),
        }
    }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(MAX_TRANSFER_THREADS)
}

fn enter(driver: &Driver, context: CUcontext) -> Result<(), SnapshotError> {
    // SAFETY: a living context of the session.
    unsafe { driver.cuCtxSetCurrent(context) }.ok().map_err(refused("enter a context"))
}

/// Handles the bytes of a chunk.
type ChunkSink<'a, T> = dyn Fn(&[u8]) -> Result<T, SnapshotError> + Sync + 'a;

/// A step of a thread with a load, by its number.
type ThreadStep<'a> = dyn Fn(&mut PinnedChunk<'_>, usize) -> Result<(), SnapshotError> + Sync + 'a;

/// A chunk of registered memory, and the copy to or from it.
struct PinnedChunk<'a> {
    transfer: &'a Transfer<'a>,
    number: usize,
    /// Address of the chunk.
    buffer: u64,
    /// Context and stream of a copy that has not been waited for.
    under_way: Option<(CUcontext, CUstream)>,
}

impl PinnedChunk<'_> {
    /// Returns the worker's own stream, or else the thread's default one, since nothing else runs there.
    fn stream(&self, context: CUcontext) -> CUstream {
        let own_streams = self.transfer.streams.iter().find(|streams| streams.context == context);
        own_streams.map_or(CU_STREAM_PER_THREAD, |streams| streams.of(self.number))
    }

    /// Begins to copy a load between its place and the buffer.
    fn carry(&mut self, load: &ChunkLoad<'_>, direction: Direction) -> Result<(), SnapshotError> {
        self.wait()?;
        let (driver, context) = (self.transfer.driver, load.area.context);
        let range = (load.offset, load.length);
        enter(driver, context)?;
        let stream = self.stream(context);
        // Memory of this process is copied at once.
        let is_here = matches!(load.area.location, AreaLocation::Host(_) | AreaLocation::Heap(_));
        self.under_way = (!is_here).then_some((context, stream));
        // SAFETY: the area lives as long as the load; a chunk fits the buffer, which only this thread uses; both are left
        // alone until `wait`.
        let copied = unsafe { load.area.carry(driver, stream, range, WorkerMemory::Host(self.buffer), direction) };
        copied.map_err(refused("copy contents of memory"))
    }

    /// Waits until the thread may use the buffer again.
    fn wait(&mut self) -> Result<(), SnapshotError> {
        let Some((context, stream)) = self.under_way.take() else { return Ok(()) };
        let driver = self.transfer.driver;
        enter(driver, context)?;
        // SAFETY: takes a driver handle.
        unsafe { driver.cuStreamSynchronize(stream) }.ok().map_err(refused("copy contents of memory"))
    }

    /// Returns the bytes copied to the buffer.
    fn bytes(&mut self, length: u64) -> Result<&[u8], SnapshotError> {
        self.wait()?;
        let start = std::ptr::with_exposed_provenance::<u8>(self.buffer as usize);
        // SAFETY: a chunk of the mapping, initialized by the system, used by this thread alone; no copy is running.
        Ok(unsafe { std::slice::from_raw_parts(start, length.min(CHUNK_BYTES) as usize) })
    }

    /// Returns the buffer, to be filled.
    fn bytes_mut(&mut self, length: u64) -> Result<&mut [u8], SnapshotError> {
        self.wait()?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.buffer as usize);
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, length.min(CHUNK_BYTES) as usize) })
    }
}

impl Drop for PinnedChunk<'_> {
    /// After a failure a copy may still be running, and the buffer is about to be freed.
    fn drop(&mut self) {
        // A driver that cannot even wait copies no more.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::soft;

    #[test]
    fn memory_that_stays_is_bounded_whatever_was_wanted() {
        let (driver, _guard) = soft::driver();
        let (precopy, progress) = (PrecopyState::default(), Progress::default());
        let transfer = Transfer {
            driver: &driver,
            copy_contexts: &[],
            streams: &[],
            progress: &progress,
            precopy: Some(&precopy),
        };
        let most = CHUNKS_PER_THREAD * MAX_TRANSFER_THREADS;
        for count in 1..=most {
            precopy.keep_buffers(transfer.buffers(count).unwrap());
        }
        let buffer_count: usize = std::iter::from_fn(|| precopy.take_buffers(1)).map(|buffers| buffers.count()).sum();
        assert!(buffer_count < 2 * most, "{buffer_count}");
    }

    #[test]
    fn registered_memory_stays_for_the_next_until_all_is_given_back() {
        let (driver, _guard) = soft::driver();
        let precopy = PrecopyState::default();
        let keep = |count| precopy.keep_buffers(Buffers::make(&driver, count).unwrap());
        keep(2);
        keep(5);
        assert!(precopy.is_empty(), "nothing of the device's");
        drop(precopy.take());
        assert!(precopy.take_buffers(6).is_none());
        let five = precopy.take_buffers(3).unwrap();
        assert_eq!(five.count(), 5);
        precopy.keep_buffers(five);
        let (one, other) = (precopy.take_buffers(1).unwrap(), precopy.take_buffers(1).unwrap());
        assert_ne!(one.chunk(0), other.chunk(0));
        drop((one, other));
        keep(2);
        assert!(!precopy.clear() && precopy.take_buffers(1).is_none());
    }
}
