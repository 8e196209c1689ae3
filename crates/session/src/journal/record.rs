//! One frame of a journal as bytes.
//!
//! Opcodes change when the specification does, so a record names its message by its place in a table of names and
//! layouts; a message that this build does not know, or knows with other fields, is refused by name.

use std::sync::Arc;

use katydid_wire::codec::{Field as _, Reader};
use katydid_wire::message::{message_layout, message_name};

use super::state::StateError;

/// What a record is replayed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// The frame, as the program sent it.
    Frame = 0,
    /// A library is used in a context for the first time; the payload is its id.
    Use = 1,
    /// A kernel is launched in a context for the first time; the payload is its id.
    Launch = 2,
}

impl Step {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Frame, Self::Use, Self::Launch].into_iter().find(|step| *step as u8 == number)
    }
}

/// One frame to replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) step: Step,
    pub(crate) order: u64,
    pub(crate) thread: u32,
    pub(crate) context: u32,
    /// Meaningless unless the step is a frame.
    pub(crate) opcode: u16,
    /// Number of the image among those saved beside the state.
    pub(crate) image: Option<u32>,
    /// What came in pieces before the frame.
    pub(crate) steps: Option<Arc<Vec<u8>>>,
    pub(crate) payload: Vec<u8>,
    /// What the program was told.
    pub(crate) told: Option<Vec<u8>>,
}

/// The messages that records name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    opcodes: Vec<u16>,
}

impl Names {
    /// The place of a message, which is added where it is new.
    fn place(&mut self, opcode: u16) -> u16 {
        let known = self.opcodes.iter().position(|other| *other == opcode);
        let place = known.unwrap_or_else(|| {
            self.opcodes.push(opcode);
            self.opcodes.len() - 1
        });
        place as u16
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        (self.opcodes.len() as u32).put(out);
        for opcode in &self.opcodes {
            message_name(*opcode).unwrap_or_default().to_owned().put(out);
            message_layout(*opcode).unwrap_or_default().put(out);
        }
    }

    /// # Errors
    ///
    /// A message that this build does not know as it was.
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = reader.take::<u32>()?;
        let mut opcodes = Vec::new();
        for _ in 0..count {
            let (name, layout) = (reader.take::<String>()?, reader.take::<u64>()?);
            let found = (1..).map_while(|opcode| Some((opcode, message_name(opcode)?))).find(|known| known.1 == name);
            let opcode = found.filter(|(opcode, _)| message_layout(*opcode) == Some(layout));
            opcodes.push(opcode.ok_or(StateError::UnknownMessage { name })?.0);
        }
        Ok(Self { opcodes })
    }
}

impl Record {
    pub(crate) fn put(&self, names: &mut Names, out: &mut Vec<u8>) {
        (self.step as u8).put(out);
        self.order.put(out);
        self.thread.put(out);
        self.context.put(out);
        if self.step == Step::Frame { names.place(self.opcode) } else { 0 }.put(out);
        self.image.map_or(0, |image| image + 1).put(out);
        for bytes in [self.steps.as_deref(), self.told.as_ref()] {
            u8::from(bytes.is_some()).put(out);
            bytes.into_iter().for_each(|bytes| bytes.put(out));
        }
        self.payload.put(out);
    }

    /// # Errors
    ///
    /// Damaged bytes.
    pub(crate) fn take(names: &Names, reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let damaged = |what| StateError::Damaged { what };
        let step = Step::from_number(reader.take()?).ok_or(damaged("the kind of a record"))?;
        let (order, thread, context) = (reader.take()?, reader.take()?, reader.take()?);
        let place: u16 = reader.take()?;
        let opcode = match step {
            Step::Frame => *names.opcodes.get(usize::from(place)).ok_or(damaged("the message of a record"))?,
            _ => 0,
        };
        let image: u32 = reader.take()?;
        let optional = |reader: &mut Reader<'_>| -> Result<Option<Vec<u8>>, StateError> {
            Ok(if reader.take::<u8>()? == 0 { None } else { Some(reader.take()?) })
        };
        let (steps, told) = (optional(reader)?.map(Arc::new), optional(reader)?);
        let payload = reader.take()?;
        Ok(Self { step, order, thread, context, opcode, image: image.checked_sub(1), steps, payload, told })
    }
}
