//! What differs between APIs, as the parts see it that all sessions share.

use katydid_transport::LinkError;
use katydid_wire::frame::FrameHead;

use crate::calls::in_flight::Calls;
use crate::calls::replies::Replies;
use crate::calls::usage::Usage;
use crate::journal::record::Messages;

/// One API. Its sessions give the type parameters; everything generic over it is compiled for each API apart.
pub trait Api: Sized + 'static {
    /// What a driver answers to a call.
    type Code: Copy + Eq;
    /// What all threads of a session share.
    type SessionShared: Send + Sync + 'static;
    /// What has to be current on the thread that calls the driver.
    type Context: Copy + Eq + Send + 'static;

    /// The answer to a call that did what it should.
    const SUCCESS: Self::Code;
    /// Context of a call that needs no current context.
    const NO_CONTEXT: Self::Context;
    /// Whether executors look for their next call for a while before they sleep.
    const EXECUTORS_SPIN: bool;
    /// All messages by their opcodes.
    const MESSAGES: Messages;

    /// A code as replies carry it.
    fn to_wire(code: Self::Code) -> u32;

    /// Whether what the device printed goes with a refusal: it may be the reason.
    fn brings_output(code: Self::Code) -> bool;

    /// Calls that executors have.
    fn calls(shared: &Self::SessionShared) -> &Calls;

    /// What the session uses.
    fn usage(shared: &Self::SessionShared) -> &Usage;

    /// The way back to the program.
    fn replies(shared: &Self::SessionShared) -> &Replies;

    /// Makes a context current on the calling thread. One that is gone is refused by the driver, and so is the call that follows.
    fn enter(shared: &Self::SessionShared, context: Self::Context);

    /// Tells the program, now or with its next reply, that a call was not carried out.
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
