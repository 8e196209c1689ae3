//! Data of reads that has not arrived in the program's memory yet.
//!
//! A non-blocking read ends in the worker. The program fetches its bytes in calls that tell it that a command has ended: waits,
//! `clFinish`, status queries, callbacks. So a thread that knows of the end has the bytes.
//!
//! Until then, each read is known by its target. A call that writes other bytes there, or reads them, comes after it: the oldest
//! reads are fetched first.
#![expect(unsafe_code, reason = "writes into memory that programs named for their reads")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::Code;
use katydid_wire::opencl::message::kdclFetch;
use katydid_wire::opencl::{MAX_REPLY_VALUE_BYTES, fetch_mode};

use crate::host::rows::Rows;
use crate::host::transfer_blocks::{self, TRANSFER_BLOCKS, TransferBlock};
use crate::process::session;

/// One pending read.
struct PendingRead {
    number: u64,
    target: Rows,
    /// Whether its bytes are still to be fetched.
    is_wanted: bool,
    /// Whether another read with an overlapping target was pending when it began.
    is_second: bool,
    /// The block with its bytes after its end; `None` if the worker sends them.
    block: Option<TransferBlock>,
}

/// All reads of the process.
pub(crate) static PENDING_READS: PendingReads =
    PendingReads { list: Mutex::new(Vec::new()), count: AtomicUsize::new(0), last: AtomicU64::new(0) };

/// Pending reads, oldest first.
pub(crate) struct PendingReads {
    list: Mutex<Vec<PendingRead>>,
    /// The number of reads, which can be read without the lock.
    count: AtomicUsize,
    last: AtomicU64,
}

impl PendingReads {
    /// Returns a number for a new read.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns whether any reads are pending.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Adds a read that the worker has accepted.
    ///
    /// # Safety
    ///
    /// The target stays writable until the command has ended, as OpenCL requires of the program.
    pub(crate) unsafe fn expect(&self, number: u64, target: Rows, block: Option<TransferBlock>) {
        let mut list = self.lock();
        let is_second = list.iter().any(|pending| pending.comes_to(&target));
        list.push(PendingRead { number, target, is_wanted: true, is_second, block });
        self.count.store(list.len(), Ordering::Release);
    }

    /// Returns whether a pending read writes to these rows.
    pub(crate) fn come_to(&self, rows: &Rows) -> bool {
        self.first(rows).is_some()
    }

    /// Returns the oldest pending read that writes to these rows.
    fn first(&self, rows: &Rows) -> Option<u64> {
        if !self.any() {
            return None;
        }
        self.lock().iter().find(|pending| pending.comes_to(rows)).map(|pending| pending.number)
    }

    /// Stops a pending read from writing to its target, if no other read has the same target. Returns whether it did.
    pub(crate) fn abandon(&self, number: u64, rows: &Rows) -> bool {
        if !self.any() {
            return false;
        }
        let mut list = self.lock();
        let is_alone = !list.iter().any(|pending| pending.number != number && pending.comes_to(rows));
        let own = list.iter_mut().find(|pending| is_alone && pending.number == number && pending.is_wanted);
        own.map(|own| own.is_wanted = false).is_some()
    }

    /// Stops pending reads from writing to memory that is about to be freed.
    pub(crate) fn abandon_all(&self, start: usize, length: usize) {
        if !self.any() {
            return;
        }
        let gone = Rows::run(start, length);
        self.lock().iter_mut().filter(|pending| pending.comes_to(&gone)).for_each(|pending| pending.is_wanted = false);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PendingRead>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingRead {
    /// Returns whether it writes to these rows.
    fn comes_to(&self, rows: &Rows) -> bool {
        self.is_wanted && self.target.overlaps(rows)
    }

    /// Fetches its bytes if they are wanted and its command has ended; returns false if it has not.
    ///
    /// # Safety
    ///
    /// The target is writable, unless it was abandoned.
    unsafe fn deliver(&mut self) -> Result<bool, Code> {
        if self.is_wanted {
            // SAFETY: by the contract.
            return unsafe { bring(self.number, &self.target, &mut self.block, false) };
        }
        // Fetches an empty range at the end, as after all bytes.
        let offset = if self.block.is_some() { 0 } else { self.target.len() as u64 };
        let has_ended =
            session::call(&kdclFetch { read_number: self.number, offset, size: 0, how: fetch_mode::FETCH_NOW })?.state
                <= 0;
        if let Some(block) = self.block.take_if(|_| has_ended) {
            TRANSFER_BLOCKS.give_back(block);
        }
        Ok(has_ended)
    }
}

/// Fetches the reads that have ended. Callers have just learned that some command has ended.
pub(crate) fn deliver() -> Result<(), Code> {
    if !PENDING_READS.any() {
        return Ok(());
    }
    let mut list = PENDING_READS.lock();
    let under_way = under_way(&list)?;
    let mut failure = Ok(());
    list.retain_mut(|pending| {
        if under_way.contains(&pending.number) {
            return true;
        }
        // SAFETY: the program does not know of the end yet, so the memory still belongs to the command.
        match failure.and_then(|()| unsafe { pending.deliver() }) {
            Ok(has_ended) => !has_ended,
            Err(code) => {
                failure = Err(code);
                true
            }
        }
    });
    PENDING_READS.count.store(list.len(), Ordering::Release);
    failure
}

/// Returns the reads that still run, if some have overlapping targets; those are not fetched now. An older read may end between
/// the queries for it and a younger one, and would then overwrite the younger bytes. So the younger ones are queried first.
fn under_way(list: &[PendingRead]) -> Result<Vec<u64>, Code> {
    if !list.iter().any(|pending| pending.is_second) {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    for pending in list.iter().rev() {
        if query_state(pending.number, fetch_mode::QUERY)? > 0 {
            numbers.push(pending.number);
        }
    }
    Ok(numbers)
}

/// Returns the state of a read without changing it.
fn query_state(number: u64, how: u32) -> Result<i32, Code> {
    Ok(session::call(&kdclFetch { read_number: number, offset: 0, size: 0, how })?.state)
}

/// Returns the fetch mode: wait for the end, or fetch only if it has ended.
fn fetching(wait: bool) -> u32 {
    if wait { fetch_mode::FETCH_AT_END } else { fetch_mode::FETCH_NOW }
}

/// Waits until every pending read into these rows has arrived.
pub(crate) fn wait_for_overlapping(rows: &Rows) -> Result<(), Code> {
    while let Some(number) = PENDING_READS.first(rows) {
        // No lock is held: other threads may fetch the reads that they waited for. This read may be among them; the worker then
        // no longer knows it.
        let waited = query_state(number, fetch_mode::QUERY_AT_END);
        deliver()?;
        if PENDING_READS.first(rows) == Some(number) {
            waited?;
        }
    }
    Ok(())
}

/// Waits for a read and fetches it.
///
/// # Safety
///
/// The target is writable.
pub(crate) unsafe fn wait(number: u64, target: &Rows, mut block: Option<TransferBlock>) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    unsafe { bring(number, target, &mut block, true) }.map(drop)
}

/// Fetches a read if it has ended; returns false if not. A failed read has ended too: its event has the error.
///
/// # Safety
///
/// The target is writable.
unsafe fn bring(number: u64, target: &Rows, block: &mut Option<TransferBlock>, wait: bool) -> Result<bool, Code> {
    if block.is_some() {
        // SAFETY: guaranteed by the caller.
        return unsafe { bring_block(number, target, block, wait) };
    }
    let mut offset = 0;
    loop {
        let size = (target.len() - offset).min(MAX_REPLY_VALUE_BYTES);
        let message = kdclFetch { read_number: number, offset: offset as u64, size: size as u32, how: fetching(wait) };
        let reply = session::call(&message)?;
        match reply.state {
            0 if reply.data.len() == size => {
                // SAFETY: by the contract.
                unsafe { target.scatter(offset, &reply.data) };
                offset += size;
                if offset == target.len() {
                    return Ok(true);
                }
            }
            0 => return Err(session::broken("kdclFetch")),
            state if state < 0 && wait => return Err(Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
            state => return Ok(state < 0),
        }
    }
}

/// Completes a read whose bytes are in a local block: only its end is queried.
///
/// # Safety
///
/// The target is writable.
unsafe fn bring_block(number: u64, target: &Rows, block: &mut Option<TransferBlock>, wait: bool) -> Result<bool, Code> {
    let message = kdclFetch { read_number: number, offset: 0, size: 0, how: fetching(wait) };
    let state = session::call(&message)?.state;
    if state > 0 {
        return Ok(false);
    }
    let Some(block) = block.take() else { return Ok(true) };
    if state == 0 {
        // SAFETY: by the contract; the command has ended.
        unsafe { transfer_blocks::fetch(block, target) };
        return Ok(true);
    }
    TRANSFER_BLOCKS.give_back(block);
    if wait { Err(Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) } else { Ok(true) }
}
