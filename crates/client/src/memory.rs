//! Allocation on an arena: blocks come from memory that the worker has backed, and only growth needs the worker.
//!
//! The rule: memory is not used twice before the GPU is done with it. NVIDIA's free waits for the GPU; this one does not. So a
//! freed block is quarantined with the count of messages sent so far, and becomes usable once a synchronization has passed that
//! count. When freed blocks would serve an allocation, the allocation waits for the GPU. That is never later than the program
//! would have waited natively.

pub mod shared_pages;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_arena::{FreeError, LARGE_BLOCK_BYTES, Suballocator};

use crate::session::api_code::ApiCode;

/// What an arena needs from the outside.
pub trait Backing {
    /// Result codes of the API whose worker backs the arena.
    type Code: ApiCode;

    /// Backs a range of whole 2 MiB with memory.
    ///
    /// # Errors
    ///
    /// [`ApiCode::OUT_OF_MEMORY`] if and only if there is none, and [`ApiCode::NOT_READY`] if there will be some; any other code
    /// ends the allocation too.
    fn grow(&self, range: &Range<u64>) -> Result<(), Self::Code>;

    /// Removes the memory of a range that was grown.
    ///
    /// # Errors
    ///
    /// After an error the range is not used again, whether backed or not.
    fn shrink(&self, range: &Range<u64>) -> Result<(), Self::Code>;

    /// Asks other programs to give back `bytes` of idle memory. Returns whether that may have helped.
    fn request_reclaim(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// Waits until the GPU has done everything sent so far. Returns the count of [`crate::session::Session::enqueued`] from
    /// before the wait.
    ///
    /// # Errors
    ///
    /// The error of the GPU's work.
    fn synchronize(&self) -> Result<u64, Self::Code>;
}

/// One arena: the memory of a device, or pinned host memory.
#[derive(Debug)]
pub struct Arena {
    state: Mutex<ArenaState>,
    /// Fewest bytes to grow by, where there are as many.
    growth: u64,
}

#[derive(Debug)]
struct ArenaState {
    free: Suballocator,
}

/// How far an allocation has gone in its search for memory.
#[derive(Default)]
struct AllocationProgress {
    settled: bool,
    trimmed: bool,
}

/// The outcome of a request for more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth<C> {
    Done,
    /// There will be some; this code says so.
    Later(C),
    /// The server gives no more memory.
    Refused,
}

/// Pause between attempts to get memory that will be free soon.
const MEMORY_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// How long a worker may take to write the contents of a full GPU to an image before it has free memory again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// Repeats `attempt` until there is memory, or will be none: the worker answers [`ApiCode::NOT_READY`] while a snapshot holds
/// memory that it will give back.
///
/// # Errors
///
/// The error of `attempt`; [`ApiCode::OUT_OF_MEMORY`] after 300 s without memory.
pub fn retry_until_timeout<T, C: ApiCode>(mut attempt: impl FnMut() -> Result<T, C>) -> Result<T, C> {
    let deadline = Instant::now() + RETRY_TIMEOUT;
    loop {
        match attempt() {
            Err(code) if Some(code) == C::NOT_READY && Instant::now() < deadline => {
                thread::sleep(MEMORY_RETRY_INTERVAL)
            }
            Err(code) if Some(code) == C::NOT_READY => return Err(C::OUT_OF_MEMORY),
            outcome => return outcome,
        }
    }
}

impl Arena {
    /// Creates an arena over `range`, which has no memory yet.
    pub fn new(range: Range<u64>, growth: u64) -> Self {
        Self::over(Suballocator::new(range), growth)
    }

    /// Creates an arena in which no block lies in two pieces, and each piece is as small as possible.
    pub fn of_parts(range: Range<u64>) -> Self {
        Self::over(Suballocator::of_parts(range), 0)
    }

    /// Creates an arena whose gaps serve other blocks as soon as memory runs short, wherever they are. Runs of `cuttable` bytes
    /// are exempt, so that large blocks of changing sizes need not grow each time.
    pub fn of_runs(range: Range<u64>, cuttable: u64) -> Self {
        Self::over(Suballocator::of_runs(range, cuttable), LARGE_BLOCK_BYTES)
    }

    fn over(free: Suballocator, growth: u64) -> Self {
        Self { state: Mutex::new(ArenaState { free }), growth }
    }

    /// Allocates a block of `size` bytes at a multiple of `align`.
    ///
    /// # Errors
    ///
    /// [`ApiCode::OUT_OF_MEMORY`] after everything was tried, or the worker's error.
    pub fn allocate<B: Backing>(&self, size: u64, align: u64, backing: &B) -> Result<u64, B::Code> {
        // Other threads may allocate and free during the wait, and so may the thread that gives idle memory back: a peer that is
        // asked for memory may be asking too.
        let attempt = || retry_until_timeout(|| self.lock().allocate((size, align), self.growth, backing));
        match attempt() {
            Err(code) if code == B::Code::OUT_OF_MEMORY && backing.request_reclaim(size) => attempt(),
            outcome => outcome,
        }
    }

    /// Frees a block. It becomes usable after a synchronization that began with at least `epoch` messages sent. Returns the bytes
    /// that are backed and unused now.
    ///
    /// # Errors
    ///
    /// The address is not the start of a block.
    pub fn free(&self, address: u64, epoch: u64) -> Result<u64, FreeError> {
        let mut state = self.lock();
        state.free.free(address, epoch)?;
        Ok(state.unused_bytes())
    }

    /// Notes that the GPU has passed `epoch`: blocks freed until then are usable.
    pub fn release_until(&self, epoch: u64) {
        let mut state = self.lock();
        if state.free.quarantined_bytes() > 0 {
            state.free.release_until(epoch);
        }
    }

    /// Gives unused memory back to the worker. Returns how many bytes.
    pub fn trim(&self, backing: &impl Backing) -> u64 {
        self.lock().trim(backing)
    }

    /// Trims the arena like [`Self::trim`], unless another thread uses it.
    pub fn try_trim(&self, backing: &impl Backing) -> u64 {
        self.state.try_lock().map_or(0, |mut state| state.trim(backing))
    }

    /// Gives unused memory back, and quarantined memory as well. Other threads can use the arena meanwhile: a driver may wait for
    /// work that only they can let finish.
    pub fn give_back(&self, backing: &impl Backing) -> u64 {
        if self.lock().free.quarantined_bytes() > 0
            && let Ok(epoch) = backing.synchronize()
        {
            self.release_until(epoch);
        }
        let mut returned_bytes = 0;
        let pieces = self.lock().free.trim();
        for range in joined(pieces) {
            // As in `trim`.
            if backing.shrink(&range).is_ok() {
                returned_bytes += range.end - range.start;
                self.lock().free.mark_unbacked(range);
            }
        }
        returned_bytes
    }

    /// Returns every piece that was grown and not given back.
    pub fn grown(&self) -> Vec<Range<u64>> {
        self.lock().free.backed().collect()
    }

    /// Returns the bytes that are backed and not in use, including quarantined ones.
    pub fn unused_bytes(&self) -> u64 {
        self.lock().unused_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins neighboring ranges: each range costs a message.
fn joined(mut pieces: Vec<Range<u64>>) -> Vec<Range<u64>> {
    pieces.sort_unstable_by_key(|piece| piece.start);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for piece in pieces {
        match ranges.last_mut().filter(|last| last.end == piece.start) {
            Some(last) => last.end = piece.end,
            None => ranges.push(piece),
        }
    }
    ranges
}

impl ArenaState {
    fn unused_bytes(&self) -> u64 {
        self.free.free_bytes() + self.free.quarantined_bytes()
    }

    /// Allocates a block by whatever means works.
    fn allocate<B: Backing>(&mut self, (size, align): (u64, u64), growth: u64, backing: &B) -> Result<u64, B::Code> {
        let mut progress = AllocationProgress::default();
        loop {
            if let Some(address) = self.free.allocate(size, align) {
                return Ok(address);
            }
            let waiting = self.free.quarantined_bytes();
            if waiting >= size && self.synchronize(&mut progress, backing)? {
                continue;
            }
            if self.free.should_trim() {
                self.trim(backing);
            }
            let grown = self.grow((size, align), growth, backing)?;
            if grown == Growth::Done || self.synchronize(&mut progress, backing)? {
                continue;
            }
            if !std::mem::replace(&mut progress.trimmed, true) && self.trim(backing) > 0 {
                continue;
            }
            return Err(match grown {
                Growth::Later(code) => code,
                Growth::Done | Growth::Refused => B::Code::OUT_OF_MEMORY,
            });
        }
    }

    /// Waits for the GPU and takes freed blocks back. Returns false if that was done before, or nothing is quarantined.
    fn synchronize<B: Backing>(&mut self, progress: &mut AllocationProgress, backing: &B) -> Result<bool, B::Code> {
        if std::mem::replace(&mut progress.settled, true) || self.free.quarantined_bytes() == 0 {
            return Ok(false);
        }
        let epoch = backing.synchronize()?;
        Ok(self.free.release_until(epoch) > 0)
    }

    /// Requests more memory, first a generous amount.
    fn grow<B: Backing>(
        &mut self,
        (size, align): (u64, u64),
        growth: u64,
        backing: &B,
    ) -> Result<Growth<B::Code>, B::Code> {
        let mut outcome = Growth::Refused;
        for at_least in [growth, 0] {
            let Some(range) = self.free.growth_for(size, align, at_least) else { continue };
            let backed_before = self.free.backed_bytes();
            let grown = self.grow_all(self.free.pieces(range, size), backing);
            // A part of the generous amount may be enough. A large block is requested with its own size.
            let has_part = at_least > 0 && size < LARGE_BLOCK_BYTES && self.free.backed_bytes() > backed_before;
            match grown {
                Ok(()) => return Ok(Growth::Done),
                Err(code) => {
                    let is_coming = Some(code) == B::Code::NOT_READY;
                    match (is_coming || code == B::Code::OUT_OF_MEMORY, has_part) {
                        (true, true) => return Ok(Growth::Done),
                        // A smaller amount may be available at once.
                        (true, false) if is_coming => outcome = Growth::Later(code),
                        (true, false) => {}
                        (false, _) => return Err(code),
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Grows piece by piece, as far as possible.
    fn grow_all<B: Backing>(&mut self, pieces: Vec<Range<u64>>, backing: &B) -> Result<(), B::Code> {
        for piece in pieces {
            backing.grow(&piece)?;
            self.free.grow(piece);
        }
        Ok(())
    }

    /// Gives back every grown piece without a block in use. Returns how many bytes.
    fn trim(&mut self, backing: &impl Backing) -> u64 {
        let mut returned_bytes = 0;
        for piece in self.free.trim() {
            // After a failure these addresses are in an unknown state, so no block may get them.
            if backing.shrink(&piece).is_ok() {
                returned_bytes += piece.end - piece.start;
                self.free.mark_unbacked(piece);
            }
        }
        returned_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_cuda_sys::CUresult;
    use std::cell::{Cell, RefCell};

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x2000_0000_0000;

    /// A device with a limit, whose work is always done by the time of `epoch`.
    #[derive(Default)]
    struct Device {
        limit: u64,
        used: Cell<u64>,
        epoch: Cell<u64>,
        settled: Cell<u32>,
        /// Bytes that another program has, and how often `NOT_READY` precedes their return.
        lent_bytes: Cell<u64>,
        polls: Cell<u32>,
        log: RefCell<Vec<String>>,
        /// Whether nothing can be given back.
        is_stuck: Cell<bool>,
        /// Whether the other program's memory is unavailable until requested.
        lent_is_refused: Cell<bool>,
        is_idle_elsewhere: Cell<bool>,
        requests: RefCell<Vec<u64>>,
    }

    impl Device {
        fn with(mib: u64) -> Self {
            Self { limit: mib * MIB, ..Self::default() }
        }

        fn log(&self) -> Vec<String> {
            self.log.take()
        }
    }

    impl Backing for Device {
        type Code = CUresult;

        fn grow(&self, range: &Range<u64>) -> Result<(), CUresult> {
            let bytes = range.end - range.start;
            if self.lent_bytes.get() > 0 && self.used.get() + self.lent_bytes.get() + bytes > self.limit {
                if self.lent_is_refused.get() {
                    return Err(CUresult::ERROR_OUT_OF_MEMORY);
                }
                self.polls.set(self.polls.get().saturating_sub(1));
                if self.polls.get() > 0 {
                    return Err(CUresult::ERROR_NOT_READY);
                }
                self.lent_bytes.set(0);
            }
            if self.used.get() + bytes > self.limit {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            self.used.set(self.used.get() + bytes);
            self.log.borrow_mut().push(format!("+{}", bytes / MIB));
            Ok(())
        }

        fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
            if self.is_stuck.get() {
                return Err(CUresult::ERROR_ILLEGAL_ADDRESS);
            }
            self.used.set(self.used.get() - (range.end - range.start));
            self.log.borrow_mut().push(format!("-{}", (range.end - range.start) / MIB));
            Ok(())
        }

        fn request_reclaim(&self, bytes: u64) -> bool {
            self.requests.borrow_mut().push(bytes);
            self.lent_bytes.set(if self.is_idle_elsewhere.get() { 0 } else { self.lent_bytes.get() });
            true
        }

        fn synchronize(&self) -> Result<u64, CUresult> {
            self.settled.set(self.settled.get() + 1);
            Ok(self.epoch.get())
        }
    }

    fn arena() -> Arena {
        Arena::new(BASE..BASE + (1 << 40), 32 * MIB)
    }

    #[test]
    fn memory_that_is_coming_is_waited_for_unless_less_will_do() {
        let (arena, device) = (arena(), Device::with(100));
        device.lent_bytes.set(60 * MIB);
        device.polls.set(7);
        arena.allocate(20 * MIB, 256, &device).unwrap();
        assert_eq!((device.log(), device.polls.get()), (vec!["+32".to_owned()], 7));
        arena.allocate(40 * MIB, 256, &device).unwrap();
        assert_eq!((device.lent_bytes.get(), device.polls.get()), (0, 0));
        assert_eq!(arena.allocate(50 * MIB, 256, &device), Err(CUresult::ERROR_OUT_OF_MEMORY));
    }

    #[test]
    fn small_blocks_share_one_growth() {
        let (arena, device) = (arena(), Device::with(1000));
        let blocks: Vec<_> = (0..100).map(|_| arena.allocate(1000, 256, &device).unwrap()).collect();
        assert!(blocks.iter().all(|block| block % 256 == 0));
        assert_eq!(device.log(), ["+32"]);
    }

    #[test]
    fn a_freed_block_waits_for_the_gpu() {
        let (arena, device) = (arena(), Device::with(1000));
        let block = arena.allocate(20 * MIB, 256, &device).unwrap();
        arena.free(block, 7).unwrap();
        device.epoch.set(7);
        let again = arena.allocate(20 * MIB, 256, &device).unwrap();
        assert_eq!((again, device.settled.get()), (block, 1));
        assert_eq!(device.log(), ["+32"]);
    }

    #[test]
    fn a_block_that_the_gpu_may_still_use_is_not_allocated_again() {
        let (arena, device) = (arena(), Device::with(1000));
        let block = arena.allocate(20 * MIB, 256, &device).unwrap();
        arena.free(block, 7).unwrap();
        device.epoch.set(6);
        assert_ne!(arena.allocate(20 * MIB, 256, &device).unwrap(), block);
    }

    #[test]
    fn a_synchronization_of_the_program_spares_the_shim_its_own() {
        let (arena, device) = (arena(), Device::with(1000));
        let block = arena.allocate(20 * MIB, 256, &device).unwrap();
        arena.free(block, 7).unwrap();
        arena.release_until(9);
        assert_eq!(arena.allocate(20 * MIB, 256, &device).unwrap(), block);
        assert_eq!(device.settled.get(), 0);
    }

    #[test]
    fn the_last_bytes_of_a_device_are_had_and_no_more() {
        let (arena, device) = (arena(), Device::with(40));
        arena.allocate(30 * MIB, 256, &device).unwrap();
        arena.allocate(8 * MIB, 256, &device).unwrap();
        assert_eq!(device.log(), ["+32", "+6"]);
        assert_eq!(arena.allocate(4 * MIB, 256, &device), Err(CUresult::ERROR_OUT_OF_MEMORY));
        arena.allocate(2 * MIB, 256, &device).unwrap();
    }

    #[test]
    fn under_pressure_unused_pieces_go_back_and_come_again_elsewhere() {
        let (arena, device) = (arena(), Device::with(64));
        let blocks = [0; 2].map(|_| arena.allocate(32 * MIB, 256, &device).unwrap());
        arena.free(blocks[0], 1).unwrap();
        device.epoch.set(1);
        assert_eq!(arena.allocate(40 * MIB, 256, &device), Err(CUresult::ERROR_OUT_OF_MEMORY));
        arena.free(blocks[1], 1).unwrap();
        arena.allocate(64 * MIB, 256, &device).unwrap();
        assert!(device.used.get() <= 64 * MIB);
    }

    #[test]
    fn freeing_what_is_no_block_is_refused() {
        let (arena, device) = (arena(), Device::with(64));
        let block = arena.allocate(1000, 256, &device).unwrap();
        assert!(arena.free(block + 256, 0).is_err());
        arena.free(block, 0).unwrap();
        assert!(arena.free(block, 0).is_err());
    }

    #[test]
    fn idle_memory_of_other_programs_is_requested_once_before_out_of_memory() {
        let (arena, device) = (arena(), Device::with(100));
        device.lent_bytes.set(60 * MIB);
        device.is_idle_elsewhere.set(true);
        device.lent_is_refused.set(true);
        arena.allocate(20 * MIB, 256, &device).unwrap();
        assert_eq!(device.requests.take(), Vec::<u64>::new(), "no program is asked for what is there");
        arena.allocate(40 * MIB, 256, &device).unwrap();
        assert_eq!((device.requests.take(), device.lent_bytes.get()), (vec![40 * MIB], 0));
        assert_eq!(arena.allocate(50 * MIB, 256, &device), Err(CUresult::ERROR_OUT_OF_MEMORY));
        assert_eq!(device.requests.take(), [50 * MIB]);
    }

    #[test]
    fn idle_memory_is_returned_and_memory_in_use_by_the_gpu_after_it() {
        let (arena, device) = (Arena::of_runs(BASE..BASE + (1 << 40), 0), Device::with(100));
        let blocks = [(); 3].map(|()| arena.allocate(16 * MIB, 256, &device).unwrap());
        assert_eq!(arena.free(blocks[1], 3), Ok(16 * MIB));
        assert_eq!(arena.free(blocks[0], 1), Ok(32 * MIB));
        device.epoch.set(2);
        device.log();
        assert_eq!((arena.give_back(&device), device.log()), (16 * MIB, vec!["-16".to_owned()]));
        device.epoch.set(3);
        arena.free(blocks[2], 2).unwrap();
        assert_eq!((arena.give_back(&device), device.log()), (32 * MIB, vec!["-32".to_owned()]));
        assert_eq!((arena.give_back(&device), arena.grown(), arena.unused_bytes()), (0, vec![], 0));
        arena.allocate(80 * MIB, 256, &device).unwrap();
    }

    #[test]
    fn a_part_of_a_generous_growth_is_used() {
        let (arena, device) = (Arena::of_runs(BASE..BASE + (1 << 40), 0), Device::with(6));
        arena.allocate(5 * MIB, 256, &device).unwrap();
        assert_eq!(device.log(), ["+2", "+2", "+2"]);
    }

    #[test]
    fn unused_bytes_count_what_waits() {
        let (arena, device) = (arena(), Device::with(64));
        let block = arena.allocate(32 * MIB, 256, &device).unwrap();
        assert_eq!(arena.unused_bytes(), 0);
        arena.free(block, 3).unwrap();
        assert_eq!(arena.unused_bytes(), 32 * MIB);
    }

    #[test]
    fn memory_that_could_not_be_returned_is_not_allocated_again() {
        let (arena, device) = (arena(), Device::with(64));
        let block = arena.allocate(32 * MIB, 256, &device).unwrap();
        arena.free(block, 0).unwrap();
        arena.release_until(0);
        device.is_stuck.set(true);
        assert_eq!(arena.trim(&device), 0);
        let other = arena.allocate(32 * MIB, 256, &device).unwrap();
        assert_eq!((other, arena.unused_bytes()), (block + 32 * MIB, 0));
    }

    #[test]
    fn gaps_of_runs_serve_blocks_that_fit_in_none_of_them() {
        let device = Device::with(256);
        let arena = Arena::of_runs(BASE..BASE + (1 << 40), 0);
        let blocks = [0; 8].map(|_| arena.allocate(32 * MIB, 256, &device).unwrap());
        assert_eq!(device.log(), ["+32"; 8]);
        for block in blocks.iter().step_by(2) {
            arena.free(*block, 0).unwrap();
        }
        let again = (0..).map_while(|_| arena.allocate(40 * MIB, 256, &device).ok()).count();
        assert_eq!((again, device.used.get()), (3, 248 * MIB));
    }

    #[test]
    fn a_run_that_was_freed_is_used_again_without_a_word() {
        let device = Device::with(256);
        let arena = Arena::of_runs(BASE..BASE + (1 << 40), 0);
        for _ in 0..5 {
            let blocks = [20, 33, 64].map(|mib| arena.allocate(mib * MIB, 512, &device).unwrap());
            for block in blocks {
                arena.free(block, 0).unwrap();
            }
        }
        assert_eq!(device.log(), ["+20", "+32", "+2", "+64"]);
    }
}
