//! Buffers, images and pipes. Initial contents come as data, and the flags tell the driver to copy it. Drivers see no host memory
//! of the program but the memory that both sides share ([`crate::memory::host`]). Buffers of processors lie there, and drivers of
//! other devices map theirs there.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::borrow::Cow;
use std::ptr;

use katydid_opencl_sys::constant::{
    BUFFER_CREATE_TYPE_REGION, DEVICE_EXTENSIONS, IMAGE_ARRAY_SIZE, IMAGE_DEPTH, IMAGE_ELEMENT_SIZE, IMAGE_FORMAT,
    IMAGE_HEIGHT, IMAGE_NUM_MIP_LEVELS, IMAGE_NUM_SAMPLES, IMAGE_ROW_PITCH, IMAGE_SLICE_PITCH, IMAGE_WIDTH,
    MEM_ALLOC_HOST_PTR, MEM_COPY_HOST_PTR, MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D, MEM_OBJECT_IMAGE2D_ARRAY,
    MEM_OBJECT_IMAGE3D, MEM_SIZE, MEM_USE_HOST_PTR,
};
use katydid_opencl_sys::{Code, cl_buffer_region, cl_context, cl_image_desc, cl_image_format, cl_mem, void};
use katydid_session_core::Texels;
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{STAGED_IN_HOST, in_place, message, query};

use crate::calls::arguments::Arguments;
use crate::calls::fault::{Fault, SessionError};
use crate::calls::notify::{self, Notify};
use crate::drivers::call::{driver, make};
use crate::drivers::driver::device_value;
use crate::handlers::info::facts;
use crate::memory::charge::{Charge, MemoryKind};
use crate::memory::host::{KERNEL_ACCESSES, MapMode, map_mode};
use crate::memory::initial_data::InitialData;
use crate::memory::zero_copy_area;
use crate::objects::lifetimes::{ObjectRef, OwnedObject};
use crate::objects::object::Object;
use crate::state::Session;

/// Image parameters that programs query, except those that are objects.
const IMAGE_PARAMS: [u32; 10] = [
    IMAGE_FORMAT,
    IMAGE_ELEMENT_SIZE,
    IMAGE_ROW_PITCH,
    IMAGE_SLICE_PITCH,
    IMAGE_WIDTH,
    IMAGE_HEIGHT,
    IMAGE_DEPTH,
    IMAGE_ARRAY_SIZE,
    IMAGE_NUM_MIP_LEVELS,
    IMAGE_NUM_SAMPLES,
];
/// The extensions for images with levels and for images with samples.
const LEVELS_EXTENSION: &[u8] = b"cl_khr_mipmap_image";
const SAMPLES_EXTENSION: &[u8] = b"cl_khr_gl_msaa_sharing";

impl Session {
    /// Returns the bytes of a message: those uploaded before it, or the rest of its own.
    pub(crate) fn bytes<'a>(&mut self, head: &FrameHead, staged: u32, own: &'a [u8]) -> Result<Cow<'a, [u8]>, Fault> {
        if staged == 0 { Ok(Cow::Borrowed(own)) } else { Ok(Cow::Owned(self.uploads.finish(head.thread)?)) }
    }

    /// Returns the initial contents of an object. They may also lie in memory shared with the program: address and length.
    fn initial_data<'a>(&mut self, head: &FrameHead, staged: u32, mut own: &'a [u8]) -> Result<InitialData<'a>, Fault> {
        if staged != STAGED_IN_HOST {
            return self.bytes(head, staged, own).map(InitialData::Own);
        }
        let bad = || SessionError::BadPart { message: "a memory object", part: "host address" };
        let host = self.host.as_ref().ok_or_else(bad)?;
        let (address, length) = u64::take(&mut own).zip(u64::take(&mut own)).ok_or_else(bad)?;
        Ok(InitialData::Shared(host.pointer_to(address, length)?, length as usize))
    }

    /// Returns flags and memory for the driver: a buffer uses memory, copies it, or copies data.
    fn beginning(&self, message: &message::kdclBuffer<'_>, data: &InitialData<'_>) -> Result<(u64, *mut void), Fault> {
        if message.host_address == 0 {
            return Ok(filled(message.flags, data));
        }
        let pointer = ptr::with_exposed_provenance_mut(message.host_address as usize);
        if !self.is_in_host(message.host_address) {
            self.svm.check(message.host_address, message.size)?;
            return Ok((message.flags | MEM_USE_HOST_PTR, pointer));
        }
        let host = self.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        host.pointer_to(message.host_address, message.size)?;
        if host.is_unshared(message.host_address) {
            return Err(Code::MEM_OBJECT_ALLOCATION_FAILURE.into());
        }
        // A buffer whose contents are in the image did not belong to processors, and stays as it was.
        let had_own = self.replay.is_on && self.replay.filled.contains(&message.memory);
        let lies_there = self.is_of_processors(message.context) && map_mode() == MapMode::InPlace && !had_own;
        if lies_there || (map_mode() != MapMode::Copy && !self.replay.is_on) {
            return Ok((message.flags & !(MEM_ALLOC_HOST_PTR | MEM_COPY_HOST_PTR) | MEM_USE_HOST_PTR, pointer));
        }
        if self.replay.is_on {
            return Ok(filled(message.flags, &InitialData::Own(Cow::Borrowed(&[]))));
        }
        Ok((message.flags, if message.flags & MEM_COPY_HOST_PTR == 0 { ptr::null_mut() } else { pointer }))
    }

    /// Returns whether an address lies in the memory that is shared with the program.
    pub(crate) fn is_in_host(&self, address: u64) -> bool {
        self.host.as_ref().is_some_and(|host| host.has(address))
    }

    /// Registers a new memory object; one that lies in another object is charged with that.
    fn bind_memory(
        &mut self,
        id: u32,
        object: Object<cl_mem>,
        made_of: Vec<ObjectRef>,
        charge: Option<Charge>,
    ) -> Result<(), SessionError> {
        let owned = OwnedObject::new(object, made_of);
        owned.set_charge(charge);
        self.shared.objects.set_held::<cl_mem>(id, owned)
    }

    /// Returns the kind of memory in which memory of a context lies.
    pub(crate) fn memory_kind(&self, context: u32) -> MemoryKind {
        if self.is_of_processors(context) { MemoryKind::Machine } else { MemoryKind::Gpu }
    }
}

/// Returns the program's flags, adjusted for `data`, and the pointer to it.
fn filled(flags: u64, data: &InitialData<'_>) -> (u64, *mut void) {
    let flags = flags & !(MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR);
    if data.is_empty() { (flags, ptr::null_mut()) } else { (flags | MEM_COPY_HOST_PTR, data.pointer()) }
}

/// Makes a buffer. With `properties` 1, a list of them precedes the data. It must be empty: descriptors and handles in it would
/// be the worker's.
pub(crate) fn kdclBuffer(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclBuffer<'_>,
) -> Result<message::kdclBufferReply, Fault> {
    let mut arguments = Arguments::new("kdclBuffer", message.data);
    let properties: Vec<u64> = if message.properties == 0 { Vec::new() } else { arguments.list("properties")? };
    let data = session.initial_data(head, message.staged, arguments.remaining())?;
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    if !properties.is_empty() {
        return Err(Code::INVALID_PROPERTY.into());
    }
    if !data.is_empty() && data.len() as u64 != message.size {
        return Err(Code::INVALID_BUFFER_SIZE.into());
    }
    let is_in_svm = message.host_address != 0 && !session.is_in_host(message.host_address);
    // Shared virtual memory is charged already.
    let charge = if is_in_svm {
        None
    } else {
        let charged = session.shared.charges.charge(session.memory_kind(message.context), message.size);
        Some(charged.ok_or(Code::MEM_OBJECT_ALLOCATION_FAILURE)?)
    };
    let block = if message.host_address == 0 { session.zero_copy_block(message.context, message.size) } else { None };
    let (flags, pointer) = match &block {
        Some(block) => zero_copy_area::beginning(block, message.flags, &data),
        None => session.beginning(&message, &data)?,
    };
    let in_svm = is_in_svm.then(|| session.svm.hold(message.host_address, message.size)).transpose()?;
    let (api, size) = (context.api, message.size as usize);
    let handle = if message.properties == 0 {
        make!(api, clCreateBuffer(context.handle, flags, size, pointer))
    } else {
        make!(api, clCreateBufferWithProperties(context.handle, [0].as_ptr(), flags, size, pointer))
    }?;
    if flags & MEM_USE_HOST_PTR != 0 && session.is_in_host(message.host_address) {
        session.mapped_in_host.insert(message.memory);
        if session.is_of_processors(message.context) && map_mode() == MapMode::InPlace {
            session.is_in_host.insert(message.memory);
            if session.replay.is_on {
                session.was_in_host.insert(message.memory);
            }
        }
    }
    let object = Object { handle, api, size: message.size };
    if let Some(block) = block {
        session.put_in_zero_copy_area(message.memory, &object, block);
    }
    let mut made_of = vec![session.shared.objects.hold::<cl_context>(message.context)?];
    made_of.extend(in_svm);
    session.bind_memory(message.memory, object, made_of, charge)?;
    Ok(message::kdclBufferReply { facts: facts(session, message.memory, query::MEMORY, &[MEM_SIZE]) })
}

/// Makes a sub-buffer.
pub(crate) fn kdclSubBuffer(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSubBuffer,
) -> Result<message::kdclSubBufferReply, Fault> {
    let parent: Object<cl_mem> = session.shared.objects.get(message.parent)?;
    let region = cl_buffer_region { origin: message.origin as usize, size: message.size as usize };
    let flags = message.flags & !(MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR);
    let pointer = (&raw const region).cast();
    let handle = make!(parent.api, clCreateSubBuffer(parent.handle, flags, BUFFER_CREATE_TYPE_REGION, pointer))?;
    for like in [&mut session.is_in_host, &mut session.mapped_in_host] {
        if like.contains(&message.parent) {
            like.insert(message.memory);
        }
    }
    session.part_in_zero_copy_area(message.memory, message.parent, message.origin);
    let whole = session.shared.objects.hold::<cl_mem>(message.parent)?;
    session.bind_memory(message.memory, Object { handle, api: parent.api, size: 0 }, vec![whole], None)?;
    Ok(message::kdclSubBufferReply {})
}

/// Decodes the numbers of an image description; the data follows.
fn description(arguments: &mut Arguments<'_>, parent: cl_mem) -> Result<(cl_image_format, cl_image_desc), Fault> {
    let format = cl_image_format {
        image_channel_order: arguments.take("format")?,
        image_channel_data_type: arguments.take("format")?,
    };
    let image_type = arguments.take("type")?;
    let [width, height, depth, images, row, slice] = arguments.sizes("extent")?;
    let description = cl_image_desc {
        image_type,
        image_width: width,
        image_height: height,
        image_depth: depth,
        image_array_size: images,
        image_row_pitch: row,
        image_slice_pitch: slice,
        num_mip_levels: arguments.take("levels")?,
        num_samples: arguments.take("samples")?,
        mem_object: parent,
    };
    Ok((format, description))
}

/// Makes an image with its own memory or another object's.
pub(crate) fn kdclImage(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclImage<'_>,
) -> Result<message::kdclImageReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let parent = match message.parent {
        0 => cl_mem::NULL,
        id => session.shared.objects.get_of::<cl_mem>(context.api, id)?.handle,
    };
    let mut arguments = Arguments::new("kdclImage", message.arguments);
    let (format, shape) = description(&mut arguments, parent)?;
    let data = session.initial_data(head, message.staged, arguments.remaining())?;
    // Elements have at most 16 bytes, so this bounds what the driver reads before its own size is known.
    let api = context.api;
    session.stands(message.context, api, &shape)?;
    let in_place = session.image_in_place(&message, (&format, &shape))?;
    let (flags, pointer) = match in_place {
        Some(beginning) => beginning,
        None if message.host_address != 0 => session.copied_image(&message, context.handle, &format, &shape)?,
        None => filled(message.flags, &data),
    };
    if !data.is_empty() {
        check_data(api, (context.handle, message.flags), &format, &shape, data.len())?;
    }
    let handle = make!(api, clCreateImage(context.handle, flags, &raw const format, &raw const shape, pointer))?;
    let elementSize = number_of_image(api, handle, IMAGE_ELEMENT_SIZE);
    let kind = session.memory_kind(message.context);
    let tiles = if kind == MemoryKind::Gpu { texels(&shape, elementSize).tiled_bytes() } else { 0 };
    let charge = match message.parent {
        0 => session.shared.charges.charge(kind, number(api, handle, MEM_SIZE).max(tiles)),
        _ => None,
    };
    if message.parent == 0 && charge.is_none() {
        driver!(api, clReleaseMemObject(handle)).ok()?;
        return Err(Code::MEM_OBJECT_ALLOCATION_FAILURE.into());
    }
    let mut made_of = vec![session.shared.objects.hold::<cl_context>(message.context)?];
    if message.parent != 0 {
        made_of.push(session.shared.objects.hold::<cl_mem>(message.parent)?);
    }
    session.bind_memory(message.memory, Object { handle, api, size: elementSize }, made_of, charge)?;
    if in_place.is_some() {
        session.is_in_host.insert(message.memory);
    }
    let mut facts = Vec::new();
    if head.wants_reply {
        facts = self::facts(session, message.memory, query::IMAGE, &IMAGE_PARAMS);
        facts.extend(self::facts(session, message.memory, query::MEMORY, &[MEM_SIZE]));
    }
    let is_sure = session.shared.usage.limit().is_none();
    let in_place = if in_place.is_none() {
        in_place::COPIED
    } else if is_sure {
        in_place::IN_PLACE_ALWAYS
    } else {
        in_place::IN_PLACE
    };
    Ok(message::kdclImageReply { elementSize, in_place, facts })
}

impl Session {
    /// Returns flags and data of an image with its own memory whose initial contents lie in shared memory. A replayed image
    /// begins empty.
    fn copied_image(
        &self,
        message: &message::kdclImage<'_>,
        context: cl_context,
        format: &cl_image_format,
        shape: &cl_image_desc,
    ) -> Result<(u64, *mut void), Fault> {
        if self.replay.is_on || message.flags & (MEM_COPY_HOST_PTR | MEM_USE_HOST_PTR) == 0 {
            return Ok(filled(message.flags, &InitialData::Own(Cow::Borrowed(&[]))));
        }
        let api = self.shared.objects.get::<cl_context>(message.context)?.api;
        let bytes = packed_bytes(api, (context, message.flags), format, shape)?;
        if bytes as u64 > message.host_bytes {
            return Err(Code::INVALID_IMAGE_SIZE.into());
        }
        let host = self.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        let pointer = host.pointer_to(message.host_address, bytes as u64)?;
        Ok(filled(message.flags, &InitialData::Shared(pointer, bytes)))
    }

    /// Checks that a driver supports levels and samples, which come with extensions. Without them it returns the standard's code;
    /// PoCL would end the process.
    fn stands(&self, context: u32, api: &katydid_opencl_sys::Dispatch, shape: &cl_image_desc) -> Result<(), Code> {
        let needed = [(shape.num_mip_levels, LEVELS_EXTENSION), (shape.num_samples, SAMPLES_EXTENSION)];
        let devices = self.devices_of(context);
        let has = |extension: &[u8]| {
            let all = devices.first().map(|device| device_value(*device, api, DEVICE_EXTENSIONS));
            all.and_then(Result::ok).is_some_and(|all| all.split(|byte| *byte == b' ').any(|name| name == extension))
        };
        let is_known = needed.into_iter().all(|(count, extension)| count == 0 || has(extension));
        if is_known { Ok(()) } else { Err(Code::INVALID_IMAGE_DESCRIPTOR) }
    }
}

/// Returns the texels of an image, without the numbers that its type ignores.
fn texels(shape: &cl_image_desc, element: u64) -> Texels {
    let [width, height, depth, images] =
        [shape.image_width, shape.image_height, shape.image_depth, shape.image_array_size].map(|size| size as u64);
    let (extent, has_layers) = match shape.image_type {
        MEM_OBJECT_IMAGE3D => ([width, height, depth], false),
        MEM_OBJECT_IMAGE2D_ARRAY => ([width, height, images], true),
        MEM_OBJECT_IMAGE1D_ARRAY => ([width, 1, images], true),
        MEM_OBJECT_IMAGE2D => ([width, height, 1], false),
        _ => ([width, 1, 1], false),
    };
    Texels { bytes: element, extent, has_layers, levels: shape.num_mip_levels.max(1) }
}

/// Checks the length of an image's data: a driver reads as many bytes as the shape says. `of` is a context and the image's flags.
fn check_data(
    api: &katydid_opencl_sys::Dispatch,
    of: (cl_context, u64),
    format: &cl_image_format,
    shape: &cl_image_desc,
    length: usize,
) -> Result<(), Code> {
    let fits = shape.image_row_pitch == 0 && shape.image_slice_pitch == 0;
    if fits && packed_bytes(api, of, format, shape)? == length { Ok(()) } else { Err(Code::INVALID_IMAGE_SIZE) }
}

/// Returns the bytes of an image without gaps. The element size comes from a probe image of one element, with the accesses of the
/// flags: some formats have no image that kernels write to.
fn packed_bytes(
    api: &katydid_opencl_sys::Dispatch,
    (context, flags): (cl_context, u64),
    format: &cl_image_format,
    shape: &cl_image_desc,
) -> Result<usize, Code> {
    let [width, height, depth, images] =
        [shape.image_width, shape.image_height, shape.image_depth, shape.image_array_size].map(|number| number.max(1));
    let one = cl_image_desc {
        image_width: 1,
        image_height: height.min(1),
        image_depth: depth.min(1),
        image_array_size: images.min(1),
        image_row_pitch: 0,
        image_slice_pitch: 0,
        ..*shape
    };
    let access = flags & KERNEL_ACCESSES;
    let probe = make!(api, clCreateImage(context, access, format, &raw const one, ptr::null_mut()))?;
    let element = number_of_image(api, probe, IMAGE_ELEMENT_SIZE) as usize;
    driver!(api, clReleaseMemObject(probe)).ok()?;
    let bytes =
        [height, depth, images].iter().try_fold(width.checked_mul(element), |all, n| Some(all?.checked_mul(*n)));
    bytes.flatten().ok_or(Code::INVALID_IMAGE_SIZE)
}

/// Returns a number that the driver reports of an object; 0 if it reports none.
fn number(api: &katydid_opencl_sys::Dispatch, object: cl_mem, parameter: u32) -> u64 {
    let mut number = 0u64;
    let _ = driver!(api, clGetMemObjectInfo(object, parameter, 8, (&raw mut number).cast(), ptr::null_mut()));
    number
}

/// Returns a number that the driver reports of an image; 0 if it reports none.
pub(crate) fn number_of_image(api: &katydid_opencl_sys::Dispatch, image: cl_mem, parameter: u32) -> u64 {
    let mut number = 0u64;
    let _ = driver!(api, clGetImageInfo(image, parameter, 8, (&raw mut number).cast(), ptr::null_mut()));
    number
}

/// Creates a pipe (`clCreatePipe`).
pub(crate) fn kdclPipe(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclPipe,
) -> Result<message::kdclPipeReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let api = context.api;
    // One slot more than packets tells a full pipe from an empty one.
    let bytes = u64::from(message.packetSize).saturating_mul(u64::from(message.packets) + 1);
    let charge = session.shared.charges.charge(session.memory_kind(message.context), bytes);
    let charge = Some(charge.ok_or(Code::MEM_OBJECT_ALLOCATION_FAILURE)?);
    let handle =
        make!(api, clCreatePipe(context.handle, message.flags, message.packetSize, message.packets, ptr::null()))?;
    let made_of = session.shared.objects.hold::<cl_context>(message.context)?;
    session.bind_memory(message.memory, Object { handle, api, size: 0 }, vec![made_of], charge)?;
    Ok(message::kdclPipeReply {})
}

/// Registers a callback for the end of the object.
pub(crate) fn kdclMemoryCallback(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclMemoryCallback,
) -> Result<message::kdclMemoryCallbackReply, Fault> {
    let object: Object<cl_mem> = session.shared.objects.get(message.memory)?;
    let data = Notify::leak(&session.shared, message.token);
    let code = driver!(object.api, clSetMemObjectDestructorCallback(object.handle, Some(notify::memory), data));
    if code != Code::SUCCESS {
        // SAFETY: the driver refused it.
        unsafe { Notify::forget(data) };
    }
    code.ok()?;
    session.destructors.entry(message.memory).or_default().push(message.token);
    Ok(message::kdclMemoryCallbackReply {})
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::constant::{MEM_OBJECT_IMAGE2D, MEM_READ_ONLY};

    use super::*;
    use crate::tests::{empty_table, release};

    /// A driver with images that kernels read, and no others.
    unsafe extern "C" fn create_image(
        _: cl_context,
        flags: u64,
        _: *const cl_image_format,
        _: *const cl_image_desc,
        _: *mut void,
        code: *mut i32,
    ) -> cl_mem {
        let answer = if flags == MEM_READ_ONLY { Code::SUCCESS } else { Code::IMAGE_FORMAT_NOT_SUPPORTED };
        // SAFETY: the session asks for the code.
        unsafe { code.write(answer.0) };
        if flags == MEM_READ_ONLY { cl_mem(ptr::without_provenance_mut(64)) } else { cl_mem::NULL }
    }

    /// Reports elements of four bytes.
    unsafe extern "C" fn image_info(_: cl_mem, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
        // SAFETY: room for a number.
        unsafe { value.cast::<u64>().write_unaligned(4) };
        0
    }

    #[test]
    fn elements_are_those_of_an_image_with_the_same_accesses() {
        let mut api = empty_table();
        api.clCreateImage = Some(create_image);
        api.clGetImageInfo = Some(image_info);
        api.clReleaseMemObject = Some(release);
        let format = cl_image_format { image_channel_order: 0x10c1, image_channel_data_type: 0x10d2 };
        let shape = cl_image_desc {
            image_type: MEM_OBJECT_IMAGE2D,
            image_width: 5,
            image_height: 3,
            image_depth: 0,
            image_array_size: 0,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            mem_object: cl_mem::NULL,
        };
        let of = |flags| packed_bytes(&api, (cl_context::NULL, flags), &format, &shape);
        assert_eq!(of(MEM_READ_ONLY | MEM_COPY_HOST_PTR), Ok(60));
        assert_eq!(of(MEM_COPY_HOST_PTR), Err(Code::IMAGE_FORMAT_NOT_SUPPORTED));
    }
}
