//! What commands read for the program and is not in its memory yet.
//!
//! A read that the program does not wait for ends in the worker. Its bytes come over in the calls by which the program
//! learns that a command has ended: waiting, finishing, asking for a state, a callback. So the thread that knows, has the bytes.
//!
//! Until then they are known by their place. A call that brings other bytes there, or takes what is there, comes after them: the
//! oldest are brought first.
#![expect(unsafe_code, reason = "writes into memory that programs named for their reads")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::Code;
use katydid_wire::opencl::message::kdclFetch;
use katydid_wire::opencl::{MAX_REPLY_VALUE_BYTES, fetch_mode};

use crate::host::rows::Rows;
use crate::host::transfer_blocks::{self, TRANSFER_BLOCKS, TransferBlock};
use crate::process::session;

/// One read under way.
struct PendingRead {
    number: u64,
    target: Rows,
    /// Whether its bytes are still to be brought over.
    is_wanted: bool,
    /// Another one was under way to a part of the same place when it was begun.
    is_second: bool,
    /// Where its bytes are when it has ended; none if the worker sends them.
    block: Option<TransferBlock>,
}

/// All reads of the process.
pub(crate) static PENDING_READS: PendingReads =
    PendingReads { list: Mutex::new(Vec::new()), count: AtomicUsize::new(0), last: AtomicU64::new(0) };

/// Reads under way, oldest first.
pub(crate) struct PendingReads {
    list: Mutex<Vec<PendingRead>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
    last: AtomicU64,
}

impl PendingReads {
    /// A number for a new read.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Notes a read that the worker has accepted.
    ///
    /// # Safety
    ///
    /// The target stays writable until the command has ended, as OpenCL demands of the program.
    pub(crate) unsafe fn expect(&self, number: u64, target: Rows, block: Option<TransferBlock>) {
        let mut list = self.lock();
        let is_second = list.iter().any(|pending| pending.comes_to(&target));
        list.push(PendingRead { number, target, is_wanted: true, is_second, block });
        self.count.store(list.len(), Ordering::Release);
    }

    /// Whether a read under way brings bytes to a place.
    pub(crate) fn come_to(&self, rows: &Rows) -> bool {
        self.first(rows).is_some()
    }

    /// The oldest read under way that brings bytes to a place.
    fn first(&self, rows: &Rows) -> Option<u64> {
        if !self.any() {
            return None;
        }
        self.lock().iter().find(|pending| pending.comes_to(rows)).map(|pending| pending.number)
    }

    /// Leaves the place of a read alone from now on, if that is still under way and nothing else comes there.
    pub(crate) fn abandon(&self, number: u64, rows: &Rows) -> bool {
        if !self.any() {
            return false;
        }
        let mut list = self.lock();
        let is_alone = !list.iter().any(|pending| pending.number != number && pending.comes_to(rows));
        let own = list.iter_mut().find(|pending| is_alone && pending.number == number && pending.is_wanted);
        own.map(|own| own.is_wanted = false).is_some()
    }

    /// Leaves memory alone from now on that is about to be gone.
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
    /// Whether it brings bytes to a place.
    fn comes_to(&self, rows: &Rows) -> bool {
        self.is_wanted && self.target.overlaps(rows)
    }

    /// Brings its bytes over, if they are wanted, and its command has ended; false if that has not.
    ///
    /// # Safety
    ///
    /// The target is writable, unless it was abandoned.
    unsafe fn deliver(&mut self) -> Result<bool, Code> {
        if self.is_wanted {
            // SAFETY: by the contract.
            return unsafe { bring(self.number, &self.target, &mut self.block, false) };
        }
        // None of its bytes: what remains of them when all are fetched.
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

/// Brings over what has ended. Callers have just learned that some command has.
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
        // SAFETY: not ended for the program, so its memory is still the command's.
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

/// Which are not to be asked for, where several come to one place: an older one may end between the questions for it and for a
/// younger one, and would be brought over that. So the younger ones are asked for first.
fn under_way(list: &[PendingRead]) -> Result<Vec<u64>, Code> {
    if !list.iter().any(|pending| pending.is_second) {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    for pending in list.iter().rev() {
        if look(pending.number, fetch_mode::QUERY)? > 0 {
            numbers.push(pending.number);
        }
    }
    Ok(numbers)
}

/// The state of a read, which stays as it is.
fn look(number: u64, how: u32) -> Result<i32, Code> {
    Ok(session::call(&kdclFetch { read_number: number, offset: 0, size: 0, how })?.state)
}

/// How a read is fetched: after its end, or if it has ended.
fn fetching(wait: bool) -> u32 {
    if wait { fetch_mode::FETCH_AT_END } else { fetch_mode::FETCH_NOW }
}

/// Waits until every read that is on its way into some of these rows has arrived.
pub(crate) fn wait_for_overlapping(rows: &Rows) -> Result<(), Code> {
    while let Some(number) = PENDING_READS.first(rows) {
        // No lock is held meanwhile: other threads bring over what they have waited for, this one perhaps, which is unknown to the
        // worker then.
        let waited = look(number, fetch_mode::QUERY_AT_END);
        deliver()?;
        if PENDING_READS.first(rows) == Some(number) {
            waited?;
        }
    }
    Ok(())
}

/// Waits for a read and brings it over.
///
/// # Safety
///
/// The target is writable.
pub(crate) unsafe fn wait(number: u64, target: &Rows, mut block: Option<TransferBlock>) -> Result<(), Code> {
    // SAFETY: handed on.
    unsafe { bring(number, target, &mut block, true) }.map(drop)
}

/// Brings a read over if it has ended; false if it has not. A failed one has ended too: its event has the error.
///
/// # Safety
///
/// The target is writable.
unsafe fn bring(number: u64, target: &Rows, block: &mut Option<TransferBlock>, wait: bool) -> Result<bool, Code> {
    if block.is_some() {
        // SAFETY: handed on.
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

/// Brings a read over whose bytes are here when it has ended: only its end is asked for.
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
