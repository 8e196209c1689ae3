//! Green contexts: contexts that own some of a device's multiprocessors.
//!
//! A driver's resource is opaque and valid in this process only. So the program's resource names its origin: the device or a
//! green context, and the split of that. Whenever the resource is needed, it is made again here from that, by the same
//! calls.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUcontext, CUdevResource, CUdevResourceDesc, CUgreenCtx, CUresult};
use katydid_driver_rules::device::RESOURCE_TYPE_SM;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdGreenCreate, kdGreenCreateReply, kdGreenDestroy, kdGreenDestroyReply, kdGreenStream, kdResource, kdResourceReply,
    kdResourceSplit, kdResourceSplitReply,
};
use katydid_wire::resource::{MAX_RESOURCE_GROUPS, ResourcePart, VISIBLE_OFFSET};

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::device::gather;
use crate::handlers::{CallResult, EnqueueResult, success};
use crate::objects::green_ctx::GreenContext;
use crate::state::Session;

/// How a resource is split.
#[derive(Clone, Copy)]
struct ResourceSplit {
    groups: u32,
    flags: u32,
    least: u32,
}

/// Returns all multiprocessors of a device, or of a green context.
fn whole(session: &Session, green: u32, device: i32) -> Result<CUdevResource, Fault> {
    let driver = session.driver();
    if green == 0 {
        // SAFETY: the output is a local.
        return Ok(ask(|out| unsafe { driver.cuDeviceGetDevResource(device, out, RESOURCE_TYPE_SM) })?);
    }
    let handle = green_of(session, green)?;
    // SAFETY: the output is a local; the green context lives.
    Ok(ask(|out| unsafe { driver.cuGreenCtxGetDevResource(handle, out, RESOURCE_TYPE_SM) })?)
}

fn green_of(session: &Session, id: u32) -> Result<CUgreenCtx, CUresult> {
    session.green_contexts.get(&id).map(|green| green.handle).ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// Returns the driver's groups of a split, and the remainder.
fn split(
    session: &Session,
    input: &CUdevResource,
    request: ResourceSplit,
) -> Result<(Vec<CUdevResource>, CUdevResource), CUresult> {
    let mut groups = vec![CUdevResource::default(); request.groups as usize];
    let (mut count, mut remainder) = (request.groups, CUdevResource::default());
    let driver = session.driver();
    // SAFETY: there is room for `count` groups; everything else is a local.
    unsafe {
        let (groups, count, input) = (groups.as_mut_ptr(), &raw mut count, std::ptr::from_ref(input));
        driver.cuDevSmResourceSplitByCount(groups, count, input, &raw mut remainder, request.flags, request.least)
    }
    .ok()?;
    groups.truncate(count as usize);
    Ok((groups, remainder))
}

/// Returns the bytes of a resource that programs may read: its kind, and its last bytes.
fn visible(resource: &CUdevResource) -> impl Iterator<Item = u8> + '_ {
    resource.0.iter().take(4).chain(resource.0.iter().skip(VISIBLE_OFFSET)).copied()
}

/// Returns the resource of a device or a green context.
pub(crate) fn kdResource(session: &mut Session, _head: &FrameHead, message: kdResource) -> CallResult<kdResourceReply> {
    let found = whole(session, message.green, message.device)?;
    success(kdResourceReply { part: visible(&found).collect() })
}

/// Returns the groups of a split and the remainder; for 0 groups, how many there would be.
pub(crate) fn kdResourceSplit(
    session: &mut Session,
    _head: &FrameHead,
    message: kdResourceSplit,
) -> CallResult<kdResourceSplitReply> {
    let kdResourceSplit { green, device, groups, flags, least, .. } = message;
    if groups > MAX_RESOURCE_GROUPS {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let input = whole(session, green, device)?;
    if groups > 0 {
        let (groups, remainder) = split(session, &input, ResourceSplit { groups, flags, least })?;
        let parts = groups.iter().chain([&remainder]).flat_map(visible).collect();
        return success(kdResourceSplitReply { made: groups.len() as u32, parts });
    }
    let driver = session.driver();
    // SAFETY: without groups the driver writes only their number; everything is a local.
    let group_count = ask(|out| unsafe {
        let none = std::ptr::null_mut();
        driver.cuDevSmResourceSplitByCount(none, out, &raw const input, std::ptr::null_mut(), flags, least)
    })?;
    success(kdResourceSplitReply { made: group_count, parts: Vec::new() })
}

/// Selects the resources of a description, from one split.
fn select_resources(session: &Session, message: &kdGreenCreate<'_>) -> Result<Vec<CUdevResource>, Fault> {
    let kdGreenCreate { green, device, groups, flags, least, .. } = *message;
    let (parts, _) = message.parts.as_chunks::<4>();
    let mut parts = parts.iter().map(|part| ResourcePart(u32::from_le_bytes(*part))).peekable();
    let input = whole(session, green, device)?;
    if parts.peek() == Some(&ResourcePart::WHOLE) || groups > MAX_RESOURCE_GROUPS {
        return Ok(vec![input]);
    }
    let (split_groups, remainder) = split(session, &input, ResourceSplit { groups, flags, least })?;
    let one = |part: ResourcePart| {
        if part == ResourcePart::REST { Some(remainder) } else { split_groups.get(part.0 as usize).copied() }
    };
    let all = parts.map(one).collect::<Option<Vec<_>>>();
    all.filter(|all| !all.is_empty()).ok_or_else(|| CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION.into())
}

/// Makes a green context, and its context.
pub(crate) fn kdGreenCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdGreenCreate<'_>,
) -> CallResult<kdGreenCreateReply> {
    session.tables.contexts.check_new(message.context)?;
    let mut parts = select_resources(session, &message)?;
    let driver = session.driver();
    let count = parts.len() as u32;
    // SAFETY: as many resources as are said, all of the driver's own.
    let described =
        ask::<CUdevResourceDesc>(|out| unsafe { driver.cuDevResourceGenerateDesc(out, parts.as_mut_ptr(), count) })?;
    // SAFETY: the description was just made; the output is a local.
    let handle = ask(|out| unsafe { driver.cuGreenCtxCreate(out, described, message.device, message.options) })?;
    // SAFETY: the green context was just made; the output is a local.
    let context = ask::<CUcontext>(|out| unsafe { driver.cuCtxFromGreenCtx(out, handle) }).inspect_err(|_| {
        // SAFETY: as above; it has no streams.
        let _ = unsafe { driver.cuGreenCtxDestroy(handle) };
    })?;
    // SAFETY: as above. Drivers before CUDA 12.9 have no ids for green contexts, but for contexts.
    let id = ask(|out| unsafe { driver.cuGreenCtxGetId(handle, out) })
        .or_else(|_| ask(|out| unsafe { driver.cuCtxGetId(context, out) }))?;
    session.green_contexts.insert(message.context, GreenContext { handle, owner: message.primary });
    session.begin_context(message.context, context)?;
    let facts = gather::context(session.driver(), context).encode();
    success(kdGreenCreateReply { id, facts })
}

/// Ends a green context.
pub(crate) fn kdGreenDestroy(
    session: &mut Session,
    _head: &FrameHead,
    message: kdGreenDestroy,
) -> CallResult<kdGreenDestroyReply> {
    let handle = green_of(session, message.context)?;
    // SAFETY: the green context lives, and is forgotten below.
    let status = unsafe { session.driver().cuGreenCtxDestroy(handle) };
    session.end_green(message.context);
    Ok((status, kdGreenDestroyReply {}))
}

/// Makes a stream in the current green context.
pub(crate) fn kdGreenStream(session: &mut Session, head: &FrameHead, message: kdGreenStream) -> EnqueueResult {
    session.tables.streams.check_new(message.stream)?;
    let handle = green_of(session, head.context)?;
    let driver = session.driver();
    let (flags, priority) = (message.flags, message.priority);
    // SAFETY: the green context lives; the output is a local.
    let stream = ask(|out| unsafe { driver.cuGreenCtxStreamCreate(out, handle, flags, priority) })?;
    session.bind(message.stream, stream)?;
    Ok(CUresult::SUCCESS)
}
