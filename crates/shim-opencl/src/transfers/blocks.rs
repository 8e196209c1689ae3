//! Data of commands in memory that the worker has too ([`crate::process::host`]): one block a command, from which the driver reads or
//! to which it writes. So travels what pieces of the staging area ([`crate::transfers::pieces`]) cannot take: what the program does not
//! wait for, commands of queues without order, and those that may not be cut into parts.
//!
//! The last bytes of a block are a word by which the worker gives back what a command has read. A block that was read to is
//! free when the program has fetched what is in it. Some blocks that are free are kept: fresh pages cost more than a copy.
#![expect(unsafe_code, reason = "copies between the program's memory and the worker's")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::IN_HOST;
use katydid_wire::opencl::message::{kdclRead, kdclWrite};

use crate::commands::pending::PendingCommand;
use crate::commands::transfer::Transfer;
use crate::process::host::Block;
use crate::process::shim::{Shim, shim};
use crate::transfers::pending_reads;
use crate::transfers::rows::{Direction, Rows};

/// Up to this many bytes travel in frames.
const MIN_BLOCK_DATA_BYTES: usize = 128 << 10;
/// Bytes at the end of a block that hold its word.
const STATE_WORD_BYTES: usize = 64;
/// Blocks of one power of two have this many sizes, so that those that are free serve others.
const SIZE_CLASSES: usize = 8;
/// Bytes of all blocks together, beyond which data travels in frames; and of those that are kept for others.
const MAX_TOTAL_BYTES: usize = 1 << 30;
const MAX_FREE_BYTES: usize = 192 << 20;

/// All blocks.
#[derive(Default)]
pub(crate) struct Parcels {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    free: Vec<Parcel>,
    /// With commands that read them.
    sent: Vec<Parcel>,
    /// Bytes of all, those included that reads have.
    all: usize,
}

/// A block of one command's.
#[derive(Debug)]
pub(crate) struct Parcel {
    block: Block,
}

impl Parcel {
    /// Its first byte.
    fn start(&self) -> usize {
        self.block.address
    }

    /// The address of its word.
    fn word_place(&self) -> usize {
        self.block.address + self.block.size() - STATE_WORD_BYTES
    }

    /// 0: the worker has given it back.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned, as blocks are whole pages; inside the block, which is mapped as long as the process lives; both
        // sides touch it by atomics alone.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(self.word_place())) }
    }
}

/// Bytes of a block for so many of data.
fn size_for(length: usize) -> usize {
    let needed = length + STATE_WORD_BYTES;
    needed.next_multiple_of((needed.next_power_of_two() / 2 / SIZE_CLASSES).max(4096))
}

impl State {
    /// Takes back what commands have read.
    fn sweep(&mut self) {
        let ended = self.sent.extract_if(.., |parcel| parcel.word().load(Ordering::Acquire) == 0);
        self.free.extend(ended);
    }

    /// Frees blocks, oldest first, until those that are kept have so many bytes at most.
    fn keep(&mut self, most: usize) {
        let mut kept: usize = self.free.iter().map(|parcel| parcel.block.size()).sum();
        while kept > most && !self.free.is_empty() {
            let oldest = self.free.remove(0);
            kept -= oldest.block.size();
            self.all -= oldest.block.size();
            oldest.block.free();
        }
    }

    /// A block with room for so many bytes.
    fn take(&mut self, shim: &Shim, length: usize) -> Option<Parcel> {
        let size = size_for(length);
        self.sweep();
        if let Some(at) = self.free.iter().rposition(|parcel| parcel.block.size() == size) {
            return Some(self.free.remove(at));
        }
        if self.all + size > MAX_TOTAL_BYTES {
            self.keep(0);
        }
        if self.all + size > MAX_TOTAL_BYTES {
            return None;
        }
        let block = shim.host.as_ref()?.allocate(shim, size)?;
        self.all += block.size();
        Some(Parcel { block })
    }
}

impl Parcels {
    /// A block for a transfer; none where there is no such memory, or too much is in use.
    fn take(&self, shim: &Shim, length: usize) -> Option<Parcel> {
        if length <= MIN_BLOCK_DATA_BYTES || shim.host.is_none() {
            return None;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take(shim, length)
    }

    /// A command has it until it gives it back.
    fn send(&self, parcel: Parcel) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).sent.push(parcel);
    }

    /// No thread needs it any more.
    fn give_back(&self, parcel: Parcel) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.push(parcel);
        state.keep(MAX_FREE_BYTES);
    }

    /// Gives the memory of free blocks back to the system: they need not be in the program's dump. Not while another thread
    /// is at work with them, for which no thread waits here.
    pub(crate) fn let_go(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.sweep();
            state.keep(0);
        }
    }
}

/// Enqueues a write of what the rows hold now; false if it may not travel so. `waits` are the bytes of its message so far.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(
    transfer: &Transfer,
    (queue, event, blocking): (u32, u32, bool),
    waits: &mut Vec<u8>,
) -> Result<bool, Code> {
    let shim = shim()?;
    let Some(parcel) = shim.parcels.take(shim, transfer.rows.len()) else { return Ok(false) };
    // SAFETY: the rows are readable by the contract; the block has room for them, and no other code has it.
    unsafe { transfer.rows.copy_wide(Direction::Out, parcel.start()) };
    parcel.word().store(1, Ordering::Release);
    (parcel.start() as u64).put(waits);
    (parcel.word_place() as u64).put(waits);
    // The worker gives it back, however the command ends.
    shim.parcels.send(parcel);
    let (memory, form) = (transfer.memory.base.id, transfer.form);
    shim.link.call(&kdclWrite { queue, event, memory, form, staged: IN_HOST, blocking: blocking.into(), waits })?;
    Ok(true)
}

/// Enqueues a read of that number among the landings, and waits for it or leaves it to those who learn that it has ended; false
/// if it may not travel so.
///
/// # Safety
///
/// The rows are writable until the command has ended.
pub(crate) unsafe fn read(
    transfer: &Transfer,
    order: &PendingCommand,
    landing: u64,
    blocking: bool,
) -> Result<bool, Code> {
    let shim = shim()?;
    let Some(parcel) = shim.parcels.take(shim, transfer.rows.len()) else { return Ok(false) };
    let mut waits = transfer.arguments(order);
    (parcel.start() as u64).put(&mut waits);
    let (queue, event, memory, form) = (order.queue(), order.event(), transfer.memory.base.id, transfer.form);
    if let Err(code) = shim.link.call(&kdclRead { queue, event, memory, form, landing, waits: &waits }) {
        // Nothing was enqueued.
        shim.parcels.give_back(parcel);
        return Err(code);
    }
    // SAFETY: by the contract.
    unsafe {
        if blocking {
            pending_reads::wait(landing, &transfer.rows, Some(parcel))?;
        } else {
            shim.pending_reads.expect(landing, transfer.rows, Some(parcel));
        }
    }
    Ok(true)
}

/// Brings over what a command has read to a block, and frees that.
///
/// # Safety
///
/// The target is writable, and the command has ended.
pub(crate) unsafe fn fetch(parcel: Parcel, target: &Rows) -> Result<(), Code> {
    // SAFETY: by the contract; the block has as many bytes as the rows, and the driver has done with it.
    unsafe { target.copy_wide(Direction::In, parcel.start()) };
    drop_unread(parcel)
}

/// Frees the block of a read that has failed, or whose bytes no thread wants.
pub(crate) fn drop_unread(parcel: Parcel) -> Result<(), Code> {
    shim()?.parcels.give_back(parcel);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_room_for_their_data_and_word_in_few_sizes() {
        for length in [MIN_BLOCK_DATA_BYTES + 1, 1 << 20, (64 << 20) - 5, 64 << 20, (100 << 20) + 3] {
            let size = size_for(length);
            assert!(
                size >= length + STATE_WORD_BYTES && size.is_multiple_of(4096) && size - length <= length / 4 + 4096,
                "{length}"
            );
        }
        let sizes: std::collections::BTreeSet<usize> = (1 << 20..2 << 20).step_by(4097).map(size_for).collect();
        assert!(sizes.len() <= SIZE_CLASSES + 1, "{sizes:?}");
    }
}
