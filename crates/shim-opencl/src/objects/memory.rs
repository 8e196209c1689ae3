//! Buffers, sub-buffers, pipes, and the common part of all memory objects.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::constant::{
    BUFFER_CREATE_TYPE_REGION, MEM_ALLOC_HOST_PTR, MEM_ASSOCIATED_MEMOBJECT, MEM_CONTEXT, MEM_COPY_HOST_PTR, MEM_FLAGS,
    MEM_HOST_NO_ACCESS, MEM_HOST_PTR, MEM_HOST_READ_ONLY, MEM_HOST_WRITE_ONLY, MEM_MAP_COUNT, MEM_OBJECT_BUFFER,
    MEM_OBJECT_PIPE, MEM_PROPERTIES, MEM_READ_ONLY, MEM_READ_WRITE, MEM_REFERENCE_COUNT, MEM_SIZE, MEM_TYPE,
    MEM_USE_HOST_PTR, MEM_USES_SVM_POINTER, MEM_WRITE_ONLY, PIPE_PROPERTIES,
};
use katydid_opencl_sys::{Code, cl_buffer_region, cl_context, cl_mem, cl_mem_notify, void};
use katydid_wire::opencl::message::{kdclBuffer, kdclMemoryCallback, kdclPipe, kdclSubBuffer};
use katydid_wire::opencl::transfer_extent::TransferExtent;
use katydid_wire::opencl::{ZERO_COPY_MIN_BYTES, list, query};

use crate::ffi::arguments::pairs;
use crate::host::arena::{self, Block};
use crate::host::bulk::InitialData;
use crate::host::contents::{Contents, ContentsVersion};
use crate::host::mapped_pages::RETURNED_PAGES;
use crate::host::rows::{Direction, Rows};
use crate::objects::context::Context;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object};
use crate::objects::image_facts::KERNEL_ACCESS_FLAGS;
use crate::objects::image_shape::{ImageShape, OpenclImageKind};
use crate::objects::info::{CachedValues, QueryBuffer, handles};
use crate::objects::maps::Maps;
use crate::objects::pending_command::PendingCommand;
use crate::objects::queue::{self, Queue};
use crate::objects::svm::SVM_RANGES;
use crate::process::per_worker::PerWorker;
use crate::process::session;
use crate::process::upcall::{self, CallbackCall};

/// Flags about memory of the program.
const HOST_POINTER_FLAGS: u64 = MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR;
/// Pairs of flags that must not be set together.
const EXCLUSIVE_FLAGS: [u64; 2] = [HOST_POINTER_FLAGS, MEM_USE_HOST_PTR | MEM_ALLOC_HOST_PTR];
/// Kernel accesses that exclude each other.
const EXCLUSIVE_ACCESSES: [u64; 3] =
    [MEM_READ_WRITE | MEM_WRITE_ONLY, MEM_READ_WRITE | MEM_READ_ONLY, MEM_WRITE_ONLY | MEM_READ_ONLY];
/// All valid bits of memory flags.
const MEMORY_FLAGS: u64 = 0x3ff;
/// Flags for the program's accesses.
const HOST_ACCESS_FLAGS: u64 = MEM_HOST_WRITE_ONLY | MEM_HOST_READ_ONLY | MEM_HOST_NO_ACCESS;

/// Most bytes of a memory object whose release may reach the driver a little later.
const MAX_LAZY_BYTES: usize = 64 << 10;

/// Shared memory that an image lies in, and the function that frees it.
#[derive(Debug)]
struct ImageBlock {
    block: Block,
    free: fn(Block),
}

/// A memory object (`cl_mem`): buffer, image or pipe.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) base: Base,
    pub(crate) context: HeldObject<Context>,
    /// The object that this one is a part or a view of.
    pub(crate) parent: Option<HeldObject<Memory>>,
    /// The kind of object, a `CL_MEM_OBJECT_…`.
    pub(crate) kind: u32,
    /// The flags that the program gave, or that follow from the parent's.
    pub(crate) flags: u64,
    /// Bytes of a buffer.
    pub(crate) size: u64,
    /// First byte within the parent.
    offset: u64,
    /// Address of the program's memory that it uses; 0: none.
    pub(crate) host: usize,
    /// Address of its first byte in memory shared with the worker, where it is mapped; 0: none.
    pub(crate) shared: usize,
    /// That memory if this is an image, until it ends.
    image_block: Mutex<Option<ImageBlock>>,
    /// 1: it is an image that a worker's driver uses in place.
    in_place: PerWorker,
    /// Whether a callback will report its end.
    is_awaited: AtomicBool,
    /// Whether it may lie in the zero-copy area of the worker.
    pub(crate) is_zero_copy: AtomicBool,
    /// Id of the queue of a command with this object that a worker's driver has accepted; 0: none.
    accepted_in: PerWorker,
    /// The properties as given, with the final 0.
    properties: Vec<u64>,
    /// The shape of an image.
    pub(crate) image: Option<ImageShape>,
    maps: Mutex<Maps>,
    pub(crate) contents: Contents,
    pub(crate) cached: CachedValues,
}

kind_of_object! {
    Memory cl_mem MEMORY INVALID_MEM_OBJECT MAX_PROGRAM_OBJECTS,
    fn ending(&self) {
        if !self.is_idle()
            && let Some(ImageBlock { block, free }) = self.take_image_block()
        {
            // In a session that has failed there is nothing to wait for.
            let _ = free_with_buffer(self, block, free);
        }
    },
    fn ended(&self) {
        if let Some(ImageBlock { block, free }) = self.take_image_block() {
            free(block);
        }
        if self.image.is_some() {
            RETURNED_PAGES.forget(self.contents.number);
        }
    },
    fn ends_lazily(&self) -> bool {
        !self.is_awaited.load(Ordering::Relaxed) && self.driver_bytes() <= MAX_LAZY_BYTES
    }
}

impl Memory {
    /// Makes an object with its own memory.
    pub(crate) fn new(base: Base, context: HeldObject<Context>, kind: u32, flags: u64) -> Self {
        Self {
            base,
            context,
            parent: None,
            kind,
            flags,
            size: 0,
            offset: 0,
            host: 0,
            shared: 0,
            image_block: Mutex::new(None),
            in_place: PerWorker::default(),
            is_awaited: AtomicBool::new(false),
            is_zero_copy: AtomicBool::new(false),
            accepted_in: PerWorker::default(),
            properties: Vec::new(),
            image: None,
            maps: Mutex::default(),
            contents: Contents::new(false),
            cached: CachedValues::default(),
        }
    }

    /// Adds the program's memory and properties.
    pub(crate) fn with(mut self, host: usize, properties: Vec<u64>) -> Self {
        self.host = if self.flags & MEM_USE_HOST_PTR == 0 { 0 } else { host };
        self.properties = properties;
        if self.host != 0 {
            self.contents.share();
        }
        self
    }

    /// Makes it an image, with its own memory or a parent's.
    pub(crate) fn of_image(self, shape: ImageShape, parent: Option<HeldObject<Self>>) -> Self {
        Self { image: Some(shape), ..self }.within(parent)
    }

    /// Makes it a part or a view of another object, if there is one.
    fn within(self, parent: Option<HeldObject<Self>>) -> Self {
        if let Some(memory) = parent.as_deref() {
            memory.contents.share();
            self.contents.share();
        }
        Self { parent, ..self }
    }

    /// Sets whether it has initial contents from the program.
    pub(crate) fn beginning(self, is_given: bool) -> Self {
        Self { contents: Contents::new(is_given), ..self }
    }

    /// Returns the present version of its contents, if it can be known: after a command of this queue.
    pub(crate) fn version(&self, queue: &Queue) -> Option<ContentsVersion> {
        self.contents.version(self.context.launches()).filter(|_| queue.is_before_all())
    }

    /// Places an image in memory shared with the worker, at the address that the worker sent.
    pub(crate) fn lying(self, shared: usize, worker: u32) -> Self {
        self.contents.share();
        self.learn_in_place(worker);
        Self { shared, ..self }
    }

    /// Attaches the block that an image lies in. `free` receives it once no command uses the image any more.
    pub(crate) fn keep(&self, block: Block, free: fn(Block)) {
        *self.image_block.lock().unwrap_or_else(PoisonError::into_inner) = Some(ImageBlock { block, free });
    }

    fn take_image_block(&self) -> Option<ImageBlock> {
        self.image_block.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns how many bytes of the driver's memory it has. Objects in the program's memory or in another object have none. For
    /// pipes it is unknown.
    fn driver_bytes(&self) -> usize {
        let is_lent = || self.image_block.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if self.shared != 0 || self.parent.is_some() || is_lent() {
            return 0;
        }
        match self.image {
            Some(shape) => shape.bytes_with_gaps(),
            None if self.is_buffer() => self.size as usize,
            None => usize::MAX,
        }
    }

    /// Returns whether all commands that may use it are known to have ended. Then its memory is free once the worker has executed
    /// its release, and later messages may reuse it.
    fn is_idle(&self) -> bool {
        !self.contents.is_argument() && queue::are_queues_idle(&self.context)
    }

    /// Notes that a worker's driver uses its shared memory in place.
    pub(crate) fn learn_in_place(&self, worker: u32) {
        self.in_place.learn(worker, |_| 1);
    }

    /// Returns whether that worker's driver uses its shared memory in place.
    pub(crate) fn is_in_place(&self, worker: u32) -> bool {
        self.in_place.get(worker) != 0
    }

    /// Adds the facts that the worker reported of it.
    pub(crate) fn knowing(self, cached: CachedValues) -> Self {
        Self { cached, ..self }
    }

    /// Notes that the driver has accepted a command of a queue with it, so the queue's device has room for it.
    pub(crate) fn accepted(&self, command: &PendingCommand) {
        self.accepted_in.learn(command.worker, |_| command.queue());
    }

    /// Returns whether a command with these bytes of it can fail only for lack of driver memory. For sub-buffers, only the driver
    /// knows where they may begin.
    pub(crate) fn cannot_be_refused(&self, command: &PendingCommand, offset: u64, size: u64) -> bool {
        let fits = self.holds(&TransferExtent::run(offset, size));
        let is_known = self.accepted_in.get(command.worker) == command.queue();
        is_known && fits && size > 0 && self.is_buffer() && self.parent.is_none() && self.is_of(&command.queue)
    }

    /// Returns whether a command with this box of an image can fail only for lack of memory. Processors have room for the objects
    /// that they have made.
    pub(crate) fn box_cannot_be_refused(&self, command: &PendingCommand, extent: &TransferExtent) -> bool {
        let numbers = |numbers: [u64; 3]| numbers.map(|number| number as usize);
        let (origin, region) = (numbers(extent.origin), numbers(extent.region));
        let is_accepted = self.accepted_in.get(command.worker) == command.queue() || self.context.is_of_processors();
        let fits = |shape: ImageShape| shape.levels <= 1 && shape.check(origin, region).is_ok();
        // For sub-buffers, only the driver knows where images may begin.
        let is_aligned = self.parent.as_ref().is_none_or(|whole| whole.parent.is_none());
        let is_inside = self.image.is_some_and(fits) && !region.contains(&0);
        is_accepted && is_inside && is_aligned && self.is_of(&command.queue)
    }

    /// Returns whether a whole run lies within it.
    pub(crate) fn holds(&self, run: &TransferExtent) -> bool {
        run.origin[0].checked_add(run.region[0]).is_some_and(|end| end <= self.size)
    }

    fn is_of(&self, queue: &Queue) -> bool {
        self.context.base.id == queue.context.base.id
    }

    /// Returns the kind of an image; `None` for other objects.
    pub(crate) fn image_kind(&self) -> Option<OpenclImageKind> {
        self.image.map(|shape| shape.kind_and_format())
    }

    pub(crate) fn is_buffer(&self) -> bool {
        self.kind == MEM_OBJECT_BUFFER
    }

    /// Checks that the program may read it, or write to it.
    pub(crate) fn allows(&self, direction: Direction) -> Result<(), Code> {
        let other = if direction == Direction::In { MEM_HOST_WRITE_ONLY } else { MEM_HOST_READ_ONLY };
        if self.flags & (other | MEM_HOST_NO_ACCESS) == 0 { Ok(()) } else { Err(Code::INVALID_OPERATION) }
    }

    /// Returns its mapped regions.
    pub(crate) fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether an object's initial contents are the program's bytes at `start`.
pub(crate) fn has_contents(flags: u64, start: usize) -> Result<bool, Code> {
    let has_host_pointer = flags & HOST_POINTER_FLAGS != 0;
    let has_both = |pairs: &[u64]| pairs.iter().any(|both| flags & both == *both);
    if has_both(&EXCLUSIVE_FLAGS) {
        return Err(Code::INVALID_VALUE);
    }
    if has_host_pointer != (start != 0) {
        // Drivers check the flags before the pointer. If the pointer fits, their own check of the accesses decides; some check
        // the size first.
        let are_valid = flags & !MEMORY_FLAGS == 0 && !has_both(&EXCLUSIVE_ACCESSES);
        return Err(if are_valid { Code::INVALID_HOST_PTR } else { Code::INVALID_VALUE });
    }
    Ok(has_host_pointer)
}

/// # Safety
///
/// `host_ptr` is readable for `size` bytes if the flags use it.
unsafe fn create(
    context: cl_context,
    properties: Option<Vec<u64>>,
    flags: u64,
    size: usize,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    let context = object::<Context>(context)?;
    if size == 0 {
        return Err(Code::INVALID_BUFFER_SIZE);
    }
    let (driver_flags, host) = (for_driver(0, flags)?, host_ptr.expose_provenance());
    // No memory past the end of an allocation can be used or copied.
    if flags & HOST_POINTER_FLAGS != 0 && SVM_RANGES.overruns(host, size) {
        return Err(Code::INVALID_BUFFER_SIZE);
    }
    // Both sides use shared virtual memory in place.
    let svm = if flags & MEM_USE_HOST_PTR != 0 && SVM_RANGES.contains(host, size) { host as u64 } else { 0 };
    let rows = Rows::run(host, if svm == 0 { size } else { 0 });
    let is_given = has_contents(flags, host)?;
    let block = if is_for_host(flags) { arena::allocate(size) } else { None };
    let shared = block.as_ref().map_or(0, |block| block.address);
    let data = if is_given && shared == 0 {
        // SAFETY: by the contract.
        unsafe { InitialData::of(&rows)? }
    } else {
        InitialData::none()
    };
    if shared != 0 && is_given {
        // SAFETY: readable by the contract; the block has room for the buffer, and no other code has it yet.
        unsafe { rows.copy_wide(Direction::Out, shared) };
    }
    let mut bytes = Vec::new();
    if properties.is_some() {
        list::put::<u64>(&mut bytes, &[]);
    }
    bytes.extend_from_slice(&data.inline);
    let worker = session::worker()?;
    let result = make(|base| {
        let reply = session::call(&kdclBuffer {
            memory: base.id,
            context: context.base.id,
            flags: driver_flags,
            size: size as u64,
            host_address: if shared == 0 { svm } else { shared as u64 },
            staged: data.staged,
            properties: properties.is_some().into(),
            data: &bytes,
        })?;
        let memory = Memory::new(base, HeldObject::new(Arc::clone(&context)), MEM_OBJECT_BUFFER, flags)
            .beginning(is_given)
            .with(host, properties.unwrap_or_default());
        if shared != 0 {
            memory.contents.share();
        }
        let is_zero_copy = AtomicBool::new(shared == 0 && svm == 0 && size as u64 >= ZERO_COPY_MIN_BYTES);
        let cached = CachedValues::from_worker(worker, &reply.facts);
        Ok(Memory { size: size as u64, shared, is_zero_copy, cached, ..memory })
    });
    match (result, block) {
        (Ok(memory), block) => {
            block.map_or(Ok(()), |block| free_with_buffer(&memory, block, Block::free))?;
            Ok(memory.handle())
        }
        (Err(code), block) => {
            block.into_iter().for_each(Block::free);
            Err(code)
        }
    }
}

/// Returns the flags for the driver. Only the shim enforces the program's accesses: the worker also reads memory that is mapped
/// for writing, since all of it is written back. `whole` are the flags of the object that this one is a part of.
pub(crate) fn for_driver(whole: u64, flags: u64) -> Result<u64, Code> {
    let (whole, own) = (whole & HOST_ACCESS_FLAGS, flags & HOST_ACCESS_FLAGS);
    let widens = ![0, whole, MEM_HOST_NO_ACCESS].contains(&own) && whole != 0;
    if own.count_ones() > 1 || widens { Err(Code::INVALID_VALUE) } else { Ok(flags & !HOST_ACCESS_FLAGS) }
}

/// Returns whether the program requests memory with fast host access. Its own memory stays in use as it is.
fn is_for_host(flags: u64) -> bool {
    flags & MEM_ALLOC_HOST_PTR != 0 && flags & MEM_USE_HOST_PTR == 0
}

/// Frees a block when the driver no longer uses the buffer.
pub(crate) fn free_with_buffer(memory: &Memory, block: Block, free: fn(Block)) -> Result<(), Code> {
    let token = upcall::register(CallbackCall::once(move |_| free(block)))?;
    memory.is_awaited.store(true, Ordering::Relaxed);
    session::enqueue(&kdclMemoryCallback { memory: memory.base.id, token })
}

/// # Safety
///
/// As for [`create_buffer_with_properties`].
pub(crate) unsafe fn create_buffer(
    context: cl_context,
    flags: u64,
    size: usize,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, None, flags, size, host_ptr) }
}

/// # Safety
///
/// `host_ptr` is readable for `size` bytes if the flags use it; the list is null or ends with 0.
pub(crate) unsafe fn create_buffer_with_properties(
    context: cl_context,
    properties: *const u64,
    flags: u64,
    size: usize,
    host_ptr: *mut void,
) -> Result<cl_mem, Code> {
    // SAFETY: guaranteed by the caller.
    let properties = unsafe { pairs(properties) };
    object::<Context>(context)?;
    // The standard defines none. Those of extensions are descriptors and handles of the program, which would mean others in the
    // worker.
    if properties.as_ref().is_some_and(|list| list.len() > 1) {
        return Err(Code::INVALID_PROPERTY);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { create(context, properties, flags, size, host_ptr) }
}

/// # Safety
///
/// `info` is null or points to a region.
pub(crate) unsafe fn create_sub_buffer(
    buffer: cl_mem,
    flags: u64,
    kind: u32,
    info: *const void,
) -> Result<cl_mem, Code> {
    let parent = object::<Memory>(buffer)?;
    if !parent.is_buffer() || parent.parent.is_some() {
        return Err(Code::INVALID_MEM_OBJECT);
    }
    if kind != BUFFER_CREATE_TYPE_REGION || info.is_null() || flags & HOST_POINTER_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, so a region by the contract.
    let region = unsafe { info.cast::<cl_buffer_region>().read_unaligned() };
    let (origin, size) = (region.origin as u64, region.size as u64);
    let (inherited, flags) = (inherited(parent.flags, flags), for_driver(parent.flags, flags)?);
    let memory = make(|base| {
        session::call(&kdclSubBuffer { memory: base.id, parent: parent.base.id, flags, origin, size })?;
        let context = HeldObject::clone(&parent.context);
        let is_zero_copy = AtomicBool::new(parent.is_zero_copy.load(Ordering::Relaxed));
        let within = |start: usize| if start == 0 { 0 } else { start + region.origin };
        let (host, shared) = (within(parent.host), within(parent.shared));
        let parent = Some(HeldObject::new(Arc::clone(&parent)));
        let memory = Memory::new(base, context, MEM_OBJECT_BUFFER, inherited).within(parent);
        Ok(Memory { size, offset: origin, host, shared, is_zero_copy, ..memory })
    })?;
    Ok(memory.handle())
}

/// Returns the flags of a part: unset groups are inherited from the whole.
pub(crate) fn inherited(parent: u64, own: u64) -> u64 {
    let part = |mask: u64| if own & mask == 0 { parent & mask } else { own & mask };
    part(KERNEL_ACCESS_FLAGS) | part(HOST_ACCESS_FLAGS) | (parent & !(KERNEL_ACCESS_FLAGS | HOST_ACCESS_FLAGS))
}

/// # Safety
///
/// Properties are null, as the standard requires.
pub(crate) unsafe fn create_pipe(
    context: cl_context,
    flags: u64,
    packet_size: u32,
    packets: u32,
    properties: *const isize,
) -> Result<cl_mem, Code> {
    let context = object::<Context>(context)?;
    if !properties.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let pipe = make(|base| {
        let message = kdclPipe { memory: base.id, context: context.base.id, flags, packetSize: packet_size, packets };
        session::call(&message)?;
        Ok(Memory::new(base, HeldObject::new(Arc::clone(&context)), MEM_OBJECT_PIPE, flags))
    })?;
    Ok(pipe.handle())
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_pipe_info(
    pipe: cl_mem,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let pipe = object::<Memory>(pipe)?;
    let bytes = match param_name {
        _ if pipe.kind != MEM_OBJECT_PIPE => return Err(Code::INVALID_MEM_OBJECT),
        PIPE_PROPERTIES => Vec::new(),
        _ => pipe.cached.ask(query::PIPE, pipe.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

pub(crate) fn retain_mem_object(memory: cl_mem) -> Result<(), Code> {
    handle::retain::<Memory>(memory)
}

pub(crate) fn release_mem_object(memory: cl_mem) -> Result<(), Code> {
    handle::release::<Memory>(memory)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_mem_object_info(
    memory: cl_mem,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let memory = object::<Memory>(memory)?;
    let bytes = match param_name {
        MEM_TYPE => memory.kind.to_le_bytes().to_vec(),
        MEM_FLAGS => memory.flags.to_le_bytes().to_vec(),
        MEM_HOST_PTR => handles([memory.host]),
        MEM_MAP_COUNT => memory.maps().count().to_le_bytes().to_vec(),
        MEM_REFERENCE_COUNT => memory.base.count().to_le_bytes().to_vec(),
        MEM_CONTEXT => handle::bytes(&*memory.context),
        MEM_ASSOCIATED_MEMOBJECT => handles([memory.parent.as_ref().map_or(0, |parent| parent.base.handle)]),
        MEM_PROPERTIES => memory.properties.iter().flat_map(|value| value.to_le_bytes()).collect(),
        MEM_SIZE if memory.image.is_some_and(|shape| shape.has_pitches) => {
            handles(memory.image.map(|shape| shape.bytes_with_gaps()))
        }
        MEM_USES_SVM_POINTER => u32::from(SVM_RANGES.holds(memory.host)).to_le_bytes().to_vec(),
        katydid_opencl_sys::constant::MEM_OFFSET => memory.offset.to_le_bytes().to_vec(),
        _ => memory.cached.ask(query::MEMORY, memory.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// `pfn_notify` may be called once with `user_data`, from any thread.
pub(crate) unsafe fn set_mem_object_destructor_callback(
    memory: cl_mem,
    pfn_notify: cl_mem_notify,
    user_data: *mut void,
) -> Result<(), Code> {
    let memory = object::<Memory>(memory)?;
    let function = pfn_notify.ok_or(Code::INVALID_VALUE)?;
    // By the time of the call, the handle is only a number.
    let (handle, data) = (memory.base.handle, user_data.expose_provenance());
    let token = upcall::register(CallbackCall::once(move |_| {
        let pointer = std::ptr::with_exposed_provenance_mut::<void>;
        // SAFETY: called once, as the contract permits.
        unsafe { function(cl_mem(pointer(handle)), pointer(data)) }
    }))?;
    memory.is_awaited.store(true, Ordering::Relaxed);
    let outcome = session::call(&kdclMemoryCallback { memory: memory.base.id, token });
    outcome.map(drop).inspect_err(|_| upcall::forget(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_flags_of_the_whole_unless_they_say_otherwise() {
        assert_eq!(inherited(0b10 | MEM_USE_HOST_PTR, 0), 0b10 | MEM_USE_HOST_PTR);
        assert_eq!(inherited(0b1, 0b100), 0b100);
        assert_eq!(inherited(0b1 | 1 << 8, 1 << 9), 0b1 | 1 << 9);
    }

    #[test]
    fn the_driver_is_not_told_which_accesses_the_program_has_and_parts_have_no_others_than_the_whole() {
        let (reads, writes, none) = (MEM_HOST_READ_ONLY, MEM_HOST_WRITE_ONLY, MEM_HOST_NO_ACCESS);
        assert_eq!([0, reads, writes, none].map(|access| for_driver(0, 0b1 | access)), [Ok(0b1); 4]);
        assert_eq!([0, reads, none].map(|access| for_driver(reads, access)), [Ok(0); 3]);
        for (whole, own) in [(0, reads | writes), (0, reads | none), (reads, writes), (writes, reads), (none, reads)] {
            assert_eq!(for_driver(whole, own), Err(Code::INVALID_VALUE), "{whole} {own}");
        }
    }

    #[test]
    fn memory_is_given_exactly_when_the_flags_say_so() {
        const HOST_ADDRESS: usize = 64;
        assert_eq!(
            [(MEM_COPY_HOST_PTR, HOST_ADDRESS), (0, 0)].map(|(flags, start)| has_contents(flags, start)),
            [Ok(true), Ok(false)]
        );
        assert_eq!(has_contents(0, HOST_ADDRESS), Err(Code::INVALID_HOST_PTR));
        assert_eq!(has_contents(MEM_USE_HOST_PTR, 0), Err(Code::INVALID_HOST_PTR));
        assert_eq!(EXCLUSIVE_FLAGS.map(|both| has_contents(both, HOST_ADDRESS)), [Err(Code::INVALID_VALUE); 2]);
        assert_eq!(EXCLUSIVE_ACCESSES.map(|both| has_contents(both, HOST_ADDRESS)), [Err(Code::INVALID_VALUE); 3]);
        assert_eq!(EXCLUSIVE_ACCESSES.map(|both| has_contents(both, 0)), [Ok(false); 3]);
    }
}
