//! Has a driver whose shared virtual memory comes from the C library's heap take it at addresses of our choice, at first
//! and after a restore.
//!
//! While the driver allocates, all blocks that are free in the heap and large enough are held ([`Plugs`]): the heap makes a mapping of
//! its own for it, for which the system takes the highest gap that fits. So all gaps above the wanted place are closed for that
//! moment. At first the place is in [`ZONE`], where nothing else comes to lie in any worker; so it is free after a restore.
//! Then the place is left open as long as the mapping turns out to be: that differs by what the heap adds, so a few lengths
//! are tried. A driver that takes its memory elsewhere is not helped by this, and no harm is done to it.

#![expect(unsafe_code, reason = "settings of the C library's heap, and mappings that nobody uses")]

use std::fs;
use std::hint::black_box;
use std::ops::Range;
use std::ptr;
use std::thread;

use libc::{M_MMAP_MAX, M_MMAP_THRESHOLD, c_void, mallopt};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::svm::PAGE;

/// Blocks of this size and above are mapped while a driver allocates.
const SMALL: i32 = PAGE as i32;
/// What glibc begins with.
const USUAL: (i32, i32) = (128 << 10, 65_536);
/// Where shared virtual memory lies: far above a heap, and far below where the system begins with mappings. The same
/// addresses are free in programs, which see them.
pub(crate) const ZONE: Range<u64> = 0x6000_0000_0000..0x7000_0000_0000;
/// Pages that a heap may add to what it was asked for.
pub(crate) const EXTRA: Range<u64> = 0..8;
/// The heap maps what is as large as this also where it goes by what is usual.
pub(crate) const LARGE: u64 = 512 << 10;

/// Does `work`, in which the heap maps what it is asked for if that has so many bytes, [`LARGE`] at least.
pub(crate) fn with_mappings<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| thread::Builder::new().spawn_scoped(scope, || mapping(bytes, work)).ok()?.join().ok())
}

fn mapping<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let usual = || {
        // SAFETY: numbers; the heap looks at them with the next request.
        unsafe {
            mallopt(M_MMAP_MAX, USUAL.1);
            mallopt(M_MMAP_THRESHOLD, USUAL.0);
        }
    };
    usual();
    let _plugs = Plugs::of(bytes);
    // SAFETY: as above.
    unsafe { mallopt(M_MMAP_THRESHOLD, SMALL) };
    let done = work();
    usual();
    done
}

/// Blocks of this thread's part of the heap, each of which has the address of the next one in it.
struct Plugs(*mut c_void);

impl Plugs {
    /// Takes all that are free and have so many bytes, so that there is no room for another one.
    fn of(bytes: usize) -> Self {
        let mut plugs = Self(ptr::null_mut());
        loop {
            // SAFETY: a request, and a block of the heap with room for an address.
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

impl Drop for Plugs {
    fn drop(&mut self) {
        while !self.0.is_null() {
            // SAFETY: a block of `of`, which nobody else knows; what is in it was written there.
            unsafe {
                let next = self.0.cast::<*mut c_void>().read();
                libc::free(self.0);
                self.0 = next;
            }
        }
    }
}

/// Whether a block has a mapping of its own.
///
/// # Safety
///
/// It is a block of the C library's heap that is in use.
unsafe fn is_mapped(block: *mut c_void) -> bool {
    // The compiler knows a block's bytes, and takes nothing for granted of an address.
    let head = black_box(block.expose_provenance()) - size_of::<usize>();
    // SAFETY: glibc has the block's size before it, whose second bit says so.
    unsafe { ptr::with_exposed_provenance::<usize>(head).read_volatile() & 0b10 != 0 }
}

/// Address ranges that are closed until this is dropped.
pub(crate) struct Closed(Vec<Range<u64>>);

impl Closed {
    /// Closes every gap above `end` in which as many bytes fit, and leaves open what is below.
    pub(crate) fn above(end: u64, bytes: u64) -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let wanted = gaps(&maps).into_iter().map(|gap| gap.start.max(end)..gap.end);
        let mut closed = Self(Vec::new());
        for gap in wanted.filter(|gap| gap.end.saturating_sub(gap.start) >= bytes) {
            if close(&gap) {
                closed.0.push(gap);
            }
        }
        closed
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        for gap in &self.0 {
            let place = ptr::with_exposed_provenance_mut(gap.start as usize);
            // SAFETY: mapped by `close`, and nobody was told of it.
            let _ = unsafe { munmap(place, (gap.end - gap.start) as usize) };
        }
    }
}

fn close(gap: &Range<u64>) -> bool {
    let place = ptr::with_exposed_provenance_mut(gap.start as usize);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag nothing that lies there is replaced.
    unsafe { mmap_anonymous(place, (gap.end - gap.start) as usize, ProtFlags::empty(), flags) }.is_ok()
}

/// The gaps between mappings, but for the one below the stack, into which that grows and nothing else is put.
fn gaps(maps: &str) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut last = None;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let range = range
            .and_then(|(start, end)| Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?));
        let Some(range) = range else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_maps_a_block_though_it_has_room_for_it() {
        let bytes = LARGE as usize;
        // SAFETY: blocks of the heap, freed once each.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            let (room, fence) = (libc::malloc(12 * bytes), libc::malloc(64));
            libc::free(room);
            let usual = libc::malloc(bytes);
            assert!(!room.is_null() && !is_mapped(usual));
            libc::free(usual);
            mapping(bytes, || {
                let mapped = libc::malloc(bytes);
                assert!(is_mapped(mapped));
                libc::free(mapped);
            });
            libc::free(fence);
        }
    }

    #[test]
    fn gaps_lie_between_mappings_and_not_below_the_stack() {
        let maps = "1000-2000 r--p 00000000 00:00 0 /bin/x\n2000-3000 rw-p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 00:00 0 [heap]\n9000-a000 r--p 0 00:00 0 /lib/y\n\
                    f000-10000 rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(gaps(maps), [0x3000..0x5000, 0x6000..0x9000]);
    }
}
