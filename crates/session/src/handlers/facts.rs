//! What never changes: the devices, and what the driver found in its environment when it started.

use katydid_driver_rules::state::environment;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdEnvironment, kdEnvironmentReply, kdFacts, kdFactsReply};

use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Answers from what the worker gathered before it had a program; a limit is shown as the device's size.
pub(crate) fn kdFacts(session: &mut Session, _head: &FrameHead, _message: kdFacts) -> CallResult<kdFactsReply> {
    let limit = session.device.limit().unwrap_or(u64::MAX);
    let mut facts = session.facts.clone();
    for device in &mut facts.devices {
        device.total_memory = device.total_memory.min(limit);
    }
    success(kdFactsReply { facts: facts.encode() })
}

/// Answers from this process's environment, which is what the driver was started with.
pub(crate) fn kdEnvironment(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdEnvironment,
) -> CallResult<kdEnvironmentReply> {
    let is_soft = session.driver().is_soft();
    let settings = environment::in_effect(&environment::set(environment::value), is_soft);
    success(kdEnvironmentReply { isSoft: u32::from(is_soft), settings: settings.into_bytes() })
}
