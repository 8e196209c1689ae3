//! What the journal keeps of one object.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use katydid_fatbin::OwnedImage;
use katydid_session_core::JournalFrame;

/// Kinds of objects. The first ones have ids that the program gives densely from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
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
    /// An executable graph (`CUgraphExec`).
    Exec,
    /// A conditional handle, by its value.
    Condition,
    /// An array, a mipmap, or a level of one.
    Array,
    /// By its number and context.
    Texture,
    /// A surface object, by its number and context.
    Surface,
    /// Access from the current context to another one's memory.
    Peer,
    /// To a texture or surface, by the program's number.
    Reference,
    /// Memory of another program, by address.
    Imported,
    /// A block of managed memory that counts, by address.
    Managed,
    /// One of an `object` line of the spec: the number of the type, from bit 32, and its wire id.
    Object,
}

impl ObjectKind {
    /// The first without compact entries ([`CompactEntries`](super::compact::CompactEntries)), and the first without dense ids.
    pub(super) const DENSE: usize = 2;
    pub(super) const SPARSE: usize = 7;
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 22] = [
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
        Self::Imported,
        Self::Managed,
        Self::Object,
    ];

    pub(super) const fn position(self) -> EntryPosition {
        match self as usize {
            at if at < Self::DENSE => EntryPosition::Compact(at),
            at if at < Self::SPARSE => EntryPosition::Dense(at - Self::DENSE),
            at => EntryPosition::Sparse(at - Self::SPARSE),
        }
    }

    /// Dies with the context that it was made in.
    pub(super) fn is_of_context(self) -> bool {
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
                | Self::Object
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

/// The value that a property was set to, or the answer of the driver.
#[derive(Debug, Clone)]
pub(crate) struct PropertySet {
    pub(crate) frame: JournalFrame,
    /// The answer that the program received; nothing for what it set.
    pub(crate) answer: Option<Box<[u8]>>,
}

/// What few objects have.
#[derive(Debug, Clone, Default)]
pub(crate) struct RareFields {
    /// By message and property: the last one of each.
    pub(crate) sets: BTreeMap<(u16, Selector), PropertySet>,
    /// The answer that the program received when it made the object.
    pub(crate) answer: Option<Box<[u8]>>,
    /// The code of a module or library.
    pub(crate) image: Option<Arc<OwnedImage>>,
    /// The description of an executable graph.
    pub(crate) steps: Option<Steps>,
    /// The program gave the object up, but something still needs it: the frame that did.
    pub(crate) given_up: Option<JournalFrame>,
}

/// What is kept of one live object: its frame, and what few objects have.
#[derive(Debug, Clone)]
pub(crate) struct ObjectEntry {
    pub(crate) creation: JournalFrame,
    pub(super) more: Option<Box<RareFields>>,
}

impl ObjectEntry {
    pub(crate) fn more(&self) -> Option<&RareFields> {
        self.more.as_deref()
    }

    pub(super) fn more_mut(&mut self) -> &mut RareFields {
        self.more.get_or_insert_default()
    }
}

/// What a handler took out of the uploads for the object that is being made.
#[derive(Debug)]
pub(crate) enum TakenUpload {
    Image(Arc<OwnedImage>),
    Steps(Steps),
}

/// The description of an executable graph, as it came in pieces.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Objects that the graph cannot do without.
    pub(crate) needs: Vec<(ObjectKind, u32)>,
}

/// Where the entries of a kind are.
pub(super) enum EntryPosition {
    Compact(usize),
    Dense(usize),
    Sparse(usize),
}

/// The range that holds one id alone.
pub(crate) fn only(id: u64) -> Range<u64> {
    id..id.saturating_add(1)
}

/// The ids in `size` bytes at an address.
pub(crate) fn span(address: u64, size: u64) -> Range<u64> {
    address..address.saturating_add(size)
}

/// The part of an id that a driver chose, where contexts may count apart.
pub(super) const ID_NUMBER_MASK: u64 = (1 << 40) - 1;

/// The id of what means something in its context only.
pub(super) fn in_context(kind: ObjectKind, context: u32, id: u64) -> u64 {
    match kind {
        ObjectKind::Peer => u64::from(context) << 32 | id,
        // Small numbers, in all drivers that are known.
        ObjectKind::Texture | ObjectKind::Surface if id <= ID_NUMBER_MASK => u64::from(context) << 40 | id,
        _ => id,
    }
}

/// The first object, or the second where the first one is none.
pub(crate) fn either(first: (ObjectKind, u64), second: (ObjectKind, u64)) -> (ObjectKind, u64) {
    if first.1 == 0 { second } else { first }
}
