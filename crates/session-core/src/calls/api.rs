//! The differences between APIs, for the code that all sessions share.

use katydid_transport::LinkError;
use katydid_wire::frame::FrameHead;

use crate::calls::in_flight::Calls;
use crate::calls::replies::Replies;
use crate::calls::usage::Usage;
use crate::journal::record::Messages;

/// One API. Its sessions set the type parameters; code that is generic over it is compiled separately for each API.
pub trait Api: Sized + 'static {
    /// The code that a driver returns from a call.
    type Code: Copy + Eq;
    /// State that all threads of a session share.
    type SessionShared: Send + Sync + 'static;
    /// What has to be current on a thread that calls the driver.
    type Context: Copy + Eq + Send + 'static;

    /// The code of a successful call.
    const SUCCESS: Self::Code;
    /// Context of a call that needs no current context.
    const NO_CONTEXT: Self::Context;
    /// Whether executors spin for their next call before they sleep.
    const EXECUTORS_SPIN: bool;
    /// All messages by their opcodes.
    const MESSAGES: Messages;

    /// Returns a code as replies carry it.
    fn to_wire(code: Self::Code) -> u32;

    /// Returns whether text that the device printed goes with a failure: it may tell the reason.
    fn brings_output(code: Self::Code) -> bool;

    /// Returns the counts of calls that executors run.
    fn calls(shared: &Self::SessionShared) -> &Calls;

    /// Returns the session's resource usage.
    fn usage(shared: &Self::SessionShared) -> &Usage;

    /// Returns the sender of replies to the program.
    fn replies(shared: &Self::SessionShared) -> &Replies;

    /// Makes a context current on the calling thread. If it is gone, the driver refuses it, and also the call that follows.
    fn enter(shared: &Self::SessionShared, context: Self::Context);

    /// Tells the program, now or with its next reply, that a call was not executed.
    ///
    /// # Errors
    ///
    /// The program is gone.
    fn refuse(shared: &Self::SessionShared, head: &FrameHead, code: Self::Code) -> Result<(), LinkError> {
        let replies = Self::replies(shared);
        if head.wants_reply {
            return replies.send(head, Self::to_wire(code), [&[]; 2], Self::brings_output(code));
        }
        replies.defer(Self::to_wire(code));
        Ok(())
    }
}
