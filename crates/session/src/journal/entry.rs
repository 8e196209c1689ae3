//! The journal's entry of one object.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use katydid_fatbin::OwnedImage;
use katydid_session_core::JournalFrame;

/// Kinds of objects. The first ones have ids that the program assigns densely from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    /// Named by its wire id, as the next six.
    Stream,
    Event,
    Context,
    /// Also the module of a library in a context.
    Module,
    Library,
    /// From a module, or the function of a kernel in a context.
    Function,
    Kernel,
    /// A piece of a device arena, by address.
    Growth,
    /// Addresses reserved by the program, by address.
    Reservation,
    /// A block of the virtual memory API.
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
    /// A counted block of managed memory, by address.
    Managed,
    /// An object of a type with an `object` line in the spec: the number of the type, from bit 32, and its wire id.
    Object,
}

impl ObjectKind {
    /// The first kind without compact entries ([`CompactEntries`](super::compact::CompactEntries)), and the first without
    /// dense ids.
    pub(super) const DENSE: usize = 2;
    pub(super) const SPARSE: usize = 7;
    /// All kinds in the order of their numbers.
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

    /// Returns whether it ends with the context in which it was made.
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

/// The property of an object that a message sets or queries: each has one last message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selector {
    /// The property with this number.
    Number(u64),
    /// The only property that the message sets.
    Whole,
    /// The property named by the message's bytes and its context.
    Message(u32, Box<[u8]>),
    /// A property of a default stream, which has no entry of its own: the stream in its context.
    OfDefault(u64, u64),
}

/// The value that a property was set to, or the driver's answer.
#[derive(Debug, Clone)]
pub(crate) struct PropertySet {
    pub(crate) frame: JournalFrame,
    /// The answer that the program received; none for a set property.
    pub(crate) answer: Option<Box<[u8]>>,
}

/// Fields that few objects have.
#[derive(Debug, Clone, Default)]
pub(crate) struct RareFields {
    /// The last frame of each message and property.
    pub(crate) sets: BTreeMap<(u16, Selector), PropertySet>,
    /// The answer that the program received when it made the object.
    pub(crate) answer: Option<Box<[u8]>>,
    /// The code of a module or library.
    pub(crate) image: Option<Arc<OwnedImage>>,
    /// The description of an executable graph.
    pub(crate) steps: Option<Steps>,
    /// The frame by which the program released the object, if something still needs it.
    pub(crate) given_up: Option<JournalFrame>,
}

/// The entry of one live object: its frame, and its rare fields.
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

/// An upload that a handler took for the object that is being made.
#[derive(Debug)]
pub(crate) enum TakenUpload {
    Image(Arc<OwnedImage>),
    Steps(Steps),
}

/// The description of an executable graph, as it was uploaded.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Objects that the graph needs.
    pub(crate) needs: Vec<(ObjectKind, u32)>,
}

/// The location of the entries of a kind.
pub(super) enum EntryPosition {
    Compact(usize),
    Dense(usize),
    Sparse(usize),
}

/// Returns the range of one id.
pub(crate) fn only(id: u64) -> Range<u64> {
    id..id.saturating_add(1)
}

/// Returns the ids in `size` bytes at an address.
pub(crate) fn span(address: u64, size: u64) -> Range<u64> {
    address..address.saturating_add(size)
}

/// The part of an id that a driver chose: contexts may count separately.
pub(super) const ID_NUMBER_MASK: u64 = (1 << 40) - 1;

/// Returns the id of an object whose number is unique only within its context.
pub(super) fn in_context(kind: ObjectKind, context: u32, id: u64) -> u64 {
    match kind {
        ObjectKind::Peer => u64::from(context) << 32 | id,
        // Small numbers, in all known drivers.
        ObjectKind::Texture | ObjectKind::Surface if id <= ID_NUMBER_MASK => u64::from(context) << 40 | id,
        _ => id,
    }
}

/// Returns the first object, or the second if the first has id 0.
pub(crate) fn either(first: (ObjectKind, u64), second: (ObjectKind, u64)) -> (ObjectKind, u64) {
    if first.1 == 0 { second } else { first }
}
