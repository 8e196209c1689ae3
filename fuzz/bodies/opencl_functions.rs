//! The functions of the drivers that compute nothing, and their tables. `D` is the driver to which a function belongs.

#![allow(clippy::too_many_arguments, reason = "signatures are the vendor's")]

use super::commands::*;
use super::*;

pub(super) type Id = u32;
pub(super) type OutPointer = *mut c_void;
pub(super) type Needed = *mut usize;
pub(super) type Event = *mut cl_event;
pub(super) type Events = *const cl_event;
pub(super) type Queue = cl_command_queue;

/// Answers a query with one number: eight bytes, or four if the caller has room for no more.
fn number(size: usize, out: OutPointer, needed: Needed, value: u64) -> i32 {
    let bytes = value.to_le_bytes();
    write_answer(size, out, needed, if !out.is_null() && size < 8 { &bytes[..4] } else { &bytes })
}

/// Reads a list of pairs, which ends with 0 in place of a name.
fn pairs(mut list: *const u64) {
    // SAFETY: null, or such a list.
    unsafe {
        while !list.is_null() && list.read() != 0 {
            std::hint::black_box(list.add(1).read());
            list = list.add(2);
        }
    }
}

/// Answers a query about an object with a number.
fn query<const D: usize>(
    kind: u32,
    handle: usize,
    (size, out, needed): (usize, OutPointer, Needed),
    value: u64,
) -> i32 {
    match state().check(D, kind, handle) {
        true => number(size, out, needed, value),
        // Threads of ended sessions still ask.
        false => number(size, out, needed, 0),
    }
}

extern "C" fn platform_info<const D: usize>(
    platform: cl_platform_id,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    query::<D>(kind::PLATFORM, platform.0.addr(), (size, out, needed), 1)
}

extern "C" fn device_ids<const D: usize>(
    platform: cl_platform_id,
    _: u64,
    _: u32,
    _: *mut cl_device_id,
    count: *mut u32,
) -> i32 {
    if !count.is_null() {
        // SAFETY: room for a count.
        unsafe { count.write(1) };
    }
    query::<D>(kind::PLATFORM, platform.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn device_info<const D: usize>(
    device: cl_device_id,
    name: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    let value = match name {
        DEVICE_TYPE => [DEVICE_TYPE_CPU, 4][D],
        DEVICE_REFERENCE_COUNT => 1,
        _ => 0,
    };
    query::<D>(kind::DEVICE, device.0.addr(), (size, out, needed), value)
}

extern "C" fn create_sub_devices<const D: usize>(
    whole: cl_device_id,
    properties: *const isize,
    count: u32,
    devices: *mut cl_device_id,
    needed: *mut u32,
) -> i32 {
    let mut at = 0;
    // SAFETY: the list ends with 0; there is room for as many handles as the caller says.
    unsafe {
        while properties.add(at).read() != 0 {
            at += 1;
        }
        if !needed.is_null() {
            needed.write(2);
        }
        for number in 0..count as usize {
            let mut code = 0;
            let part = make(D, kind::DEVICE, &[(kind::DEVICE, whole.0.addr())], &raw mut code, cl_device_id);
            devices.add(number).write(part);
        }
    }
    0
}

extern "C" fn timers<const D: usize>(device: cl_device_id, of_device: *mut u64, of_host: *mut u64) -> i32 {
    for out in [of_device, of_host].into_iter().filter(|out| !out.is_null()) {
        // SAFETY: room for numbers.
        unsafe { out.write(7) };
    }
    query::<D>(kind::DEVICE, device.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn host_timer<const D: usize>(device: cl_device_id, of_host: *mut u64) -> i32 {
    timers::<D>(device, ptr::null_mut(), of_host)
}

extern "C" fn create_context<const D: usize>(
    mut properties: *const isize,
    count: u32,
    devices: *const cl_device_id,
    _: cl_context_notify,
    _: OutPointer,
    code: *mut i32,
) -> cl_context {
    // SAFETY: the list ends with 0, after pairs.
    unsafe {
        while properties.read() != 0 {
            let name = properties.read();
            if !PLAIN_PROPERTIES.contains(&name) {
                state().fault(format!("a context is made with property {name:#x} of {:#x}", properties.add(1).read()));
            }
            properties = properties.add(2);
        }
    }
    let of: Vec<_> = list(count, devices).iter().map(|device| (kind::DEVICE, device.0.addr())).collect();
    if of.is_empty() {
        return make_object(code, Err(Code::INVALID_VALUE), cl_context);
    }
    make(D, kind::CONTEXT, &of, code, cl_context)
}

extern "C" fn create_queue<const D: usize>(context: cl_context, device: cl_device_id, _: u64, code: *mut i32) -> Queue {
    make(D, kind::QUEUE, &[(kind::CONTEXT, context.0.addr()), (kind::DEVICE, device.0.addr())], code, cl_command_queue)
}

extern "C" fn create_queue_with<const D: usize>(
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
    code: *mut i32,
) -> Queue {
    pairs(properties);
    create_queue::<D>(context, device, 0, code)
}

extern "C" fn set_default_queue<const D: usize>(context: cl_context, device: cl_device_id, queue: Queue) -> i32 {
    let of = [(kind::CONTEXT, context.0.addr()), (kind::DEVICE, device.0.addr()), (kind::QUEUE, queue.0.addr())];
    if state().check_all(D, &of) { 0 } else { Code::INVALID_VALUE.0 }
}

extern "C" fn create_sampler<const D: usize>(
    context: cl_context,
    _: u32,
    _: u32,
    _: u32,
    code: *mut i32,
) -> cl_sampler {
    make(D, kind::SAMPLER, &[(kind::CONTEXT, context.0.addr())], code, cl_sampler)
}

extern "C" fn create_sampler_with<const D: usize>(
    context: cl_context,
    properties: *const u64,
    code: *mut i32,
) -> cl_sampler {
    pairs(properties);
    create_sampler::<D>(context, 0, 0, 0, code)
}

extern "C" fn create_buffer<const D: usize>(
    context: cl_context,
    flags: u64,
    size: usize,
    host: OutPointer,
    code: *mut i32,
) -> cl_mem {
    create_buffer_of(D, context, (flags, size, host), code)
}

extern "C" fn create_buffer_with<const D: usize>(
    context: cl_context,
    _: *const u64,
    flags: u64,
    size: usize,
    host: OutPointer,
    code: *mut i32,
) -> cl_mem {
    create_buffer_of(D, context, (flags, size, host), code)
}

extern "C" fn create_sub_buffer<const D: usize>(
    whole: cl_mem,
    _: u64,
    _: u32,
    region: *const c_void,
    code: *mut i32,
) -> cl_mem {
    // SAFETY: a region, as the kind says.
    let region = unsafe { region.cast::<cl_buffer_region>().read() };
    let Some((bytes, host, _)) = memory(whole) else {
        unknown(D, kind::MEMORY, whole.0.addr());
        return make_object(code, Err(Code::INVALID_MEM_OBJECT), cl_mem);
    };
    if region.size == 0 || region.origin.checked_add(region.size).is_none_or(|end| end > bytes) {
        return make_object(code, Err(Code::INVALID_BUFFER_SIZE), cl_mem);
    }
    let part = make(D, kind::MEMORY, &[(kind::MEMORY, whole.0.addr())], code, cl_mem);
    if let Some(object) = state().objects.get_mut(&part.0.addr()) {
        object.size = region.size;
        object.host = if host == 0 { 0 } else { host + region.origin };
    }
    part
}

extern "C" fn create_image<const D: usize>(
    context: cl_context,
    flags: u64,
    format: *const cl_image_format,
    shape: *const cl_image_desc,
    host: OutPointer,
    code: *mut i32,
) -> cl_mem {
    // SAFETY: a format and a description.
    let shape = unsafe {
        std::hint::black_box(format.read());
        shape.read()
    };
    let size = [shape.image_width, shape.image_height.max(1), shape.image_depth.max(shape.image_array_size).max(1)];
    if size.iter().any(|size| *size == 0 || *size > WIDEST) || shape.image_depth > 1 && shape.image_array_size > 1 {
        return make_object(code, Err(Code::INVALID_IMAGE_SIZE), cl_mem);
    }
    if flags & MEM_COPY_HOST_PTR != 0 {
        read(host.addr(), size.iter().product::<usize>() * ELEMENT);
    }
    let mut of = vec![(kind::CONTEXT, context.0.addr())];
    if shape.mem_object != cl_mem::NULL {
        of.push((kind::MEMORY, shape.mem_object.0.addr()));
    }
    let image = make(D, kind::MEMORY, &of, code, cl_mem);
    if let Some(object) = state().objects.get_mut(&image.0.addr()) {
        (object.size, object.shape) = (size.iter().product::<usize>() * ELEMENT, size);
    }
    image
}

extern "C" fn create_pipe<const D: usize>(
    context: cl_context,
    _: u64,
    _: u32,
    _: u32,
    _: *const isize,
    code: *mut i32,
) -> cl_mem {
    make(D, kind::MEMORY, &[(kind::CONTEXT, context.0.addr())], code, cl_mem)
}

extern "C" fn set_destructor<const D: usize>(object: cl_mem, notify: cl_mem_notify, data: OutPointer) -> i32 {
    let mut state = state();
    if !state.check(D, kind::MEMORY, object.0.addr()) {
        return Code::INVALID_MEM_OBJECT.0;
    }
    if let (Some(entry), Some(notify)) = (state.objects.get_mut(&object.0.addr()), notify) {
        entry.notify.push((notify, data.expose_provenance()));
    }
    0
}

extern "C" fn memory_info<const D: usize>(
    object: cl_mem,
    name: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    let bytes = memory(object).map_or(0, |(bytes, ..)| bytes as u64);
    query::<D>(kind::MEMORY, object.0.addr(), (size, out, needed), if name == MEM_SIZE { bytes } else { 0 })
}

extern "C" fn image_info<const D: usize>(image: cl_mem, _: Id, size: usize, out: OutPointer, needed: Needed) -> i32 {
    if memory(image).is_some_and(|(.., shape)| shape == [0; 3]) {
        return Code::INVALID_MEM_OBJECT.0;
    }
    query::<D>(kind::MEMORY, image.0.addr(), (size, out, needed), ELEMENT as u64)
}

extern "C" fn image_formats<const D: usize>(
    context: cl_context,
    _: u64,
    _: u32,
    count: u32,
    formats: *mut cl_image_format,
    needed: *mut u32,
) -> i32 {
    // SAFETY: `formats` has room for as many as the caller says; `needed` has room for a count, or is null.
    unsafe {
        (0..count.min(2) as usize).for_each(|at| formats.add(at).write(cl_image_format::default()));
        if !needed.is_null() {
            needed.write(2);
        }
    }
    query::<D>(kind::CONTEXT, context.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn svm_alloc<const D: usize>(context: cl_context, _: u64, size: usize, _: u32) -> OutPointer {
    let mut state = state();
    if size > 4 * LARGEST || !state.check(D, kind::CONTEXT, context.0.addr()) {
        return ptr::null_mut();
    }
    let mut bytes = vec![0u8; size].into_boxed_slice();
    let out = bytes.as_mut_ptr();
    state.svm.insert(out.expose_provenance(), (D, bytes));
    out.cast()
}

extern "C" fn svm_free<const D: usize>(context: cl_context, out: OutPointer) {
    let mut state = state();
    if !out.is_null() && state.check(D, kind::CONTEXT, context.0.addr()) {
        match state.svm.remove(&out.addr()) {
            Some((driver, _)) if driver == D => {}
            other => state.fault(format!("driver {D} frees what it has not: {}", other.is_some())),
        }
    }
}

extern "C" fn program_from_source<const D: usize>(
    context: cl_context,
    count: u32,
    texts: *const *const c_char,
    lengths: *const usize,
    code: *mut i32,
) -> cl_program {
    for (text, length) in list(count, texts).into_iter().zip(list(count, lengths)) {
        // A text without a length ends with a zero. SAFETY: callers give as many bytes as they say.
        let length = if length == 0 { unsafe { CStr::from_ptr(text) }.count_bytes() } else { length };
        read(text.addr(), length);
    }
    make(D, kind::PROGRAM, &[(kind::CONTEXT, context.0.addr())], code, cl_program)
}

extern "C" fn program_from_binary<const D: usize>(
    context: cl_context,
    count: u32,
    devices: *const cl_device_id,
    lengths: *const usize,
    binaries: *const *const u8,
    statuses: *mut i32,
    code: *mut i32,
) -> cl_program {
    for (at, (binary, length)) in list(count, binaries).into_iter().zip(list(count, lengths)).enumerate() {
        read(binary.addr(), length);
        // SAFETY: room for as many as there are devices.
        unsafe { statuses.add(at).write(0) };
    }
    let of: Vec<_> = list(count, devices).iter().map(|device| (kind::DEVICE, device.0.addr())).collect();
    state().check_all(D, &of);
    make(D, kind::PROGRAM, &[(kind::CONTEXT, context.0.addr())], code, cl_program)
}

extern "C" fn program_from_il<const D: usize>(
    context: cl_context,
    il: *const c_void,
    length: usize,
    code: *mut i32,
) -> cl_program {
    read(il.addr(), length);
    make(D, kind::PROGRAM, &[(kind::CONTEXT, context.0.addr())], code, cl_program)
}

extern "C" fn program_built_in<const D: usize>(
    context: cl_context,
    count: u32,
    devices: *const cl_device_id,
    names: *const c_char,
    code: *mut i32,
) -> cl_program {
    // SAFETY: a C string.
    std::hint::black_box(unsafe { CStr::from_ptr(names) }.count_bytes());
    let of: Vec<_> = list(count, devices).iter().map(|device| (kind::DEVICE, device.0.addr())).collect();
    state().check_all(D, &of);
    make(D, kind::PROGRAM, &[(kind::CONTEXT, context.0.addr())], code, cl_program)
}

/// Checks the arguments of a build: devices, headers or programs, options.
fn check_build(
    driver: usize,
    program: Option<cl_program>,
    devices: Vec<cl_device_id>,
    others: Vec<cl_program>,
    options: *const c_char,
) -> bool {
    // SAFETY: a C string.
    std::hint::black_box(unsafe { CStr::from_ptr(options) }.count_bytes());
    let of: Vec<_> = program
        .into_iter()
        .chain(others)
        .map(|program| (kind::PROGRAM, program.0.addr()))
        .chain(devices.iter().map(|device| (kind::DEVICE, device.0.addr())))
        .collect();
    state().check_all(driver, &of)
}

/// Calls the program's function at the end of a build.
fn tell_end(notify: cl_program_notify, program: cl_program, data: OutPointer) {
    if let Some(notify) = notify {
        // SAFETY: the caller's function, with its data.
        unsafe { notify(program, data) };
    }
}

extern "C" fn build_program<const D: usize>(
    program: cl_program,
    count: u32,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: cl_program_notify,
    data: OutPointer,
) -> i32 {
    if !check_build(D, Some(program), list(count, devices), Vec::new(), options) {
        return Code::INVALID_VALUE.0;
    }
    tell_end(notify, program, data);
    0
}

extern "C" fn compile_program<const D: usize>(
    program: cl_program,
    count: u32,
    devices: *const cl_device_id,
    options: *const c_char,
    headers: u32,
    first: *const cl_program,
    names: *const *const c_char,
    notify: cl_program_notify,
    data: OutPointer,
) -> i32 {
    for name in list(headers, names) {
        // SAFETY: a C string.
        std::hint::black_box(unsafe { CStr::from_ptr(name) }.count_bytes());
    }
    if !check_build(D, Some(program), list(count, devices), list(headers, first), options) {
        return Code::INVALID_VALUE.0;
    }
    tell_end(notify, program, data);
    0
}

extern "C" fn link_program<const D: usize>(
    context: cl_context,
    count: u32,
    devices: *const cl_device_id,
    options: *const c_char,
    programs: u32,
    first: *const cl_program,
    notify: cl_program_notify,
    data: OutPointer,
    code: *mut i32,
) -> cl_program {
    if !check_build(D, None, list(count, devices), list(programs, first), options) {
        return make_object(code, Err(Code::INVALID_VALUE), cl_program);
    }
    let program = make(D, kind::PROGRAM, &[(kind::CONTEXT, context.0.addr())], code, cl_program);
    if program != cl_program::NULL {
        tell_end(notify, program, data);
    }
    program
}

extern "C" fn retain_program<const D: usize>(program: cl_program) -> i32 {
    match state().objects.get_mut(&program.0.addr()) {
        Some(object) => object.references += 1,
        None => return Code::INVALID_PROGRAM.0,
    }
    0
}

extern "C" fn program_info<const D: usize>(
    program: cl_program,
    name: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    let mut state = state();
    let known = state.check(D, kind::PROGRAM, program.0.addr());
    // The first device of its context.
    let context = state.objects.get(&program.0.addr()).and_then(|object| object.whole.first().copied());
    let device = context.and_then(|context| state.objects.get(&context)?.whole.first().copied()).unwrap_or(0);
    drop(state);
    match name {
        PROGRAM_BINARIES if known => {
            for at in 0..size / 8 {
                // SAFETY: a list of pointers of as many bytes as the sizes say.
                write(unsafe { out.cast::<*mut u8>().add(at).read() }.expose_provenance(), 16);
            }
            0
        }
        PROGRAM_BINARY_SIZES => number(size, out, needed, 16),
        PROGRAM_DEVICES => number(size, out, needed, device as u64),
        _ => number(size, out, needed, 0),
    }
}

extern "C" fn build_info<const D: usize>(
    program: cl_program,
    device: cl_device_id,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    state().check(D, kind::DEVICE, device.0.addr());
    query::<D>(kind::PROGRAM, program.0.addr(), (size, out, needed), 0)
}

extern "C" fn specialize<const D: usize>(program: cl_program, _: u32, size: usize, value: *const c_void) -> i32 {
    read(value.addr(), size);
    query::<D>(kind::PROGRAM, program.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn takes_of_program<const D: usize>(program: cl_program, _: cl_program_notify, _: OutPointer) -> i32 {
    query::<D>(kind::PROGRAM, program.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn takes_of_context<const D: usize>(context: cl_context, _: cl_context_destroyed, _: OutPointer) -> i32 {
    query::<D>(kind::CONTEXT, context.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn unload<const D: usize>(platform: cl_platform_id) -> i32 {
    query::<D>(kind::PLATFORM, platform.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn create_kernel<const D: usize>(program: cl_program, name: *const c_char, code: *mut i32) -> cl_kernel {
    // SAFETY: a C string.
    std::hint::black_box(unsafe { CStr::from_ptr(name) }.count_bytes());
    make(D, kind::KERNEL, &[(kind::PROGRAM, program.0.addr())], code, cl_kernel)
}

extern "C" fn clone_kernel<const D: usize>(source: cl_kernel, code: *mut i32) -> cl_kernel {
    let of = {
        let mut state = state();
        state.check(D, kind::KERNEL, source.0.addr());
        state.objects.get(&source.0.addr()).map(|object| object.whole.clone()).unwrap_or_default()
    };
    let of: Vec<_> = of.into_iter().map(|program| (kind::PROGRAM, program)).collect();
    make(D, kind::KERNEL, &of, code, cl_kernel)
}

/// Sets an argument: the first is an object, the second any, and the others have no type.
extern "C" fn set_argument<const D: usize>(kernel: cl_kernel, index: u32, size: usize, value: *const c_void) -> i32 {
    if index >= ARGUMENTS {
        return Code::INVALID_ARG_INDEX.0;
    }
    // The last argument is a structure of eight handles.
    let most = if index == ARGUMENTS - 1 { 8 * ARGUMENT } else { ARGUMENT };
    if size > most {
        return Code::INVALID_ARG_SIZE.0;
    }
    if !value.is_null() {
        read(value.addr(), size);
    }
    query::<D>(kind::KERNEL, kernel.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn set_svm_argument<const D: usize>(kernel: cl_kernel, _: u32, _: *const c_void) -> i32 {
    query::<D>(kind::KERNEL, kernel.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn set_exec_info<const D: usize>(kernel: cl_kernel, _: u32, size: usize, value: *const c_void) -> i32 {
    if !value.is_null() {
        read(value.addr(), size);
    }
    query::<D>(kind::KERNEL, kernel.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn kernel_info<const D: usize>(
    kernel: cl_kernel,
    name: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    let value = if name == KERNEL_NUM_ARGS { ARGUMENTS.into() } else { 0 };
    query::<D>(kind::KERNEL, kernel.0.addr(), (size, out, needed), value)
}

extern "C" fn argument_info<const D: usize>(
    kernel: cl_kernel,
    _: u32,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    query::<D>(kind::KERNEL, kernel.0.addr(), (size, out, needed), 0x119b)
}

extern "C" fn work_group_info<const D: usize>(
    kernel: cl_kernel,
    device: cl_device_id,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    if device != cl_device_id::NULL {
        state().check(D, kind::DEVICE, device.0.addr());
    }
    query::<D>(kind::KERNEL, kernel.0.addr(), (size, out, needed), 1)
}

extern "C" fn sub_group_info<const D: usize>(
    kernel: cl_kernel,
    device: cl_device_id,
    _: Id,
    input: usize,
    value: *const c_void,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    read(value.addr(), input);
    work_group_info::<D>(kernel, device, 0, size, out, needed)
}

extern "C" fn create_user_event<const D: usize>(context: cl_context, code: *mut i32) -> cl_event {
    let event = make(D, kind::EVENT, &[(kind::CONTEXT, context.0.addr())], code, cl_event);
    if let Some(object) = state().objects.get_mut(&event.0.addr()) {
        object.status = WAITING;
    }
    event
}

extern "C" fn set_user_event<const D: usize>(event: cl_event, status: i32) -> i32 {
    let mut state = state();
    if !state.check(D, kind::EVENT, event.0.addr()) || status > 0 {
        return Code::INVALID_VALUE.0;
    }
    let is_command = state.waiting.iter().any(|waiting| waiting.event == event.0.addr());
    match state.objects.get_mut(&event.0.addr()).filter(|_| !is_command) {
        Some(object) if object.status > 0 => object.status = status,
        _ => return Code::INVALID_OPERATION.0,
    }
    drop(state);
    advance();
    0
}

extern "C" fn event_info<const D: usize>(
    event: cl_event,
    name: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    let value = {
        let mut state = state();
        state.check(D, kind::EVENT, event.0.addr());
        let found = state.objects.get(&event.0.addr());
        match name {
            EVENT_COMMAND_EXECUTION_STATUS => u64::from(found.map_or(0, |object| object.status).cast_unsigned()),
            EVENT_COMMAND_QUEUE => {
                let of = found.and_then(|object| object.whole.first().copied()).unwrap_or(0);
                let is_queue = state.objects.get(&of).is_some_and(|object| object.kind == kind::QUEUE);
                if is_queue { of as u64 } else { 0 }
            }
            _ => 0,
        }
    };
    number(size, out, needed, value)
}

extern "C" fn profiling_info<const D: usize>(
    event: cl_event,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    query::<D>(kind::EVENT, event.0.addr(), (size, out, needed), 1)
}

/// Does not wait: a program may wait for an event that never comes, and here its session must go on. Commands that
/// wait have no effect.
extern "C" fn wait_for_events<const D: usize>(count: u32, events: Events) -> i32 {
    let of: Vec<_> = list(count, events).iter().map(|event| (kind::EVENT, event.0.addr())).collect();
    let mut state = state();
    if of.is_empty() || !state.check_all(D, &of) {
        return Code::INVALID_VALUE.0;
    }
    let is_over = of.iter().all(|(_, event)| state.status(*event) == 0);
    if is_over { 0 } else { Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST.0 }
}

extern "C" fn of_queue<const D: usize>(queue: Queue) -> i32 {
    query::<D>(kind::QUEUE, queue.0.addr(), (0, ptr::null_mut(), ptr::null_mut()), 0)
}

extern "C" fn queue_info<const D: usize>(queue: Queue, _: Id, size: usize, out: OutPointer, needed: Needed) -> i32 {
    query::<D>(kind::QUEUE, queue.0.addr(), (size, out, needed), 0)
}

extern "C" fn sampler_info<const D: usize>(
    sampler: cl_sampler,
    _: Id,
    size: usize,
    out: OutPointer,
    needed: Needed,
) -> i32 {
    query::<D>(kind::SAMPLER, sampler.0.addr(), (size, out, needed), 0)
}

macro_rules! releases {
    ($($name:ident $handle:ident $kind:ident)*) => {$(
        extern "C" fn $name<const D: usize>(handle: $handle) -> i32 {
            release(D, kind::$kind, handle.0.addr())
        }
    )*};
}

releases! {
    release_device cl_device_id DEVICE
    release_context cl_context CONTEXT
    release_queue cl_command_queue QUEUE
    release_memory cl_mem MEMORY
    release_sampler cl_sampler SAMPLER
    release_program cl_program PROGRAM
    release_kernel cl_kernel KERNEL
    release_event cl_event EVENT
}

/// Returns the functions of a driver.
pub(super) fn table<const D: usize>() -> &'static Dispatch {
    static TABLES: [std::sync::OnceLock<Box<Dispatch>>; 2] = [const { std::sync::OnceLock::new() }; 2];
    TABLES[D].get_or_init(|| Box::new(functions::<D>()))
}

fn functions<const D: usize>() -> Dispatch {
    // SAFETY: every entry of a table of zeros is `None`.
    let mut table: Dispatch = unsafe { std::mem::zeroed() };
    macro_rules! fill {
        ($($name:ident $function:ident)*) => {$( table.$name = Some($function::<D>); )*};
    }
    fill! {
        clGetPlatformInfo platform_info
        clGetDeviceIDs device_ids
        clGetDeviceInfo device_info
        clCreateSubDevices create_sub_devices
        clGetDeviceAndHostTimer timers
        clGetHostTimer host_timer
        clReleaseDevice release_device
        clCreateContext create_context
        clReleaseContext release_context
        clSetContextDestructorCallback takes_of_context
        clGetSupportedImageFormats image_formats
        clCreateCommandQueue create_queue
        clCreateCommandQueueWithProperties create_queue_with
        clGetCommandQueueInfo queue_info
        clReleaseCommandQueue release_queue
        clSetDefaultDeviceCommandQueue set_default_queue
        clFlush of_queue
        clFinish of_queue
        clCreateSampler create_sampler
        clCreateSamplerWithProperties create_sampler_with
        clGetSamplerInfo sampler_info
        clReleaseSampler release_sampler
        clCreateBuffer create_buffer
        clCreateBufferWithProperties create_buffer_with
        clCreateSubBuffer create_sub_buffer
        clCreateImage create_image
        clCreatePipe create_pipe
        clSetMemObjectDestructorCallback set_destructor
        clGetMemObjectInfo memory_info
        clGetImageInfo image_info
        clReleaseMemObject release_memory
        clSVMAlloc svm_alloc
        clSVMFree svm_free
        clCreateProgramWithSource program_from_source
        clCreateProgramWithBinary program_from_binary
        clCreateProgramWithIL program_from_il
        clCreateProgramWithBuiltInKernels program_built_in
        clBuildProgram build_program
        clCompileProgram compile_program
        clLinkProgram link_program
        clRetainProgram retain_program
        clGetProgramInfo program_info
        clGetProgramBuildInfo build_info
        clSetProgramSpecializationConstant specialize
        clSetProgramReleaseCallback takes_of_program
        clUnloadPlatformCompiler unload
        clReleaseProgram release_program
        clCreateKernel create_kernel
        clCloneKernel clone_kernel
        clSetKernelArg set_argument
        clSetKernelArgSVMPointer set_svm_argument
        clSetKernelExecInfo set_exec_info
        clGetKernelInfo kernel_info
        clGetKernelArgInfo argument_info
        clGetKernelWorkGroupInfo work_group_info
        clGetKernelSubGroupInfo sub_group_info
        clReleaseKernel release_kernel
        clCreateUserEvent create_user_event
        clSetUserEventStatus set_user_event
        clGetEventInfo event_info
        clGetEventProfilingInfo profiling_info
        clWaitForEvents wait_for_events
        clReleaseEvent release_event
        clEnqueueReadBuffer read_buffer
        clEnqueueWriteBuffer write_buffer
        clEnqueueReadBufferRect read_rect
        clEnqueueWriteBufferRect write_rect
        clEnqueueReadImage read_image
        clEnqueueWriteImage write_image
        clEnqueueCopyBuffer copy_buffer
        clEnqueueCopyBufferRect copy_rect
        clEnqueueCopyImage copy_image
        clEnqueueCopyImageToBuffer image_to_buffer
        clEnqueueCopyBufferToImage buffer_to_image
        clEnqueueFillBuffer fill_buffer
        clEnqueueFillImage fill_image
        clEnqueueMigrateMemObjects migrate
        clEnqueueMarkerWithWaitList marker
        clEnqueueBarrierWithWaitList marker
        clEnqueueMapBuffer map_buffer
        clEnqueueUnmapMemObject unmap
        clEnqueueNDRangeKernel launch
        clEnqueueSVMMemcpy svm_copy
        clEnqueueSVMMemFill svm_fill
        clEnqueueSVMMap svm_map
        clEnqueueSVMUnmap svm_unmap
        clEnqueueSVMMigrateMem svm_migrate
    }
    table
}
