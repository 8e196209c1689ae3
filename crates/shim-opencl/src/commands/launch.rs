//! Kernel launches. A launch with a shape that the driver has accepted once is sent without a wait for the reply. If it fails all
//! the same (for lack of memory), the next call that waits for commands reports the error.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use katydid_opencl_sys::constant::{COMMAND_NDRANGE_KERNEL, COMMAND_TASK};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_kernel};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::kdclLaunch;

use crate::ffi::arguments::list;
use crate::objects::handle::with_object;
use crate::objects::kernel::{Kernel, LaunchShape};
use crate::objects::pending_command::PendingCommand;
use crate::process::session;

/// Copies `dimensions` numbers to their positions in `out`, and returns whether there were any.
///
/// # Safety
///
/// `from` is null or holds that many numbers.
unsafe fn fill(out: &mut [u64], dimensions: u32, from: *const usize) -> bool {
    // SAFETY: guaranteed by the caller.
    let numbers = unsafe { list(dimensions as usize, from) };
    out.iter_mut().zip(numbers).for_each(|(out, number)| *out = *number as u64);
    !numbers.is_empty()
}

fn launch(command: PendingCommand, kernel: &Kernel, shape: LaunchShape) -> Result<(), Code> {
    if command.queue.context.base.id != kernel.program.context.base.id {
        return Err(Code::INVALID_CONTEXT);
    }
    let mut waits = command.arguments();
    shape.sizes.iter().for_each(|size| size.put(&mut waits));
    let message = kdclLaunch {
        queue: command.queue(),
        event: command.event(),
        kernel: kernel.base.id,
        dimensions: shape.dimensions,
        given_arrays: shape.given_arrays,
        waits: &waits,
    };
    let worker = command.worker;
    if kernel.has_launched(worker, &shape) {
        session::enqueue(&message)?;
    } else {
        session::call(&message)?;
        kernel.launched(worker, shape);
    }
    command.queue.context.launched();
    command.publish();
    Ok(())
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_ndrange_kernel(
    queue: cl_command_queue,
    kernel: cl_kernel,
    work_dim: u32,
    global_work_offset: *const usize,
    global_work_size: *const usize,
    local_work_size: *const usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_NDRANGE_KERNEL)? };
    if !(1..=3).contains(&work_dim) {
        return Err(Code::INVALID_WORK_DIMENSION);
    }
    let mut sizes = [0; 9];
    // SAFETY: guaranteed by the caller.
    let (offset, size, local) = unsafe {
        (
            fill(&mut sizes[0..3], work_dim, global_work_offset),
            fill(&mut sizes[3..6], work_dim, global_work_size),
            fill(&mut sizes[6..9], work_dim, local_work_size),
        )
    };
    let presence = u32::from(offset) | u32::from(local) << 1 | u32::from(size) << 2;
    let shape = LaunchShape { queue: command.queue(), dimensions: work_dim, given_arrays: presence, sizes };
    with_object(kernel, |kernel| launch(command, kernel, shape))
}

/// Launches a single work-item.
///
/// # Safety
///
/// As [`enqueue_ndrange_kernel`].
pub(crate) unsafe fn enqueue_task(
    queue: cl_command_queue,
    kernel: cl_kernel,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_TASK)? };
    let shape = LaunchShape::of_one(command.queue());
    with_object(kernel, |kernel| launch(command, kernel, shape))
}
