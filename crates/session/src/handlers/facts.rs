//! Constant facts: the devices, and the driver's environment at its start.

use katydid_driver_rules::state::environment;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdEnvironment, kdEnvironmentReply, kdFacts, kdFactsReply};

use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Returns the facts that the worker gathered before it had a program; a memory limit appears as the device's size.
pub(crate) fn kdFacts(session: &mut Session, _head: &FrameHead, _message: kdFacts) -> CallResult<kdFactsReply> {
    let limit = session.device.limit().unwrap_or(u64::MAX);
    let mut facts = session.facts.clone();
    for device in &mut facts.devices {
        device.total_memory = device.total_memory.min(limit);
    }
    success(kdFactsReply { facts: facts.encode() })
}

/// Returns this process's environment, with which the driver was started.
pub(crate) fn kdEnvironment(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdEnvironment,
) -> CallResult<kdEnvironmentReply> {
    let is_soft = session.driver().is_soft();
    let settings = environment::in_effect(&environment::set(environment::value), is_soft);
    success(kdEnvironmentReply { isSoft: u32::from(is_soft), settings: settings.into_bytes() })
}
