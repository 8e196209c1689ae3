//! Life of a session and of its objects.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use katydid_opencl_sys::{
    Code, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem, cl_program, cl_sampler,
};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{kind as of, message};

use crate::fault::Fault;
use crate::handlers::driver;
use crate::objects::Object;
use crate::session::Session;

/// Platforms and their devices with types: counts and numbers, in the order of the ids.
pub(crate) fn kdclPlatforms(
    session: &mut Session,
    _: &FrameHead,
    _: message::kdclPlatforms,
) -> Result<message::kdclPlatformsReply, Fault> {
    let mut facts = Vec::new();
    (session.here.len() as u32).put(&mut facts);
    for platform in &session.here {
        (platform.devices.len() as u32).put(&mut facts);
        platform.devices.iter().for_each(|device| device.kind.put(&mut facts));
    }
    Ok(message::kdclPlatformsReply { facts })
}

/// The last reference of the program's is gone. An id that names nothing is one whose making failed.
pub(crate) fn kdclRelease(session: &mut Session, _: &FrameHead, message: message::kdclRelease) -> Result<(), Fault> {
    let Some((kind, object)) = session.shared.objects.take(message.object) else { return Ok(()) };
    let (api, pointer) = (object.api, object.handle);
    let code = match kind {
        of::DEVICE => {
            session.told.retain(|(device, _), _| *device != message.object);
            driver!(api, clReleaseDevice(cl_device_id(pointer)))
        }
        of::CONTEXT => {
            // Its objects keep a context, and those of ours would do so for ever.
            session.staging_known.remove(&message.object);
            session.shelf_known.remove(&message.object);
            session.listeners.remove(&message.object);
            session.taken_for_done.remove(&message.object);
            session.forget_ended_queues();
            driver!(api, clReleaseContext(cl_context(pointer)))
        }
        of::QUEUE => {
            let handle = cl_command_queue(pointer);
            session.let_queue_end(message.object, &Object { handle, api, size: 0 });
            driver!(api, clReleaseCommandQueue(handle))
        }
        of::MEMORY => {
            session.on_shelf.remove(&message.object);
            session.lies_in_host.remove(&message.object);
            session.mapped_in_host.remove(&message.object);
            session.was_in_host.remove(&message.object);
            session.given_pipes.remove(&message.object);
            session.host_maps.retain(|(memory, _), _| *memory != message.object);
            // The last one is called first.
            let tokens = session.destructors.remove(&message.object).unwrap_or_default();
            session.shared.upcalls.expect(tokens.into_iter().rev());
            session.shared.usage.sub_memory(session.counted.remove(&message.object).unwrap_or(0));
            driver!(api, clReleaseMemObject(cl_mem(pointer)))
        }
        of::SAMPLER => driver!(api, clReleaseSampler(cl_sampler(pointer))),
        of::PROGRAM => driver!(api, clReleaseProgram(cl_program(pointer))),
        of::KERNEL => driver!(api, clReleaseKernel(cl_kernel(pointer))),
        of::EVENT => {
            session.event_times.remove(&message.object);
            driver!(api, clReleaseEvent(cl_event(pointer)))
        }
        // Platforms are never released.
        _ => Code::SUCCESS,
    };
    Ok(code.ok()?)
}

/// Data for the next message of this thread.
pub(crate) fn kdclPiece(session: &mut Session, head: &FrameHead, message: message::kdclPiece<'_>) -> Result<(), Fault> {
    Ok(session.uploads.add(head.thread, message.total, message.data)?)
}

/// A part of this thread's long answer.
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

/// The next callback that is due.
pub(crate) fn kdclUpcallNext(
    _: &mut Session,
    head: &FrameHead,
    _: message::kdclUpcallNext,
) -> Result<crate::session::Job<message::kdclUpcallNextReply>, Fault> {
    Ok(next_upcall(*head))
}

/// Waits for the next callback; `head` is the frame that is answered with it.
pub(crate) fn next_upcall(head: FrameHead) -> crate::session::Job<message::kdclUpcallNextReply> {
    Box::new(move |shared| {
        let due = shared.upcalls.next(&head);
        Ok(message::kdclUpcallNextReply { token: due.token, status: due.status, text: due.text })
    })
}

/// What kernels printed comes with every waited reply; this one has room for nothing else.
pub(crate) fn kdclOutput(
    _: &mut Session,
    _: &FrameHead,
    _: message::kdclOutput,
) -> Result<crate::session::Job<message::kdclOutputReply>, Fault> {
    Ok(Box::new(|_| Ok(message::kdclOutputReply {})))
}
