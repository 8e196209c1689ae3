//! Kernels and their arguments.
//!
//! The driver reports the kind of an argument if it keeps the source's declarations. Otherwise the value decides: the handle of a
//! live object stands for that object. The first value of an argument waits for the driver's reply; later ones of the same form
//! and size do not.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    KERNEL_CONTEXT, KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, KERNEL_LOCAL_MEM_SIZE,
    KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, KERNEL_PROGRAM, KERNEL_REFERENCE_COUNT, PROGRAM_KERNEL_NAMES,
};
use katydid_opencl_sys::{Code, char, cl_device_id, cl_kernel, cl_program, void};
use katydid_wire::opencl::message::{kdclCloneKernel, kdclKernel, kdclSetArgument, kdclSetExecInfo};
use katydid_wire::opencl::{MAX_KERNEL_ARGUMENTS, argument, query, value};

use crate::ffi::arguments::{list, text};
use crate::objects::device::Device;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object, with_object};
use crate::objects::info::{CachedValues, QueryBuffer, ask};
use crate::objects::memory::Memory;
use crate::objects::program::Program;
use crate::objects::queue::Queue;
use crate::objects::sampler::Sampler;
use crate::process::session;

/// A kernel of a program, with its arguments.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) base: Base,
    pub(crate) program: HeldObject<Program>,
    /// The kind of each argument, as far as the driver reports it.
    arguments: Vec<u8>,
    accepted: Mutex<AcceptedArguments>,
    cached: CachedValues,
}

kind_of_object! { Kernel cl_kernel KERNEL INVALID_KERNEL MAX_PROGRAM_OBJECTS, fn ends_lazily(&self) -> bool { true } }

/// The inputs on which acceptance of a launch depends, besides the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaunchShape {
    pub(crate) queue: u32,
    pub(crate) dimensions: u32,
    /// Bit 0: the offsets are given; bit 1: the group sizes are; bit 2: the sizes are.
    pub(crate) given_arrays: u32,
    /// Offsets, sizes, group sizes.
    pub(crate) sizes: [u64; 9],
}

impl LaunchShape {
    /// Returns the shape of a launch of one item.
    pub(crate) fn of_one(queue: u32) -> Self {
        Self { queue, dimensions: 1, given_arrays: 6, sizes: [0, 0, 0, 1, 0, 0, 1, 0, 0] }
    }
}

/// The values and launches that the driver has accepted for a kernel; a later worker's driver may refuse them.
#[derive(Debug, Default, Clone)]
struct AcceptedArguments {
    /// The number of the worker whose driver it is ([`crate::process::session::worker`]).
    worker: u32,
    /// Form and size of values, by argument.
    values: Vec<Option<(u32, u64)>>,
    launches: HashSet<LaunchShape>,
    /// The accepted launch that was queried last: programs repeat themselves.
    last_launch: Option<LaunchShape>,
}

/// Most accepted launches of one kernel that are remembered; after that, the list starts anew.
const MAX_KEPT_LAUNCHES: usize = 64;
/// Most bytes of one argument; devices accept some thousands in all.
const MAX_ARGUMENT_BYTES: usize = 1 << 16;

impl AcceptedArguments {
    /// Returns what a worker's driver has accepted; it is unknown what another one's accepts.
    fn of(&mut self, worker: u32) -> &mut Self {
        if worker != self.worker {
            *self = Self { worker, ..Self::default() };
        }
        self
    }

    fn has_launched(&mut self, shape: &LaunchShape) -> bool {
        let is_known = self.last_launch.as_ref() == Some(shape) || self.launches.contains(shape);
        if is_known {
            self.last_launch = Some(*shape);
        }
        is_known
    }

    fn launched(&mut self, shape: LaunchShape) {
        if self.launches.len() >= MAX_KEPT_LAUNCHES {
            self.launches.clear();
        }
        self.launches.insert(shape);
    }

    fn has_set(&self, index: u32, value: (u32, u64)) -> bool {
        self.values.get(index as usize) == Some(&Some(value))
    }

    fn set(&mut self, index: u32, value: (u32, u64)) {
        let index = index as usize;
        if index < MAX_KERNEL_ARGUMENTS as usize {
            self.values.resize(self.values.len().max(index + 1), None);
            self.values[index] = Some(value);
        }
        // A value of another form or size may make a launch impossible.
        self.launches.clear();
        self.last_launch = None;
    }
}

impl Kernel {
    fn new(base: Base, program: HeldObject<Program>, arguments: Vec<u8>, accepted: AcceptedArguments) -> Self {
        Self { base, program, arguments, accepted: Mutex::new(accepted), cached: CachedValues::default() }
    }

    fn accepted(&self) -> MutexGuard<'_, AcceptedArguments> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a worker's driver has accepted a launch of this shape.
    pub(crate) fn has_launched(&self, worker: u32, shape: &LaunchShape) -> bool {
        self.accepted().of(worker).has_launched(shape)
    }

    /// Records a launch that the driver of a worker has accepted; the worker was the session's when the program asked.
    pub(crate) fn launched(&self, worker: u32, shape: LaunchShape) {
        self.accepted().of(worker).launched(shape);
    }

    /// Sets an argument according to its bytes; without bytes, it is a size of local memory, or nothing.
    fn set_any(&self, index: u32, size: u64, bytes: Option<&[u8]>) -> Result<(), Code> {
        let Some(bytes) = bytes else { return self.set(index, value::LOCAL_SIZE, size, &[]) };
        let kind = self.arguments.get(index as usize).copied().unwrap_or(argument::UNKNOWN);
        let handle = <[u8; 8]>::try_from(bytes).ok().map(|bytes| u64::from_le_bytes(bytes) as usize);
        match (kind, handle) {
            // The driver reports a size that no handle has, or a value where only a size may be.
            (argument::OBJECT | argument::UNKNOWN, Some(0)) => {
                self.set(index, value::OBJECT, size, &0u32.to_le_bytes())
            }
            (argument::OBJECT | argument::UNKNOWN, Some(handle)) => match any_argument(handle) {
                Some(id) => self.set(index, value::OBJECT, size, &id.to_le_bytes()),
                None if kind == argument::UNKNOWN => self.set(index, value::BYTES, size, bytes),
                None => Err(Code::INVALID_MEM_OBJECT),
            },
            _ => self.set(index, value::BYTES, size, bytes),
        }
    }

    /// Sets an argument, and waits for the driver's reply only if it has not accepted such a value before.
    fn set(&self, index: u32, form: u32, size: u64, value: &[u8]) -> Result<(), Code> {
        let message = kdclSetArgument { kernel: self.base.id, index, form, size, value };
        let worker = session::worker()?;
        if self.accepted().of(worker).has_set(index, (form, size)) {
            return session::enqueue(&message);
        }
        session::call(&message)?;
        self.accepted().of(worker).set(index, (form, size));
        Ok(())
    }
}

/// Returns the id of a live object that may be a kernel argument, given the value of its handle.
fn any_argument(value: usize) -> Option<u32> {
    let memory = Memory::table().with(value, |memory| {
        memory.contents.be_argument();
        memory.base.id
    });
    memory
        .or_else(|| Sampler::table().with(value, |sampler| sampler.base.id))
        .or_else(|| Queue::table().with(value, |queue| queue.base.id))
}

fn create(program: &Arc<Program>, name: &[u8]) -> Result<Arc<Kernel>, Code> {
    make(|base| {
        let message = kdclKernel { kernel: base.id, program: program.base.id, name };
        let facts = session::call(&message)?.facts;
        Ok(Kernel::new(base, HeldObject::new(Arc::clone(program)), facts, AcceptedArguments::default()))
    })
}

/// # Safety
///
/// The name is null or a C string.
pub(crate) unsafe fn create_kernel(program: cl_program, kernel_name: *const char) -> Result<cl_kernel, Code> {
    let program = object::<Program>(program)?;
    if kernel_name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    Ok(create(&program, unsafe { text(kernel_name) })?.handle())
}

/// # Safety
///
/// `kernels` is null or has room for `num_kernels`; the count is null or writable.
pub(crate) unsafe fn create_kernels_in_program(
    program: cl_program,
    num_kernels: u32,
    kernels: *mut cl_kernel,
    num_kernels_ret: *mut u32,
) -> Result<(), Code> {
    let program = object::<Program>(program)?;
    let names = ask(query::PROGRAM, program.base.id, 0, PROGRAM_KERNEL_NAMES, &[])?;
    let names = names.strip_suffix(b"\0").unwrap_or(&names);
    let names: Vec<&[u8]> = names.split(|byte| *byte == b';').filter(|name| !name.is_empty()).collect();
    if !kernels.is_null() {
        if (num_kernels as usize) < names.len() {
            return Err(Code::INVALID_VALUE);
        }
        for (at, name) in names.iter().enumerate() {
            let kernel = create(&program, name)?;
            // SAFETY: there is room, by the contract and the check.
            unsafe { kernels.add(at).write(kernel.handle()) };
        }
    }
    // SAFETY: by the contract.
    unsafe { write_optional(num_kernels_ret, names.len() as u32) };
    Ok(())
}

pub(crate) fn clone_kernel(source: cl_kernel) -> Result<cl_kernel, Code> {
    let source = object::<Kernel>(source)?;
    let kernel = make(|base| {
        session::call(&kdclCloneKernel { kernel: base.id, source: source.base.id })?;
        let accepted = source.accepted().clone();
        Ok(Kernel::new(base, source.program.clone(), source.arguments.clone(), accepted))
    })?;
    Ok(kernel.handle())
}

pub(crate) fn retain_kernel(kernel: cl_kernel) -> Result<(), Code> {
    handle::retain::<Kernel>(kernel)
}

pub(crate) fn release_kernel(kernel: cl_kernel) -> Result<(), Code> {
    handle::release::<Kernel>(kernel)
}

/// # Safety
///
/// The value is null or readable for `arg_size` bytes.
pub(crate) unsafe fn set_kernel_arg(
    kernel: cl_kernel,
    arg_index: u32,
    arg_size: usize,
    arg_value: *const void,
) -> Result<(), Code> {
    let is_given = !arg_value.is_null();
    if is_given && arg_size > MAX_ARGUMENT_BYTES {
        object::<Kernel>(kernel)?;
        return Err(Code::INVALID_ARG_SIZE);
    }
    // SAFETY: guaranteed by the caller.
    let bytes = is_given.then(|| unsafe { list(arg_size, arg_value.cast::<u8>()) });
    with_object::<Kernel>(kernel, |kernel| kernel.set_any(arg_index, arg_size as u64, bytes))
}

pub(crate) fn set_kernel_arg_svm_pointer(
    kernel: cl_kernel,
    arg_index: u32,
    arg_value: *const void,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    let address = arg_value.addr() as u64;
    kernel.set(arg_index, value::SVM, 8, &address.to_le_bytes())
}

/// # Safety
///
/// The value is readable for `size` bytes.
pub(crate) unsafe fn set_kernel_exec_info(
    kernel: cl_kernel,
    param_name: u32,
    size: usize,
    value: *const void,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    let has_value = !value.is_null();
    // SAFETY: guaranteed by the caller.
    let value = unsafe { list(size, value.cast::<u8>()) };
    // A device never uses ordinary memory of the program.
    if param_name == KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM && value.iter().any(|byte| *byte != 0) {
        return Err(Code::INVALID_OPERATION);
    }
    let message = kdclSetExecInfo {
        kernel: kernel.base.id,
        parameter: param_name,
        has_value: has_value.into(),
        size: size as u64,
        value,
    };
    session::call(&message).map(drop)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_kernel_info(
    kernel: cl_kernel,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    let bytes = match param_name {
        KERNEL_REFERENCE_COUNT => kernel.base.count().to_le_bytes().to_vec(),
        KERNEL_CONTEXT => handle::bytes(&*kernel.program.context),
        KERNEL_PROGRAM => handle::bytes(&*kernel.program),
        _ => kernel.cached.ask(query::KERNEL, kernel.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_kernel_arg_info(
    kernel: cl_kernel,
    index: u32,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    let bytes = kernel.cached.ask_for(query::ARGUMENT, kernel.base.id, index, param_name)?;
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// Returns the id of an optional device.
fn device(device: cl_device_id) -> Result<u32, Code> {
    if device == cl_device_id::NULL { Ok(0) } else { Ok(object::<Device>(device)?.base.id) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_kernel_work_group_info(
    kernel: cl_kernel,
    of: cl_device_id,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    let bytes = match param_name {
        // Not cached: it includes the local memory of the present arguments.
        KERNEL_LOCAL_MEM_SIZE => ask(query::WORK_GROUP, kernel.base.id, device(of)?, param_name, &[])?,
        _ => kernel.cached.ask_for(query::WORK_GROUP, kernel.base.id, device(of)?, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]); the input is readable for its size.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn get_kernel_sub_group_info(
    kernel: cl_kernel,
    of: cl_device_id,
    param_name: u32,
    input_size: usize,
    input: *const void,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let kernel = object::<Kernel>(kernel)?;
    // SAFETY: guaranteed by the caller.
    let input = unsafe { list(input_size, input.cast::<u8>()) };
    let bytes = match input {
        // The capacity of the caller's buffer says how many dimensions it gets.
        _ if param_name == KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT && !value.is_null() => {
            let input = [&(size as u64).to_le_bytes(), input].concat();
            ask(query::GROUP_SIZES, kernel.base.id, device(of)?, param_name, &input)?
        }
        [] => kernel.cached.ask_for(query::SUB_GROUP, kernel.base.id, device(of)?, param_name)?,
        _ => ask(query::SUB_GROUP, kernel.base.id, device(of)?, param_name, input)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_accepted_by_one_worker_are_sent_to_another() {
        let (mut accepted, shape) = (AcceptedArguments::default(), LaunchShape::of_one(1));
        accepted.of(0).set(2, (value::BYTES, 4));
        accepted.of(0).launched(shape);
        assert!(accepted.of(0).has_launched(&shape) && accepted.of(0).has_set(2, (value::BYTES, 4)));
        assert!(!accepted.of(1).has_launched(&shape) && !accepted.of(1).has_set(2, (value::BYTES, 4)));
        accepted.of(1).launched(shape);
        assert!(accepted.clone().of(1).has_launched(&shape) && !accepted.of(2).has_launched(&shape));
    }

    #[test]
    fn a_launch_is_accepted_until_an_argument_has_another_form_or_size() {
        let (mut accepted, shapes) = (AcceptedArguments::default(), [1, 2].map(LaunchShape::of_one));
        assert!(!accepted.has_launched(&shapes[0]));
        accepted.set(1, (value::BYTES, 4));
        shapes.iter().for_each(|shape| accepted.launched(*shape));
        assert!(shapes.iter().chain(&shapes).all(|shape| accepted.has_launched(shape)));
        assert!(accepted.has_set(1, (value::BYTES, 4)) && !accepted.has_set(1, (value::BYTES, 8)));
        assert!(!accepted.has_set(0, (value::BYTES, 4)) && !accepted.has_set(u32::MAX, (value::BYTES, 4)));
        accepted.set(1, (value::OBJECT, 8));
        assert!(!shapes.iter().any(|shape| accepted.has_launched(shape)));
        accepted.set(u32::MAX, (value::BYTES, 4));
        assert!(!accepted.has_set(u32::MAX, (value::BYTES, 4)), "nothing is kept of what no kernel has");
    }
}
