//! Tombstones: contexts, modules, libraries and executable graphs that ended while younger code lives on.
//!
//! A driver places the variables of a module in free memory when it is loaded. Objects that ended before have freed their
//! memory and do not matter. Objects that existed at that moment, and ended later, are replayed and ended again, so that the
//! younger module finds the same memory taken. The number of tombstones is bounded: the oldest are dropped. If that moves
//! something, the comparison of addresses refuses the restore.
//!
//! The driver keeps the memory of a context's first executable graph for later ones when the graph ends (580.159.04): that
//! graph keeps its tombstone for good.

use std::collections::{BTreeMap, VecDeque};

use katydid_session_core::JournalFrame;

use super::entry::ObjectEntry;

/// Most tombstones of a journal.
const MAX_TOMBSTONES: usize = 64;
/// Most bytes of the images and descriptions of all tombstones.
const MAX_TOMBSTONE_BYTES: usize = 64 << 20;

/// An object that was destroyed but is replayed for the address layout.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) entry: ObjectEntry,
    pub(super) ended: JournalFrame,
}

impl Tombstone {
    fn bytes(&self) -> usize {
        self.entry.more().map_or(0, |more| {
            let image = more.image.as_ref().map_or(0, |image| image.length());
            image + more.steps.as_ref().map_or(0, |steps| steps.bytes.len())
        })
    }

    /// Returns whether it existed when the object with this number was made.
    pub(super) fn existed_at(&self, order: u64) -> bool {
        self.entry.creation.order < order && order < self.ended.order
    }
}

/// Every tombstone of a journal.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    /// In the order in which they ended.
    pub(super) entries: VecDeque<Tombstone>,
    /// First executable graph of each context, by the context's wire id.
    pub(super) first_graphs: BTreeMap<u32, Tombstone>,
}

impl Tombstones {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        self.entries.iter().chain(self.first_graphs.values())
    }

    pub(super) fn add(&mut self, tombstone: Tombstone) {
        self.entries.push_back(tombstone);
        while self.entries.len() > MAX_TOMBSTONES
            || self.entries.iter().map(Tombstone::bytes).sum::<usize>() > MAX_TOMBSTONE_BYTES
        {
            self.entries.pop_front();
        }
    }

    /// Removes the graphs of a context: they need no tombstones, as the context has its own.
    pub(super) fn end_context(&mut self, context: u32) {
        self.first_graphs.remove(&context);
        self.entries.retain(|tombstone| {
            tombstone.entry.more().is_none_or(|more| more.steps.is_none())
                || tombstone.entry.creation.context != context
        });
    }
}
