//! Has a driver whose shared virtual memory comes from the C library's heap take it at addresses of our choice, at first
//! and after a restore.
//!
//! While the driver allocates, in a thread whose part of the heap is new and has no room, the heap makes a mapping of its
//! own for it, for which the system takes the highest gap that fits. So all gaps above the wanted place are closed for that
//! moment. At first the place is in [`ZONE`], where nothing else comes to lie in any worker; so it is free after a restore.
//! Then the place is left open as long as the mapping turns out to be: that differs by what the heap adds, so a few lengths
//! are tried. A driver that takes its memory elsewhere is not helped by this, and no harm is done to it.

#![expect(unsafe_code, reason = "settings of the C library's heap, and mappings that nobody uses")]

use std::fs;
use std::ops::Range;
use std::ptr;
use std::thread;

use libc::{M_MMAP_MAX, M_MMAP_THRESHOLD, mallopt};
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
/// A new part of the heap has less room than this.
pub(crate) const LARGE: u64 = 512 << 10;

/// Does `work`, in which the heap maps what it is asked for if that is [`LARGE`].
pub(crate) fn with_mappings<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    // SAFETY: numbers; the heap looks at them with the next request.
    unsafe {
        mallopt(M_MMAP_MAX, USUAL.1);
        mallopt(M_MMAP_THRESHOLD, SMALL);
    }
    let done = thread::scope(|scope| thread::Builder::new().spawn_scoped(scope, work).ok()?.join().ok());
    // SAFETY: as above.
    unsafe { mallopt(M_MMAP_THRESHOLD, USUAL.0) };
    done
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
    fn gaps_lie_between_mappings_and_not_below_the_stack() {
        let maps = "1000-2000 r--p 00000000 00:00 0 /bin/x\n2000-3000 rw-p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 00:00 0 [heap]\n9000-a000 r--p 0 00:00 0 /lib/y\n\
                    f000-10000 rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(gaps(maps), [0x3000..0x5000, 0x6000..0x9000]);
    }
}
