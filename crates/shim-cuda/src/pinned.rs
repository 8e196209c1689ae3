//! Pinned host memory: an arena at the same address on both sides.
//!
//! With shared memory both sides see the same pages, so nothing has to be done for a GPU to reach them but register
//! them once. On a stream link the worker has pages of its own at the same address. They are made equal where the GPU
//! could tell: a block that a launch names is pushed before it, and after a synchronisation what the GPU changed, and
//! only that, is written back. A block that no launch named does not exist in the worker: a stray access is a fault.
#![expect(unsafe_code, reason = "reads and writes memory that the program uses meanwhile")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_arena::{ReserveError, Settled};
use katydid_client::memory::{Arena, Backing};
use katydid_client::regions::{Place, Region};
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdHostPull, kdHostPush, kdHostRegister, kdHostUnregister};

use crate::session::{Shim, shim};
use crate::{context, current, managed, stream};

/// Blocks begin and end on pages: they are registered by pages, and programs expect it.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of one message that pushes or pulls.
const PIECE: usize = 512 << 10;

/// The pinned arena.
pub(crate) struct Pinned {
    pub(crate) arena: Arena,
    /// Both sides see the same pages.
    pub(crate) is_shared: bool,
    start: u64,
    /// Stream links: blocks that exist in the worker, by address.
    copies: Mutex<BTreeMap<u64, Copy>>,
}

/// A block's pages in the worker, as far as this side knows them.
struct Copy {
    /// What the worker's pages held when last seen; as long as the block's pages.
    known: Vec<u8>,
    /// Count of messages after which no launch has named it.
    used_at: u64,
    /// A launch has named it since the GPU was last known to be done with it.
    is_used: bool,
}

impl Pinned {
    /// The arena that both sides agreed on, if they did, over `memory` when it is shared.
    pub(crate) fn new(arenas: &Settled, memory: Option<OwnedFd>) -> Result<Option<Self>, ReserveError> {
        let Some(reservation) = &arenas.pinned else { return Ok(None) };
        let range = reservation.range();
        if let Some(memory) = &memory {
            reservation.map_shared(0, range.end - range.start, memory, 0)?;
            leave_out_of_dumps(&range);
        }
        let start = range.start;
        let copies = Mutex::default();
        Ok(Some(Self { arena: Arena::new(range, 0), is_shared: memory.is_some(), start, copies }))
    }

    fn copies(&self) -> MutexGuard<'_, BTreeMap<u64, Copy>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block has ended with its context, and so have its pages in the worker.
    pub(crate) fn ended(&self, start: u64) {
        self.copies().remove(&start);
        // Its addresses are free at once: the worker ends the context before it sees any later message.
        let _ = self.arena.free(start, 0);
    }

    /// A freed block's pages in the worker go.
    pub(crate) fn forget(&self, start: u64) -> Result<(), CUresult> {
        let Some(copy) = self.copies().remove(&start) else { return Ok(()) };
        shim()?
            .session
            .call(any_context(), &kdHostUnregister { address: start, size: copy.known.len() as u64 })
            .map(drop)
    }

    /// Gives large unused pieces back to the system, once the GPU is done with them.
    pub(crate) fn give_back(&self) -> Result<(), CUresult> {
        self.arena.release_until(context::settle_all()?);
        self.arena.trim(&HostBacking);
        Ok(())
    }
}

/// A core of the program would otherwise walk through 256 GiB of holes.
fn leave_out_of_dumps(range: &Range<u64>) {
    let start = std::ptr::with_exposed_provenance_mut(range.start as usize);
    let length = (range.end - range.start) as usize;
    // A kernel without this advice writes slow dumps, no more.
    // SAFETY: changes what a dump holds, not what the memory does; the mapping was just made.
    let _ = unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxDontDump) };
}

impl Backing for HostBacking {
    fn grow(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (shim, size) = (shim()?, range.end - range.start);
        if arena(shim)?.is_shared {
            let message = kdHostRegister { address: range.start, size, flags: 0 };
            return shim.session.call(current::wire()?, &message).map(drop);
        }
        let offset = range.start - arena(shim)?.start;
        let reservation = shim.arenas.pinned.as_ref().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        reservation.map_private(offset, size).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (shim, size) = (shim()?, range.end - range.start);
        if !arena(shim)?.is_shared {
            let reservation = shim.arenas.pinned.as_ref().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
            let offset = range.start - arena(shim)?.start;
            return reservation.unmap(offset, size).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM);
        }
        shim.session.call(any_context(), &kdHostUnregister { address: range.start, size })?;
        // SAFETY: a whole piece of the pinned arena's mapping, which no block is in and nobody refers to.
        let removed = unsafe {
            let start = std::ptr::with_exposed_provenance_mut(range.start as usize);
            rustix::mm::madvise(start, size as usize, rustix::mm::Advice::LinuxRemove)
        };
        // Pages that stay cost memory until the process ends, and nothing else.
        removed.or(Ok(()))
    }

    fn settle(&self) -> Result<u64, CUresult> {
        context::settle_all()
    }
}

/// The pinned arena as the allocator sees it.
pub(crate) struct HostBacking;

fn arena(shim: &Shim) -> Result<&Pinned, CUresult> {
    shim.pinned.as_ref().ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

fn any_context() -> u32 {
    current::wire().unwrap_or(0)
}

/// A context has ended, and with it the registrations made in it: they are made again in one that is still there.
pub(crate) fn register_again() -> Result<(), CUresult> {
    let shim = shim()?;
    let Some(pinned) = &shim.pinned else { return Ok(()) };
    if !pinned.is_shared {
        return Ok(());
    }
    let active = shim.contexts.live().into_iter().find(|context| context.is_active());
    for range in pinned.arena.grown() {
        let Some(context) = &active else { break };
        let message = kdHostRegister { address: range.start, size: range.end - range.start, flags: 0 };
        match shim.session.call(context.wire(), &message) {
            Ok(_) | Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {}
            Err(code) => return Err(code),
        }
    }
    Ok(())
}

/// The arena of a stream link, where memory has to be made equal.
fn unshared() -> Result<Option<(&'static Shim, &'static Pinned)>, CUresult> {
    let shim = shim()?;
    Ok(shim.pinned.as_ref().filter(|pinned| !pinned.is_shared).map(|pinned| (shim, pinned)))
}

/// Before a launch: pushes every pinned block that a parameter points into, and all managed ones.
pub(crate) fn push_named(params: &[u8]) -> Result<(), CUresult> {
    let Some((shim, pinned)) = unshared()? else { return Ok(()) };
    if managed::is_used() {
        for region in shim.regions.all(|region| region.place == Place::Managed) {
            push(shim, pinned, &region)?;
        }
    }
    // Pointers are aligned within parameters, which are aligned within the block.
    for word in params.as_chunks::<8>().0 {
        if let Some(region) = shim.regions.find(u64::from_le_bytes(*word)).filter(Region::is_host) {
            push(shim, pinned, &region)?;
        }
    }
    Ok(())
}

fn push(shim: &Shim, pinned: &Pinned, region: &Region) -> Result<(), CUresult> {
    let context = current::wire()?;
    let size = region.size.next_multiple_of(PAGE);
    let mut copies = pinned.copies();
    let copy = match copies.entry(region.start) {
        std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::btree_map::Entry::Vacant(entry) => {
            shim.session.call(context, &kdHostRegister { address: region.start, size, flags: 0 })?;
            // The worker's pages are fresh: zeros.
            entry.insert(Copy { known: vec![0; size as usize], used_at: 0, is_used: false })
        }
    };
    let now = snapshot(region.start, size as usize);
    for piece in differing(&copy.known, &now) {
        let data = &now[piece.clone()];
        shim.session.enqueue(context, &kdHostPush { address: region.start + piece.start as u64, data })?;
    }
    copy.known = now;
    copy.is_used = true;
    copy.used_at = shim.session.enqueued() + 1;
    Ok(())
}

/// The program's bytes at this moment; it may be writing some of them, which is its race as it would be natively.
fn snapshot(address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let source = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: whole pages of a block of the arena, mapped as long as the block; the vector has `size` bytes.
    unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
    bytes
}

/// Pages in which two blocks differ, joined to pieces of at most [`PIECE`] bytes.
fn differing(before: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let pages = before.chunks(PAGE as usize).zip(now.chunks(PAGE as usize));
    for (index, (_, now)) in pages.enumerate().filter(|(_, (before, now))| before != now) {
        let start = index * PAGE as usize;
        match pieces.last_mut() {
            Some(last) if last.end == start && last.len() < PIECE => last.end += now.len(),
            _ => pieces.push(start..start + now.len()),
        }
    }
    pieces
}

/// After a synchronisation: takes back what the GPU wrote into blocks that launches named.
pub(crate) fn pull_all() -> Result<(), CUresult> {
    let Some((shim, pinned)) = unshared()? else { return Ok(()) };
    for (start, copy) in pinned.copies().iter_mut().filter(|(_, copy)| copy.is_used) {
        pull(shim, *start, copy)?;
    }
    Ok(())
}

/// The GPU is done with everything sent up to `epoch`: blocks that no later launch named need no more pulls.
pub(crate) fn settled(epoch: u64) -> Result<(), CUresult> {
    shim()?.parts.settled(epoch);
    let Some((_, pinned)) = unshared()? else { return Ok(()) };
    pinned.copies().values_mut().filter(|copy| copy.used_at <= epoch).for_each(|copy| copy.is_used = false);
    Ok(())
}

fn pull(shim: &Shim, start: u64, copy: &mut Copy) -> Result<(), CUresult> {
    let context = any_context();
    for at in (0..copy.known.len()).step_by(PIECE) {
        let size = PIECE.min(copy.known.len() - at);
        let data = shim.session.call(context, &kdHostPull { address: start + at as u64, size: size as u32 })?.data;
        let known = &mut copy.known[at..at + size];
        for run in changed_runs(known, &data) {
            // SAFETY: inside the block, which is mapped; only bytes that the GPU has written are touched.
            unsafe {
                let target = std::ptr::with_exposed_provenance_mut::<u8>(start as usize + at + run.start);
                target.copy_from_nonoverlapping(data[run.clone()].as_ptr(), run.len());
            }
            known[run.clone()].copy_from_slice(&data[run]);
        }
    }
    Ok(())
}

/// Runs of bytes in which `now` differs from `before`; `now` may be shorter, and ends the search then.
fn changed_runs(before: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let changed = before.iter().zip(now).enumerate().filter(|(_, (before, now))| before != now);
    for (at, _) in changed {
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Before the program's memory is read for a copy in `stream`: a block that the GPU may have written is taken back.
pub(crate) fn prepare_read(region: &Region, stream: u32) -> Result<(), CUresult> {
    let Some((_, pinned)) = unshared()? else { return Ok(()) };
    let is_used = pinned.copies().get(&region.start).is_some_and(|copy| copy.is_used);
    if !is_used {
        return Ok(());
    }
    stream::synchronize_wire(stream)?;
    pull_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_changed_are_pushed() {
        let before = vec![0u8; 5 * 4096];
        let mut now = before.clone();
        for at in [0, 4096 + 7, 4 * 4096 + 4095] {
            now[at] = 1;
        }
        assert_eq!(differing(&before, &now), [0..2 * 4096, 4 * 4096..5 * 4096]);
        assert!(differing(&before, &before).is_empty());
    }

    #[test]
    fn a_large_change_is_pushed_in_pieces() {
        let (before, now) = (vec![0u8; 3 * PIECE / 2], vec![1u8; 3 * PIECE / 2]);
        assert_eq!(differing(&before, &now), [0..PIECE, PIECE..3 * PIECE / 2]);
    }

    #[test]
    fn only_bytes_that_the_gpu_wrote_come_back() {
        assert_eq!(changed_runs(b"abcdef", b"aXYdeZ"), [1..3, 5..6]);
        assert!(changed_runs(b"abc", b"ab").is_empty());
    }
}
