//! Start and end of a session and of its objects.

#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{kind as of, message};

use crate::calls::fault::Fault;
use crate::state::Session;

/// Returns platforms and their devices with types: counts and numbers, in the order of the ids.
pub(crate) fn kdclPlatforms(
    session: &mut Session,
    _: &FrameHead,
    _: message::kdclPlatforms,
) -> Result<message::kdclPlatformsReply, Fault> {
    let mut facts = Vec::new();
    (session.reported_platforms.len() as u32).put(&mut facts);
    for platform in &session.reported_platforms {
        (platform.devices.len() as u32).put(&mut facts);
        platform.devices.iter().for_each(|device| device.kind.put(&mut facts));
    }
    Ok(message::kdclPlatformsReply { facts })
}

/// Releases an object: the program has dropped its last reference. An id without an object is one whose creation failed.
pub(crate) fn kdclRelease(session: &mut Session, _: &FrameHead, message: message::kdclRelease) -> Result<(), Fault> {
    let Some(object) = session.shared.objects.take(message.object) else { return Ok(()) };
    match object.kind() {
        of::DEVICE => session.device_answers.retain(|(device, _), _| *device != message.object),
        of::CONTEXT => {
            // The worker's own staging objects would keep the context alive for ever.
            session.staging_states.remove(&message.object);
            session.zero_copy_known.remove(&message.object);
            session.images_in_place.retain(|(context, ..), _| *context != message.object);
            session.listeners.remove(&message.object);
            session.taken_for_done.remove(&message.object);
            session.forget_ended_queues();
        }
        of::QUEUE => session.let_queue_end(message.object, &object),
        of::MEMORY => session.let_memory_end(message.object),
        of::EVENT => drop(session.event_times.remove(&message.object)),
        _ => {}
    }
    // The driver gets it back as soon as nothing else in the session uses it.
    drop(object);
    Ok(())
}

impl Session {
    /// Drops all notes about a memory object.
    fn let_memory_end(&mut self, id: u32) {
        self.in_zero_copy.remove(&id);
        self.is_in_host.remove(&id);
        self.mapped_in_host.remove(&id);
        self.was_in_host.remove(&id);
        self.given_pipes.remove(&id);
        self.host_maps.retain(|(memory, _), _| *memory != id);
        // The callback registered last is called first.
        let tokens = self.destructors.remove(&id).unwrap_or_default();
        self.shared.upcalls.expect(tokens.into_iter().rev());
    }
}

/// Receives data for the next message of this thread.
pub(crate) fn kdclUpload(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclUpload<'_>,
) -> Result<(), Fault> {
    Ok(session.uploads.add(head.thread, message.total, message.data)?)
}

/// Returns a part of this thread's long answer.
pub(crate) fn kdclBlob(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclBlob,
) -> Result<message::kdclBlobReply, Fault> {
    let blob = session.blobs.get(&head.thread).ok_or(Code::INVALID_VALUE)?;
    let start = usize::try_from(message.offset).unwrap_or(usize::MAX);
    let part = blob.get(start..).ok_or(Code::INVALID_VALUE)?;
    let data = part.get(..message.size as usize).unwrap_or(part).to_vec();
    if start + data.len() == blob.len() {
        session.blobs.remove(&head.thread);
    }
    Ok(message::kdclBlobReply { data })
}

/// Returns the next callback that is due.
pub(crate) fn kdclUpcallNext(
    _: &mut Session,
    head: &FrameHead,
    _: message::kdclUpcallNext,
) -> Result<crate::calls::executor::ExecutorCall<message::kdclUpcallNextReply>, Fault> {
    Ok(next_upcall(*head))
}

/// Waits for the next callback; `head` is the frame that it answers.
pub(crate) fn next_upcall(head: FrameHead) -> crate::calls::executor::ExecutorCall<message::kdclUpcallNextReply> {
    Box::new(move |shared| {
        let due = shared.upcalls.next(&head);
        Ok(message::kdclUpcallNextReply { token: due.token, status: due.status, text: due.text })
    })
}

/// Returns nothing itself: the output that kernels printed comes with every waited reply.
pub(crate) fn kdclOutput(
    _: &mut Session,
    _: &FrameHead,
    _: message::kdclOutput,
) -> Result<crate::calls::executor::ExecutorCall<message::kdclOutputReply>, Fault> {
    Ok(Box::new(|_| Ok(message::kdclOutputReply {})))
}
