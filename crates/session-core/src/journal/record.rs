//! A record of a journal as bytes.
//!
//! Opcodes change with the specification, so a record names its message by an index in a table of names and layouts. If this
//! build does not know a message, or knows it with other fields, the error names it.

use std::sync::Arc;

use katydid_wire::codec::{CodecError, Field as _, Reader};

/// Why saved state cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes are not saved state.
    #[error("this is not a session state")]
    Magic,
    /// Written by a newer release.
    #[error(
        "the state of the session has version {found}; this build reads up to {newest}: restore it with the release that wrote it"
    )]
    TooNew {
        /// Format version in the state's head.
        found: u32,
        /// The newest that this build knows.
        newest: u32,
    },
    /// The bytes do not match the format.
    #[error("the state of the session is damaged: {0}")]
    Codec(#[from] CodecError),
    /// A field has an impossible value.
    #[error("the state of the session is damaged: {what} has an impossible value")]
    Damaged {
        /// Name of the field.
        what: &'static str,
    },
    /// A message that this build does not have, or has with other fields.
    #[error(
        "the state of the session holds the message {name} in a form that this build does not know; restore it with the release that wrote it"
    )]
    UnknownMessage {
        /// Name of the message, as the state spells it.
        name: String,
    },
}

/// How a record is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplayStep {
    /// The frame, as the program sent it.
    Frame = 0,
    /// A library is used in a context for the first time; the payload is its id.
    Use = 1,
    /// A kernel is launched in a context for the first time; the payload is its id.
    Launch = 2,
    /// An executable graph takes memory of the driver; message and description are those that made it.
    Sketch = 3,
    /// So many streams existed at once in a context; the payload is their number.
    Streams = 4,
}

impl ReplayStep {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Frame, Self::Use, Self::Launch, Self::Sketch, Self::Streams]
            .into_iter()
            .find(|step| *step as u8 == number)
    }
}

/// A record of the saved journal, which a restore executes again: a frame of the program, or another step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    /// How the replay executes this record: as a frame, a launch, or another step.
    pub step: ReplayStep,
    /// Number of the frame.
    pub order: u64,
    /// Thread of the program that sent the frame, numbered from 1.
    pub thread: u32,
    /// The context that was current; 0: any.
    pub context: u32,
    /// Meaningless unless the step is a frame.
    pub opcode: u16,
    /// Number of the image among those saved beside the state.
    pub image: Option<u32>,
    /// Bytes that came in pieces before the frame; none if it had no such data.
    pub steps: Option<Arc<Vec<u8>>>,
    /// Encoded message, without its frame head.
    pub payload: Vec<u8>,
    /// The answer that the program received.
    pub answer: Option<Vec<u8>>,
}

/// The messages of one API: the name and the layout of each, by its opcode.
#[derive(Debug, Clone, Copy)]
pub struct Messages {
    /// Returns a message's name; none for an unknown opcode.
    pub name: fn(u16) -> Option<&'static str>,
    /// Returns a hash of the layout, which changes with the message's fields.
    pub layout: fn(u16) -> Option<u64>,
}

impl Messages {
    /// Returns the name of a message for users.
    #[must_use]
    pub fn name_of(&self, opcode: u16) -> &'static str {
        (self.name)(opcode).unwrap_or("a message")
    }
}

/// The messages that records refer to.
#[derive(Debug)]
pub struct MessageTable {
    messages: Messages,
    opcodes: Vec<u16>,
}

impl MessageTable {
    /// Makes an empty table of these messages.
    #[must_use]
    pub fn new(messages: Messages) -> Self {
        Self { messages, opcodes: Vec::new() }
    }

    /// Returns the index of an opcode, which is added if it is new.
    fn opcode_index(&mut self, opcode: u16) -> u16 {
        let known = self.opcodes.iter().position(|other| *other == opcode);
        let index = known.unwrap_or_else(|| {
            self.opcodes.push(opcode);
            self.opcodes.len() - 1
        });
        index as u16
    }

    /// Appends the names and layouts of the messages to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        (self.opcodes.len() as u32).put(out);
        for opcode in &self.opcodes {
            (self.messages.name)(*opcode).unwrap_or_default().to_owned().put(out);
            (self.messages.layout)(*opcode).unwrap_or_default().put(out);
        }
    }

    /// Reads the table.
    ///
    /// # Errors
    ///
    /// A message that this build does not know in the saved form.
    pub fn take(messages: Messages, reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = reader.take::<u32>()?;
        let mut opcodes = Vec::new();
        for _ in 0..count {
            let (name, layout) = (reader.take::<String>()?, reader.take::<u64>()?);
            let found =
                (1..).map_while(|opcode| Some((opcode, (messages.name)(opcode)?))).find(|known| known.1 == name);
            let opcode = found.filter(|(opcode, _)| (messages.layout)(*opcode) == Some(layout));
            opcodes.push(opcode.ok_or(StateError::UnknownMessage { name })?.0);
        }
        Ok(Self { messages, opcodes })
    }
}

impl JournalRecord {
    /// Writes the record, and adds its message to the table.
    pub fn put(&self, names: &mut MessageTable, out: &mut Vec<u8>) {
        (self.step as u8).put(out);
        self.order.put(out);
        self.thread.put(out);
        self.context.put(out);
        if self.step == ReplayStep::Frame { names.opcode_index(self.opcode) } else { 0 }.put(out);
        self.image.map_or(0, |image| image + 1).put(out);
        for bytes in [self.steps.as_deref(), self.answer.as_ref()] {
            u8::from(bytes.is_some()).put(out);
            bytes.into_iter().for_each(|bytes| bytes.put(out));
        }
        self.payload.put(out);
    }

    /// Reads a record.
    ///
    /// # Errors
    ///
    /// Damaged bytes.
    pub fn take(names: &MessageTable, reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let damaged = |what| StateError::Damaged { what };
        let step = ReplayStep::from_number(reader.take()?).ok_or(damaged("the kind of a record"))?;
        let (order, thread, context) = (reader.take()?, reader.take()?, reader.take()?);
        let index: u16 = reader.take()?;
        let opcode = match step {
            ReplayStep::Frame => *names.opcodes.get(usize::from(index)).ok_or(damaged("the message of a record"))?,
            _ => 0,
        };
        let image: u32 = reader.take()?;
        let optional = |reader: &mut Reader<'_>| -> Result<Option<Vec<u8>>, StateError> {
            Ok(if reader.take::<u8>()? == 0 { None } else { Some(reader.take()?) })
        };
        let (steps, answer) = (optional(reader)?.map(Arc::new), optional(reader)?);
        let payload = reader.take()?;
        Ok(Self { step, order, thread, context, opcode, image: image.checked_sub(1), steps, payload, answer })
    }
}
