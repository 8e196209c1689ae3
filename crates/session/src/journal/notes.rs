//! The notes of the generated dispatch for the journal: each message that made, changed, answered or ended something.
//!
//! All of this is part of the program's calls, so it copies a small payload and looks into one table. Effects of a message
//! on other entries (blocks held by mappings, handles used by graphs, copied attributes) are known only here.

use std::ops::Range;

use katydid_session_core::JournalFrame;
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    cuStreamCopyAttributes, kdGraphCondition, kdGraphForget, kdGraphInstantiate, kdMemoryImport, kdMemoryMap,
    kdStreamSetAttribute,
};

use super::entries::Journal;
use super::entry::{
    EntryPosition, ID_NUMBER_MASK, ObjectEntry, ObjectKind, PropertySet, Selector, TakenUpload, in_context,
};
use crate::state::Session;

/// Streams up to this id are the default ones: null, legacy, the thread's own.
const LAST_DEFAULT_STREAM: u32 = 2;
/// Offset of the device in messages that tune a kernel.
const DEVICE_FIELD_OFFSET: usize = 8;

impl Session {
    /// Turns the journal off, so that its overhead can be measured. The session cannot be saved then.
    pub fn keep_no_journal(&mut self) {
        self.journal.is_off = true;
    }

    /// Notes that a message made an object.
    pub(crate) fn made(&mut self, head: &FrameHead, (kind, id): (ObjectKind, u64), payload: &[u8]) {
        if self.journal.is_off {
            return;
        }
        // A frame without a context runs in the current one, and its objects end with that.
        let context = match kind {
            ObjectKind::Stream => self.entered,
            kind if kind.is_of_context() => self.current,
            _ => head.context,
        };
        if self.journal.keep_compact(head, (kind, id), context, payload) {
            return;
        }
        let mut entry = ObjectEntry { creation: JournalFrame::new(head, context, payload), more: None };
        match kind {
            // The upload that the handler took.
            ObjectKind::Module | ObjectKind::Library | ObjectKind::Exec => match self.journal.attachment.take() {
                Some(TakenUpload::Image(image)) => entry.more_mut().image = Some(image),
                Some(TakenUpload::Steps(steps)) => entry.more_mut().steps = Some(steps),
                None => {}
            },
            // The answer is still in the buffer where it was encoded.
            ObjectKind::Function
            | ObjectKind::Kernel
            | ObjectKind::Texture
            | ObjectKind::Surface
            | ObjectKind::Condition => {
                entry.more_mut().answer = Some(self.reply_payload.as_slice().into());
            }
            // A rehearsal needs the properties of another session's block from it.
            ObjectKind::Block if head.opcode == kdMemoryImport::OPCODE => {
                entry.more_mut().answer = Some(self.reply_payload.as_slice().into());
            }
            _ => {}
        }
        self.journal.keep(kind, in_context(kind, context, id), entry);
    }

    /// Notes that a message set a property of an object.
    pub(crate) fn changed(&mut self, head: &FrameHead, object: (ObjectKind, u64), property: Selector, payload: &[u8]) {
        if self.journal.is_off {
            return;
        }
        if head.opcode == cuStreamCopyAttributes::OPCODE {
            return self.copied_attributes(head, payload);
        }
        let frame = JournalFrame::new(head, self.current, payload);
        self.keep_set(object, property, PropertySet { frame, answer: None });
    }

    /// Notes that a message answered a query about an object.
    pub(crate) fn note_answer(
        &mut self,
        head: &FrameHead,
        object: (ObjectKind, u64),
        property: Selector,
        payload: &[u8],
    ) {
        if self.journal.is_off {
            return;
        }
        let frame = JournalFrame::new(head, self.current, payload);
        if object.0 == ObjectKind::Library {
            self.journal.uses.note(object.1 as u32, self.current, frame.order);
        }
        let answer = Some(self.reply_payload.as_slice().into());
        self.keep_set(object, property, PropertySet { frame, answer });
    }

    fn keep_set(&mut self, (kind, id): (ObjectKind, u64), property: Selector, mut set: PropertySet) {
        let (kind, id, property) = match (kind, property) {
            (_, Selector::Whole) => (kind, id, Selector::Message(set.frame.context, set.frame.payload().into())),
            // Default streams differ in each context, and one of them in each thread.
            (ObjectKind::Stream, Selector::Number(number)) if id <= u64::from(LAST_DEFAULT_STREAM) => {
                let stream = default_stream(set.frame.thread, id as u32);
                (ObjectKind::Context, u64::from(set.frame.context), Selector::OfDefault(stream, number))
            }
            // A kernel is tuned separately for each device, in all present and later contexts: the frame needs none.
            (ObjectKind::Kernel, Selector::Number(number)) => {
                set.frame.context = 0;
                (kind, id, Selector::Number(u64::from(set.frame.word(DEVICE_FIELD_OFFSET)) << 32 | number))
            }
            (_, property) => (kind, id, property),
        };
        if let Some(entry) = self.journal.get_mut(kind, id) {
            entry.more_mut().sets.insert((set.frame.opcode, property), set);
        }
    }

    /// Copies the attributes of a stream to another: those set on the first count for the second.
    fn copied_attributes(&mut self, head: &FrameHead, payload: &[u8]) {
        let Ok(cuStreamCopyAttributes { dst, src }) = cuStreamCopyAttributes::decode(payload) else { return };
        let (from, to) = (self.attributes_of(head, src), self.attributes_of(head, dst));
        for (kind, id, key) in to {
            if let Some(entry) = self.journal.get_mut(kind, id) {
                entry.more_mut().sets.remove(&key);
            }
        }
        // Recorded as if each had been set by a message of its own.
        let head = FrameHead { opcode: kdStreamSetAttribute::OPCODE, ..*head };
        for (kind, id, key) in from {
            let set = self.journal.more(kind, id).and_then(|more| more.sets.get(&key));
            let Some(set) = set else { continue };
            let (mut payload, number) = (set.frame.payload().to_vec(), u64::from(set.frame.word(4)));
            payload.splice(..4, dst.to_le_bytes());
            self.changed(&head, (ObjectKind::Stream, u64::from(dst)), Selector::Number(number), &payload);
        }
    }

    /// Returns the location of a stream's set attributes.
    fn attributes_of(&self, head: &FrameHead, stream: u32) -> Vec<(ObjectKind, u64, (u16, Selector))> {
        let default = default_stream(head.thread, stream);
        let (kind, id) = match stream {
            0..=LAST_DEFAULT_STREAM => (ObjectKind::Context, u64::from(self.current)),
            stream => (ObjectKind::Stream, u64::from(stream)),
        };
        let sets = self.journal.more(kind, id).map(|more| more.sets.keys());
        let is_its = |key: &&(u16, Selector)| match &key.1 {
            Selector::OfDefault(stream, _) => *stream == default,
            _ => kind == ObjectKind::Stream,
        };
        sets.into_iter().flatten().filter(is_its).map(|key| (kind, id, key.clone())).collect()
    }

    /// Notes that a message ended the objects with these ids.
    pub(crate) fn ended(&mut self, head: &FrameHead, kind: ObjectKind, ids: Range<u64>, payload: &[u8]) {
        if self.journal.is_off {
            return;
        }
        match kind {
            ObjectKind::Context | ObjectKind::Module | ObjectKind::Library => {
                self.journal.end_code(kind, ids.start, head, payload)
            }
            ObjectKind::Condition => self.journal.forget_conditions(head, payload),
            // A block lives as long as its handle or a mapping, as counted in the session's tables.
            ObjectKind::Block => {
                let is_kept = self.virtual_memory.knows(ids.start as u32);
                self.journal.give_up(ObjectKind::Block, ids.start, is_kept, JournalFrame::new(head, 0, payload));
            }
            ObjectKind::Mapping => {
                let blocks = self.journal.unmap(ids);
                blocks.into_iter().filter(|block| !self.virtual_memory.knows(*block)).for_each(|block| {
                    self.journal.take(ObjectKind::Block, u64::from(block));
                });
            }
            ObjectKind::Exec => self.journal.end_exec(ids.start, head, payload),
            ObjectKind::Peer | ObjectKind::Texture | ObjectKind::Surface => {
                let in_this = self.journal.take(kind, in_context(kind, self.current, ids.start));
                if in_this.is_none() && kind != ObjectKind::Peer {
                    // A driver that counts over all contexts accepts the number in any of them.
                    self.journal.retain(kind, |id, _| id & ID_NUMBER_MASK != ids.start);
                }
            }
            kind => self.journal.end_range(kind, ids),
        }
    }
}

impl Journal {
    pub(super) fn keep(&mut self, kind: ObjectKind, id: u64, entry: ObjectEntry) {
        self.note_use(kind, &entry.creation);
        if kind == ObjectKind::Stream {
            self.pools.count_stream(entry.creation.context, entry.creation.order);
        }
        if matches!(kind, ObjectKind::Context | ObjectKind::Module | ObjectKind::Library) {
            self.last_placed = entry.creation.order;
        }
        self.insert(kind, id, entry);
    }

    /// Adds an object if a compact entry can hold it.
    #[inline]
    pub(super) fn keep_compact(
        &mut self,
        head: &FrameHead,
        (kind, id): (ObjectKind, u64),
        context: u32,
        payload: &[u8],
    ) -> bool {
        let is_compact =
            self.compact.get_mut(kind as usize).is_some_and(|entries| entries.make(id, head, context, payload));
        if is_compact && kind == ObjectKind::Stream {
            self.pools.count_stream(context, head.sequence);
        }
        is_compact
    }

    pub(super) fn end_range(&mut self, kind: ObjectKind, ids: Range<u64>) {
        if kind == ObjectKind::Stream {
            self.end_stream(ids.start);
        }
        match kind.position() {
            EntryPosition::Compact(at) => self.compact[at].end(ids.start),
            EntryPosition::Dense(_) => drop(self.take(kind, ids.start)),
            EntryPosition::Sparse(at) => {
                while let Some((&id, _)) = self.sparse[at].range(ids.clone()).next() {
                    self.sparse[at].remove(&id);
                }
            }
        }
    }

    /// Notes that the program released an object; while `is_kept`, something else still holds it.
    fn give_up(&mut self, kind: ObjectKind, id: u64, is_kept: bool, by: JournalFrame) {
        match self.get_mut(kind, id) {
            Some(entry) if is_kept => entry.more_mut().given_up = Some(by),
            _ => drop(self.take(kind, id)),
        }
    }

    /// Removes mappings; returns the blocks that they held.
    fn unmap(&mut self, ids: Range<u64>) -> Vec<u32> {
        let gone = self.sparse[ObjectKind::Mapping as usize - ObjectKind::SPARSE].range(ids.clone());
        let blocks = gone.filter_map(|(_, entry)| Some(kdMemoryMap::decode(entry.creation.payload()).ok()?.memory));
        let blocks = blocks.collect();
        self.end_range(ObjectKind::Mapping, ids);
        blocks
    }

    /// Returns the graph that an executable one was made from.
    fn graph_of(exec: &ObjectEntry) -> Option<u32> {
        kdGraphInstantiate::decode(exec.creation.payload()).ok().map(|message| message.graph)
    }

    /// Forgets the conditional handles of a graph that is gone, unless executable graphs made from it still use them.
    fn forget_conditions(&mut self, head: &FrameHead, payload: &[u8]) {
        let Ok(kdGraphForget { graph }) = kdGraphForget::decode(payload) else { return };
        let is_used = self.of(ObjectKind::Exec).any(|(_, exec)| Self::graph_of(&exec) == Some(graph));
        let by = JournalFrame::new(head, 0, payload);
        self.retain(ObjectKind::Condition, |_, entry| {
            let is_its = entry.more().is_none_or(|more| more.given_up.is_none()) && condition_graph(entry) == graph;
            if is_its && is_used {
                entry.more_mut().given_up = Some(by.clone());
            }
            !is_its || is_used
        });
    }

    /// Ends an executable graph, and conditional handles that only it still used.
    fn end_exec(&mut self, id: u64, head: &FrameHead, payload: &[u8]) {
        let entry = self.take(ObjectKind::Exec, id);
        let graph = entry.as_ref().and_then(Self::graph_of);
        if let Some(entry) = self.sketches.remove(&id).or(entry) {
            self.end_graph(entry, head, payload);
        }
        let Some(graph) = graph else { return };
        if self.sparse[ObjectKind::Condition as usize - ObjectKind::SPARSE].is_empty() {
            return;
        }
        let launch_orders: Vec<u64> = self
            .of(ObjectKind::Exec)
            .filter(|(_, exec)| Self::graph_of(exec) == Some(graph))
            .map(|it| it.1.creation.order)
            .collect();
        self.retain(ObjectKind::Condition, |_, entry| {
            let creation_order = entry.creation.order;
            let ended = entry.more().and_then(|more| more.given_up.as_ref()).map(|by| by.order);
            let is_used = |ended: u64| launch_orders.iter().any(|exec| (creation_order..ended).contains(exec));
            condition_graph(entry) != graph || ended.is_none_or(is_used)
        });
    }
}

/// Returns the key of a default stream in its context: only the last one differs in each thread.
fn default_stream(thread: u32, stream: u32) -> u64 {
    let thread = if stream == LAST_DEFAULT_STREAM { u64::from(thread) } else { 0 };
    thread << 2 | u64::from(stream)
}

/// Returns the graph of a conditional handle.
fn condition_graph(entry: &ObjectEntry) -> u32 {
    kdGraphCondition::decode(entry.creation.payload()).map_or(0, |message| message.graph)
}
