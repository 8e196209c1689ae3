//! Green contexts: contexts that own some of a device's multiprocessors.
//!
//! The driver's bytes in a resource are valid only in its own process. So the shim's resource holds its origin (the device
//! or a green context, and which part of which split), and the worker makes the driver's resource anew from that. The bytes
//! that programs may read are the driver's own. A green context and the context made from it have one handle. Objects made
//! while it is current belong to the primary context, except streams.
#![expect(unsafe_code, reason = "reads and writes values of C callers")]

use std::sync::Arc;

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevice, CUevent, CUgreenCtx, CUresult, CUstream,
};
use katydid_driver_rules::device::{RESOURCE_TYPE_SM, check_resource_type};
use katydid_driver_rules::stream::check_green_flags;
use katydid_wire::message::{kdGreenCreate, kdGreenDestroy, kdGreenStream, kdResource, kdResourceSplit};
use katydid_wire::resource::{MAX_RESOURCE_GROUPS, ResourcePart, VISIBLE_BYTES, VISIBLE_OFFSET};

use crate::context::record::{CONTEXTS, Context, GreenContext};
use crate::context::{context_event, contexts, device, ending, primary, stack};
use crate::ffi::arguments::{self, out};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::process::session::shim;
use crate::sync::stream;

/// Marks a resource as the shim's.
const RESOURCE_MARK: u64 = 0x6e65_6572_672d_646b;
/// Offset of the mark in a resource; the origin follows it.
const RESOURCE_MARK_OFFSET: usize = 8;

/// The origin of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ResourceOrigin {
    /// The program's ordinal of the device.
    device: u32,
    /// Wire id and number of a green context; 0 for the device itself.
    green: u32,
    id: u64,
    split: SmSplit,
    part: ResourcePart,
}

/// How a resource is split; all fields are ignored for one that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SmSplit {
    groups: u32,
    flags: u32,
    least: u32,
}

/// The resources for a green context.
pub(crate) struct Description {
    slot: SlabSlot,
    parts: Vec<ResourceOrigin>,
}

/// Descriptions, which are never freed and have no wire id.
pub(crate) static DESCRIPTIONS: HandleTable<Description> = HandleTable::new();

impl Handle for CUdevResourceDesc {
    type Object = Description;

    const INVALID_CODE: CUresult = CUresult::ERROR_INVALID_VALUE;

    fn table() -> &'static HandleTable<Description> {
        &DESCRIPTIONS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl ResourceOrigin {
    fn of_device(device: u32) -> Self {
        Self { device, green: 0, id: 0, split: SmSplit::default(), part: ResourcePart::WHOLE }
    }

    fn of_green(context: &Context, green: &GreenContext) -> Self {
        Self { green: context.wire(), id: green.id, ..Self::of_device(context.device) }
    }

    /// Makes a resource of both halves: the shim's, and the bytes from the worker.
    fn resource(self, bytes: &[u8]) -> Result<CUdevResource, CUresult> {
        let mut resource = CUdevResource::default();
        let Some((kind, visible)) = bytes.split_first_chunk::<4>().filter(|_| bytes.len() == VISIBLE_BYTES) else {
            return Err(shim()?.session.broken("a resource"));
        };
        // An empty resource has no fields.
        if u32::from_le_bytes(*kind) == RESOURCE_TYPE_SM {
            let SmSplit { groups, flags, least } = self.split;
            let fields = [self.device, self.green, groups, flags, least, self.part.0];
            let mut own = [RESOURCE_MARK, self.id].map(u64::to_le_bytes).concat();
            own.extend(fields.map(u32::to_le_bytes).as_flattened());
            resource.0[..4].copy_from_slice(kind);
            resource.0[RESOURCE_MARK_OFFSET..RESOURCE_MARK_OFFSET + own.len()].copy_from_slice(&own);
            resource.0[VISIBLE_OFFSET..].copy_from_slice(visible);
        }
        Ok(resource)
    }

    /// Reads the origin from a program's resource.
    fn read(resource: &CUdevResource) -> Result<Self, CUresult> {
        let word = |at: usize| {
            let bytes = resource.0.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        check_resource_type(word(0))?;
        if wide(RESOURCE_MARK_OFFSET) != RESOURCE_MARK {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let [device, green, groups, flags, least, part] =
            [16, 20, 24, 28, 32, 36].map(|at| word(RESOURCE_MARK_OFFSET + at));
        let split = SmSplit { groups, flags, least };
        let origin = Self { device, green, id: wide(RESOURCE_MARK_OFFSET + 8), split, part: ResourcePart(part) };
        origin.check().map(|()| origin)
    }

    /// Checks that the device exists and the green context lives.
    fn check(&self) -> Result<(), CUresult> {
        device::device(self.device as CUdevice).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let Some(index) = self.green.checked_sub(1) else { return Ok(()) };
        let context = CONTEXTS.get()?.get_index(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let same = context.green().is_some_and(|green| green.id == self.id);
        if same { context.check_active() } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// The worker's ordinal of the device.
    fn position(&self) -> Result<i32, CUresult> {
        Ok(device::device(self.device as CUdevice)?.position as i32)
    }

    /// Asks the worker for a resource that is not split.
    fn ask(self) -> Result<CUdevResource, CUresult> {
        let message = kdResource { green: self.green, device: self.position()? };
        self.resource(&shim()?.session.call(0, &message)?.part)
    }
}

/// Returns the context of a green context's handle.
fn resolve(green: CUgreenCtx) -> Result<Arc<Context>, CUresult> {
    let context = object(CUcontext(green.0))?;
    if context.green().is_some() { Ok(context) } else { Err(CUresult::ERROR_INVALID_CONTEXT) }
}

/// Returns the resource of a context: its own for a green one, otherwise its device's.
fn of_either(context: &Context) -> Result<CUdevResource, CUresult> {
    context.check_active()?;
    context
        .green()
        .map_or(ResourceOrigin::of_device(context.device), |green| ResourceOrigin::of_green(context, green))
        .ask()
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn of_device(ordinal: CUdevice, target: *mut CUdevResource, kind: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    device::device(ordinal)?;
    check_resource_type(kind)?;
    target.write(ResourceOrigin::of_device(ordinal.unsigned_abs()).ask()?);
    Ok(())
}

/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn of_context(handle: CUcontext, target: *mut CUdevResource, kind: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    check_resource_type(kind)?;
    target.write(of_either(&*stack::or_current(handle.0.addr())?)?);
    Ok(())
}

/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn of_green(green: CUgreenCtx, target: *mut CUdevResource, kind: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = resolve(green)?;
    check_resource_type(kind)?;
    target.write(of_either(&context)?);
    Ok(())
}

/// Splits a resource that is not split already into groups; without `result` it only returns their number.
///
/// # Safety
///
/// As [`of_device`]; `result` is null or has as many entries as `count` says, `input` is null or readable.
pub(crate) unsafe fn split(
    result: *mut CUdevResource,
    count: *mut u32,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    flags: u32,
    least: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let group_count = unsafe { out(count) }?;
    if input.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: `out` has refused null, so this is the caller's count.
    let requested_groups = unsafe { count.read_unaligned() };
    // SAFETY: not null, so readable by the contract.
    let origin = ResourceOrigin::read(&unsafe { input.read_unaligned() })?;
    if origin.part != ResourcePart::WHOLE {
        return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let groups = match (result.is_null(), requested_groups.min(MAX_RESOURCE_GROUPS)) {
        (true, _) => 0,
        (false, 0) => return Err(CUresult::ERROR_INVALID_VALUE),
        (false, groups) => groups,
    };
    let (green, device) = (origin.green, origin.position()?);
    let reply = shim()?.session.call(0, &kdResourceSplit { green, device, groups, flags, least })?;
    if groups == 0 {
        group_count.write(reply.made);
        return Ok(());
    }
    let part = |part| ResourceOrigin { split: SmSplit { groups, flags, least }, part, ..origin };
    let (all_parts, _) = reply.parts.as_chunks::<VISIBLE_BYTES>();
    let Some((tail, parts)) = all_parts.split_last().filter(|(_, parts)| parts.len() <= groups as usize) else {
        return Err(shim()?.session.broken("a split resource"));
    };
    for (at, visible) in parts.iter().enumerate() {
        // SAFETY: `result` holds as many as the caller said, and no more were made.
        unsafe { result.add(at).write_unaligned(part(ResourcePart(at as u32)).resource(visible)?) };
    }
    if !remaining.is_null() {
        // SAFETY: not null, so writable by the contract.
        unsafe { remaining.write_unaligned(part(ResourcePart::REST).resource(tail)?) };
    }
    group_count.write(parts.len() as u32);
    Ok(())
}

/// Describes parts of one split, or one resource that is not split. A description is never freed.
///
/// # Safety
///
/// As [`of_device`]; `resources` is null or has `count` entries.
pub(crate) unsafe fn describe(
    target: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    if resources.is_null() || !(1..=MAX_RESOURCE_GROUPS).contains(&count) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's array has `count` entries.
    let origin_at = |at: u32| ResourceOrigin::read(&unsafe { resources.add(at as usize).read_unaligned() });
    let parts = (0..count).map(origin_at).collect::<Result<Vec<_>, _>>()?;
    if !are_of_one_split(&parts) {
        return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let description = DESCRIPTIONS.get()?.insert(|slot| Description { slot, parts });
    target.write(CUdevResourceDesc(arguments::handle(description.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.slot.handle)));
    Ok(())
}

fn are_of_one_split(parts: &[ResourceOrigin]) -> bool {
    let Some((first, further)) = parts.split_first() else { return false };
    let alike = |other: &ResourceOrigin| {
        ResourceOrigin { part: first.part, ..*other } == *first && other.part != ResourcePart::WHOLE
    };
    further.iter().all(alike)
}

/// Makes a context of the described parts, which is not current. The primary context stays at least as long.
///
/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn create(
    target: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    ordinal: CUdevice,
    options: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let shim = shim()?;
    let position = device::device(ordinal)?.position as u32;
    let description = object(description)?;
    let Some(first) = description.parts.first().filter(|first| first.device == ordinal.unsigned_abs()) else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    description.parts.iter().try_for_each(ResourceOrigin::check)?;
    let parts: Vec<u8> = description.parts.iter().flat_map(|origin| origin.part.0.to_le_bytes()).collect();
    let primary = primary::retained(ordinal)?;
    let result = make(primary, position, |context, primary| {
        let SmSplit { groups, flags, least } = first.split;
        let (green, device) = (first.green, position as i32);
        let message = kdGreenCreate { context, primary, green, device, groups, flags, least, options, parts: &parts };
        let reply = shim.session.call(0, &message)?;
        Ok((reply.id, reply.facts))
    });
    match result {
        Ok(context) => target.write(CUgreenCtx(context.handle().0)),
        Err(code) => {
            let _ = contexts::primary_release(ordinal);
            return Err(code);
        }
    }
    Ok(())
}

/// Makes the record of a green context. `ask` has the worker make it, by the numbers of both contexts, and returns its id
/// and facts.
fn make(
    primary: Arc<Context>,
    position: u32,
    ask: impl FnOnce(u32, u32) -> Result<(u64, Vec<u8>), CUresult>,
) -> Result<Arc<Context>, CUresult> {
    let contexts = CONTEXTS.get()?;
    let (device, owner) = (primary.device, primary.wire());
    let new_context = |slot| Context::new(slot, device, position, 0);
    let context = contexts.insert(new_context).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let result = ask(context.wire(), owner).and_then(|(id, facts)| {
        let _ = context.green.set(GreenContext { primary, id });
        context.begin(&facts)
    });
    if let Err(code) = result {
        contexts.remove(context.slot.handle);
        return Err(code);
    }
    Ok(context)
}

/// Ends a green context with its streams, and releases the primary context.
pub(crate) fn destroy(green: CUgreenCtx) -> Result<(), CUresult> {
    let context = resolve(green)?;
    let is_active = context.is_active();
    // If the primary context was reset, the green context ended with it.
    let ended = if is_active { ending::end(&context, &kdGreenDestroy { context: context.wire() }) } else { Ok(()) };
    CONTEXTS.get()?.remove(context.slot.handle);
    if is_active {
        contexts::primary_release(context.device as CUdevice)?;
    }
    ended
}

/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn context_of_green(target: *mut CUcontext, green: CUgreenCtx) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(resolve(green)?.handle());
    Ok(())
}

/// Records everything that its streams hold now.
pub(crate) fn record(green: CUgreenCtx, event: CUevent) -> Result<(), CUresult> {
    context_event::record(resolve(green)?.handle(), event)
}

/// Makes all later work of its streams wait for the event.
pub(crate) fn wait(green: CUgreenCtx, event: CUevent) -> Result<(), CUresult> {
    context_event::wait(resolve(green)?.handle(), event)
}

/// Returns a stream's green context; null without one.
///
/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn of_stream(stream: CUstream, target: *mut CUgreenCtx) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stream::context_of(stream)?;
    target.write(context.green_handle());
    Ok(())
}

/// Makes a stream of the green context, whatever is current; it never waits for default streams.
///
/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn stream_create(
    target: *mut CUstream,
    green: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = resolve(green)?;
    context.check_active()?;
    check_green_flags(flags)?;
    let (record, priority) = stream::new_record(Arc::clone(&context), flags, priority)?;
    let message = kdGreenStream { stream: record.wire(), flags, priority };
    shim()?.session.enqueue(context.wire(), &message)?;
    target.write(CUstream(arguments::handle(record.slot.handle)));
    Ok(())
}

/// # Safety
///
/// As [`of_device`].
pub(crate) unsafe fn id(green: CUgreenCtx, target: *mut u64) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = resolve(green)?;
    target.write(context.green().map_or(0, |green| green.id));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: ResourcePart) -> ResourceOrigin {
        ResourceOrigin { device: 0, green: 0, id: 7, split: SmSplit { groups: 2, flags: 0, least: 8 }, part }
    }

    #[test]
    fn resources_carry_where_they_come_from_and_what_the_driver_told() {
        let bytes: Vec<u8> = [1_u32, 16, 8, 8].into_iter().chain([0; 9]).flat_map(u32::to_le_bytes).collect();
        let resource = part(ResourcePart(1)).resource(&bytes).unwrap();
        assert_eq!((resource.0[0], resource.0[VISIBLE_OFFSET], resource.0[VISIBLE_OFFSET + 4]), (1, 16, 8));
        assert_eq!(resource.0[RESOURCE_MARK_OFFSET..RESOURCE_MARK_OFFSET + 8], RESOURCE_MARK.to_le_bytes());
        assert_eq!(resource.0[RESOURCE_MARK_OFFSET + 36..RESOURCE_MARK_OFFSET + 40], 1_u32.to_le_bytes());
        let nothing = part(ResourcePart::REST).resource(&[0; VISIBLE_BYTES]).unwrap();
        assert_eq!(nothing.0, [0; 144]);
        assert_eq!(ResourceOrigin::read(&nothing).err(), Some(CUresult::ERROR_INVALID_RESOURCE_TYPE));
        let mut foreign = resource;
        foreign.0[RESOURCE_MARK_OFFSET] ^= 1;
        assert_eq!(ResourceOrigin::read(&foreign).err(), Some(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn only_parts_of_one_split_go_together() {
        assert!(
            are_of_one_split(&[part(ResourcePart::WHOLE)])
                && are_of_one_split(&[part(ResourcePart(0)), part(ResourcePart::REST)])
        );
        assert!(!are_of_one_split(&[part(ResourcePart(0)), part(ResourcePart::WHOLE)]));
        let other = ResourceOrigin { split: SmSplit { groups: 3, flags: 0, least: 8 }, ..part(ResourcePart(1)) };
        assert!(!are_of_one_split(&[part(ResourcePart(0)), other]) && !are_of_one_split(&[]));
    }
}
