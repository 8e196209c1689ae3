//! Programs: sources and binaries, and builds.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    PROGRAM_BINARIES, PROGRAM_BINARY_SIZES, PROGRAM_CONTEXT, PROGRAM_DEVICES, PROGRAM_KERNEL_NAMES,
    PROGRAM_NUM_DEVICES, PROGRAM_REFERENCE_COUNT,
};
use katydid_opencl_sys::{Code, char, cl_context, cl_device_id, cl_program, cl_program_notify, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclBlob, kdclBuild, kdclLink, kdclProgram, kdclSpecialize, kdclTakesCallback};
use katydid_wire::opencl::{list as lists, program as form, query};

use crate::ffi::arguments::{list, text};
use crate::host::bulk;
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::handle::{self, Base, HeldObject, Object, ids, kind_of_object, make, object, objects};
use crate::objects::info::{QueryBuffer, ask, handles};
use crate::process::session;
use crate::process::upcall::{self, CallbackCall};

/// One for each device; empty if a device has none.
type Binaries = Arc<Vec<Vec<u8>>>;

/// A program for devices of a context.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) base: Base,
    pub(crate) context: HeldObject<Context>,
    devices: Vec<HeldObject<Device>>,
    /// The binaries of its devices, as of the last query of their sizes: the caller's buffers fit these. The driver's binaries
    /// change with compilations and with every restore.
    binaries: Mutex<Option<Binaries>>,
    /// Release callbacks, called in reverse order.
    destructors: Mutex<Vec<(unsafe extern "C" fn(cl_program, *mut void), usize)>>,
}

kind_of_object! { Program cl_program PROGRAM INVALID_PROGRAM MAX_PROGRAM_OBJECTS, fn ended(&self) { self.call_destructors(); } }

impl Program {
    fn new(base: Base, context: &Arc<Context>, devices: &[Arc<Device>]) -> Self {
        let devices = match devices {
            [] => context.devices.clone(),
            list => list.iter().map(|device| HeldObject::new(Arc::clone(device))).collect(),
        };
        Self {
            base,
            context: HeldObject::new(Arc::clone(context)),
            devices,
            binaries: Mutex::default(),
            destructors: Mutex::default(),
        }
    }

    /// Fetches the driver's present binaries, and keeps them.
    fn binaries_of_now(&self) -> Result<Binaries, Code> {
        let binaries = ask(query::BINARIES, self.base.id, 0, 0, &[])?;
        let binaries = Binaries::new(lists::take(&mut &binaries[..]).ok_or(Code::OUT_OF_RESOURCES)?);
        *self.binaries_cache() = Some(Arc::clone(&binaries));
        Ok(binaries)
    }

    fn binaries_cache(&self) -> MutexGuard<'_, Option<Binaries>> {
        self.binaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the release callbacks, the last one first.
    pub(crate) fn call_destructors(&self) {
        let list = std::mem::take(&mut *self.destructors.lock().unwrap_or_else(PoisonError::into_inner));
        for (function, data) in list.into_iter().rev() {
            // SAFETY: registered for this one call.
            unsafe { function(self.handle(), std::ptr::with_exposed_provenance_mut(data)) };
        }
    }
}

/// Makes a program from bytes. The second value is the worker's status of each device.
fn create(
    context: &Arc<Context>,
    form: u32,
    devices: &[Arc<Device>],
    bytes: &[u8],
) -> Result<(cl_program, Vec<u8>), Code> {
    let sent = bulk::send(bytes)?;
    let mut status = Vec::new();
    let program = make(|base| {
        let message = kdclProgram {
            program: base.id,
            context: context.base.id,
            form,
            staged: sent.staged,
            arguments: sent.inline,
        };
        status = session::call(&message)?.status;
        Ok(Program::new(base, context, devices))
    })?;
    Ok((program.handle(), status))
}

/// # Safety
///
/// There are `count` texts, each of its length. A text ends with 0 if its length is 0 or lengths are null.
pub(crate) unsafe fn create_program_with_source(
    context: cl_context,
    count: u32,
    strings: *const *const char,
    lengths: *const usize,
) -> Result<cl_program, Code> {
    let context = object::<Context>(context)?;
    // SAFETY: guaranteed by the caller.
    let (strings, lengths) = unsafe { (list(count as usize, strings), list(count as usize, lengths)) };
    if strings.is_empty() || strings.iter().any(|text| text.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let mut source = Vec::new();
    for (at, text) in strings.iter().enumerate() {
        match lengths.get(at).copied().unwrap_or(0) {
            // SAFETY: a C string by the contract.
            0 => source.extend_from_slice(unsafe { CStr::from_ptr(*text) }.to_bytes()),
            // SAFETY: of the stated length, by the contract.
            length => source.extend_from_slice(unsafe { list(length, text.cast::<u8>()) }),
        }
    }
    Ok(create(&context, form::SOURCE, &[], &source)?.0)
}

/// # Safety
///
/// There are `num_devices` devices, lengths and binaries of those lengths; the status is null or has that much room.
pub(crate) unsafe fn create_program_with_binary(
    context: cl_context,
    num_devices: u32,
    device_list: *const cl_device_id,
    lengths: *const usize,
    binaries: *const *const u8,
    binary_status: *mut i32,
) -> Result<cl_program, Code> {
    let context = object::<Context>(context)?;
    let count = num_devices as usize;
    // SAFETY: guaranteed by the caller.
    let (handles, lengths, binaries) =
        unsafe { (list(count, device_list), list(count, lengths), list(count, binaries)) };
    if handles.is_empty() || lengths.is_empty() || binaries.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let devices = own_devices(&context, handles)?;
    let mut bytes = Vec::new();
    lists::put(&mut bytes, &ids(&devices));
    lists::put(&mut bytes, &lengths.iter().map(|length| *length as u64).collect::<Vec<_>>());
    for (at, (length, binary)) in lengths.iter().zip(binaries).enumerate() {
        if *length == 0 || binary.is_null() {
            if !binary_status.is_null() {
                // SAFETY: room for every device, by the contract.
                unsafe { binary_status.add(at).write_unaligned(Code::INVALID_VALUE.0) };
            }
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: of the stated length, by the contract.
        bytes.extend_from_slice(unsafe { list(*length, *binary) });
    }
    let result = create(&context, form::BINARY, &devices, &bytes);
    let status = match &result {
        Ok((_, status)) => status.clone(),
        Err(_) => refusal(count)?,
    };
    if !binary_status.is_null() {
        for (at, code) in status.chunks_exact(4).enumerate().take(count) {
            // SAFETY: room for every device, by the contract.
            unsafe { binary_status.add(at).write_unaligned(i32::take(&mut &code[..]).unwrap_or(0)) };
        }
    }
    Ok(result?.0)
}

/// Returns the driver's status of each binary that it has just refused to this thread; empty if it was not asked.
fn refusal(count: usize) -> Result<Vec<u8>, Code> {
    let size = (count * size_of::<i32>()) as u32;
    Ok(session::call(&kdclBlob { offset: 0, size }).map(|reply| reply.data).unwrap_or_default())
}

/// Returns the devices if all belong to the context.
fn own_devices(context: &Context, handles: &[cl_device_id]) -> Result<Vec<Arc<Device>>, Code> {
    let devices = objects::<Device>(handles)?;
    if devices.iter().all(|device| context.has(device)) { Ok(devices) } else { Err(Code::INVALID_DEVICE) }
}

/// # Safety
///
/// `il` is readable for `length` bytes.
pub(crate) unsafe fn create_program_with_il(
    context: cl_context,
    il: *const void,
    length: usize,
) -> Result<cl_program, Code> {
    let context = object::<Context>(context)?;
    if il.is_null() || length == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { list(length, il.cast::<u8>()) };
    Ok(create(&context, form::IL, &[], bytes)?.0)
}

/// # Safety
///
/// There are `num_devices` devices; the names are null or a C string.
pub(crate) unsafe fn create_program_with_built_in_kernels(
    context: cl_context,
    num_devices: u32,
    device_list: *const cl_device_id,
    kernel_names: *const char,
) -> Result<cl_program, Code> {
    let context = object::<Context>(context)?;
    // SAFETY: guaranteed by the caller.
    let handles = unsafe { list(num_devices as usize, device_list) };
    if handles.is_empty() || kernel_names.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let devices = own_devices(&context, handles)?;
    let mut bytes = Vec::new();
    lists::put(&mut bytes, &ids(&devices));
    // SAFETY: not null, so a C string by the contract.
    bytes.extend_from_slice(unsafe { CStr::from_ptr(kernel_names) }.to_bytes());
    Ok(create(&context, form::BUILT_IN, &devices, &bytes)?.0)
}

pub(crate) fn retain_program(program: cl_program) -> Result<(), Code> {
    handle::retain::<Program>(program)
}

pub(crate) fn release_program(program: cl_program) -> Result<(), Code> {
    handle::release::<Program>(program)
}

/// Encodes the common arguments of build, compile and link: devices and options.
///
/// # Safety
///
/// There are `count` devices; the options are null or a C string.
unsafe fn target(
    context: &Context,
    count: u32,
    devices: *const cl_device_id,
    options: *const char,
) -> Result<Vec<u8>, Code> {
    if (count == 0) != devices.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    let (handles, options) = unsafe { (list(count as usize, devices), text(options)) };
    let mut bytes = Vec::new();
    lists::put(&mut bytes, &ids(&own_devices(context, handles)?));
    options.to_vec().put(&mut bytes);
    Ok(bytes)
}

/// Registers a build's callback and returns its token; 0 without one.
fn callback(program: &Arc<Program>, notify: cl_program_notify, data: *mut void) -> Result<u64, Code> {
    match notify {
        Some(function) => {
            let (program, data) = (HeldObject::new(Arc::clone(program)), data.expose_provenance());
            upcall::register(CallbackCall::once(move |_| {
                // SAFETY: called once, as the callers' contract permits; the program lives until then.
                unsafe { function(program.handle(), std::ptr::with_exposed_provenance_mut(data)) }
            }))
        }
        None if data.is_null() => Ok(0),
        None => Err(Code::INVALID_VALUE),
    }
}

fn build(program: &Arc<Program>, token: u64, bytes: &[u8]) -> Result<(), Code> {
    let sent = bulk::send(bytes)?;
    let message = kdclBuild { program: program.base.id, token, staged: sent.staged, arguments: sent.inline };
    *program.binaries_cache() = None;
    let reply = session::call(&message).inspect_err(|_| upcall::forget(token))?;
    match (reply.called_back != 0, Code(reply.code)) {
        // The driver called before it returned, whatever its code; so does this call.
        (true, _) => upcall::run_now(token),
        (false, Code::SUCCESS) => {}
        (false, _) => upcall::forget(token),
    }
    Code(reply.code).ok()
}

/// # Safety
///
/// Lists have their stated lengths; `pfn_notify` may be called once with `user_data`, from any thread.
pub(crate) unsafe fn build_program(
    program: cl_program,
    num_devices: u32,
    device_list: *const cl_device_id,
    options: *const char,
    pfn_notify: cl_program_notify,
    user_data: *mut void,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    let mut bytes = 0u32.to_le_bytes().to_vec();
    // SAFETY: guaranteed by the caller.
    bytes.extend(unsafe { target(&program.context, num_devices, device_list, options)? });
    lists::put::<u32>(&mut bytes, &[]);
    lists::put::<Vec<u8>>(&mut bytes, &[]);
    build(&program, callback(&program, pfn_notify, user_data)?, &bytes)
}

/// # Safety
///
/// As [`build_program`]; there are as many names as headers, C strings all.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn compile_program(
    program: cl_program,
    num_devices: u32,
    device_list: *const cl_device_id,
    options: *const char,
    num_input_headers: u32,
    input_headers: *const cl_program,
    header_include_names: *const *const char,
    pfn_notify: cl_program_notify,
    user_data: *mut void,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    let count = num_input_headers as usize;
    // SAFETY: guaranteed by the caller.
    let (headers, names) = unsafe { (list(count, input_headers), list(count, header_include_names)) };
    if headers.len() != count || names.len() != count || (count == 0 && !input_headers.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let mut bytes = 1u32.to_le_bytes().to_vec();
    // SAFETY: guaranteed by the caller.
    bytes.extend(unsafe { target(&program.context, num_devices, device_list, options)? });
    lists::put(&mut bytes, &ids(&objects::<Program>(headers)?));
    // SAFETY: C strings by the contract.
    let names: Vec<Vec<u8>> = names.iter().map(|name| unsafe { text(*name) }.to_vec()).collect();
    lists::put(&mut bytes, &names);
    build(&program, callback(&program, pfn_notify, user_data)?, &bytes)
}

/// Returns the program, and the code of the link. The driver may return a program whose link has failed, for its log.
///
/// # Safety
///
/// As [`build_program`].
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn link_program(
    context: cl_context,
    num_devices: u32,
    device_list: *const cl_device_id,
    options: *const char,
    num_input_programs: u32,
    input_programs: *const cl_program,
    pfn_notify: cl_program_notify,
    user_data: *mut void,
) -> Result<(cl_program, Code), Code> {
    let context = object::<Context>(context)?;
    // SAFETY: guaranteed by the caller.
    let (mut bytes, inputs, devices) = unsafe {
        let bytes = target(&context, num_devices, device_list, options)?;
        (bytes, list(num_input_programs as usize, input_programs), list(num_devices as usize, device_list))
    };
    if inputs.is_empty() || (pfn_notify.is_none() && !user_data.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    lists::put(&mut bytes, &ids(&objects::<Program>(inputs)?));
    let devices = objects::<Device>(devices)?;
    let (mut code, mut called_back, mut returned) = (Code::SUCCESS, false, false);
    let program = make(|base| {
        let notified = pfn_notify.is_some().into();
        let message = kdclLink { program: base.id, context: context.base.id, notified, arguments: &bytes };
        let reply = session::call(&message)?;
        code = Code(reply.made.cast_signed());
        (called_back, returned) = (reply.called_back != 0, reply.returned != 0);
        Ok(Program::new(base, &context, &devices))
    })?;
    if let Some(function) = pfn_notify.filter(|_| called_back) {
        // SAFETY: by the contract; the standard does not say on which thread.
        unsafe { function(program.handle(), user_data) };
    }
    if !returned {
        // The driver passed it only to its callback, or made none.
        handle::release::<Program>(program.handle())?;
        return Err(code);
    }
    Ok((program.handle(), code))
}

/// # Safety
///
/// `pfn_notify` may be called once with `user_data`.
pub(crate) unsafe fn set_program_release_callback(
    program: cl_program,
    pfn_notify: cl_program_notify,
    user_data: *mut void,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    session::call(&kdclTakesCallback { object: program.base.id, has_callback: pfn_notify.is_some().into() })?;
    let function = pfn_notify.ok_or(Code::INVALID_VALUE)?;
    let mut list = program.destructors.lock().unwrap_or_else(PoisonError::into_inner);
    list.push((function, user_data.expose_provenance()));
    Ok(())
}

/// # Safety
///
/// The value is readable for `spec_size` bytes.
pub(crate) unsafe fn set_program_specialization_constant(
    program: cl_program,
    spec_id: u32,
    spec_size: usize,
    spec_value: *const void,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    // SAFETY: guaranteed by the caller.
    let value = unsafe { list(spec_size, spec_value.cast::<u8>()) };
    session::call(&kdclSpecialize { program: program.base.id, number: spec_id, value }).map(drop)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]); for binaries the value is an array of pointers, each null or with room.
pub(crate) unsafe fn get_program_info(
    program: cl_program,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    let bytes = match param_name {
        PROGRAM_REFERENCE_COUNT => program.base.count().to_le_bytes().to_vec(),
        PROGRAM_CONTEXT => handle::bytes(&*program.context),
        PROGRAM_NUM_DEVICES => (program.devices.len() as u32).to_le_bytes().to_vec(),
        PROGRAM_DEVICES => handles(program.devices.iter().map(|device| device.base.handle)),
        // SAFETY: guaranteed by the caller.
        PROGRAM_BINARIES => return unsafe { binaries(&program, QueryBuffer { size, value, needed }) },
        PROGRAM_BINARY_SIZES if !value.is_null() => match program.binaries_of_now() {
            Ok(binaries) => handles(binaries.iter().map(Vec::len)),
            // For a program without binaries, the driver has its own answer.
            Err(_) => ask(query::PROGRAM, program.base.id, 0, param_name, &[])?,
        },
        PROGRAM_KERNEL_NAMES => {
            let names = ask(query::PROGRAM, program.base.id, 0, param_name, &[])?;
            // Drivers tell this size where there is too little room, too.
            // SAFETY: by the contract.
            unsafe { write_optional(needed, names.len()) };
            names
        }
        _ => ask(query::PROGRAM, program.base.id, 0, param_name, &[])?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// As [`get_program_info`].
unsafe fn binaries(program: &Program, buffer: QueryBuffer) -> Result<(), Code> {
    let count = program.devices.len();
    let cached = program.binaries_cache().clone();
    // Of a program without any, the driver says so in its own way, whatever is asked of them.
    let binaries = cached.map_or_else(|| program.binaries_of_now(), Ok)?;
    if !buffer.value.is_null() {
        if buffer.size < count * size_of::<*mut u8>() {
            return Err(Code::INVALID_VALUE);
        }
        for (at, binary) in binaries.iter().enumerate().take(count) {
            // SAFETY: the array has an element for each device, by the contract and the check.
            let out = unsafe { buffer.value.cast::<*mut u8>().add(at).read_unaligned() };
            if !out.is_null() {
                // SAFETY: the program has queried these sizes, and has allocated as much.
                unsafe { std::ptr::copy_nonoverlapping(binary.as_ptr(), out, binary.len()) };
            }
        }
    }
    // SAFETY: by the contract.
    unsafe { write_optional(buffer.needed, count * size_of::<*mut u8>()) };
    Ok(())
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_program_build_info(
    program: cl_program,
    device: cl_device_id,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let (program, device) = (object::<Program>(program)?, object::<Device>(device)?);
    let bytes = ask(query::BUILD, program.base.id, device.base.id, param_name, &[])?;
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}
