//! Compact entries of events and streams, which programs make and end by the million. The few words of the message that made
//! one are in a vector by id. So its entry allocates no memory, and one byte ends it.
//!
//! If a longer message made the object, or a property was set, it has an entry like those of other objects instead.

use std::borrow::Cow;
use std::collections::BTreeMap;

use katydid_session_core::JournalFrame;
use katydid_wire::frame::FrameHead;

use super::entry::ObjectEntry;

/// All entries of a kind, by id from 1: each has its words, or a whole entry, or nothing.
#[derive(Debug, Default)]
pub(super) struct CompactEntries {
    entries: Vec<CompactEntry>,
    whole: BTreeMap<u64, ObjectEntry>,
}

/// A frame of 8 or 12 bytes. Each field is written separately: a copy of the whole entry would wait for each.
#[derive(Debug, Clone, Copy, Default)]
struct CompactEntry {
    order: u64,
    thread: u32,
    context: u32,
    first: [u8; 8],
    last: [u8; 4],
    opcode: u16,
    /// Bytes of the payload; 0 for no object.
    length: u8,
}

impl CompactEntry {
    fn frame(&self) -> Option<JournalFrame> {
        let Self { order: sequence, thread, context, first, last, opcode, length } = *self;
        let mut payload = [0; 12];
        payload[..first.len()].copy_from_slice(&first);
        payload[first.len()..].copy_from_slice(&last);
        let head = FrameHead { opcode, wants_reply: false, thread, context, sequence };
        (length > 0).then(|| JournalFrame::new(&head, context, &payload[..usize::from(length)]))
    }

    fn entry(&self) -> Option<ObjectEntry> {
        self.frame().map(|creation| ObjectEntry { creation, more: None })
    }
}

/// Returns the index of an id in the vector; far beyond its end for 0.
fn index_of(id: u64) -> usize {
    (id as usize).wrapping_sub(1)
}

impl CompactEntries {
    /// Adds an object made in a context; false if its message is too long for a compact entry, and it has none yet.
    #[inline]
    pub(super) fn make(&mut self, id: u64, head: &FrameHead, context: u32, payload: &[u8]) -> bool {
        let Some((first, tail)) = payload.split_first_chunk() else { return false };
        let Some(entries) = self.entries.get_mut(index_of(id)) else { return self.grow(id, head, context, payload) };
        match (tail, tail.first_chunk()) {
            ([], _) => {}
            ([_, _, _, _], Some(last)) => entries.last = *last,
            _ => return false,
        }
        entries.first = *first;
        entries.order = head.sequence;
        entries.thread = head.thread;
        entries.context = context;
        entries.opcode = head.opcode;
        entries.length = payload.len() as u8;
        if !self.whole.is_empty() {
            // The program has ended any earlier object with this id.
            self.forget(id);
        }
        true
    }

    #[cold]
    fn grow(&mut self, id: u64, head: &FrameHead, context: u32, payload: &[u8]) -> bool {
        // The tables of handles have checked the bound of the id.
        self.entries.resize(id as usize, CompactEntry::default());
        id != 0 && self.make(id, head, context, payload)
    }

    /// Removes the entry of an object that is gone.
    #[inline]
    pub(super) fn end(&mut self, id: u64) {
        match self.entries.get_mut(index_of(id)) {
            Some(entries) if entries.length > 0 => entries.length = 0,
            _ => self.forget(id),
        }
    }

    #[cold]
    fn forget(&mut self, id: u64) {
        self.whole.remove(&id);
    }

    pub(super) fn insert(&mut self, id: u64, entry: ObjectEntry) {
        self.end(id);
        self.whole.insert(id, entry);
    }

    pub(super) fn get(&self, id: u64) -> Option<Cow<'_, ObjectEntry>> {
        let compact = self.entries.get(index_of(id)).and_then(CompactEntry::entry);
        compact.map(Cow::Owned).or_else(|| self.whole.get(&id).map(Cow::Borrowed))
    }

    /// Returns the context in which an object was made.
    #[inline]
    pub(super) fn context(&self, id: u64) -> Option<u32> {
        match self.entries.get(index_of(id)) {
            Some(entries) if entries.length > 0 => Some(entries.context),
            _ => self.whole.get(&id).map(|entry| entry.creation.context),
        }
    }

    /// Returns the entry, if it is a whole one.
    pub(super) fn whole(&self, id: u64) -> Option<&ObjectEntry> {
        self.whole.get(&id)
    }

    /// Returns the entry, which becomes a whole one.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut ObjectEntry> {
        if let Some(entry) = self.entries.get(index_of(id)).and_then(CompactEntry::entry) {
            self.insert(id, entry);
        }
        self.whole.get_mut(&id)
    }

    pub(super) fn take(&mut self, id: u64) -> Option<ObjectEntry> {
        let entry = self.get(id).map(Cow::into_owned);
        self.end(id);
        entry
    }

    /// Iterates by id over compact entries, then over whole ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Cow<'_, ObjectEntry>)> {
        let compact = (1..).zip(&self.entries).filter_map(|(id, entries)| Some((id, Cow::Owned(entries.entry()?))));
        compact.chain(self.whole.iter().map(|(id, entry)| (*id, Cow::Borrowed(entry))))
    }

    /// Keeps entries for which `keep` returns true. Its changes only affect whole entries.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u64, &mut ObjectEntry) -> bool) {
        for (id, entries) in (1..).zip(&mut self.entries) {
            if entries.entry().is_some_and(|mut entry| !keep(id, &mut entry)) {
                entries.length = 0;
            }
        }
        self.whole.retain(|id, entry| keep(*id, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::entry::RareFields;

    fn head(sequence: u64) -> FrameHead {
        FrameHead { opcode: 7, wants_reply: true, thread: 2, context: 3, sequence }
    }

    fn ids(entries: &CompactEntries) -> Vec<u64> {
        entries.iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn compact_entries_expand_to_their_frames() {
        let mut entries = CompactEntries::default();
        for (id, payload) in [(4, &[1, 2, 3, 4, 5, 6, 7, 8][..]), (2, &[9; 12])] {
            assert!(entries.make(id, &head(id + 10), 5, payload));
            assert_eq!(entries.get(id).unwrap().creation, JournalFrame::new(&head(id + 10), 5, payload));
        }
        assert_eq!(ids(&entries), [2, 4]);
        assert_eq!(entries.take(4).unwrap().creation.order, 14);
        assert!(entries.get(4).is_none() && entries.take(4).is_none() && entries.get(0).is_none());
        entries.end(2);
        assert!(ids(&entries).is_empty());
    }

    #[test]
    fn other_messages_are_left_to_whole_entries() {
        let mut entries = CompactEntries::default();
        for length in [0, 7, 9, 11, 13, 16, 40] {
            assert!(!entries.make(1, &head(1), 5, &vec![1; length]), "{length}");
            assert!(entries.get(1).is_none(), "{length}");
        }
        entries.insert(1, ObjectEntry { creation: JournalFrame::new(&head(1), 5, &[1; 40]), more: None });
        assert_eq!(entries.get(1).unwrap().creation.payload(), [1; 40]);
        entries.end(1);
        assert!(entries.get(1).is_none());
        assert!(!entries.make(0, &head(1), 5, &[1; 8]));
    }

    #[test]
    fn an_object_with_a_property_is_whole_until_its_id_is_given_again() {
        let mut entries = CompactEntries::default();
        assert!(entries.make(1, &head(1), 5, &[1; 8]) && entries.whole(1).is_none());
        entries.get_mut(1).unwrap().more =
            Some(Box::new(RareFields { answer: Some(Box::new([])), ..RareFields::default() }));
        assert!(entries.get(1).unwrap().more().is_some_and(|more| more.answer.is_some()));
        assert_eq!((ids(&entries), entries.get(1).unwrap().creation.order), (vec![1], 1));
        assert!(entries.make(1, &head(2), 5, &[1; 8]));
        assert!(entries.get(1).unwrap().more().is_none() && entries.whole(1).is_none());
        assert_eq!((ids(&entries), entries.get(1).unwrap().creation.order), (vec![1], 2));
    }

    #[test]
    fn all_of_them_are_asked_whether_they_stay() {
        let mut entries = CompactEntries::default();
        (1..=4).for_each(|id| assert!(entries.make(id, &head(id), id as u32 % 2, &[1; 8])));
        entries.get_mut(1).unwrap();
        entries.get_mut(2).unwrap();
        entries.retain(|_, entry| entry.creation.context == 0);
        assert_eq!(ids(&entries), [4, 2]);
    }
}
