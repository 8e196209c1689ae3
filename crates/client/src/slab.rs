//! Handle slabs: a handle is the address of a record, and can be verified.
//!
//! A CUDA program treats a `CUstream` as an opaque pointer, and may pass anything: a destroyed one, one of another kind, garbage.
//! So each kind of handle has its own reserved range of addresses, cut into records of one size. A value is a handle exactly when
//! it is the address of a live record in the range. Nothing is ever read through the value before that is known, and records are
//! never unmapped, so a stale handle is only ever refused.
//!
//! The index of a record crosses the wire. Freed records are reused in the order in which they were freed, which keeps a stale
//! handle recognizable as long as possible.
#![expect(unsafe_code, reason = "records live in a reserved range outside Rust's allocator")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// A record, whose address is the handle. It is aligned to a cache line, so that two handles never share one.
#[repr(C, align(64))]
struct SlabRecord<T> {
    /// For callers that read through a handle: loaders of OpenCL expect the address of a table.
    _head: usize,
    /// The value for [`Slab::peek`]: the generation in the upper half, the tag in the lower; 0 while no object lives here.
    word: AtomicU64,
    value: RwLock<Option<Arc<T>>>,
}

impl<T> SlabRecord<T> {
    fn empty(head: usize) -> Self {
        Self { _head: head, word: AtomicU64::new(0), value: RwLock::new(None) }
    }

    fn begin(&self, generation: u32, tag: u32, value: &Arc<T>) {
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(value));
        self.word.store(u64::from(generation) << 32 | u64::from(tag), Ordering::Release);
    }
}

/// What a handle shows without a reference to its object, and so without a locked instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlePeek {
    /// Index of the record.
    pub index: u32,
    /// Differs between objects that use the same record one after the other.
    pub generation: u32,
    /// The tag given to [`Slab::insert_with`].
    pub tag: u32,
}

impl HandlePeek {
    fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.tag)
    }
}

/// Bytes of records that become accessible at a time.
const OPENED_BYTES: usize = 1 << 20;

/// The slot of a new object: the handle for the program, and the index for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabSlot {
    /// Address of the record.
    pub handle: usize,
    /// Index of the record, from 0.
    pub index: u32,
}

/// A range of records for the handles of one kind.
#[derive(Debug)]
pub struct Slab<T> {
    base: usize,
    capacity: u32,
    /// Accessible bytes from the base; written under `free`. The rest is inaccessible, because `mlockall` fills accessible pages.
    open: AtomicUsize,
    /// Records below this index are initialized; written under `free`, published with `Release`.
    high: AtomicU32,
    free: Mutex<VecDeque<u32>>,
    /// Generation of the newest object; written under `free`.
    generation: AtomicU32,
    /// First word of every record.
    head: usize,
    owns: PhantomData<SlabRecord<T>>,
}

// SAFETY: records are only reached as `&SlabRecord<T>`, whose `RwLock` guards the value; the base never changes.
unsafe impl<T: Send + Sync> Send for Slab<T> {}
// SAFETY: as above; `high` and `free` are synchronized types themselves.
unsafe impl<T: Send + Sync> Sync for Slab<T> {}

impl<T> Slab<T> {
    const RECORD_BYTES: usize = size_of::<SlabRecord<T>>();

    /// Reserves room for `capacity` records. This takes only addresses: a page costs memory when first used.
    pub fn reserve(capacity: u32) -> io::Result<Self> {
        Self::reserve_with(capacity, 0)
    }

    /// Reserves room for `capacity` records that begin with the word `head`.
    pub fn reserve_with(capacity: u32, head: usize) -> io::Result<Self> {
        let length = capacity as usize * Self::RECORD_BYTES;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut::<c_void>(),
                length,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let free = Mutex::new(VecDeque::new());
        let (high, generation, open) = (AtomicU32::new(0), AtomicU32::new(0), AtomicUsize::new(0));
        Ok(Self { base: base.addr(), capacity, open, high, free, generation, head, owns: PhantomData })
    }

    /// Makes a record for the value of `make`, which gets the record's slot. Returns none when the slab is full.
    pub fn insert(&self, make: impl FnOnce(SlabSlot) -> T) -> Option<Arc<T>> {
        self.insert_with(0, make)
    }

    /// Makes a record like [`Slab::insert`], with the tag for [`Slab::peek`].
    pub fn insert_with(&self, tag: u32, make: impl FnOnce(SlabSlot) -> T) -> Option<Arc<T>> {
        let (slot, generation) = self.take_slot()?;
        let value = Arc::new(make(slot));
        self.record(slot.index)?.begin(generation, tag, &value);
        Some(value)
    }

    /// Makes a record like [`Slab::insert`], where `make` may fail. Then the slot is free again.
    ///
    /// # Errors
    ///
    /// The error of `make`, or `full`.
    pub fn try_insert<E>(&self, full: E, make: impl FnOnce(SlabSlot) -> Result<T, E>) -> Result<Arc<T>, E> {
        let Some((slot, generation)) = self.take_slot() else { return Err(full) };
        let Some(record) = self.record(slot.index) else { return Err(full) };
        match make(slot) {
            Ok(value) => {
                let value = Arc::new(value);
                record.begin(generation, 0, &value);
                Ok(value)
            }
            Err(error) => {
                self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(slot.index);
                Err(error)
            }
        }
    }

    /// Returns the live object of a handle; none for anything else.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        let record = self.record(self.index_of(handle)?)?;
        record.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `work` with the live object of a handle, without a reference of its own; returns none for anything else. A thread
    /// that removes the object waits for `work`, so `work` must not remove it.
    pub fn with<R>(&self, handle: usize, work: impl FnOnce(&T) -> R) -> Option<R> {
        let record = self.record(self.index_of(handle)?)?;
        record.value.read().unwrap_or_else(PoisonError::into_inner).as_deref().map(work)
    }

    /// Peeks at the live object of a handle, without a reference; returns none for anything else. The object may be removed
    /// before the result is used, just as natively another thread may destroy a handle.
    pub fn peek(&self, handle: usize) -> Option<HandlePeek> {
        let index = self.index_of(handle)?;
        let word = self.record(index)?.word.load(Ordering::Acquire);
        (word != 0).then_some(HandlePeek { index, generation: (word >> 32) as u32, tag: word as u32 })
    }

    /// Changes the tag of the object that was seen, unless that was removed or changed meanwhile.
    pub fn change_tag(&self, peeked: HandlePeek, tag: u32) {
        if let Some(record) = self.record(peeked.index) {
            let next = HandlePeek { tag, ..peeked }.word();
            let _ = record.word.compare_exchange(peeked.word(), next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns the live object with a wire index; none for anything else.
    pub fn get_index(&self, index: u32) -> Option<Arc<T>> {
        self.record(index)?.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends a handle: later look-ups refuse it. Returns the object only to the caller that ended it.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let index = self.index_of(handle)?;
        let record = self.record(index)?;
        let object = record.value.write().unwrap_or_else(PoisonError::into_inner).take()?;
        record.word.store(0, Ordering::Release);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(index);
        Some(object)
    }

    /// Returns every live object, in the order of the records.
    pub fn live(&self) -> Vec<Arc<T>> {
        (0..self.high.load(Ordering::Acquire)).filter_map(|index| self.get_index(index)).collect()
    }

    /// Returns whether the value points into this slab's range, alive or not. That shows the kind of a wrong handle.
    pub fn covers(&self, handle: usize) -> bool {
        handle.wrapping_sub(self.base) < self.capacity as usize * Self::RECORD_BYTES
    }

    /// Takes a free slot, and the generation of its next object.
    fn take_slot(&self) -> Option<(SlabSlot, u32)> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let high = self.high.load(Ordering::Relaxed);
        // A freed record rests for a while when there are fresh ones: stale handles stay recognizable.
        let reusable = free.len() > 64 || high == self.capacity;
        let index = match reusable.then(|| free.pop_front()).flatten() {
            Some(index) => index,
            None if high < self.capacity => {
                self.open_for(high as usize + 1).ok()?;
                // SAFETY: `high` < capacity, so the record lies inside the mapping, and it is accessible; indices from `high` up
                // are not read before the store below, and `free` is locked, so no other thread initializes it.
                unsafe { self.address(high).write(SlabRecord::empty(self.head)) };
                self.high.store(high + 1, Ordering::Release);
                high
            }
            None => return None,
        };
        // 0 stands for no object.
        let generation = self.generation.load(Ordering::Relaxed).checked_add(1).unwrap_or(1);
        self.generation.store(generation, Ordering::Relaxed);
        Some((SlabSlot { handle: self.address(index).addr(), index }, generation))
    }

    /// Makes the pages of `records` records accessible, and some more. `free` must be locked.
    fn open_for(&self, records: usize) -> io::Result<()> {
        let (open, needed_bytes) = (self.open.load(Ordering::Relaxed), records * Self::RECORD_BYTES);
        if needed_bytes > open {
            let next = needed_bytes.next_multiple_of(OPENED_BYTES).min(self.capacity as usize * Self::RECORD_BYTES);
            let start = ptr::with_exposed_provenance_mut(self.base + open);
            // SAFETY: `open` is a multiple of whole pages below `next`, both inside the mapping, whose pages there are unused.
            unsafe { mprotect(start, next - open, MprotectFlags::READ | MprotectFlags::WRITE) }?;
            self.open.store(next, Ordering::Relaxed);
        }
        Ok(())
    }

    fn index_of(&self, handle: usize) -> Option<u32> {
        let offset = handle.wrapping_sub(self.base);
        let index = u32::try_from(offset / Self::RECORD_BYTES).ok()?;
        (offset.is_multiple_of(Self::RECORD_BYTES) && index < self.capacity).then_some(index)
    }

    fn address(&self, index: u32) -> *mut SlabRecord<T> {
        ptr::with_exposed_provenance_mut(self.base + index as usize * Self::RECORD_BYTES)
    }

    fn record(&self, index: u32) -> Option<&SlabRecord<T>> {
        if index >= self.high.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: below `high`, so `take_slot` initialized it before the `Acquire` load saw it, and it is never unmapped, nor
        // written again except through its lock.
        Some(unsafe { &*self.address(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the access rights of the page at an address.
    fn access(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let range = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(range.0)..number(range.1)).contains(&address)
        };
        maps.lines().find(holds).unwrap().split_whitespace().nth(1).unwrap().to_owned()
    }

    #[test]
    fn records_that_were_never_made_cannot_be_touched() {
        let slab = Slab::reserve(1 << 20).unwrap();
        let first = slab.insert(|slot| slot.handle).unwrap();
        let beyond = *first + OPENED_BYTES;
        assert_eq!((access(*first).as_str(), access(beyond).as_str()), ("rw-p", "---p"));
        assert!(slab.get(beyond).is_none());
        while slab.insert(|slot| slot.handle).is_some_and(|handle| *handle < beyond) {}
        assert_eq!(access(beyond), "rw-p");
    }

    #[test]
    fn a_handle_finds_its_object_until_it_is_removed() {
        let slab = Slab::reserve(100).unwrap();
        let first = slab.insert(|slot| (slot, "first")).unwrap();
        let second = slab.insert(|slot| (slot, "second")).unwrap();
        assert_eq!(slab.get(first.0.handle).unwrap().1, "first");
        assert_eq!(slab.get_index(second.0.index).unwrap().1, "second");
        assert_eq!(slab.remove(first.0.handle).unwrap().1, "first");
        assert!(slab.get(first.0.handle).is_none());
        assert!(slab.remove(first.0.handle).is_none());
        let label_of = |inserted: &(SlabSlot, &'static str)| slab.with(inserted.0.handle, |it| it.1);
        assert_eq!((label_of(&first), label_of(&second)), (None, Some("second")));
        assert_eq!(slab.live().len(), 1);
    }

    #[test]
    fn a_record_begins_with_its_head() {
        let slab = Slab::reserve_with(4, 0x1234).unwrap();
        let first = slab.insert(|slot| slot).unwrap();
        // SAFETY: a live record of the slab, whose first word is never written again.
        assert_eq!(unsafe { *ptr::with_exposed_provenance::<usize>(first.handle) }, 0x1234);
    }

    #[test]
    fn garbage_is_no_handle() {
        let slab = Slab::reserve(100).unwrap();
        let first = slab.insert(|slot| slot).unwrap();
        for wrong in [0, 1, 2, first.handle + 1, first.handle + 8, first.handle + 64, first.handle - 64, usize::MAX] {
            assert!(slab.get(wrong).is_none(), "{wrong:#x} was taken for a handle");
        }
        assert!(slab.covers(first.handle + 1));
        assert!(!slab.covers(1));
    }

    #[test]
    fn a_full_slab_refuses_and_reuses_the_oldest_free_record() {
        let slab = Slab::reserve(4).unwrap();
        let entries: Vec<_> = (0..4).map(|n| slab.insert(|slot| (slot, n)).unwrap()).collect();
        assert!(slab.insert(|slot| (slot, 9)).is_none());
        slab.remove(entries[2].0.handle);
        slab.remove(entries[0].0.handle);
        assert_eq!(slab.insert(|slot| (slot, 10)).unwrap().0, entries[2].0);
        assert_eq!(slab.insert(|slot| (slot, 11)).unwrap().0, entries[0].0);
    }

    #[test]
    fn a_failed_insert_leaves_its_slot_free() {
        let slab = Slab::reserve(1).unwrap();
        assert_eq!(slab.try_insert("full", |_| Err::<u32, _>("failed")).unwrap_err(), "failed");
        assert_eq!(*slab.try_insert("full", |_| Ok(7)).unwrap(), 7);
        assert_eq!(slab.try_insert("full", |_| Ok(8)).unwrap_err(), "full");
    }

    #[test]
    fn objects_outlive_their_handle_while_someone_holds_them() {
        let slab = Slab::reserve(4).unwrap();
        let held = slab.insert(|slot| (slot, String::from("kept"))).unwrap();
        slab.remove(held.0.handle);
        assert_eq!(held.1, "kept");
    }

    #[test]
    fn a_peek_tells_one_object_from_the_next_in_its_slot() {
        let slab = Slab::reserve(1).unwrap();
        let first = slab.insert_with(5, |slot| slot).unwrap();
        let peeked = slab.peek(first.handle).unwrap();
        assert_eq!((peeked.index, peeked.tag), (0, 5));
        slab.change_tag(peeked, 6);
        slab.change_tag(peeked, 7);
        assert_eq!(slab.peek(first.handle).unwrap(), HandlePeek { tag: 6, ..peeked });
        slab.remove(first.handle);
        assert!(slab.peek(first.handle).is_none() && slab.peek(first.handle + 1).is_none());
        let second = slab.insert(|slot| slot).unwrap();
        let next = slab.peek(second.handle).unwrap();
        assert_eq!((second.handle, next.tag), (first.handle, 0));
        assert_ne!(next.generation, peeked.generation);
        slab.change_tag(HandlePeek { tag: 0, ..peeked }, 8);
        assert_eq!(slab.peek(second.handle), Some(next));
    }

    #[test]
    fn many_threads_get_distinct_records() {
        let slab = Slab::reserve(10_000).unwrap();
        let handles = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..500).map(|_| slab.insert(|s| s).unwrap().handle).collect::<Vec<_>>()))
                .collect();
            workers.into_iter().flat_map(|w| w.join().unwrap()).collect::<std::collections::HashSet<_>>()
        });
        assert_eq!(handles.len(), 4000);
    }
}
