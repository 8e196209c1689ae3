//! Memory in pieces, registered with the driver so that copies run at full speed, and released by the GPU itself when it has
//! read them: the staging area of a link with shared memory, and the bulk buffers of one without.
//!
//! Offsets on the wire count bytes from the start of the first piece of the staging area. Rust code never reads that area.

#![expect(unsafe_code, reason = "hands shared memory to the driver and frees its pieces")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use katydid_cuda_sys::{CUresult, CUstream, host_register_flags};
use katydid_driver::Driver;
use katydid_transport::{
    BUFFER_BYTES, BUFFER_COUNT, Buffers, STAGING_PIECE_BYTES, STAGING_PIECES, Staging, StagingPiece,
};

use crate::calls::fault::{Fault, SessionError};

/// How the program learns that a piece is free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// The stream writes the busy word.
    Written,
    /// The driver calls a function that writes it.
    CallResult,
}

/// A separately registered part of the area: registering costs the driver some 0.4 ms a MiB, which a program that copies
/// little need not pay.
#[derive(Debug, Clone, Copy)]
struct StagedPart {
    address: u64,
    length: usize,
    /// Wire id of the context in which it is registered; 0: in none.
    context: u32,
    /// Whether the driver refused to register it: then it copies through its own memory. Each context tries again.
    refused: bool,
}

impl StagedPart {
    fn new(address: u64, length: usize) -> Self {
        Self { address, length, context: 0, refused: false }
    }

    fn is_registered(&self) -> bool {
        self.context != 0
    }

    /// Registers the part in the current context, unless it is registered or was refused.
    fn register(&mut self, driver: &Driver, context: u32) {
        if self.is_registered() || self.refused {
            return;
        }
        let flags = host_register_flags::PORTABLE | host_register_flags::DEVICEMAP;
        // SAFETY: the part is mapped as long as the link; what the program writes there meanwhile is data.
        let status = unsafe { driver.cuMemHostRegister_v2(pointer(self.address), self.length, flags) };
        self.refused = status != CUresult::SUCCESS;
        self.context = if self.refused { 0 } else { context };
    }

    /// Ends the registration; the next use makes it again.
    fn unregister(&mut self, driver: &Driver) {
        if self.is_registered() {
            // SAFETY: registered by `register`; nothing runs in it.
            let _ = unsafe { driver.cuMemHostUnregister(pointer(self.address)) };
        }
        (self.context, self.refused) = (0, false);
    }

    fn forget_context(&mut self, context: u32) {
        if self.context == context {
            self.context = 0;
        }
        self.refused = false;
    }
}

/// Addresses of the pieces; valid as long as the link, which outlives the session.
#[derive(Debug)]
pub(crate) struct StagingArea {
    /// The page of the busy words.
    busy_page: StagedPart,
    pieces: Vec<StagedPart>,
    busy_words: Vec<u64>,
    release: Release,
}

impl StagingArea {
    /// Takes the addresses of memory that both sides see.
    pub(crate) fn new(staging: &Staging) -> Self {
        let all = || (0..STAGING_PIECES as u32).filter_map(StagingPiece::new);
        let pieces =
            all().map(|piece| StagedPart::new(staging.pointer(piece).expose_provenance() as u64, STAGING_PIECE_BYTES));
        let busy_words = all().map(|piece| staging.busy_word(piece).expose_provenance() as u64);
        Self::of(staging.busy_words(), pieces.collect(), busy_words.collect())
    }

    /// Takes the addresses of memory that only the worker sees.
    pub(crate) fn of_buffers(buffers: &Buffers) -> Self {
        let pieces = (0..BUFFER_COUNT)
            .map(|number| StagedPart::new(buffers.pointer(number).expose_provenance() as u64, BUFFER_BYTES));
        let busy_words = (0..BUFFER_COUNT).map(|number| buffers.word(number).expose_provenance() as u64);
        Self::of(buffers.busy_words(), pieces.collect(), busy_words.collect())
    }

    fn of((busy_page, length): (*mut u8, usize), pieces: Vec<StagedPart>, busy_words: Vec<u64>) -> Self {
        let busy_page = StagedPart::new(busy_page.expose_provenance() as u64, length);
        Self { busy_page, pieces, busy_words, release: Release::Written }
    }

    /// Returns the address of `size` bytes at `offset`, which must lie in one piece, and the number of the piece.
    ///
    /// # Errors
    ///
    /// A session error when they do not.
    pub(crate) fn locate(&self, offset: u64, size: u64) -> Result<(u64, usize), Fault> {
        let bad = || Fault::from(SessionError::BadRange { what: "the staging area", address: offset, size });
        let (piece, within) = (offset / STAGING_PIECE_BYTES as u64, offset % STAGING_PIECE_BYTES as u64);
        let piece = usize::try_from(piece).ok().filter(|piece| *piece < STAGING_PIECES).ok_or_else(bad)?;
        if size == 0 || size > STAGING_PIECE_BYTES as u64 - within {
            return Err(bad());
        }
        Ok((self.pieces[piece].address + within, piece))
    }

    /// Registers a piece and the busy words in the current context, unless they are. Returns whether the driver has the
    /// piece registered now.
    pub(crate) fn register(&mut self, driver: &Driver, context: u32, piece: usize) -> bool {
        self.busy_page.register(driver, context);
        self.pieces[piece].register(driver, context);
        self.pieces[piece].is_registered()
    }

    /// Marks a piece as in use, until one of the functions below releases it.
    pub(crate) fn occupy(&self, piece: usize) {
        word(self.busy_words[piece]).store(1, Ordering::Release);
    }

    /// Ends all registrations, while no copy runs.
    pub(crate) fn unregister(&mut self, driver: &Driver) {
        self.busy_page.unregister(driver);
        self.pieces.iter_mut().for_each(|piece| piece.unregister(driver));
    }

    /// Forgets the registrations in a context that is gone.
    pub(crate) fn forget_context(&mut self, context: u32) {
        self.busy_page.forget_context(context);
        self.pieces.iter_mut().for_each(|piece| piece.forget_context(context));
    }

    /// Releases `piece` when `stream` has done its current work.
    pub(crate) fn release_after(&mut self, driver: &Driver, stream: CUstream, piece: usize) -> Result<(), CUresult> {
        let word = self.busy_words[piece];
        if !self.pieces[piece].is_registered() {
            // Without registration the driver has read the piece before it returned.
            free(word);
            return Ok(());
        }
        if self.release == Release::Written && self.busy_page.is_registered() {
            // SAFETY: the word lies in registered memory; the GPU writes four aligned bytes there.
            let status = unsafe { driver.cuStreamWriteValue32_v2(stream, word, 0, 0) };
            if status == CUresult::SUCCESS {
                return Ok(());
            }
            self.release = Release::CallResult;
        }
        // SAFETY: `free_piece` takes the word's address, which is valid as long as the link.
        let status = unsafe { driver.cuLaunchHostFunc(stream, Some(free_piece), pointer(word)) };
        if status == CUresult::SUCCESS { Ok(()) } else { self.release_now(driver, stream, piece) }
    }

    /// Waits for the stream, then releases the piece: the last resort. A stream in error waits for nothing.
    pub(crate) fn release_now(&self, driver: &Driver, stream: CUstream, piece: usize) -> Result<(), CUresult> {
        // SAFETY: the stream's handle came from the driver.
        let status = unsafe { driver.cuStreamSynchronize(stream) };
        free(self.busy_words[piece]);
        status.ok()
    }
}

/// Called by the driver when a stream has reached the end of a piece.
extern "C" fn free_piece(word: *mut c_void) {
    free(word.expose_provenance() as u64);
}

/// Writes 0 to a busy word.
fn free(address: u64) {
    word(address).store(0, Ordering::Release);
}

/// Returns the busy word at this address.
fn word<'a>(address: u64) -> &'a AtomicU32 {
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: callers have the address of a busy word: aligned, mapped as long as the link, and touched by atomics alone
    // on both sides.
    unsafe { AtomicU32::from_ptr(word) }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
