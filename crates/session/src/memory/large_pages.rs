//! Large pages behind pinned memory that program and worker share: the GPU copies pages of 2 MiB at the link's full rate,
//! and a fifth slower if the same memory is scattered over pages of 4 KiB.
//!
//! Memory files get small pages unless the administrator says otherwise. But Linux 6.1 can gather existing pages of a file
//! into large ones, whatever the setting, as long as none is pinned: so this runs before the memory is registered. It is
//! only a request: if the system does not follow it, memory is unchanged.

#![expect(unsafe_code, reason = "advises the system about mapped memory")]

use katydid_arena::GROWTH_GRANULE_BYTES;
use rustix::mm::{Advice, madvise};

use crate::memory::address::pointer;

/// Fewest bytes that are worth it: small copies cost most before their first byte moves, and pages that a program never
/// touches would be allocated all the same, in its dumps as well.
const MIN_GATHERED_BYTES: u64 = 4 * GROWTH_GRANULE_BYTES;

/// Gathers the whole pieces of 2 MiB in `size` bytes of a mapped memory file at `address` into large pages, with unchanged
/// contents. Stops at the first piece that the system does not gather: the next would lack memory as well.
pub(crate) fn gather(address: u64, size: u64) {
    if size < MIN_GATHERED_BYTES {
        return;
    }
    let first = address.next_multiple_of(GROWTH_GRANULE_BYTES);
    let end = address.saturating_add(size);
    let pieces =
        (first..end).step_by(GROWTH_GRANULE_BYTES as usize).take_while(|start| end - start >= GROWTH_GRANULE_BYTES);
    let _ = pieces.map(gather_one).take_while(|gathered| *gathered).count();
}

fn gather_one(start: u64) -> bool {
    // A piece without pages cannot be gathered.
    // SAFETY: moves the contents of mapped pages, and changes neither them nor their addresses.
    let one_page = unsafe { madvise(pointer(start).cast(), rustix::param::page_size(), Advice::LinuxPopulateRead) };
    // SAFETY: as above.
    let all = || unsafe { libc::madvise(pointer(start).cast(), GROWTH_GRANULE_BYTES as usize, libc::MADV_COLLAPSE) };
    one_page.is_ok() && all() == 0
}

#[cfg(test)]
mod tests {
    use katydid_arena::Reservation;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn contents_survive_collapsing_into_large_pages() {
        let (start, length) = (0x2100_0000_0000, MIN_GATHERED_BYTES + GROWTH_GRANULE_BYTES);
        let arena = Reservation::at(start, length).unwrap();
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, length).unwrap();
        arena.map_shared(0, length, &memory, 0).unwrap();
        let word = |at: u64| pointer(start + at).cast::<u64>();
        let marks = [0, 4096 * 7, GROWTH_GRANULE_BYTES - 8, GROWTH_GRANULE_BYTES * 2 + 8];
        // SAFETY: aligned, and inside the mapping that was made above.
        marks.iter().for_each(|at| unsafe { word(*at).write_volatile(at + 1) });
        gather(start, length);
        gather(start + 4096, MIN_GATHERED_BYTES);
        for at in marks {
            // SAFETY: as above.
            assert_eq!(unsafe { word(at).read_volatile() }, at + 1);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { word(GROWTH_GRANULE_BYTES + 64).read_volatile() }, 0);
    }
}
