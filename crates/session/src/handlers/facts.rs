//! `kdFacts`: what never changes about the devices.

use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdFacts, kdFactsReply};

use super::{Called, done};
use crate::session::Session;

/// Answers from what the worker gathered before it had a program; a quota is shown as the device's size.
pub(crate) fn kdFacts(session: &mut Session, _head: &FrameHead, _message: kdFacts) -> Called<kdFactsReply> {
    let quota = session.device.quota();
    let mut facts = session.facts.clone();
    for device in &mut facts.devices {
        device.total_memory = device.total_memory.min(quota);
    }
    done(kdFactsReply { facts: facts.encode() })
}
