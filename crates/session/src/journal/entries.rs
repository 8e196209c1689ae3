//! All entries of a journal, and which of them end together.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use katydid_fatbin::OwnedImage;
use katydid_session_core::JournalFrame;
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdKernelFunction, kdLibraryKernel, kdLibraryModule};

use super::compact::CompactEntries;
use super::entry::{EntryPosition, ObjectEntry, ObjectKind, RareFields, Steps, TakenUpload};
use super::library_use::LibraryUse;
use super::stream_highwater::StreamHighwater;
use super::tombstones::{Tombstone, Tombstones};

/// Every entry of a session's journal, by kind and id.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Entries of objects that programs make and end all the time.
    pub(super) compact: [CompactEntries; ObjectKind::DENSE],
    /// By kind and id, from 1.
    pub(super) dense: [Vec<Option<ObjectEntry>>; ObjectKind::SPARSE - ObjectKind::DENSE],
    /// The other kinds, whose ids are addresses or numbers of the driver.
    pub(super) sparse: [BTreeMap<u64, ObjectEntry>; ObjectKind::ALL.len() - ObjectKind::SPARSE],
    pub(super) tombstones: Tombstones,
    /// Executable graphs as they were first made, by number, if the last restore did not make them there.
    pub(super) sketches: BTreeMap<u64, ObjectEntry>,
    /// The number of the last context, module or library that was made.
    pub(super) last_placed: u64,
    pub(crate) uses: LibraryUse,
    pub(crate) pools: StreamHighwater,
    /// For the object that is being made.
    pub(super) attachment: Option<TakenUpload>,
    /// Whether nothing is kept, and so nothing can be saved: the overhead of the journal is being measured.
    pub(super) is_off: bool,
}

impl Journal {
    /// Keeps what a handler has read for the object that its message makes.
    pub(crate) fn attach(&mut self, attachment: TakenUpload) {
        self.attachment = Some(attachment);
    }

    pub(super) fn insert(&mut self, kind: ObjectKind, id: u64, entry: ObjectEntry) {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].insert(id, entry),
            EntryPosition::Dense(at) => {
                // The tables of handles have checked the bound of the id.
                let (all, index) = (&mut self.dense[at], (id as usize).saturating_sub(1));
                if index >= all.len() {
                    all.resize_with(index + 1, || None);
                }
                all[index] = Some(entry);
            }
            EntryPosition::Sparse(at) => drop(self.sparse[at].insert(id, entry)),
        }
    }

    pub(crate) fn get(&self, kind: ObjectKind, id: u64) -> Option<Cow<'_, ObjectEntry>> {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].get(id),
            EntryPosition::Dense(at) => self.dense[at].get((id as usize).checked_sub(1)?)?.as_ref().map(Cow::Borrowed),
            EntryPosition::Sparse(at) => self.sparse[at].get(&id).map(Cow::Borrowed),
        }
    }

    pub(super) fn get_mut(&mut self, kind: ObjectKind, id: u64) -> Option<&mut ObjectEntry> {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].get_mut(id),
            EntryPosition::Dense(at) => self.dense[at].get_mut((id as usize).checked_sub(1)?)?.as_mut(),
            EntryPosition::Sparse(at) => self.sparse[at].get_mut(&id),
        }
    }

    pub(crate) fn take(&mut self, kind: ObjectKind, id: u64) -> Option<ObjectEntry> {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].take(id),
            EntryPosition::Dense(at) => self.dense[at].get_mut((id as usize).checked_sub(1)?)?.take(),
            EntryPosition::Sparse(at) => self.sparse[at].remove(&id),
        }
    }

    /// Returns all entries of a kind.
    pub(crate) fn of(&self, kind: ObjectKind) -> Box<dyn Iterator<Item = (u64, Cow<'_, ObjectEntry>)> + '_> {
        match kind.position() {
            EntryPosition::Compact(at) => Box::new(self.compact[at].iter()),
            EntryPosition::Dense(at) => {
                let numbered = (1..).zip(&self.dense[at]);
                Box::new(numbered.filter_map(|(id, entry)| Some((id, Cow::Borrowed(entry.as_ref()?)))))
            }
            EntryPosition::Sparse(at) => {
                Box::new(self.sparse[at].iter().map(|(id, entry)| (*id, Cow::Borrowed(entry))))
            }
        }
    }

    /// Keeps those entries of a kind for which `keep` returns true.
    pub(super) fn retain(&mut self, kind: ObjectKind, mut keep: impl FnMut(u64, &mut ObjectEntry) -> bool) {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].retain(keep),
            EntryPosition::Dense(at) => (1..).zip(&mut self.dense[at]).for_each(|(id, slot)| {
                if slot.as_mut().is_some_and(|entry| !keep(id, entry)) {
                    *slot = None;
                }
            }),
            EntryPosition::Sparse(at) => self.sparse[at].retain(|id, entry| keep(*id, entry)),
        }
    }

    /// Returns an object's rare fields, if it has some.
    pub(super) fn more(&self, kind: ObjectKind, id: u64) -> Option<&RareFields> {
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].whole(id)?.more(),
            EntryPosition::Dense(at) => self.dense[at].get((id as usize).checked_sub(1)?)?.as_ref()?.more(),
            EntryPosition::Sparse(at) => self.sparse[at].get(&id)?.more(),
        }
    }

    /// Returns the image of a module or library.
    pub(crate) fn image(&self, kind: ObjectKind, id: u32) -> Option<Arc<OwnedImage>> {
        self.more(kind, u64::from(id))?.image.clone()
    }

    /// Adds memory that is to be registered in the next context.
    pub(super) fn keep_pinned(&mut self, address: u64, creation: JournalFrame) {
        self.insert(ObjectKind::Pinned, address, ObjectEntry { creation, more: None });
    }

    /// Drops host memory that is no longer registered.
    pub(crate) fn keep_pinned_where(&mut self, is_registered: impl Fn(u64) -> bool) {
        self.retain(ObjectKind::Pinned, |address, _| is_registered(address));
    }

    /// Drops managed memory that no longer counts.
    pub(crate) fn keep_managed_where(&mut self, counts: impl Fn(u64) -> bool) {
        self.retain(ObjectKind::Managed, |address, _| counts(address));
    }

    /// Records where an executable graph was first made.
    pub(super) fn keep_sketch(&mut self, exec: u32, creation: JournalFrame, steps: Steps) {
        let more = Some(Box::new(RareFields { steps: Some(steps), ..RareFields::default() }));
        self.sketches.insert(exec.into(), ObjectEntry { creation, more });
    }

    /// Ends a context with all objects made in it. Objects of no context can be made in any context from here on.
    pub(crate) fn end_context(&mut self, context: u32) {
        for kind in ObjectKind::ALL {
            if kind.is_of_context() {
                self.retain(kind, |_, entry| entry.creation.context != context);
            } else if kind != ObjectKind::Context {
                self.retain(kind, |_, entry| {
                    if entry.creation.context == context {
                        entry.creation.context = 0;
                    }
                    if let Some(more) = &mut entry.more {
                        more.sets.retain(|_, set| set.frame.context != context);
                    }
                    true
                });
            }
        }
        self.retain(ObjectKind::Peer, |id, _| id as u32 != context);
        self.sketches.retain(|_, entry| entry.creation.context != context);
        self.tombstones.end_context(context);
        self.uses.end_context(context);
        self.pools.end_context(context);
    }
}

/// First uses of libraries in contexts.
impl Journal {
    /// Notes that an object that was just made uses a library.
    pub(super) fn note_use(&mut self, kind: ObjectKind, creation: &JournalFrame) {
        let library = match (kind, creation.opcode) {
            (ObjectKind::Module, kdLibraryModule::OPCODE) => creation.word(4),
            (ObjectKind::Function, kdKernelFunction::OPCODE) => self.library_of(creation.word(4)),
            (ObjectKind::Kernel, _) => return self.uses.forget_kernel(creation.word(0)),
            _ => return,
        };
        self.uses.note(library, creation.context, creation.order);
    }

    /// Returns the library of a kernel; 0 for none.
    fn library_of(&self, kernel: u32) -> u32 {
        let entry = self.get(ObjectKind::Kernel, u64::from(kernel));
        entry.and_then(|entry| Some(kdLibraryKernel::decode(entry.creation.payload()).ok()?.library)).unwrap_or(0)
    }

    /// Returns whether the library of a kernel is in use in a context.
    pub(crate) fn is_used(&self, kernel: u32, context: u32) -> bool {
        self.uses.first.contains_key(&(self.library_of(kernel), context))
    }

    /// Notes a query about a kernel in a context, which loads its library there.
    pub(crate) fn used(&mut self, kernel: u32, context: u32, order: u64) {
        let library = if self.is_off { 0 } else { self.library_of(kernel) };
        if library != 0 {
            self.uses.note(library, context, order);
        }
    }

    /// Notes a launch of a kernel in a context. All but the first launch cost one lookup.
    pub(crate) fn launched(&mut self, kernel: u32, context: u32, order: u64) {
        let index = kernel as usize;
        if kernel == 0 || self.is_off || self.uses.launched.get(index) == Some(&context) {
            return;
        }
        let library = self.library_of(kernel);
        if library == 0 {
            return;
        }
        if index >= self.uses.launched.len() {
            self.uses.launched.resize(index + 1, 0);
        }
        self.uses.launched[index] = context;
        self.uses.launches.entry((kernel, context)).or_insert(order);
        self.uses.note(library, context, order);
    }
}

/// The objects that end with a message, and what a replay needs of them.
impl Journal {
    /// Ends a context, module or library, by a frame.
    pub(super) fn end_code(&mut self, kind: ObjectKind, id: u64, head: &FrameHead, payload: &[u8]) {
        let Some(entry) = self.take(kind, id) else { return };
        if kind == ObjectKind::Library {
            self.uses.end_library(id as u32);
        }
        let tombstone = Tombstone { entry, ended: JournalFrame::new(head, 0, payload) };
        let alive = self.placed();
        if alive.iter().any(|order| tombstone.existed_at(*order)) {
            self.tombstones.add(tombstone);
        }
        let others: Vec<u64> = self.tombstones.entries.iter().map(|tombstone| tombstone.entry.creation.order).collect();
        self.tombstones
            .entries
            .retain(|tombstone| alive.iter().chain(&others).any(|order| tombstone.existed_at(*order)));
    }

    /// Ends an executable graph, by a frame.
    pub(super) fn end_graph(&mut self, mut entry: ObjectEntry, head: &FrameHead, payload: &[u8]) {
        let JournalFrame { context, order, .. } = entry.creation;
        entry.more_mut().sets.clear();
        let is_older = |other: &ObjectEntry| other.creation.context == context && other.creation.order < order;
        let is_first = !self.tombstones.first_graphs.contains_key(&context)
            && !self.sketches.values().any(is_older)
            && !self.of(ObjectKind::Exec).any(|(_, other)| is_older(&other));
        let tombstone = Tombstone { entry, ended: JournalFrame::new(head, 0, payload) };
        if is_first {
            self.tombstones.first_graphs.insert(context, tombstone);
        } else if self.last_placed > order && self.placed().iter().any(|order| tombstone.existed_at(*order)) {
            self.tombstones.add(tombstone);
        }
    }

    /// Returns the numbers of live objects whose place the driver chose.
    fn placed(&self) -> Vec<u64> {
        let kinds = [ObjectKind::Context, ObjectKind::Module, ObjectKind::Library].into_iter();
        kinds.flat_map(|kind| self.of(kind)).map(|(_, entry)| entry.creation.order).collect()
    }

    /// Ends the stream with this id.
    #[inline]
    pub(super) fn end_stream(&mut self, id: u64) {
        if let Some(context) = self.compact[ObjectKind::Stream as usize].context(id) {
            self.pools.ended(context);
        }
    }
}
