//! Counts the blocks of those kinds that both sides keep equal. Most programs have none, and their launches and
//! synchronizations need not search for any.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of blocks of one kind.
pub(crate) struct BlockCount(AtomicUsize);

/// The program's own memory that it registered.
pub(crate) static REGISTERED_BLOCKS: BlockCount = BlockCount::new();
/// Blocks of managed memory.
pub(crate) static MANAGED_BLOCKS: BlockCount = BlockCount::new();
/// Managed variables, and host memory that the program mapped and opened for itself.
pub(crate) static MANAGED_VARIABLES: BlockCount = BlockCount::new();

impl BlockCount {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts one more block.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one block less.
    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether there are blocks.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
