//! Ghosts: contexts, modules, libraries and executable graphs that ended while younger code lives on.
//!
//! A driver puts the variables of a module where there is room when it is loaded. What ended before that left its room
//! free again and is of no matter; what was there at that moment, and ended later, is replayed and ended again, so that
//! the younger module finds the same room taken. The number of ghosts is bounded: the oldest are dropped, and where that
//! moved something, a restore is refused when addresses are compared.
//!
//! The room of the first executable graph of a context stays the driver's when the graph ends, for those that follow
//! (580.159.04): that one is a ghost for good.

use std::collections::{BTreeMap, VecDeque};

use katydid_wire::frame::FrameHead;

use super::{Entry, Frame, Journal, Kind};

/// Ghosts that are kept at most.
const MAX_TOMBSTONES: usize = 64;
/// Bytes that the images and descriptions of all ghosts may have.
const MAX_TOMBSTONE_BYTES: usize = 64 << 20;

/// Something that ended.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) entry: Entry,
    pub(super) ended: Frame,
}

impl Tombstone {
    fn bytes(&self) -> usize {
        self.entry.more().map_or(0, |more| {
            let image = more.image.as_ref().map_or(0, |image| image.length());
            image + more.steps.as_ref().map_or(0, |steps| steps.bytes.len())
        })
    }

    /// It was there when something was made that had this number.
    fn was_there(&self, order: u64) -> bool {
        self.entry.made.order < order && order < self.ended.order
    }
}

/// All ghosts.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    /// In the order in which they ended.
    all: VecDeque<Tombstone>,
    /// By their contexts.
    first_graphs: BTreeMap<u32, Tombstone>,
}

impl Tombstones {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        self.all.iter().chain(self.first_graphs.values())
    }

    fn add(&mut self, tombstone: Tombstone) {
        self.all.push_back(tombstone);
        while self.all.len() > MAX_TOMBSTONES
            || self.all.iter().map(Tombstone::bytes).sum::<usize>() > MAX_TOMBSTONE_BYTES
        {
            self.all.pop_front();
        }
    }

    /// Graphs have no room without their context, which is a ghost by itself.
    pub(super) fn end_context(&mut self, context: u32) {
        self.first_graphs.remove(&context);
        self.all.retain(|tombstone| {
            tombstone.entry.more().is_none_or(|more| more.steps.is_none()) || tombstone.entry.made.context != context
        });
    }
}

impl Journal {
    /// A context, module or library was ended by a frame.
    pub(super) fn end_code(&mut self, kind: Kind, id: u64, head: &FrameHead, payload: &[u8]) {
        let Some(entry) = self.take(kind, id) else { return };
        if kind == Kind::Library {
            self.uses.end_library(id as u32);
        }
        let tombstone = Tombstone { entry, ended: Frame::new(head, 0, payload) };
        let alive = self.placed();
        if alive.iter().any(|order| tombstone.was_there(*order)) {
            self.tombstones.add(tombstone);
        }
        let others: Vec<u64> = self.tombstones.all.iter().map(|tombstone| tombstone.entry.made.order).collect();
        self.tombstones.all.retain(|tombstone| alive.iter().chain(&others).any(|order| tombstone.was_there(*order)));
    }

    /// An executable graph was ended by a frame.
    pub(super) fn end_graph(&mut self, mut entry: Entry, head: &FrameHead, payload: &[u8]) {
        let Frame { context, order, .. } = entry.made;
        entry.more_mut().sets.clear();
        let is_older = |other: &Entry| other.made.context == context && other.made.order < order;
        let is_first = !self.tombstones.first_graphs.contains_key(&context)
            && !self.sketches.values().any(is_older)
            && !self.of(Kind::Exec).any(|(_, other)| is_older(&other));
        let tombstone = Tombstone { entry, ended: Frame::new(head, 0, payload) };
        if is_first {
            self.tombstones.first_graphs.insert(context, tombstone);
        } else if self.last_placed > order && self.placed().iter().any(|order| tombstone.was_there(*order)) {
            self.tombstones.add(tombstone);
        }
    }

    /// The numbers of what lives and was put somewhere by the driver.
    fn placed(&self) -> Vec<u64> {
        let kinds = [Kind::Context, Kind::Module, Kind::Library].into_iter();
        kinds.flat_map(|kind| self.of(kind)).map(|(_, entry)| entry.made.order).collect()
    }
}
