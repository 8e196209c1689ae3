//! Bytes between the program's own memory and the GPU: inside frames when few, through the staging area when many, by several
//! threads when very many: a core moves them at a sixth of the link's rate. Over a network each thread has a connection.
//!
//! A copy into the GPU has read the program's memory when it returns, a copy out has written it. Whoever calls has
//! checked both ranges as a whole, so only a failure of the session can end a copy in the middle, and is returned.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use katydid_client::threads;
use katydid_cuda_sys::CUresult;
use katydid_transport::{Landing, PIECE, Piece, Staging};
use katydid_wire::message::{kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutStaged};

use crate::session::{Shim, shim};
use crate::stream;

/// Up to this many bytes a copy in travels inside the ring, even where there is a staging area: on an H200, giving a
/// piece back costs what copying so much once more does.
const INLINE_IN: u64 = 128 << 10;
/// The same for a copy out, which is copied four times on its way through a reply, and once out of the staging area.
const INLINE_OUT: u64 = 16 << 10;
/// Bytes in front of the data of a reply: their number.
const COUNT: usize = 4;
/// Bytes of one frame on a stream link.
const FRAME: u64 = 1 << 20;

/// Fewest bytes that are worth a thread: it takes some 30 µs to start, in which a core copies a quarter of that.
const SHARE: u64 = 1 << 20;
/// Most threads that help to copy at a time, in the whole process: each of them has a seat on the link and a piece.
const MOST_HELPERS: usize = 7;
/// As many threads as processors.
const ALL: usize = usize::MAX;
/// Their parts begin at pages.
const GRAIN: u64 = 64 << 10;
/// Their stacks, in bytes: they copy, and write frames.
const STACK: usize = 256 << 10;

/// Where a copy runs: wire ids of context and stream.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) context: u32,
    pub(crate) stream: u32,
}

/// Copies from the program's memory to the GPU.
///
/// # Safety
///
/// `source` is valid for reading `size` bytes.
pub(crate) unsafe fn copy_in(way: Way, target: u64, source: *const u8, size: u64) -> Result<(), CUresult> {
    let (shim, source) = (shim()?, Own(source));
    match shim.session.staging() {
        Some(staging) if size > INLINE_IN => shared_out(way, size, PIECE as u64, ALL, &|at, length| {
            let failed = |error| shim.session.fail("a copy", &error);
            let piece = staging.take(length as usize).map_err(failed)?;
            // SAFETY: inside the source, by the contract; the piece was taken, so nobody else writes it, and has room
            // for `length` bytes, which are at most its size.
            let copy = |start: *mut u8| unsafe { start.copy_from_nonoverlapping(source.at(at), length as usize) };
            staging.with(piece, copy).map_err(failed)?;
            let offset = u64::from(piece.number()) * PIECE as u64;
            let (destination, size) = (target + at, length as u32);
            let message = kdCopyInStaged { destination, stream: way.stream, offset, size, piece: piece.number() };
            shim.session.enqueue(way.context, &message)
        }),
        _ => shared_out(way, size, FRAME, shim.session.lanes_for(size), &|at, length| {
            // SAFETY: inside the source, by the contract.
            let data = unsafe { std::slice::from_raw_parts(source.at(at), length as usize) };
            shim.session.enqueue(way.context, &kdCopyIn { destination: target + at, stream: way.stream, data })
        }),
    }
}

/// Copies from the GPU to the program's memory, and waits for it.
///
/// # Safety
///
/// `target` is valid for writing `size` bytes.
pub(crate) unsafe fn copy_out(way: Way, target: *mut u8, source: u64, size: u64) -> Result<(), CUresult> {
    let (shim, target) = (shim()?, Own(target));
    match shim.session.staging() {
        Some(staging) if size > INLINE_OUT => shared_out(way, size, PIECE as u64, ALL, &|at, length| {
            let failed = |error| shim.session.fail("a copy", &error);
            let piece = staging.take(length as usize).map_err(failed)?;
            let _given_back = GivenBack { staging, piece };
            let offset = u64::from(piece.number()) * PIECE as u64;
            let (source, size) = (source + at, length as u32);
            shim.session.call(way.context, &kdCopyOutStaged { source, size, stream: way.stream, offset })?;
            // SAFETY: inside the target, by the contract; the worker has written `length` bytes of our piece.
            let copy =
                |start: *mut u8| unsafe { start.copy_to_nonoverlapping(target.at(at).cast_mut(), length as usize) };
            staging.with(piece, copy).map_err(failed)
        }),
        // Several threads ask for parts while the first is on its way: a link carries many answers at a time, each over a
        // connection of its own where there are several.
        _ => {
            let threads = Some(shim.session.lanes_for(size)).filter(|lanes| *lanes > 0).unwrap_or(ALL);
            shared_out(way, size, FRAME, threads, &|at, length| {
                // SAFETY: inside the target, by the contract.
                unsafe { copy_out_inline(shim, way, target.at(at).cast_mut(), source + at, length as u32) }
            })
        }
    }
}

/// # Safety
///
/// `target` is valid for writing `size` bytes.
unsafe fn copy_out_inline(shim: &Shim, way: Way, target: *mut u8, source: u64, size: u32) -> Result<(), CUresult> {
    let message = kdCopyOut { source, size, stream: way.stream };
    // SAFETY: writable, by the contract; a program that touches the target of a copy under way gets what it asked for.
    let landing = unsafe { Landing::new(target, size as usize, COUNT) };
    shim.session.call_landing(way.context, &message, landing)
}

/// Gives a staging piece back however the copy ends.
struct GivenBack<'a> {
    staging: &'a Staging,
    piece: Piece,
}

impl Drop for GivenBack<'_> {
    fn drop(&mut self) {
        self.staging.release(self.piece);
    }
}

/// Memory of the program, of which several threads copy different parts.
#[derive(Clone, Copy)]
struct Own(*const u8);

// SAFETY: it is an address; whoever goes to it says why that is sound.
unsafe impl Sync for Own {}

impl Own {
    /// The address `offset` bytes further on.
    fn at(self, offset: u64) -> *const u8 {
        self.0.wrapping_add(offset as usize)
    }
}

/// A step of a copy, by offset and length.
type Step<'a> = &'a (dyn Fn(u64, u64) -> Result<(), CUresult> + Sync);

/// Runs `step` for each part of `size` bytes, none larger than `most`: by this thread and as many others as pay, up to
/// `threads` in all. Their order does not matter to anybody, since all of them lie between the same two calls of this thread.
fn shared_out(way: Way, size: u64, most: u64, threads: usize, step: Step<'_>) -> Result<(), CUresult> {
    // A thread's own default stream is, on the wire too, that of whoever names it.
    let wanted = if stream::is_of_thread(way.stream) { 0 } else { (size / SHARE).saturating_sub(1) };
    // More than there are processors are no help but on a network.
    let helpful = if threads == ALL { threads::processors() } else { threads }.saturating_sub(1);
    let helpers = Helpers::take(wanted.min(helpful as u64) as usize);
    let each = size.div_ceil(helpers.0 as u64 + 1).next_multiple_of(GRAIN).min(most);
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(each, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            step(at, each.min(size - at))?;
        }
    };
    thread::scope(|scope| {
        // Without another thread, this one does more.
        let help = (0..helpers.0).map_while(|_| threads::start_in(scope, "katydid copy", STACK, work).ok());
        let help: Vec<_> = help.collect();
        let own = work();
        help.into_iter().fold(own, |so_far, thread| so_far.and(thread.join().unwrap_or(Err(CUresult::ERROR_UNKNOWN))))
    })
}

/// Threads that this copy may start.
struct Helpers(usize);

/// Those that other copies have.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

impl Helpers {
    /// As many as are left of `wanted`.
    fn take(wanted: usize) -> Self {
        let before = HELPERS.fetch_add(wanted, Ordering::Relaxed);
        let granted = wanted.min(MOST_HELPERS.saturating_sub(before));
        HELPERS.fetch_sub(wanted - granted, Ordering::Relaxed);
        Self(granted)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_cover_everything_once_whoever_does_them() {
        for (size, stream) in [(1, 0), (3 * SHARE + 5, 0), (3 * SHARE + 5, 2), (9 * PIECE as u64 + 1, 7)] {
            let seen = Mutex::new(Vec::new());
            shared_out(Way { context: 1, stream }, size, PIECE as u64, ALL, &|at, length| {
                seen.lock().unwrap().push((at, length));
                Ok(())
            })
            .unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            let end = seen.iter().fold(0, |end, &(at, length)| {
                assert!(at == end && length <= PIECE as u64);
                at + length
            });
            assert_eq!(end, size);
        }
        assert_eq!(shared_out(Way { context: 1, stream: 0 }, 0, 1, ALL, &|_, _| Err(CUresult::ERROR_UNKNOWN)), Ok(()));
    }

    #[test]
    fn a_failure_of_any_part_is_that_of_the_copy() {
        let most = 4 * PIECE as u64;
        let failed = shared_out(Way { context: 1, stream: 0 }, most, PIECE as u64, ALL, &|at, length| {
            if at + length == most { Err(CUresult::ERROR_UNKNOWN) } else { Ok(()) }
        });
        assert_eq!(failed, Err(CUresult::ERROR_UNKNOWN));
    }

    #[test]
    fn helpers_are_limited_together() {
        let some = Helpers::take(MOST_HELPERS - 1);
        let (one, none) = (Helpers::take(MOST_HELPERS), Helpers::take(1));
        assert!(some.0 + one.0 + none.0 <= MOST_HELPERS);
    }
}
