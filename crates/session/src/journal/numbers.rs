//! Numbers that a driver chose and device code holds: textures, surfaces and conditional handles come back with their old
//! ones.
//!
//! Drivers count, so fillers use up the numbers between. Those of textures stay until the end of the replay, since a driver
//! may give a freed number to the next object.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUcontext, CUgraph, CUresult};
use katydid_session_core::{JournalRecord, StateError};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdGraphCondition, kdTextureCreate};

use super::entry::{ObjectKind, in_context};
use super::error::RebuildError;
use super::save::object_number;
use crate::device::ask::ask;
use crate::state::Session;

/// Most fillers of one replay.
const MAX_FILLERS: usize = 1 << 20;

impl Session {
    /// Makes a texture or surface again under its number.
    pub(super) fn replay_texture(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let is_texture = record.opcode == kdTextureCreate::OPCODE;
        let kind = if is_texture { ObjectKind::Texture } else { ObjectKind::Surface };
        let label = if is_texture { "a texture object" } else { "a surface object" };
        let saved_number = object_number(record);
        loop {
            self.run(record)?;
            let answer = self.reply_payload.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
            if answer == saved_number {
                return Ok(());
            }
            self.journal.take(kind, in_context(kind, self.current, answer));
            self.replay.numbers.fillers.push((record.context, is_texture, answer));
            if answer > saved_number || self.replay.numbers.fillers.len() >= MAX_FILLERS {
                return Err(RebuildError::Moved { what: label.to_owned(), saved: saved_number, current: answer });
            }
        }
    }

    /// Destroys the fillers.
    pub(super) fn end_fillers(&mut self) {
        for (context, is_texture, number) in std::mem::take(&mut self.replay.numbers.fillers) {
            if self.enter_context(context).is_err() {
                continue;
            }
            let driver = self.driver();
            // SAFETY: objects of this replay that no other code knows. If the driver cannot end one, it ends with the
            // process.
            let _ = unsafe {
                match is_texture {
                    true => driver.cuTexObjectDestroy(number),
                    false => driver.cuSurfObjectDestroy(number),
                }
            };
        }
    }

    /// Makes a conditional handle again.
    pub(super) fn replay_condition(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let saved_number = object_number(record);
        let moved =
            |current| RebuildError::Moved { what: "a conditional handle".to_owned(), saved: saved_number, current };
        let missing = saved_number.saturating_sub(self.replay.numbers.last_condition + 1);
        if missing > MAX_FILLERS as u64 {
            return Err(moved(self.replay.numbers.last_condition));
        }
        if missing > 0 {
            let last = self.use_up_conditions(record, missing)?;
            if last + 1 != saved_number {
                return Err(moved(last + 1));
            }
        }
        self.run(record)?;
        let answer = self.reply_payload.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        self.replay.numbers.last_condition = answer;
        if answer == saved_number { Ok(()) } else { Err(moved(answer)) }
    }

    /// Makes `count` handles in a temporary graph; returns the last one.
    fn use_up_conditions(&mut self, record: &JournalRecord, count: u64) -> Result<u64, RebuildError> {
        let refused = |code: CUresult| RebuildError::Refused { message: kdGraphCondition::NAME, code: code.0 };
        self.enter_context(record.context).map_err(RebuildError::from_fault)?;
        let message = kdGraphCondition::decode(&record.payload).map_err(StateError::from)?;
        let head = FrameHead {
            opcode: record.opcode,
            wants_reply: false,
            thread: record.thread,
            context: record.context,
            sequence: record.order,
        };
        let context: CUcontext = self.handle(&head, message.context).map_err(RebuildError::from_fault)?;
        let driver = self.driver();
        // SAFETY: the output is a local.
        let graph: CUgraph = ask(|out| unsafe { driver.cuGraphCreate(out, 0) }).map_err(refused)?;
        let one = || {
            // SAFETY: the output is a local, the handles are the driver's own.
            ask::<u64>(|out| unsafe { driver.cuGraphConditionalHandleCreate(out, graph, context, 0, 0) })
        };
        let last_handle = (0..count).try_fold(0, |_, _| one());
        // SAFETY: made above, and named by no other code.
        let _ = unsafe { driver.cuGraphDestroy(graph) };
        last_handle.map_err(refused)
    }
}
