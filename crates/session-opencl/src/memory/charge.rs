//! Counts OpenCL memory against a session's limit: the bytes of an object, from its creation until its driver reports that
//! nothing of it is left.
//!
//! A GPU allocates whole pieces and tiles ([`katydid_session_core::GpuPieces`]). A processor's memory is the machine's, and
//! counts as requested.
//!
//! Some drivers report freed memory a moment after the release: NVIDIA's 580 after 0.4 ms. So an allocation that reaches the
//! limit waits for memory that is being released.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use katydid_session_core::{GpuMemory, GpuPieces, Usage};

/// How long an allocation waits for memory that is being released, and how often it polls.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(50);
const RELEASE_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Where an object's memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// In the machine's memory, for processors.
    Machine,
    /// On a GPU.
    Gpu,
}

/// The memory that counts in a session.
#[derive(Debug)]
pub(crate) struct MemoryCharges {
    usage: Arc<Usage>,
    /// Pieces that small objects share.
    pieces: Mutex<GpuPieces>,
    /// Objects that the session has released, and whose end the driver has not reported.
    releasing: AtomicUsize,
}

impl MemoryCharges {
    /// Makes an empty counter.
    pub(crate) fn new(usage: &Arc<Usage>) -> Arc<Self> {
        let usage = Arc::clone(usage);
        Arc::new(Self { usage, pieces: Mutex::default(), releasing: AtomicUsize::new(0) })
    }

    fn pieces(&self) -> MutexGuard<'_, GpuPieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `bytes`, if the limit allows that.
    pub(crate) fn charge(self: &Arc<Self>, kind: MemoryKind, bytes: u64) -> Option<Charge> {
        self.charge_within(kind, bytes, RELEASE_TIMEOUT)
    }

    fn charge_within(self: &Arc<Self>, kind: MemoryKind, bytes: u64, timeout: Duration) -> Option<Charge> {
        let mut deadline = None;
        loop {
            let (memory, added) = self.take(kind, bytes);
            if added == 0 || self.usage.allows(added) {
                return Some(self.count(memory, added));
            }
            self.pieces().give_back(memory);
            let now = Instant::now();
            let is_over = now > *deadline.get_or_insert(now + timeout);
            if is_over || self.releasing.load(Ordering::Acquire) == 0 {
                return None;
            }
            sleep(RELEASE_POLL_INTERVAL);
        }
    }

    /// Charges `bytes` regardless of the limit: a driver has them already.
    pub(crate) fn charge_anyway(self: &Arc<Self>, kind: MemoryKind, bytes: u64) -> Charge {
        let (memory, added) = self.take(kind, bytes);
        self.count(memory, added)
    }

    fn take(&self, kind: MemoryKind, bytes: u64) -> (GpuMemory, u64) {
        match kind {
            MemoryKind::Machine => (GpuMemory::Own(bytes), bytes),
            MemoryKind::Gpu => self.pieces().take(bytes),
        }
    }

    fn count(self: &Arc<Self>, memory: GpuMemory, added: u64) -> Charge {
        self.usage.add_memory(added);
        Charge { charges: Arc::clone(self), memory, is_releasing: false }
    }
}

/// A charge for memory; dropping it removes the charge.
#[derive(Debug)]
pub(crate) struct Charge {
    charges: Arc<MemoryCharges>,
    memory: GpuMemory,
    is_releasing: bool,
}

impl Charge {
    /// Notes the release: the driver reports the end later.
    pub(crate) fn is_released(&mut self) {
        self.is_releasing = true;
        self.charges.releasing.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let freed = self.charges.pieces().give_back(self.memory);
        self.charges.usage.sub_memory(freed);
        if self.is_releasing {
            self.charges.releasing.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_of_a_gpu_share_pieces_and_those_of_processors_count_as_they_are() {
        let usage = Arc::new(Usage::new(Some(4 << 20)));
        let charges = MemoryCharges::new(&usage);
        let one = charges.charge(MemoryKind::Gpu, 1).unwrap();
        let other = charges.charge(MemoryKind::Gpu, 600).unwrap();
        assert_eq!(usage.memory(), 2 << 20);
        let own = charges.charge(MemoryKind::Machine, 2 << 20).unwrap();
        assert!(charges.charge(MemoryKind::Machine, 1).is_none() && charges.charge(MemoryKind::Gpu, 1 << 21).is_none());
        assert_eq!(usage.memory(), 4 << 20, "what is refused leaves all as it was");
        drop((one, own));
        assert_eq!(usage.memory(), 2 << 20);
        drop(other);
        assert_eq!(usage.memory(), 0);
    }

    #[test]
    fn memory_on_its_way_back_is_waited_for() {
        let charges = MemoryCharges::new(&Arc::new(Usage::new(Some(10))));
        let mut first = charges.charge(MemoryKind::Machine, 10).unwrap();
        first.is_released();
        let driver = std::thread::spawn(move || {
            sleep(RELEASE_POLL_INTERVAL);
            drop(first);
        });
        let second = charges.charge_within(MemoryKind::Machine, 10, Duration::from_secs(3600));
        driver.join().unwrap();
        assert!(second.is_some());
        assert!(charges.charge_within(MemoryKind::Machine, 10, Duration::from_secs(3600)).is_none());
    }
}
