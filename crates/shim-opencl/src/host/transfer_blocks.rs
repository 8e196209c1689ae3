//! Blocks of memory shared with the worker ([`crate::host::arena`]), each for the data of one command: the driver reads from or
//! writes to it.
//!
//! The last bytes of a block are a word that the worker clears to return a block whose command has read it. A block that a
//! command wrote is free once the program has fetched its data. Some free blocks are kept: fresh pages cost more than a copy.
#![expect(unsafe_code, reason = "copies between the program's memory and the worker's")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::arena::{self, Block};
use crate::host::rows::{Direction, Rows};

/// Most bytes of data that go in frames.
pub(crate) const MAX_IN_FRAME_BYTES: usize = 128 << 10;
/// Bytes at the end of a block that hold its state word.
const STATE_WORD_BYTES: usize = 64;
/// Number of sizes between two powers of two, so that later commands can reuse free blocks.
const CLASSES_PER_POWER: usize = 8;
/// Most bytes of all blocks, beyond which data goes in frames; and most bytes of free blocks that are kept.
const MAX_TOTAL_BYTES: usize = 1 << 30;
const MAX_FREE_BYTES: usize = 192 << 20;

/// All blocks of the process.
pub(crate) static TRANSFER_BLOCKS: TransferBlocks =
    TransferBlocks { state: Mutex::new(TransferBlocksState { free: Vec::new(), sent: Vec::new(), total_bytes: 0 }) };

/// Free blocks, and blocks that commands use.
pub(crate) struct TransferBlocks {
    state: Mutex<TransferBlocksState>,
}

struct TransferBlocksState {
    /// Blocks that no command uses, oldest first.
    free: Vec<TransferBlock>,
    /// Blocks whose commands still read them.
    sent: Vec<TransferBlock>,
    /// Bytes of all blocks, including those that reads use.
    total_bytes: usize,
}

/// A block of one command.
#[derive(Debug)]
pub(crate) struct TransferBlock {
    memory: Block,
}

impl TransferBlock {
    /// Returns the address of its first byte.
    pub(crate) fn start(&self) -> usize {
        self.memory.address
    }

    /// Returns the address of its state word.
    pub(crate) fn word_address(&self) -> usize {
        self.memory.address + self.memory.size() - STATE_WORD_BYTES
    }

    /// Returns its state word. 0: the worker has returned it.
    pub(crate) fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned, as blocks are whole pages; inside the block, which is mapped for the life of the process; both sides
        // access it only atomically.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(self.word_address())) }
    }
}

/// Returns the bytes of a block that holds `length` bytes of data.
fn size_for(length: usize) -> usize {
    let needed = length + STATE_WORD_BYTES;
    needed.next_multiple_of((needed.next_power_of_two() / 2 / CLASSES_PER_POWER).max(4096))
}

impl TransferBlocksState {
    /// Moves blocks that commands have read to the free list.
    fn sweep(&mut self) {
        let ended = self.sent.extract_if(.., |block| block.word().load(Ordering::Acquire) == 0);
        self.free.extend(ended);
    }

    /// Frees blocks, oldest first, until the free ones have at most `most` bytes.
    fn keep(&mut self, most: usize) {
        let mut free_bytes: usize = self.free.iter().map(|block| block.memory.size()).sum();
        while free_bytes > most && !self.free.is_empty() {
            let oldest = self.free.remove(0);
            free_bytes -= oldest.memory.size();
            self.total_bytes -= oldest.memory.size();
            oldest.memory.free();
        }
    }

    /// Returns a block that holds `length` bytes.
    fn take(&mut self, length: usize) -> Option<TransferBlock> {
        let size = size_for(length);
        self.sweep();
        if let Some(at) = self.free.iter().rposition(|block| block.memory.size() == size) {
            return Some(self.free.remove(at));
        }
        if self.total_bytes + size > MAX_TOTAL_BYTES {
            self.keep(0);
        }
        if self.total_bytes + size > MAX_TOTAL_BYTES {
            return None;
        }
        let memory = arena::allocate(size)?;
        self.total_bytes += memory.size();
        Some(TransferBlock { memory })
    }
}

impl TransferBlocks {
    /// Returns a block for a transfer; `None` without shared memory, if too much is in use, or if the data fits in a frame.
    pub(crate) fn take(&self, length: usize) -> Option<TransferBlock> {
        if length <= MAX_IN_FRAME_BYTES || !arena::is_there() {
            return None;
        }
        self.lock().take(length)
    }

    /// Hands a block to a command that reads it, until the worker returns it.
    pub(crate) fn send(&self, block: TransferBlock) {
        self.lock().sent.push(block);
    }

    /// Frees a block: its command was not enqueued, has failed, or its data is not wanted any more.
    pub(crate) fn give_back(&self, block: TransferBlock) {
        let mut state = self.lock();
        state.free.push(block);
        state.keep(MAX_FREE_BYTES);
    }

    fn lock(&self) -> MutexGuard<'_, TransferBlocksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory of free blocks to the system, which keeps it out of the program's dump. Does nothing while another
    /// thread uses them: this thread never waits for it.
    pub(crate) fn trim(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.sweep();
            state.keep(0);
        }
    }
}

/// A block with the data of a call that waits for its reply. Dropping this frees the block.
pub(crate) struct CallBlock(Option<TransferBlock>);

impl CallBlock {
    /// Copies the bytes of the rows to a block; `None` if they must be sent another way.
    ///
    /// # Safety
    ///
    /// The rows are readable.
    pub(crate) unsafe fn of(rows: &Rows) -> Option<Self> {
        let block = TRANSFER_BLOCKS.take(rows.len())?;
        // SAFETY: readable by the contract; the block has room, and no other code has it.
        unsafe { rows.copy_wide(Direction::Out, block.start()) };
        Some(Self(Some(block)))
    }

    /// Returns the address of its first byte.
    pub(crate) fn start(&self) -> usize {
        self.0.as_ref().map_or(0, TransferBlock::start)
    }
}

impl Drop for CallBlock {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|block| TRANSFER_BLOCKS.give_back(block));
    }
}

/// Copies the data that a command has written to a block to its target, and frees the block.
///
/// # Safety
///
/// The target is writable, and the command has ended.
pub(crate) unsafe fn fetch(block: TransferBlock, target: &Rows) {
    // SAFETY: by the contract; the block has as many bytes as the rows, and the driver no longer uses it.
    unsafe { target.copy_wide(Direction::In, block.start()) };
    TRANSFER_BLOCKS.give_back(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_room_for_their_data_and_word_in_few_sizes() {
        for length in [MAX_IN_FRAME_BYTES + 1, 1 << 20, (64 << 20) - 5, 64 << 20, (100 << 20) + 3] {
            let size = size_for(length);
            assert!(
                size >= length + STATE_WORD_BYTES && size.is_multiple_of(4096) && size - length <= length / 4 + 4096,
                "{length}"
            );
        }
        let sizes: std::collections::BTreeSet<usize> = (1 << 20..2 << 20).step_by(4097).map(size_for).collect();
        assert!(sizes.len() <= CLASSES_PER_POWER + 1, "{sizes:?}");
    }
}
