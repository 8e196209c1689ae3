//! Kernels and their arguments.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ffi::CString;
use std::ptr;

use katydid_opencl_sys::constant::{
    KERNEL_ARG_ADDRESS_LOCAL, KERNEL_ARG_ADDRESS_PRIVATE, KERNEL_ARG_ADDRESS_QUALIFIER, KERNEL_ARG_TYPE_NAME,
    KERNEL_EXEC_INFO_SVM_PTRS, KERNEL_NUM_ARGS,
};
use katydid_opencl_sys::{Code, cl_kernel, cl_program, void};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{MAX_KERNEL_ARGUMENTS, argument, message, value as form};

use crate::calls::arguments::Arguments;
use crate::calls::fault::Fault;
use crate::drivers::call::{driver, make};
use crate::drivers::driver::value;
use crate::objects::object::Object;
use crate::state::Session;

/// Types of arguments that are objects.
const OBJECT_TYPES: [&[u8]; 15] = [
    b"sampler_t",
    b"queue_t",
    b"pipe",
    b"image1d_t",
    b"image1d_array_t",
    b"image1d_buffer_t",
    b"image2d_t",
    b"image2d_array_t",
    b"image2d_depth_t",
    b"image2d_array_depth_t",
    b"image2d_msaa_t",
    b"image2d_array_msaa_t",
    b"image2d_msaa_depth_t",
    b"image2d_array_msaa_depth_t",
    b"image3d_t",
];

/// Makes a kernel of a program, and returns the kind of each argument: one byte each.
pub(crate) fn kdclKernel(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclKernel<'_>,
) -> Result<message::kdclKernelReply, Fault> {
    let program: Object<cl_program> = session.shared.objects.get(message.program)?;
    let name = CString::new(message.name).map_err(|_| Code::INVALID_KERNEL_NAME)?;
    let handle = make!(program.api, clCreateKernel(program.handle, name.as_ptr()))?;
    let kernel = Object { handle, api: program.api, size: 0 };
    let made_of = session.shared.objects.hold::<cl_program>(message.program)?;
    session.shared.objects.set(message.kernel, kernel, vec![made_of])?;
    Ok(message::kdclKernelReply { facts: facts(&kernel) })
}

fn facts(kernel: &Object<cl_kernel>) -> Vec<u8> {
    let mut count = 0u32;
    let pointer = (&raw mut count).cast();
    let code = driver!(kernel.api, clGetKernelInfo(kernel.handle, KERNEL_NUM_ARGS, 4, pointer, ptr::null_mut()));
    let count = if code == Code::SUCCESS { count.min(MAX_KERNEL_ARGUMENTS) } else { 0 };
    (0..count).map(|index| kind(kernel, index).unwrap_or(argument::UNKNOWN)).collect()
}

/// Returns the kind of an argument, if the driver keeps the source's declarations.
fn kind(kernel: &Object<cl_kernel>, index: u32) -> Result<u8, Code> {
    let ask = |parameter| {
        value(|size, pointer, needed| {
            driver!(kernel.api, clGetKernelArgInfo(kernel.handle, index, parameter, size, pointer, needed))
        })
    };
    let qualifier = u32::take(&mut &ask(KERNEL_ARG_ADDRESS_QUALIFIER)?[..]).ok_or(Code::INVALID_VALUE)?;
    Ok(match qualifier {
        KERNEL_ARG_ADDRESS_LOCAL => argument::LOCAL,
        KERNEL_ARG_ADDRESS_PRIVATE => {
            let name = ask(KERNEL_ARG_TYPE_NAME)?;
            let name = name.strip_suffix(b"\0").unwrap_or(&name);
            if OBJECT_TYPES.contains(&name) { argument::OBJECT } else { argument::PLAIN }
        }
        _ => argument::OBJECT,
    })
}

/// Makes a kernel with the arguments of another.
pub(crate) fn kdclCloneKernel(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclCloneKernel,
) -> Result<message::kdclCloneKernelReply, Fault> {
    let source: Object<cl_kernel> = session.shared.objects.get(message.source)?;
    let handle = make!(source.api, clCloneKernel(source.handle))?;
    let made_of = session.shared.objects.hold::<cl_kernel>(message.source)?.made_of().to_vec();
    session.shared.objects.set(message.kernel, Object { handle, api: source.api, size: 0 }, made_of)?;
    Ok(message::kdclCloneKernelReply {})
}

/// Sets one argument of a kernel.
pub(crate) fn kdclSetArgument(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSetArgument<'_>,
) -> Result<message::kdclSetArgumentReply, Fault> {
    let kernel: Object<cl_kernel> = session.shared.objects.get(message.kernel)?;
    let size = message.size as usize;
    let set = |size: usize, value: *const void| {
        driver!(kernel.api, clSetKernelArg(kernel.handle, message.index, size, value))
    };
    let mut arguments = Arguments::new("kdclSetArgument", message.value);
    let code = match message.form {
        form::BYTES if message.value.len() == size => set(size, message.value.as_ptr().cast()),
        // A driver reads as many bytes as the size argument says.
        form::OBJECT if size == size_of::<*mut void>() => {
            let id = arguments.take("object")?;
            let object = session.shared.objects.any_of(kernel.api, id).ok_or(Code::INVALID_ARG_VALUE)?;
            if session.journal.get(id).is_some_and(|entry| entry.is_made_by::<message::kdclPipe>()) {
                session.given_pipes.insert(id);
            }
            set(size, (&raw const object).cast())
        }
        form::LOCAL_SIZE => set(size, ptr::null()),
        form::SVM => {
            let address: u64 = arguments.take("address")?;
            let address = ptr::with_exposed_provenance(address as usize);
            driver!(kernel.api, clSetKernelArgSVMPointer(kernel.handle, message.index, address))
        }
        _ => Code::INVALID_ARG_SIZE,
    };
    code.ok()?;
    Ok(message::kdclSetArgumentReply {})
}

/// Sets the memory that a kernel reaches besides its arguments, or a flag.
pub(crate) fn kdclSetExecInfo(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSetExecInfo<'_>,
) -> Result<message::kdclSetExecInfoReply, Fault> {
    let kernel: Object<cl_kernel> = session.shared.objects.get(message.kernel)?;
    if message.parameter == KERNEL_EXEC_INFO_SVM_PTRS {
        for address in message.value.chunks_exact(8).filter_map(|bytes| u64::take(&mut &bytes[..])) {
            session.svm.check(address, 0)?;
        }
    }
    // Without bytes the driver gets the program's pointer and size, and reads nothing there.
    let pointer = if message.has_value == 0 { ptr::null() } else { message.value.as_ptr().cast() };
    if message.has_value != 0 && message.value.len() as u64 != message.size {
        return Err(Code::INVALID_VALUE.into());
    }
    let size = message.size as usize;
    driver!(kernel.api, clSetKernelExecInfo(kernel.handle, message.parameter, size, pointer)).ok()?;
    Ok(message::kdclSetExecInfoReply {})
}
