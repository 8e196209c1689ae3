//! The journal: for every live object the frame that made it, and the last frame that set each of its properties.
//!
//! A restore replays these frames, in the order of their numbers, through the very dispatch that executed them: ids are
//! the program's, so objects come back under the ids that it knows. The size follows what is alive, never what was done:
//! an entry goes when its object does. Nothing here hashes, asks the driver or copies an image while the program runs;
//! events and streams, which come and go by the million, are a few words each in vectors by id ([`compact`]).
//!
//! | kept for | what |
//! |---|---|
//! | every object | the frame that made it, with the context that it belongs to |
//! | modules, libraries | the image, shared where two are the same |
//! | executable graphs | the description they were built from |
//! | variables, textures, surfaces, conditional handles, functions | what the program was told, to be compared |
//! | what ended while younger code lives on | a ghost ([`tombstones`]), so that the driver places that code as before |
//! | executable graphs that a restore made later than the program | a sketch: what takes their room at their first place |
//!
//! `docs/reference/checkpoint-state.md` lists where each part of a session's state is kept.

mod compact;
mod event_times;
mod graphs;
mod library_use;
mod notes;
mod numbers;
mod overhead_bench;
mod rebuild;
mod save;
mod state;
mod stream_highwater;
mod tombstones;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use katydid_fatbin::OwnedImage;
pub(crate) use katydid_session_core::Frame;

use compact::CompactEntries;
pub(crate) use event_times::EventTimes;
pub(crate) use graphs::needs;
use library_use::LibraryUse;
pub use overhead_bench::BenchedCall;
pub use rebuild::RebuildError;
pub(crate) use rebuild::Replay;
pub use save::{JournalError, Saved};
#[cfg(test)]
pub(crate) use state::read_state;
pub(crate) use state::records_of;
pub use state::{Opening, messages_of};
use stream_highwater::StreamHighwater;
use tombstones::Tombstones;

use crate::state::Session;

/// Kinds of objects. The first ones have ids that the program gives densely from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Named by its wire id, as the next six.
    Stream,
    Event,
    Context,
    /// Also what a library is in a context.
    Module,
    Library,
    /// From a module, or what a kernel is in a context.
    Function,
    Kernel,
    /// A piece of a device arena, by address.
    Growth,
    /// Addresses reserved by the program, by address.
    Reservation,
    /// Memory of the program's own making.
    Block,
    /// A block at an address.
    Mapping,
    /// Registered host memory, by address.
    Pinned,
    /// An executable graph.
    Exec,
    /// A conditional handle, by its value.
    Condition,
    /// An array, a mipmap, or a level of one.
    Array,
    /// By its number and context.
    Texture,
    /// The same.
    Surface,
    /// Access from the current context to another one's memory.
    Peer,
    /// To a texture or surface, by the program's number.
    Reference,
    /// Memory of another program, by address.
    Foreign,
    /// A block of managed memory that counts, by address.
    Managed,
}

impl Kind {
    /// The first that is not brief ([`CompactEntries`]), and the first without dense ids.
    const DENSE: usize = 2;
    const SPARSE: usize = 7;
    /// In the order of their numbers.
    const ALL: [Self; 21] = [
        Self::Stream,
        Self::Event,
        Self::Context,
        Self::Module,
        Self::Library,
        Self::Function,
        Self::Kernel,
        Self::Growth,
        Self::Reservation,
        Self::Block,
        Self::Mapping,
        Self::Pinned,
        Self::Exec,
        Self::Condition,
        Self::Array,
        Self::Texture,
        Self::Surface,
        Self::Peer,
        Self::Reference,
        Self::Foreign,
        Self::Managed,
    ];

    const fn place(self) -> Place {
        match self as usize {
            at if at < Self::DENSE => Place::CompactEntry(at),
            at if at < Self::SPARSE => Place::Dense(at - Self::DENSE),
            at => Place::Sparse(at - Self::SPARSE),
        }
    }

    /// Dies with the context that it was made in.
    fn is_of_context(self) -> bool {
        matches!(
            self,
            Self::Stream
                | Self::Event
                | Self::Module
                | Self::Function
                | Self::Exec
                | Self::Condition
                | Self::Array
                | Self::Texture
                | Self::Surface
                | Self::Peer
                | Self::Reference
        )
    }
}

/// Which property of an object a message sets or tells: each has one last message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selector {
    /// The one with this number.
    Number(u64),
    /// The one that the whole message names.
    Whole,
    /// That, with the message itself and its context.
    Message(u32, Box<[u8]>),
    /// A property of a default stream, which has no entry of its own: the stream in its context.
    OfDefault(u64, u64),
}

/// What a property was set to, or what was told.
#[derive(Debug, Clone)]
pub(crate) struct PropertySet {
    pub(crate) frame: Frame,
    /// What the program was told; nothing for what it set.
    pub(crate) told: Option<Box<[u8]>>,
}

/// What few objects have.
#[derive(Debug, Clone, Default)]
pub(crate) struct RareFields {
    /// By message and property: the last one of each.
    pub(crate) sets: BTreeMap<(u16, Selector), PropertySet>,
    /// What the program was told when it made the object.
    pub(crate) told: Option<Box<[u8]>>,
    /// The code of a module or library.
    pub(crate) image: Option<Arc<OwnedImage>>,
    /// The description of an executable graph.
    pub(crate) steps: Option<Steps>,
    /// The program gave the object up, but something still needs it: the frame that did.
    pub(crate) given_up: Option<Frame>,
}

/// One object.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) made: Frame,
    more: Option<Box<RareFields>>,
}

impl Entry {
    pub(crate) fn more(&self) -> Option<&RareFields> {
        self.more.as_deref()
    }

    fn more_mut(&mut self) -> &mut RareFields {
        self.more.get_or_insert_default()
    }
}

/// What a handler took out of the uploads for the object that is being made.
#[derive(Debug)]
pub(crate) enum Attachment {
    Image(Arc<OwnedImage>),
    Steps(Steps),
}

/// The description of an executable graph, as it came in pieces.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Objects that the graph cannot do without.
    pub(crate) needs: Vec<(Kind, u32)>,
}

/// All entries.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Of what programs make and end all the time.
    brief: [CompactEntries; Kind::DENSE],
    /// By kind and id, from 1.
    dense: [Vec<Option<Entry>>; Kind::SPARSE - Kind::DENSE],
    /// The other kinds, whose ids are addresses or numbers of a driver's.
    sparse: [BTreeMap<u64, Entry>; Kind::ALL.len() - Kind::SPARSE],
    tombstones: Tombstones,
    /// Executable graphs as they were made first, by number, of those that were not made there in the last restore.
    sketches: BTreeMap<u64, Entry>,
    /// The number of the context, module or library that was made last.
    last_placed: u64,
    pub(crate) uses: LibraryUse,
    pub(crate) pools: StreamHighwater,
    /// For the object that is being made.
    attachment: Option<Attachment>,
    /// Nothing is kept, and so nothing can be saved: what keeping it costs is being measured.
    is_off: bool,
}

/// Where the entries of a kind are.
enum Place {
    CompactEntry(usize),
    Dense(usize),
    Sparse(usize),
}

/// One id.
pub(crate) fn only(id: u64) -> Range<u64> {
    id..id.saturating_add(1)
}

/// The ids in `size` bytes at an address.
pub(crate) fn span(address: u64, size: u64) -> Range<u64> {
    address..address.saturating_add(size)
}

/// The part of an id that a driver chose, where contexts may count apart.
const NUMBER: u64 = (1 << 40) - 1;

/// The id of what means something in its context only.
fn in_context(kind: Kind, context: u32, id: u64) -> u64 {
    match kind {
        Kind::Peer => u64::from(context) << 32 | id,
        // Small numbers, in all drivers that are known.
        Kind::Texture | Kind::Surface if id <= NUMBER => u64::from(context) << 40 | id,
        _ => id,
    }
}

/// The first object, or the second where the first one is none.
pub(crate) fn either(first: (Kind, u64), second: (Kind, u64)) -> (Kind, u64) {
    if first.1 == 0 { second } else { first }
}

impl Session {
    /// Keeps nothing from here on, so that what a journal costs can be measured. The session cannot be saved then.
    pub fn keep_no_journal(&mut self) {
        self.journal.is_off = true;
    }
}

impl Journal {
    /// Keeps what a handler has read for the object that its message makes.
    pub(crate) fn attach(&mut self, attachment: Attachment) {
        self.attachment = Some(attachment);
    }

    fn insert(&mut self, kind: Kind, id: u64, entry: Entry) {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].insert(id, entry),
            Place::Dense(at) => {
                // The tables of handles have bounded the id.
                let (all, index) = (&mut self.dense[at], (id as usize).saturating_sub(1));
                if index >= all.len() {
                    all.resize_with(index + 1, || None);
                }
                all[index] = Some(entry);
            }
            Place::Sparse(at) => drop(self.sparse[at].insert(id, entry)),
        }
    }

    pub(crate) fn get(&self, kind: Kind, id: u64) -> Option<Cow<'_, Entry>> {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].get(id),
            Place::Dense(at) => self.dense[at].get((id as usize).checked_sub(1)?)?.as_ref().map(Cow::Borrowed),
            Place::Sparse(at) => self.sparse[at].get(&id).map(Cow::Borrowed),
        }
    }

    fn get_mut(&mut self, kind: Kind, id: u64) -> Option<&mut Entry> {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].get_mut(id),
            Place::Dense(at) => self.dense[at].get_mut((id as usize).checked_sub(1)?)?.as_mut(),
            Place::Sparse(at) => self.sparse[at].get_mut(&id),
        }
    }

    pub(crate) fn take(&mut self, kind: Kind, id: u64) -> Option<Entry> {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].take(id),
            Place::Dense(at) => self.dense[at].get_mut((id as usize).checked_sub(1)?)?.take(),
            Place::Sparse(at) => self.sparse[at].remove(&id),
        }
    }

    /// All entries of a kind.
    pub(crate) fn of(&self, kind: Kind) -> Box<dyn Iterator<Item = (u64, Cow<'_, Entry>)> + '_> {
        match kind.place() {
            Place::CompactEntry(at) => Box::new(self.brief[at].iter()),
            Place::Dense(at) => {
                let numbered = (1..).zip(&self.dense[at]);
                Box::new(numbered.filter_map(|(id, entry)| Some((id, Cow::Borrowed(entry.as_ref()?)))))
            }
            Place::Sparse(at) => Box::new(self.sparse[at].iter().map(|(id, entry)| (*id, Cow::Borrowed(entry)))),
        }
    }

    /// Keeps those entries of a kind for which `keep` holds.
    fn retain(&mut self, kind: Kind, mut keep: impl FnMut(u64, &mut Entry) -> bool) {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].retain(keep),
            Place::Dense(at) => (1..).zip(&mut self.dense[at]).for_each(|(id, slot)| {
                if slot.as_mut().is_some_and(|entry| !keep(id, entry)) {
                    *slot = None;
                }
            }),
            Place::Sparse(at) => self.sparse[at].retain(|id, entry| keep(*id, entry)),
        }
    }

    /// What few objects have, if this one does.
    fn more(&self, kind: Kind, id: u64) -> Option<&RareFields> {
        match kind.place() {
            Place::CompactEntry(at) => self.brief[at].whole(id)?.more(),
            Place::Dense(at) => self.dense[at].get((id as usize).checked_sub(1)?)?.as_ref()?.more(),
            Place::Sparse(at) => self.sparse[at].get(&id)?.more(),
        }
    }

    /// The image of a module or library.
    pub(crate) fn image(&self, kind: Kind, id: u32) -> Option<Arc<OwnedImage>> {
        self.more(kind, u64::from(id))?.image.clone()
    }

    /// Notes memory that is to be registered in the next context.
    fn keep_pinned(&mut self, address: u64, made: Frame) {
        self.insert(Kind::Pinned, address, Entry { made, more: None });
    }

    /// Drops host memory that is registered no more.
    pub(crate) fn keep_pinned_where(&mut self, is_registered: impl Fn(u64) -> bool) {
        self.retain(Kind::Pinned, |address, _| is_registered(address));
    }

    /// Drops managed memory that counts no more.
    pub(crate) fn keep_managed_where(&mut self, counts: impl Fn(u64) -> bool) {
        self.retain(Kind::Managed, |address, _| counts(address));
    }

    /// Notes where an executable graph was made first.
    fn keep_sketch(&mut self, exec: u32, made: Frame, steps: Steps) {
        let more = Some(Box::new(RareFields { steps: Some(steps), ..RareFields::default() }));
        self.sketches.insert(exec.into(), Entry { made, more });
    }

    /// A context is gone with all that was made in it. What belongs to none is made in any context from here on.
    pub(crate) fn end_context(&mut self, context: u32) {
        for kind in Kind::ALL {
            if kind.is_of_context() {
                self.retain(kind, |_, entry| entry.made.context != context);
            } else if kind != Kind::Context {
                self.retain(kind, |_, entry| {
                    if entry.made.context == context {
                        entry.made.context = 0;
                    }
                    if let Some(more) = &mut entry.more {
                        more.sets.retain(|_, set| set.frame.context != context);
                    }
                    true
                });
            }
        }
        self.retain(Kind::Peer, |id, _| id as u32 != context);
        self.sketches.retain(|_, entry| entry.made.context != context);
        self.tombstones.end_context(context);
        self.uses.end_context(context);
        self.pools.end_context(context);
    }
}
