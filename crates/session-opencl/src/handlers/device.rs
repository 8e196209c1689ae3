//! Devices, contexts, queues, samplers.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ptr;

use katydid_opencl_sys::constant::{
    CONTEXT_INTEROP_USER_SYNC, CONTEXT_PLATFORM, DEVICE_MAX_ON_DEVICE_QUEUES, QUEUE_ON_DEVICE, QUEUE_PROPERTIES,
    SAMPLER_ADDRESSING_MODE, SAMPLER_FILTER_MODE, SAMPLER_NORMALIZED_COORDS,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_context, cl_device_id, cl_platform_id, cl_program};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{KIND_SHIFT, message, properties_form, query};

use crate::calls::arguments::Arguments;
use crate::calls::fault::Fault;
use crate::calls::notify::{self, Listener};
use crate::drivers::call::{driver, make};
use crate::drivers::driver::{device_value, kind};
use crate::handlers::info::facts;
use crate::handlers::pointer;
use crate::objects::lifetimes::ObjectRef;
use crate::objects::object::{Handle as _, Object};
use crate::state::Session;

/// Makes the parts of a device; without ids, only counts them.
pub(crate) fn kdclSubDevices(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSubDevices<'_>,
) -> Result<message::kdclSubDevicesReply, Fault> {
    let mut arguments = Arguments::new("kdclSubDevices", message.arguments);
    let properties: Vec<i64> = arguments.list("properties")?;
    let ids: Vec<u32> = arguments.list("ids")?;
    let parent: Object<cl_device_id> = session.shared.objects.get(message.parent)?;
    // A list of counts ends with its own 0.
    let properties: Vec<isize> = properties.iter().map(|value| *value as isize).chain([0, 0]).collect();
    let create = |count: u32, devices: *mut cl_device_id, needed: *mut u32| {
        driver!(parent.api, clCreateSubDevices(parent.handle, properties.as_ptr(), count, devices, needed))
    };
    if ids.is_empty() {
        let mut count = 0;
        create(0, ptr::null_mut(), &raw mut count).ok()?;
        return Ok(message::kdclSubDevicesReply { types: vec![0; 8 * count as usize] });
    }
    let mut devices = vec![cl_device_id::NULL; ids.len()];
    create(ids.len() as u32, devices.as_mut_ptr(), ptr::null_mut()).ok()?;
    let mut types = Vec::new();
    let whole = session.shared.objects.hold::<cl_device_id>(message.parent)?;
    for (id, handle) in ids.iter().zip(devices) {
        kind(handle, parent.api)?.put(&mut types);
        let part = Object { handle, api: parent.api, size: 0 };
        session.shared.objects.set(*id, part, vec![ObjectRef::clone(&whole)])?;
    }
    Ok(message::kdclSubDevicesReply { types })
}

/// Returns the clocks of the device and the host, or the host's alone.
pub(crate) fn kdclTimers(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclTimers,
) -> Result<message::kdclTimersReply, Fault> {
    let device: Object<cl_device_id> = session.shared.objects.get(message.device)?;
    let (mut deviceTime, mut hostTime) = (0, 0);
    let out = |bit, out: *mut u64| if message.wanted & bit == 0 { ptr::null_mut() } else { out };
    let (of_device, of_host) = (out(1, &raw mut deviceTime), out(2, &raw mut hostTime));
    if message.host != 0 {
        driver!(device.api, clGetHostTimer(device.handle, of_host)).ok()?;
    } else {
        driver!(device.api, clGetDeviceAndHostTimer(device.handle, of_device, of_host)).ok()?;
    }
    Ok(message::kdclTimersReply { deviceTime, hostTime })
}

/// Tests whether the driver accepts a callback for the end of an object. The shim itself calls the program's callbacks.
pub(crate) fn kdclTakesCallback(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclTakesCallback,
) -> Result<message::kdclTakesCallbackReply, Fault> {
    let objects = &session.shared.objects;
    let code = match message.object >> KIND_SHIFT {
        cl_program::KIND => {
            let program: Object<cl_program> = objects.get(message.object)?;
            let function = (message.has_callback != 0).then_some(notify::nothing_of_program as _);
            driver!(program.api, clSetProgramReleaseCallback(program.handle, function, ptr::null_mut()))
        }
        _ => {
            let context: Object<cl_context> = objects.get(message.object)?;
            let function = (message.has_callback != 0).then_some(notify::nothing_of_context as _);
            driver!(context.api, clSetContextDestructorCallback(context.handle, function, ptr::null_mut()))
        }
    };
    code.ok()?;
    Ok(message::kdclTakesCallbackReply {})
}

/// Passes this hint on to the driver.
pub(crate) fn kdclUnloadCompiler(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclUnloadCompiler,
) -> Result<message::kdclUnloadCompilerReply, Fault> {
    let platform: Object<cl_platform_id> = session.shared.objects.get(message.platform)?;
    driver!(platform.api, clUnloadPlatformCompiler(platform.handle)).ok()?;
    Ok(message::kdclUnloadCompilerReply {})
}

/// Makes a context from platform, further properties, and devices.
pub(crate) fn kdclContext(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclContext<'_>,
) -> Result<message::kdclContextReply, Fault> {
    let mut arguments = Arguments::new("kdclContext", message.arguments);
    let platform: Object<cl_platform_id> = session.shared.objects.get(arguments.take("platform")?)?;
    let properties: Vec<i64> = arguments.pairs("properties")?;
    // Other properties would name objects of the worker: an OpenGL object, a display, a function to call.
    if properties.as_chunks::<2>().0.iter().any(|[name, _]| *name != i64::from(CONTEXT_INTEROP_USER_SYNC)) {
        return Err(Code::INVALID_PROPERTY.into());
    }
    let ids = arguments.list::<u32>("devices")?;
    let devices: Vec<cl_device_id> = session.shared.objects.all_of(platform.api, &ids)?;
    let held = session.shared.objects.hold_all::<cl_device_id>(&ids)?;
    let api = platform.api;
    let named = [CONTEXT_PLATFORM as isize, platform.handle.0.expose_provenance().cast_signed()];
    let properties: Vec<isize> =
        named.into_iter().chain(properties.iter().map(|value| *value as isize)).chain([0]).collect();
    let listener = (message.token != 0).then(|| Listener::new(&session.shared, message.token));
    let data = listener.as_ref().map_or(ptr::null_mut(), Listener::data);
    let callback = listener.is_some().then_some(notify::context as _);
    let handle =
        make!(api, clCreateContext(properties.as_ptr(), devices.len() as u32, pointer(&devices), callback, data))?;
    session.shared.objects.set(message.context, Object { handle, api, size: 0 }, held)?;
    session.listeners.extend(listener.map(|listener| (message.context, listener)));
    Ok(message::kdclContextReply {})
}

/// Makes a queue. `form` 0: flags (one number); 1: a list of properties; 2: none at all.
pub(crate) fn kdclQueue(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclQueue<'_>,
) -> Result<message::kdclQueueReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let device: Object<cl_device_id> = session.shared.objects.get_of(context.api, message.device)?;
    let made_of = vec![
        session.shared.objects.hold::<cl_context>(message.context)?,
        session.shared.objects.hold::<cl_device_id>(message.device)?,
    ];
    let mut arguments = Arguments::new("kdclQueue", message.properties);
    let is_list = message.form == properties_form::LIST;
    let properties: Vec<u64> = if is_list { arguments.pairs("properties") } else { arguments.list("properties") }?;
    let api = context.api;
    // Only devices with on-device queues support one. PoCL ends the process when asked for one on another device.
    if message.form == properties_form::LIST && is_on_device(&properties) && !has_own_queues(&device) {
        return Err(Code::INVALID_QUEUE_PROPERTIES.into());
    }
    let handle = if message.form == properties_form::VALUES {
        let flags = properties.first().copied().unwrap_or(0);
        make!(api, clCreateCommandQueue(context.handle, device.handle, flags))
    } else {
        let properties: Vec<u64> = properties.into_iter().chain([0]).collect();
        let list = if message.form == properties_form::LIST { properties.as_ptr() } else { ptr::null() };
        make!(api, clCreateCommandQueueWithProperties(context.handle, device.handle, list))
    }?;
    session.shared.objects.set(message.queue, Object { handle, api, size: 0 }, made_of)?;
    let facts = facts(session, message.queue, query::QUEUE, &[QUEUE_PROPERTIES]);
    Ok(message::kdclQueueReply { facts })
}

/// Returns whether pairs of properties ask for a queue to which kernels enqueue.
fn is_on_device(properties: &[u64]) -> bool {
    let (pairs, _) = properties.as_chunks::<2>();
    pairs.iter().any(|[name, value]| *name == u64::from(QUEUE_PROPERTIES) && value & QUEUE_ON_DEVICE != 0)
}

fn has_own_queues(device: &Object<cl_device_id>) -> bool {
    let count = device_value(device.handle, device.api, DEVICE_MAX_ON_DEVICE_QUEUES);
    count.is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0))
}

/// Sets a property of a queue. Not all drivers have this function, which version 1.1 of the standard removed.
pub(crate) fn kdclQueueProperty(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclQueueProperty,
) -> Result<message::kdclQueuePropertyReply, Fault> {
    let queue: Object<cl_command_queue> = session.shared.objects.get(message.queue)?;
    let mut old = 0;
    let (properties, enable) = (message.properties, message.enable);
    driver!(queue.api, clSetCommandQueueProperty(queue.handle, properties, enable, &raw mut old)).ok()?;
    let facts = facts(session, message.queue, query::QUEUE, &[QUEUE_PROPERTIES]);
    Ok(message::kdclQueuePropertyReply { old, facts })
}

/// Sets the queue to which kernels of a device enqueue.
pub(crate) fn kdclDefaultQueue(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclDefaultQueue,
) -> Result<message::kdclDefaultQueueReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let device: Object<cl_device_id> = session.shared.objects.get_of(context.api, message.device)?;
    let queue = match message.queue {
        0 => cl_command_queue::NULL,
        id => session.shared.objects.get_of::<cl_command_queue>(context.api, id)?.handle,
    };
    driver!(context.api, clSetDefaultDeviceCommandQueue(context.handle, device.handle, queue)).ok()?;
    Ok(message::kdclDefaultQueueReply {})
}

/// Makes a sampler. `form` 0: the three numbers of the old function; 1: a list of properties; 2: none at all.
pub(crate) fn kdclSampler(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSampler<'_>,
) -> Result<message::kdclSamplerReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let made_of = session.shared.objects.hold::<cl_context>(message.context)?;
    let mut arguments = Arguments::new("kdclSampler", message.properties);
    let is_list = message.form == properties_form::LIST;
    let properties: Vec<u64> = if is_list { arguments.pairs("properties") } else { arguments.list("properties") }?;
    let api = context.api;
    let handle = if message.form == properties_form::VALUES {
        let [normalized, addressing, filter] = properties[..] else { return Err(Code::INVALID_VALUE.into()) };
        make!(api, clCreateSampler(context.handle, normalized as u32, addressing as u32, filter as u32))
    } else {
        let properties: Vec<u64> = properties.into_iter().chain([0]).collect();
        let list = if message.form == properties_form::LIST { properties.as_ptr() } else { ptr::null() };
        make!(api, clCreateSamplerWithProperties(context.handle, list))
    }?;
    session.shared.objects.set(message.sampler, Object { handle, api, size: 0 }, vec![made_of])?;
    let parameters = [SAMPLER_NORMALIZED_COORDS, SAMPLER_ADDRESSING_MODE, SAMPLER_FILTER_MODE];
    let facts = facts(session, message.sampler, query::SAMPLER, &parameters);
    Ok(message::kdclSamplerReply { facts })
}
