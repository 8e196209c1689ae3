//! Executes the frames of a journal again, in a session that is being rebuilt.
//!
//! Saved state is trusted no more than a program is: every frame passes the dispatch and its checks, and only messages that
//! a journal can hold are accepted.

use katydid_wire::frame::FrameHead;

use crate::calls::api::Api;
use crate::calls::error::{Fault as _, SessionError};
use crate::calls::main_loop::FrameHandler;
use crate::journal::record::{JournalRecord, StateError};

/// Why a frame is not executed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state holds a message that no journal holds.
    #[error("the state of the session is damaged: {message} cannot be part of it")]
    NotKept {
        /// Name of the message.
        message: &'static str,
    },
    /// A frame breaks the protocol.
    #[error("the state of the session is damaged: {0}")]
    Breach(#[from] SessionError),
}

/// A session in which frames can be replayed.
pub trait ReplayTarget: FrameHandler {
    /// Switches replaying: while it is on, replies are not sent.
    fn set_replaying(&mut self, is_on: bool);

    /// The status of the current frame: handlers store it here instead of sending a reply.
    fn outcome(&mut self) -> &mut <Self::Api as Api>::Code;

    /// Returns whether a journal may hold a message.
    fn may_replay(opcode: u16) -> bool;
}

impl JournalRecord {
    /// Returns the frame's head as its program sent it, in the context of the record.
    #[must_use]
    pub fn head(&self) -> FrameHead {
        let Self { order: sequence, thread, context, opcode, .. } = *self;
        FrameHead { opcode, wants_reply: true, thread, context, sequence }
    }

    /// Returns the first number of its payload; none for a shorter one.
    #[must_use]
    pub fn first_word(&self) -> Option<u32> {
        self.payload.first_chunk().map(|word| u32::from_le_bytes(*word))
    }
}

/// Runs `work` while replies are not sent.
pub fn replaying<S: ReplayTarget, R>(session: &mut S, work: impl FnOnce(&mut S) -> R) -> R {
    session.set_replaying(true);
    let outcome = work(session);
    session.set_replaying(false);
    outcome
}

/// Executes a record's frame with this head; returns its status.
///
/// # Errors
///
/// [`ReplayError`].
pub fn replay<S: ReplayTarget>(
    session: &mut S,
    head: &FrameHead,
    record: &JournalRecord,
) -> Result<<S::Api as Api>::Code, ReplayError> {
    if !S::may_replay(record.opcode) {
        return Err(ReplayError::NotKept { message: S::Api::MESSAGES.name_of(record.opcode) });
    }
    Ok(execute_quietly(session, head, &record.payload)?)
}

/// Executes a frame without sending a reply, from a journal or made by the session; returns its status.
///
/// # Errors
///
/// The frame breaks the protocol.
pub fn execute_quietly<S: ReplayTarget>(
    session: &mut S,
    head: &FrameHead,
    payload: &[u8],
) -> Result<<S::Api as Api>::Code, SessionError> {
    *session.outcome() = S::Api::SUCCESS;
    match session.dispatch(head, payload) {
        Ok(()) => Ok(*session.outcome()),
        Err(fault) => fault.into_code(),
    }
}
