//! Queries: every `clGet…Info` in one message. Values that are objects never come here: the shim knows them.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::collections::BTreeMap;

use katydid_opencl_sys::constant::{PROGRAM_BINARIES, PROGRAM_BINARY_SIZES, QUEUE_DEVICE_DEFAULT};
use katydid_opencl_sys::{
    Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_event, cl_image_format, cl_kernel, cl_mem,
    cl_platform_id, cl_program, cl_sampler,
};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{MAX_REPLY_VALUE_BYTES, list, message, query};

use crate::calls::arguments::Arguments;
use crate::calls::fault::Fault;
use crate::drivers::call::driver;
use crate::drivers::driver::value;
use crate::journal::times;
use crate::objects::object::Object;
use crate::objects::table::Objects;
use crate::state::Session;

/// Answers a query, and stores what is too long for one reply.
pub(crate) fn kdclInfo(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclInfo<'_>,
) -> Result<message::kdclInfoReply, Fault> {
    let value = match session.cached_answer(&message) {
        Some(value) => value,
        None => ask(&session.shared.objects, &message)?,
    };
    // The properties of a device that the program has seen stay the same, whatever device a restore brings.
    if matches!(message.query, query::DEVICE | query::PLATFORM) {
        session.device_answers.insert((message.object, message.parameter), value.clone());
    }
    let size = value.len() as u64;
    if value.len() <= MAX_REPLY_VALUE_BYTES {
        return Ok(message::kdclInfoReply { size, value });
    }
    session.blobs.insert(head.thread, value);
    Ok(message::kdclInfoReply { size, value: Vec::new() })
}

impl Session {
    /// Returns the answer from before a restore, which the session gives in place of the driver.
    fn cached_answer(&self, message: &message::kdclInfo<'_>) -> Option<Vec<u8>> {
        match message.query {
            query::DEVICE | query::PLATFORM => self.device_answers.get(&(message.object, message.parameter)).cloned(),
            query::PROFILING => {
                self.event_times.get(&message.object)?.get(&message.parameter).map(|time| time.to_le_bytes().to_vec())
            }
            query::TIMES => Some(listed(self.event_times.get(&message.object)?)),
            _ => None,
        }
    }
}

/// Returns the properties of a new object for the reply that makes it: each value after its query kind and parameter. Empty for a
/// replayed object, whose reply has told them.
pub(super) fn facts(session: &Session, object: u32, query: u32, parameters: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let parameters = if session.replay.is_on { &[] } else { parameters };
    for parameter in parameters.iter().copied() {
        let question = message::kdclInfo { query, object, second: 0, parameter, input: &[] };
        if let Ok(value) = ask(&session.shared.objects, &question) {
            query.put(&mut bytes);
            parameter.put(&mut bytes);
            value.put(&mut bytes);
        }
    }
    bytes
}

/// Encodes all times as a list.
pub(super) fn listed(times: &BTreeMap<u32, u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    list::put(&mut bytes, &times.iter().flat_map(|(state, time)| [u64::from(*state), *time]).collect::<Vec<_>>());
    bytes
}

/// Calls `get(object, parameter, …)` for one kind of object.
macro_rules! plain {
    ($objects:expr, $message:expr, $handle:ident $function:ident) => {{
        let object: Object<$handle> = $objects.get($message.object)?;
        value(|size, out, needed| driver!(object.api, $function(object.handle, $message.parameter, size, out, needed)))
    }};
}

fn ask(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Fault> {
    let answer = match m.query {
        query::PLATFORM => plain!(objects, m, cl_platform_id clGetPlatformInfo),
        query::DEVICE => plain!(objects, m, cl_device_id clGetDeviceInfo),
        query::QUEUE if m.parameter == QUEUE_DEVICE_DEFAULT => default_queue(objects, m),
        query::QUEUE => plain!(objects, m, cl_command_queue clGetCommandQueueInfo),
        query::MEMORY => plain!(objects, m, cl_mem clGetMemObjectInfo),
        query::IMAGE => plain!(objects, m, cl_mem clGetImageInfo),
        query::PIPE => plain!(objects, m, cl_mem clGetPipeInfo),
        query::SAMPLER => plain!(objects, m, cl_sampler clGetSamplerInfo),
        // Binaries are pointers to fill, not a value.
        query::PROGRAM if m.parameter == PROGRAM_BINARIES => Err(Code::INVALID_VALUE),
        query::PROGRAM => plain!(objects, m, cl_program clGetProgramInfo),
        query::KERNEL => plain!(objects, m, cl_kernel clGetKernelInfo),
        query::EVENT => plain!(objects, m, cl_event clGetEventInfo),
        query::PROFILING => plain!(objects, m, cl_event clGetEventProfilingInfo),
        query::TIMES => Ok(listed(&times(&objects.get(m.object)?))),
        query::BUILD => build(objects, m),
        query::ARGUMENT => argument(objects, m),
        query::WORK_GROUP => work_group(objects, m),
        query::SUB_GROUP => sub_group(objects, m),
        query::GROUP_SIZES => return group_sizes(objects, m),
        query::DEVICE_TYPE => return device_type(objects, m),
        query::BINARIES => binaries(&objects.get(m.object)?),
        query::IMAGE_FORMATS => return image_formats(objects, m),
        _ => Err(Code::INVALID_VALUE),
    };
    Ok(answer?)
}

/// Returns the id of the queue to which kernels of a queue's device enqueue; 0 if it is none of the program's.
fn default_queue(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Code> {
    let handle = plain!(objects, m, cl_command_queue clGetCommandQueueInfo)?;
    let handle = handle.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as usize;
    let known = objects.of::<cl_command_queue>();
    let found = known.into_iter().find(|(_, queue)| handle != 0 && queue.handle.0.addr() == handle);
    Ok(found.map_or(0, |(id, _)| id).to_le_bytes().to_vec())
}

fn build(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Code> {
    let program: Object<cl_program> = objects.get(m.object)?;
    let device: Object<cl_device_id> = objects.get_of(program.api, m.second)?;
    value(|size, out, needed| {
        driver!(program.api, clGetProgramBuildInfo(program.handle, device.handle, m.parameter, size, out, needed))
    })
}

fn argument(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Code> {
    let kernel: Object<cl_kernel> = objects.get(m.object)?;
    value(|size, out, needed| {
        driver!(kernel.api, clGetKernelArgInfo(kernel.handle, m.second, m.parameter, size, out, needed))
    })
}

/// Returns the handle of a device; null without an id, for which the driver takes the only device.
fn device(objects: &Objects, api: &Dispatch, id: u32) -> Result<cl_device_id, Code> {
    if id == 0 { Ok(cl_device_id::NULL) } else { Ok(objects.get_of::<cl_device_id>(api, id)?.handle) }
}

fn work_group(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Code> {
    let kernel: Object<cl_kernel> = objects.get(m.object)?;
    let device = device(objects, kernel.api, m.second)?;
    value(|size, out, needed| {
        driver!(kernel.api, clGetKernelWorkGroupInfo(kernel.handle, device, m.parameter, size, out, needed))
    })
}

fn sub_group(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Code> {
    let kernel: Object<cl_kernel> = objects.get(m.object)?;
    let device = device(objects, kernel.api, m.second)?;
    let (bytes, input) = (m.input.len(), m.input.as_ptr().cast());
    value(|size, out, needed| {
        driver!(
            kernel.api,
            clGetKernelSubGroupInfo(kernel.handle, device, m.parameter, bytes, input, size, out, needed)
        )
    })
}

/// Returns the sizes of a group, as many as the caller has room for: at most three dimensions.
fn group_sizes(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Fault> {
    const MAX_GROUP_BYTES: u64 = 3 * size_of::<usize>() as u64;
    let kernel: Object<cl_kernel> = objects.get(m.object)?;
    let device = device(objects, kernel.api, m.second)?;
    let mut arguments = Arguments::new("kdclInfo", m.input);
    let room: u64 = arguments.take("room")?;
    let input = arguments.remaining();
    let mut sizes = vec![0; room.min(MAX_GROUP_BYTES) as usize];
    let (out, size, mut needed) = (sizes.as_mut_ptr().cast(), sizes.len(), 0);
    let (bytes, input) = (input.len(), input.as_ptr().cast());
    driver!(
        kernel.api,
        clGetKernelSubGroupInfo(kernel.handle, device, m.parameter, bytes, input, size, out, &raw mut needed)
    )
    .ok()?;
    sizes.truncate(needed);
    Ok(sizes)
}

fn image_formats(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Fault> {
    let context: Object<cl_context> = objects.get(m.object)?;
    let flags: u64 = Arguments::new("kdclInfo", m.input).take("flags")?;
    let mut count = 0;
    let null = std::ptr::null_mut();
    driver!(context.api, clGetSupportedImageFormats(context.handle, flags, m.parameter, 0, null, &raw mut count))
        .ok()?;
    let mut formats = vec![cl_image_format::default(); count as usize];
    if count > 0 {
        let out = formats.as_mut_ptr();
        let null = std::ptr::null_mut();
        driver!(context.api, clGetSupportedImageFormats(context.handle, flags, m.parameter, count, out, null)).ok()?;
    }
    let bytes = formats.iter().flat_map(|format| [format.image_channel_order, format.image_channel_data_type]);
    Ok(bytes.flat_map(u32::to_le_bytes).collect())
}

/// Succeeds with an empty value if the driver has devices of a type.
fn device_type(objects: &Objects, m: &message::kdclInfo<'_>) -> Result<Vec<u8>, Fault> {
    let platform: Object<cl_platform_id> = objects.get(m.object)?;
    let of_type: u64 = Arguments::new("kdclInfo", m.input).take("type")?;
    let (mut count, null) = (0, std::ptr::null_mut());
    driver!(platform.api, clGetDeviceIDs(platform.handle, of_type, 0, null, &raw mut count)).ok()?;
    Ok(Vec::new())
}

/// Returns the binaries of all devices of a program, as a list.
fn binaries(program: &Object<cl_program>) -> Result<Vec<u8>, Code> {
    let get = |parameter, size, out, needed| {
        driver!(program.api, clGetProgramInfo(program.handle, parameter, size, out, needed))
    };
    let sizes = value(|size, out, needed| get(PROGRAM_BINARY_SIZES, size, out, needed))?;
    let sizes = sizes.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let mut binaries: Vec<Vec<u8>> = sizes.map(|size| vec![0; size as usize]).collect();
    let mut pointers: Vec<*mut u8> = binaries.iter_mut().map(Vec::as_mut_ptr).collect();
    get(PROGRAM_BINARIES, size_of_val(&pointers[..]), pointers.as_mut_ptr().cast(), std::ptr::null_mut()).ok()?;
    let mut bytes = Vec::new();
    list::put(&mut bytes, &binaries);
    Ok(bytes)
}
