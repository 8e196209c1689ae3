//! Steers a driver that allocates shared virtual memory from the C library's heap to chosen addresses, at first and after a
//! restore.
//!
//! While the driver allocates, [`HeapPlugs`] holds all free heap blocks that are large enough. So the heap makes a mapping of its
//! own, for which the system takes the highest gap that fits. For that moment, all gaps above the wanted address are closed. At
//! first the address is in [`SVM_ADDRESSES`], which nothing else in any worker uses; so it is free after a restore. Then the gap
//! must be exactly as long as the mapping. That depends on what the heap adds, so a few lengths are tried. A driver that
//! allocates elsewhere is neither helped nor harmed by this.

#![expect(unsafe_code, reason = "settings of the C library's heap, and mappings that no code uses")]

use std::ffi::CStr;
use std::fs;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::thread;

use libc::{M_MMAP_MAX, M_MMAP_THRESHOLD, c_void, mallopt};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::memory::svm::{PAGE_BYTES, SVM_ADDRESSES};

/// Blocks of this size and above are mapped while a driver allocates.
const MMAP_THRESHOLD_WHILE_PLACING: i32 = PAGE_BYTES as i32;
/// glibc's initial settings of the mmap threshold and the most mappings.
const GLIBC_DEFAULTS: (i32, i32) = (128 << 10, 65_536);
/// Pages that a heap may add to a request.
pub(crate) const EXTRA_HEAP_PAGES: Range<u64> = 0..8;
/// Most bytes of a part of the heap, except the first part (glibc's `HEAP_MAX_SIZE`).
const HEAP_PART_BYTES: usize = 64 << 20;
/// From this size on the heap maps blocks even with its usual settings.
pub(crate) const HEAP_BLOCK_BYTES: u64 = 512 << 10;

/// Runs `work` while the heap maps requests of at least `bytes` (or [`HEAP_BLOCK_BYTES`]), below `end` if that is given. `work`
/// runs on a new thread. Its stack and heap exist before any gap is closed: otherwise they would take the address.
pub(crate) fn with_mappings<T: Send>(bytes: usize, end: Option<u64>, work: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| thread::Builder::new().spawn_scoped(scope, || mapping(bytes, end, work)).ok()?.join().ok())
}

fn mapping<T>(bytes: usize, end: Option<u64>, work: impl FnOnce() -> T) -> T {
    if !is_heap_glibcs() {
        return work();
    }
    let usual = || {
        // SAFETY: plain numbers; the heap reads them at the next request.
        unsafe {
            mallopt(M_MMAP_MAX, GLIBC_DEFAULTS.1);
            mallopt(M_MMAP_THRESHOLD, GLIBC_DEFAULTS.0);
        }
    };
    usual();
    let _plugs = HeapPlugs::of(bytes);
    let closed = end.map(|end| ReservedRanges::above(end, bytes as u64));
    // SAFETY: as above.
    unsafe { mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_WHILE_PLACING) };
    let done = work();
    usual();
    drop(closed);
    done
}

/// Returns whether the heap is glibc's, whose block format and settings this module uses. A preloaded heap, or a sanitizer's,
/// ignores glibc's settings, and has other bytes before its blocks.
fn is_heap_glibcs() -> bool {
    static IS_GLIBC: OnceLock<bool> = OnceLock::new();
    let library_of = |name: &CStr| {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: a name, and room for the result, for which all zeros are valid.
        unsafe {
            let address = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            libc::dladdr(address, found.as_mut_ptr());
            found.assume_init().dli_fbase.addr()
        }
    };
    *IS_GLIBC.get_or_init(|| library_of(c"malloc") == library_of(c"gnu_get_libc_version"))
}

/// Calls `ask` up to `tries` times for an address in [`SVM_ADDRESSES`], and returns the last address. A retry can help: another
/// thread may free a heap block just after the others are held, and the driver then gets that one. The other results are given
/// back at the end; until then they block no thread. A driver that allocates such sizes outside the heap is asked once: it may
/// have no room for more.
pub(crate) fn in_zone(
    bytes: usize,
    tries: usize,
    mut ask: impl FnMut() -> Option<u64>,
    give_back: impl FnMut(u64),
) -> Option<u64> {
    let mut rejected = Vec::new();
    for raw in std::iter::from_fn(&mut ask).take(tries) {
        rejected.push(raw);
        if SVM_ADDRESSES.contains(&raw) || !may_be_in_heap(raw, bytes) {
            break;
        }
    }
    let last = rejected.pop();
    rejected.into_iter().for_each(give_back);
    last
}

/// Returns whether the block may come from the heap without its own mapping, or from a gap that another thread has just made.
fn may_be_in_heap(raw: u64, bytes: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    heap(&maps).contains(&raw) || (bytes <= HEAP_PART_BYTES && is_plain(raw, &maps))
}

/// Returns whether an address lies in memory as the heap maps it for its parts and for large blocks: readable, writable, without
/// a file or a name. The system does not tell where a thread's heap part lies.
fn is_plain(raw: u64, maps: &str) -> bool {
    let is_plain = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some("rw-p") && words.nth(2) == Some("0") && words.next().is_none()
    };
    maps.lines().filter(is_plain).filter_map(range).any(|range| range.contains(&raw))
}

/// Returns the first part of the heap, whose size is not limited.
fn heap(maps: &str) -> Range<u64> {
    maps.lines().find(|line| line.ends_with("[heap]")).and_then(range).unwrap_or_default()
}

/// Held blocks of this thread's heap, each with the address of the next one inside.
struct HeapPlugs(*mut c_void);

impl HeapPlugs {
    /// Reserves all free ranges of at least `bytes`, so that no other allocation fits there.
    fn of(bytes: usize) -> Self {
        let mut plugs = Self(ptr::null_mut());
        loop {
            // SAFETY: an allocation, and a heap block with room for an address.
            unsafe {
                let block = libc::malloc(bytes.max(size_of::<*mut c_void>()));
                if block.is_null() {
                    return plugs;
                }
                if is_mapped(block) {
                    libc::free(block);
                    return plugs;
                }
                block.cast::<*mut c_void>().write(plugs.0);
                plugs.0 = block;
            }
        }
    }
}

impl Drop for HeapPlugs {
    fn drop(&mut self) {
        while !self.0.is_null() {
            // SAFETY: a block from `of`, unknown to other code; `of` wrote its contents.
            unsafe {
                let next = self.0.cast::<*mut c_void>().read();
                libc::free(self.0);
                self.0 = next;
            }
        }
    }
}

/// Returns whether a block has a mapping of its own.
///
/// # Safety
///
/// `block` must be a block of the C library's heap that is in use.
unsafe fn is_mapped(block: *mut c_void) -> bool {
    // `black_box`: the compiler knows the bounds of a block, but assumes nothing about an address.
    let head = black_box(block.expose_provenance()) - size_of::<usize>();
    // SAFETY: glibc stores the block's size before it, whose second bit marks a mapped block.
    unsafe { ptr::with_exposed_provenance::<usize>(head).read_volatile() & 0b10 != 0 }
}

/// Address ranges that are closed until this is dropped.
struct ReservedRanges(Vec<Range<u64>>);

impl ReservedRanges {
    /// Closes every gap above `end` with room for `bytes`, and leaves lower ones open. The gap that contains `end` is closed all
    /// the way down to it: the system allocates from a gap's top.
    fn above(end: u64, bytes: u64) -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let large_gaps = gaps(&maps).into_iter().filter(|gap| gap.end - gap.start >= bytes);
        let mut closed = Self(Vec::new());
        for gap in large_gaps.map(|gap| gap.start.max(end)..gap.end).filter(|gap| !gap.is_empty()) {
            if close(&gap) {
                closed.0.push(gap);
            }
        }
        closed
    }
}

impl Drop for ReservedRanges {
    fn drop(&mut self) {
        for gap in &self.0 {
            let start = ptr::with_exposed_provenance_mut(gap.start as usize);
            // SAFETY: mapped by `close`, and no other code has its address.
            let _ = unsafe { munmap(start, (gap.end - gap.start) as usize) };
        }
    }
}

fn close(gap: &Range<u64>) -> bool {
    let start = ptr::with_exposed_provenance_mut(gap.start as usize);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag, no existing mapping is replaced.
    unsafe { mmap_anonymous(start, (gap.end - gap.start) as usize, ProtFlags::empty(), flags) }.is_ok()
}

/// Returns the gaps between mappings, except the one below the stack, which is left for the stack to grow.
fn gaps(maps: &str) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut last = None;
    for line in maps.lines() {
        let Some(range) = range(line) else { continue };
        if line.ends_with("[stack]") {
            break;
        }
        if let Some(last) = last.filter(|last| *last < range.start) {
            gaps.push(last..range.start);
        }
        last = Some(range.end);
    }
    gaps
}

/// Parses the addresses at the start of a line.
fn range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;
    use std::sync::Barrier;

    use super::*;

    /// Set in a process that runs a single test.
    const ALONE_VARIABLE: &str = "KATYDID_TEST_ALONE";

    /// Returns whether this process runs only this test; if not, runs a process that does. Other tests map and free memory at any
    /// moment, and heap settings affect every thread.
    fn is_alone(test: &str) -> bool {
        if env::var_os(ALONE_VARIABLE).is_some() {
            return true;
        }
        let mut process = Command::new(env::current_exe().unwrap());
        let output = process
            .args(["--exact", &format!("memory::svm_placement::tests::{test}")])
            .env(ALONE_VARIABLE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
        false
    }

    #[test]
    fn the_heap_maps_a_block_though_it_has_room_for_it() {
        if !is_alone("the_heap_maps_a_block_though_it_has_room_for_it") {
            return;
        }
        let bytes = HEAP_BLOCK_BYTES as usize;
        // SAFETY: blocks of the heap, freed once each.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            let (room, fence) = (libc::malloc(12 * bytes), libc::malloc(64));
            libc::free(room);
            let usual = libc::malloc(bytes);
            assert!(!room.is_null() && !is_mapped(usual));
            libc::free(usual);
            mapping(bytes, None, || {
                let mapped = libc::malloc(bytes);
                assert!(is_mapped(mapped));
                libc::free(mapped);
            });
            libc::free(fence);
        }
    }

    /// Allocates a large heap block that must end at `end`, and returns whether it does.
    fn ends_at(end: u64) -> bool {
        let bytes = HEAP_BLOCK_BYTES as usize;
        // SAFETY: an allocation.
        let block = || unsafe { libc::malloc(bytes) }.expose_provenance() as u64;
        let raw = with_mappings(bytes, Some(end), block).unwrap();
        // SAFETY: a block of the heap, freed once.
        unsafe { libc::free(ptr::with_exposed_provenance_mut(raw as usize)) };
        (end - HEAP_BLOCK_BYTES - EXTRA_HEAP_PAGES.end * PAGE_BYTES..end - HEAP_BLOCK_BYTES).contains(&raw)
    }

    #[test]
    fn small_gaps_above_the_svm_range_are_reserved() {
        if !is_alone("small_gaps_above_the_svm_range_are_reserved") {
            return;
        }
        let end = SVM_ADDRESSES.end - (2 << 30);
        let (start, length) =
            (ptr::with_exposed_provenance_mut((end + HEAP_BLOCK_BYTES / 2) as usize), PAGE_BYTES as usize);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: nothing lies there, and no code knows of it.
        unsafe { mmap_anonymous(start, length, ProtFlags::empty(), flags) }.unwrap();
        let is_there = ends_at(end);
        // SAFETY: as above.
        unsafe { munmap(start, length) }.unwrap();
        assert!(is_there);
    }

    /// Waiting threads prevent the allocating thread from reusing the stack of an ended one. All have started before: a starting
    /// thread opens and closes gaps of its own.
    #[test]
    fn nothing_of_the_thread_that_allocates_comes_to_lie_in_the_place() {
        if !is_alone("nothing_of_the_thread_that_allocates_comes_to_lie_in_the_place") {
            return;
        }
        let (start, over) = (Barrier::new(65), Barrier::new(65));
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    start.wait();
                    over.wait();
                });
            }
            start.wait();
            let is_there = ends_at(SVM_ADDRESSES.end - (1 << 30));
            over.wait();
            assert!(is_there);
        });
    }

    /// The first request gets a heap block that is freed at that moment, as if by another thread.
    #[test]
    fn svm_allocation_inside_the_heap_is_retried_and_freed() {
        if !is_alone("svm_allocation_inside_the_heap_is_retried_and_freed") {
            return;
        }
        let (bytes, end) = (HEAP_BLOCK_BYTES as usize, SVM_ADDRESSES.end - (3 << 30));
        // SAFETY: blocks of the heap, freed once each.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            let (room, fence) = (libc::malloc(12 * bytes), libc::malloc(64));
            let (mut late, mut addresses, mut back) = (Some(room), Vec::new(), Vec::new());
            let ask = || {
                let raw = mapping(bytes, Some(end), || {
                    if let Some(room) = late.take() {
                        libc::free(room);
                    }
                    libc::malloc(bytes).expose_provenance() as u64
                });
                addresses.push(raw);
                Some(raw)
            };
            let address = in_zone(bytes, 4, ask, |raw| back.push(raw)).unwrap();
            addresses.iter().for_each(|raw| libc::free(ptr::with_exposed_provenance_mut(*raw as usize)));
            libc::free(fence);
            assert!(SVM_ADDRESSES.contains(&address) && addresses.len() > 1, "{addresses:x?}");
            assert!(
                addresses[0] == room.expose_provenance() as u64
                    && addresses.pop() == Some(address)
                    && addresses == back
            );
        }
    }

    /// Memory such as the heap maps for itself.
    #[test]
    fn a_driver_whose_memory_may_be_the_heaps_is_asked_so_often_and_keeps_one() {
        // SAFETY: a mapping of this test, which no code uses.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), PAGE_BYTES as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let (start, mut back) = (start.unwrap(), Vec::new());
        let at = |number: u64| start.expose_provenance() as u64 + number;
        let mut addresses = (1..9).map(at);
        assert_eq!(in_zone(HEAP_PART_BYTES, 4, || addresses.next(), |raw| back.push(raw)), Some(at(4)));
        assert_eq!((back, addresses.next()), (vec![at(1), at(2), at(3)], Some(at(5))));
        let mut few = (1..3).map(at);
        assert_eq!((in_zone(1, 4, || few.next(), |_| ()), in_zone(1, 4, || None, |_| ())), (Some(at(2)), None));
        let mut many = (1..9).map(at);
        assert_eq!(in_zone(HEAP_PART_BYTES + 1, 4, || many.next(), |_| unreachable!("there is one")), Some(at(1)));
        // SAFETY: as above.
        unsafe { munmap(start, PAGE_BYTES as usize) }.unwrap();
    }

    #[test]
    fn a_driver_with_addresses_of_its_own_is_asked_once() {
        for bytes in [1, HEAP_PART_BYTES, HEAP_PART_BYTES + 1] {
            let mut addresses = 1..9;
            assert_eq!(in_zone(bytes, 4, || addresses.next(), |_| unreachable!("there is one")), Some(1), "{bytes}");
        }
        let maps = "1000-2000 r--p 00000000 00:00 0 /bin/x\n5000-6000 rw-p 00000000 00:00 0                  [heap]\n\
                    7000-8000 rw-p 00000000 00:00 0 \n8000-9000 ---p 00000000 00:00 0 \n\
                    9000-a000 rw-p 00000000 00:05 7 /dev/nvidia-uvm\na000-b000 rw-s 00000000 00:01 3 /memfd:x (deleted)\n";
        assert_eq!((heap(maps), heap("")), (0x5000..0x6000, 0..0));
        let plain = [0x1000, 0x5000, 0x7000, 0x8000, 0x9000, 0xa000].map(|raw| is_plain(raw, maps));
        assert_eq!(plain, [false, false, true, false, false, false]);
    }

    #[test]
    fn gaps_lie_between_mappings_and_not_below_the_stack() {
        let maps = "1000-2000 r--p 00000000 00:00 0 /bin/x\n2000-3000 rw-p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 00:00 0 [heap]\n9000-a000 r--p 0 00:00 0 /lib/y\n\
                    f000-10000 rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(gaps(maps), [0x3000..0x5000, 0x6000..0x9000]);
    }
}
