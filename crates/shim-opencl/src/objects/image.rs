//! Images: creation and queries.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use katydid_opencl_sys::constant::{
    IMAGE_BUFFER, IMAGE_ROW_PITCH, IMAGE_SLICE_PITCH, MEM_COPY_HOST_PTR, MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D,
    MEM_OBJECT_IMAGE2D_ARRAY, MEM_OBJECT_IMAGE3D, MEM_USE_HOST_PTR,
};
use katydid_opencl_sys::{Code, cl_context, cl_image_desc, cl_image_format, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclImage, kdclImageReply};
use katydid_wire::opencl::{in_place, query};

use crate::ffi::arguments::pairs;
use crate::host::arena::{self, Block};
use crate::host::bulk::InitialData;
use crate::host::rows::{Direction, Rows};
use crate::objects::context::Context;
use crate::objects::handle::{Base, HeldObject, Object, make, object, release};
use crate::objects::image_facts::{self, ImageForm};
use crate::objects::image_shape::ImageShape;
use crate::objects::info::{CachedValues, QueryBuffer, handles};
use crate::objects::memory::{Memory, for_driver, has_contents, inherited};
use crate::objects::queue;
use crate::objects::svm::SVM_RANGES;
use crate::process::session;

/// Most bytes of an image that the system surely has room for.
const MAX_SURE_BYTES: usize = 16 << 20;
/// Most bytes of all images in memory shared with the worker: the program's dump includes them, at half a second for each GiB.
const MAX_IN_PLACE_BYTES: usize = 256 << 20;

/// Bytes that such images have now.
static IN_PLACE: AtomicUsize = AtomicUsize::new(0);

/// Returns the elements of an image in each direction, as regions count them. Fields that its kind ignores may hold anything.
fn sizes(shape: &cl_image_desc) -> [usize; 3] {
    let (height, depth) = match shape.image_type {
        MEM_OBJECT_IMAGE2D => (shape.image_height, 1),
        MEM_OBJECT_IMAGE2D_ARRAY => (shape.image_height, shape.image_array_size),
        MEM_OBJECT_IMAGE3D => (shape.image_height, shape.image_depth),
        MEM_OBJECT_IMAGE1D_ARRAY => (shape.image_array_size, 1),
        _ => (1, 1),
    };
    [shape.image_width, height, depth]
}

/// Returns the bytes of an image by the program's description; an element has `element` bytes.
fn rows(shape: &cl_image_desc, element: usize, start: usize) -> Result<Rows, Code> {
    let width = shape.image_width.checked_mul(element).ok_or(Code::INVALID_IMAGE_SIZE)?;
    let is_lines = shape.image_type == MEM_OBJECT_IMAGE1D_ARRAY;
    let [_, height, depth] = sizes(shape);
    let pitch = if is_lines && shape.image_slice_pitch != 0 { shape.image_slice_pitch } else { shape.image_row_pitch };
    let row = if pitch == 0 { width } else { pitch };
    let whole = row.checked_mul(height).ok_or(Code::INVALID_IMAGE_SIZE)?;
    let slice = if shape.image_slice_pitch == 0 || is_lines { whole } else { shape.image_slice_pitch };
    let is_whole = row.is_multiple_of(element) && slice.is_multiple_of(row.max(1));
    if row < width || slice < whole || slice.checked_mul(depth).is_none() || !is_whole {
        return Err(Code::INVALID_IMAGE_DESCRIPTOR);
    }
    Ok(Rows { start, width, rows: height, slices: depth, row, slice })
}

/// Returns the row and slice pitch of the program's memory.
fn pitches(shape: &cl_image_desc, rows: &Rows) -> (usize, usize) {
    if shape.image_type == MEM_OBJECT_IMAGE1D_ARRAY {
        return (shape.image_row_pitch.max(rows.width), rows.row);
    }
    (rows.row, rows.slice)
}

/// An image that a program requests.
struct RequestedImage {
    context: Arc<Context>,
    parent: Option<Arc<Memory>>,
    flags: u64,
    /// The flags for the driver.
    driver_flags: u64,
    format: cl_image_format,
    desc: cl_image_desc,
    /// The bytes in the program's memory; only the layout if it gave none.
    rows: Rows,
    /// Bytes of an element, if the format is known.
    element: Option<usize>,
    /// The address that the program gave.
    host: usize,
    /// Whether its initial contents are the program's bytes.
    is_given: bool,
}

impl RequestedImage {
    /// # Safety
    ///
    /// Format and description are null or readable.
    unsafe fn read(
        context: cl_context,
        flags: u64,
        format: *const cl_image_format,
        desc: *const cl_image_desc,
        host_ptr: *mut void,
    ) -> Result<Self, Code> {
        let (context, host) = (object::<Context>(context)?, host_ptr.expose_provenance());
        if format.is_null() {
            return Err(Code::INVALID_IMAGE_FORMAT_DESCRIPTOR);
        }
        if desc.is_null() {
            return Err(Code::INVALID_IMAGE_DESCRIPTOR);
        }
        // SAFETY: not null, so readable by the contract.
        let (format, desc) = unsafe { (format.read_unaligned(), desc.read_unaligned()) };
        let parent = if desc.mem_object == cl_mem::NULL { None } else { Some(object::<Memory>(desc.mem_object)?) };
        let driver_flags = for_driver(parent.as_ref().map_or(0, |parent| parent.flags), flags)?;
        let has_host_pointer = flags & (MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR) != 0;
        // An image in another object may have pitches.
        let has_memory = has_host_pointer || host != 0 || parent.is_some();
        if !has_memory && (desc.image_row_pitch != 0 || desc.image_slice_pitch != 0) {
            return Err(Code::INVALID_IMAGE_DESCRIPTOR);
        }
        let element = format.element_bytes();
        let rows = match element {
            Some(size) => rows(&desc, size, host)?,
            None if has_host_pointer => return Err(Code::IMAGE_FORMAT_NOT_SUPPORTED),
            None => Rows::run(host, 0),
        };
        if has_host_pointer && SVM_RANGES.overruns(rows.start, rows.reach()) {
            return Err(Code::INVALID_HOST_PTR);
        }
        let is_given = has_contents(flags, rows.start)?;
        Ok(Self { context, parent, flags, driver_flags, format, desc, rows, element, host, is_given })
    }

    /// Returns whether it may lie in shared memory.
    fn is_simple(&self) -> bool {
        let is_plain = self.desc.num_mip_levels == 0 && self.desc.num_samples == 0;
        is_plain && self.parent.is_none() && self.element.is_some()
    }

    /// Returns the kind, format and flags of an image in place as the driver sees them. The driver is given memory, whatever the
    /// program's flags say of it.
    fn form(&self) -> ImageForm {
        let channels = (self.format.image_channel_order, self.format.image_channel_data_type);
        (self.desc.image_type, channels.0, channels.1, image_facts::without_memory(self.driver_flags))
    }

    /// Requests the image from the worker. Returns the reply, or the reply that is known in advance.
    fn ask(&self, worker: u32, message: &kdclImage<'_>) -> Result<kdclImageReply, Code> {
        let element = self.element.filter(|_| message.host_address != 0);
        let facts = element.map(|element| image_facts::expected(&self.format, &self.desc, element));
        if let (Some(facts), Some(element)) = (&facts, element)
            && cannot_be_refused(&self.context, worker, &self.form(), (&self.desc, element, self.rows.len()))?
        {
            // If no command followed the last image, perhaps none follows this one, and its memory exists already. Otherwise the
            // worker is woken, so that it is awake when that command comes.
            let commands = queue::commands(&self.context);
            if self.context.commands_at_image.swap(commands, Ordering::Relaxed) == commands {
                session::enqueue_lazily(message)?;
            } else {
                session::enqueue(message)?;
            }
            return Ok(kdclImageReply {
                elementSize: element as u64,
                in_place: in_place::IN_PLACE_ALWAYS,
                facts: facts.clone(),
            });
        }
        let reply = session::call(message)?;
        if reply.in_place == in_place::IN_PLACE_ALWAYS && facts.as_ref() == Some(&reply.facts) {
            self.context.known_forms().learn(worker, self.form(), reply.elementSize as usize);
        }
        Ok(reply)
    }

    /// Makes the object from the worker's reply.
    fn object(&self, base: Base, properties: Vec<u64>, worker: u32, reply: &kdclImageReply) -> Memory {
        let (row, slice) = pitches(&self.desc, &self.rows);
        let desc = &self.desc;
        let has_data = self.flags & (MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR) != 0;
        let shape = ImageShape {
            kind: desc.image_type,
            format: (self.format.image_channel_order, self.format.image_channel_data_type),
            sizes: sizes(desc),
            element: reply.elementSize as usize,
            row,
            slice,
            has_pitches: has_data && (desc.image_row_pitch != 0 || desc.image_slice_pitch != 0),
            levels: desc.num_mip_levels,
        };
        let held = self.parent.as_ref().map(|parent| HeldObject::new(Arc::clone(parent)));
        let flags = held.as_ref().map_or(self.flags, |parent| inherited(parent.flags, self.flags));
        let host = held.as_ref().map_or(self.host, |parent| parent.host);
        let context = HeldObject::new(Arc::clone(&self.context));
        let memory = Memory::new(base, context, desc.image_type, flags).beginning(has_data);
        memory.with(host, properties).of_image(shape, held).knowing(CachedValues::from_worker(worker, &reply.facts))
    }
}

/// # Safety
///
/// Format and description are null or readable; `host_ptr` holds the image if the flags say so.
unsafe fn create(
    context: cl_context,
    properties: Vec<u64>,
    flags: u64,
    format: *const cl_image_format,
    desc: *const cl_image_desc,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    // SAFETY: handed on.
    let request = match unsafe { RequestedImage::read(context, flags, format, desc, host_ptr) } {
        Ok(request) => request,
        // SAFETY: handed on.
        Err(code) => return Err(unsafe { judged(context, format, desc, code) }),
    };
    let block = if request.is_simple() { block_for(&request.context, request.rows.len()) } else { None };
    let mut is_lent = false;
    // SAFETY: by the contract.
    let result = unsafe { make_image(&request, properties, block.as_ref(), &mut is_lent) };
    match (result, block) {
        (Ok(memory), Some(block)) if is_lent => {
            memory.keep(block, give_back);
            Ok(memory.handle())
        }
        (result, block) => {
            if let Some(block) = block {
                request.context.has_no_images_in_place.fetch_or(result.is_ok(), Ordering::Relaxed);
                give_back(block);
            }
            Ok(result?.handle())
        }
    }
}

/// The code of an image that is refused with `code` for its flags or its memory. A driver looks at format and sizes before it looks
/// at those, so it is asked what it says of an image without them.
///
/// # Safety
///
/// Format and description are null or readable.
unsafe fn judged(context: cl_context, format: *const cl_image_format, desc: *const cl_image_desc, code: Code) -> Code {
    let Ok(context) = object::<Context>(context) else { return code };
    if format.is_null() || desc.is_null() {
        return code;
    }
    // SAFETY: not null, so readable by the contract.
    let (format, desc) = unsafe { (format.read_unaligned(), desc.read_unaligned()) };
    if desc.mem_object != cl_mem::NULL {
        return code;
    }
    let plain = RequestedImage {
        context,
        parent: None,
        flags: 0,
        driver_flags: 0,
        element: format.element_bytes(),
        format,
        desc,
        rows: Rows::run(0, 0),
        host: 0,
        is_given: false,
    };
    // SAFETY: it begins with no bytes, and there is no block.
    match unsafe { make_image(&plain, Vec::new(), None, &mut false) } {
        Ok(image) => {
            let _ = release::<Memory>(image.handle());
            code
        }
        Err(driver_code) => driver_code,
    }
}

/// Makes an image, in a block if there is one and the driver has it there.
///
/// # Safety
///
/// The rows are readable if they are the initial contents; the block has room for them, and no other code has it.
unsafe fn make_image(
    request: &RequestedImage,
    properties: Vec<u64>,
    block: Option<&Block>,
    is_lent: &mut bool,
) -> Result<Arc<Memory>, Code> {
    let (shared, capacity) = block.map_or((0, 0), |block| (block.address, block.size()));
    let data = match (request.is_given, shared) {
        (false, _) => InitialData::none(),
        // SAFETY: by the contract.
        (true, 0) => unsafe { InitialData::of(&request.rows)? },
        (true, _) => {
            // SAFETY: by the contract.
            unsafe { request.rows.copy_wide(Direction::Out, shared) };
            InitialData::none()
        }
    };
    let mut arguments = description(&request.format, &request.desc, request.parent.is_some());
    arguments.extend_from_slice(&data.inline);
    let worker = session::worker()?;
    make(|base| {
        let reply = request.ask(
            worker,
            &kdclImage {
                memory: base.id,
                context: request.context.base.id,
                parent: request.parent.as_ref().map_or(0, |parent| parent.base.id),
                flags: request.driver_flags,
                host_address: shared as u64,
                host_bytes: capacity as u64,
                staged: data.staged,
                arguments: &arguments,
            },
        )?;
        let memory = request.object(base, properties, worker, &reply);
        *is_lent = reply.in_place != in_place::COPIED;
        // An image in the program's own memory is mapped there.
        Ok(if *is_lent && memory.host == 0 { memory.lying(shared, worker) } else { memory })
    })
}

/// Returns whether an in-place image can fail only for lack of memory, and the driver's answers follow from the standard.
fn cannot_be_refused(
    context: &Context,
    worker: u32,
    form: &ImageForm,
    (shape, element, bytes): (&cl_image_desc, usize, usize),
) -> Result<bool, Code> {
    if bytes > MAX_SURE_BYTES || !context.known_forms().has(worker, form, element, context.devices.len()) {
        return Ok(false);
    }
    context.devices.iter().try_fold(true, |fits, device| Ok(fits && image_facts::fits(device, shape, bytes)?))
}

/// Allocates shared memory for an image of `bytes` bytes, if its context may have images there.
fn block_for(context: &Context, bytes: usize) -> Option<Block> {
    let may_be = context.is_of_processors() && !context.has_no_images_in_place.load(Ordering::Relaxed);
    let total = IN_PLACE.load(Ordering::Relaxed).saturating_add(bytes);
    let block = if may_be && bytes > 0 && total <= MAX_IN_PLACE_BYTES { arena::allocate(bytes)? } else { return None };
    IN_PLACE.fetch_add(block.size(), Ordering::Relaxed);
    Some(block)
}

/// Frees a block that no image uses any more.
fn give_back(block: Block) {
    IN_PLACE.fetch_sub(block.size(), Ordering::Relaxed);
    block.free();
}

/// Encodes the image for the message, without sizes that its kind ignores: a program may leave anything there. Pitches are sent
/// only for an image in a buffer: data comes without gaps.
fn description(format: &cl_image_format, desc: &cl_image_desc, is_view: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    format.image_channel_order.put(&mut bytes);
    format.image_channel_data_type.put(&mut bytes);
    desc.image_type.put(&mut bytes);
    let pitches = if is_view { [desc.image_row_pitch, desc.image_slice_pitch] } else { [0, 0] };
    let of = |kinds: &[u32], size: usize| if kinds.contains(&desc.image_type) { size } else { 0 };
    let height = of(&[MEM_OBJECT_IMAGE2D, MEM_OBJECT_IMAGE2D_ARRAY, MEM_OBJECT_IMAGE3D], desc.image_height);
    let depth = of(&[MEM_OBJECT_IMAGE3D], desc.image_depth);
    let images = of(&[MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D_ARRAY], desc.image_array_size);
    let sizes = [desc.image_width, height, depth, images];
    sizes.into_iter().chain(pitches).for_each(|size| (size as u64).put(&mut bytes));
    desc.num_mip_levels.put(&mut bytes);
    desc.num_samples.put(&mut bytes);
    bytes
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_image(
    context: cl_context,
    flags: u64,
    format: *const cl_image_format,
    desc: *const cl_image_desc,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, Vec::new(), flags, format, desc, host_ptr) }
}

/// # Safety
///
/// As [`create`]; the list is null or ends with 0.
pub(crate) unsafe fn create_image_with_properties(
    context: cl_context,
    properties: *const u64,
    flags: u64,
    format: *const cl_image_format,
    desc: *const cl_image_desc,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    // SAFETY: guaranteed by the caller.
    let properties = unsafe { pairs(properties) }.unwrap_or_default();
    if properties.len() > 1 {
        return Err(Code::INVALID_PROPERTY);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, properties, flags, format, desc, host_ptr) }
}

/// Returns the description for the numbers of the old functions.
fn plain(kind: u32, size: [usize; 3], row: usize, slice: usize) -> cl_image_desc {
    cl_image_desc {
        image_type: kind,
        image_width: size[0],
        image_height: size[1],
        image_depth: size[2],
        image_array_size: 0,
        image_row_pitch: row,
        image_slice_pitch: slice,
        num_mip_levels: 0,
        num_samples: 0,
        mem_object: cl_mem::NULL,
    }
}

/// Maps the code for descriptors to the one for sizes: the old functions have no description.
fn without_description(code: Code) -> Code {
    if code == Code::INVALID_IMAGE_DESCRIPTOR { Code::INVALID_IMAGE_SIZE } else { code }
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_image2d(
    context: cl_context,
    flags: u64,
    format: *const cl_image_format,
    width: usize,
    height: usize,
    row_pitch: usize,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    let desc = plain(MEM_OBJECT_IMAGE2D, [width, height, 0], row_pitch, 0);
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, Vec::new(), flags, format, &raw const desc, host_ptr) }.map_err(without_description)
}

/// # Safety
///
/// As [`create`].
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn create_image3d(
    context: cl_context,
    flags: u64,
    format: *const cl_image_format,
    width: usize,
    height: usize,
    depth: usize,
    row_pitch: usize,
    slice_pitch: usize,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    let desc = plain(MEM_OBJECT_IMAGE3D, [width, height, depth], row_pitch, slice_pitch);
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, Vec::new(), flags, format, &raw const desc, host_ptr) }.map_err(without_description)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_image_info(
    image: cl_mem,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let image = object::<Memory>(image)?;
    let shape = image.image.ok_or(Code::INVALID_MEM_OBJECT)?;
    let bytes = match param_name {
        IMAGE_BUFFER => {
            let buffer = image.parent.as_ref().filter(|parent| parent.is_buffer());
            handles([buffer.map_or(0, |parent| parent.base.handle)])
        }
        IMAGE_ROW_PITCH if shape.has_pitches => handles([shape.row]),
        IMAGE_SLICE_PITCH if shape.has_pitches => handles([if shape.has_slices() { shape.slice } else { 0 }]),
        _ => image.cached.ask(query::IMAGE, image.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_array_are_a_slice_apart() {
        let of = |row, slice| {
            let shape = cl_image_desc { image_array_size: 3, ..plain(MEM_OBJECT_IMAGE1D_ARRAY, [4, 0, 0], row, slice) };
            let rows = rows(&shape, 4, 64).unwrap();
            assert_eq!((rows.width, rows.rows, rows.slices), (16, 3, 1));
            pitches(&shape, &rows)
        };
        assert_eq!([of(0, 0), of(20, 0), of(20, 40)], [(16, 16), (20, 20), (20, 40)]);
    }

    #[test]
    fn pitches_make_gaps() {
        let layout = rows(&plain(MEM_OBJECT_IMAGE3D, [4, 3, 2], 20, 0), 4, 64).unwrap();
        assert_eq!((layout.width, layout.rows, layout.slices, layout.row, layout.slice), (16, 3, 2, 20, 60));
        for (row, slice) in [(15, 0), (18, 0), (20, 59), (20, 70)] {
            let wrong = rows(&plain(MEM_OBJECT_IMAGE3D, [4, 3, 2], row, slice), 4, 64).err();
            assert_eq!(wrong, Some(Code::INVALID_IMAGE_DESCRIPTOR), "{row} {slice}");
        }
    }

    #[test]
    fn sizes_that_a_kind_has_no_use_for_do_not_travel() {
        let format = cl_image_format { image_channel_order: 0x10b0, image_channel_data_type: 0x10de };
        let of = |desc: &cl_image_desc| description(&format, desc, false);
        let plane = plain(MEM_OBJECT_IMAGE2D, [4, 3, 0], 0, 0);
        assert_eq!(of(&cl_image_desc { image_depth: 5, image_array_size: 7, ..plane }), of(&plane));
    }
}
