//! Launches: the driver gets parameters straight from the frame.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;

use katydid_cuda_sys::{
    CUevent, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, Pod as _, launch_attribute, launch_param,
};
use katydid_driver::Driver;
use katydid_driver_rules::launch::MAX_LAUNCH_ATTRIBUTES;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::kdLaunch;

use crate::calls::fault::{Fault, SessionError};
use crate::handlers::EnqueueResult;
use crate::handlers::code::function::Code;
use crate::state::Session;

/// Bytes of one attribute.
const LAUNCH_ATTRIBUTE_BYTES: usize = size_of::<CUlaunchAttribute>();

/// Launches a function or kernel.
pub(crate) fn kdLaunch(session: &mut Session, head: &FrameHead, message: kdLaunch<'_>) -> EnqueueResult {
    let function = Code::of(session, head, message.function, message.kernel)?.as_function();
    // Reused, so that launches allocate nothing.
    let mut attributes = std::mem::take(&mut session.attributes);
    attributes.clear();
    let params = split(session, head, &message, &mut attributes)?;
    let config = CUlaunchConfig {
        gridDimX: message.gridX,
        gridDimY: message.gridY,
        gridDimZ: message.gridZ,
        blockDimX: message.blockX,
        blockDimY: message.blockY,
        blockDimZ: message.blockZ,
        sharedMemBytes: message.sharedSize,
        hStream: session.handle(head, message.stream)?,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    session.journal.launched(message.kernel, session.current, head.sequence);
    let launched = launch(session.driver(), function, &config, params);
    session.attributes = attributes;
    Ok(launched)
}

/// Splits off the packed parameters; resolves the handles in the attributes before them into `attributes`.
fn split<'a>(
    session: &mut Session,
    head: &FrameHead,
    message: &kdLaunch<'a>,
    attributes: &mut Vec<CUlaunchAttribute>,
) -> Result<&'a [u8], Fault> {
    let bytes = message.attributesAndParams;
    let count = message.attributeCount;
    let parts = if count > MAX_LAUNCH_ATTRIBUTES {
        None
    } else {
        bytes.split_at_checked(count as usize * LAUNCH_ATTRIBUTE_BYTES)
    };
    let (announced, params) = parts.ok_or_else(|| SessionError::DamagedPart {
        message: "kdLaunch",
        part: "attributes",
        reason: format!("{count} were announced in {} bytes", bytes.len()),
    })?;
    for attribute in announced.chunks_exact(LAUNCH_ATTRIBUTE_BYTES).filter_map(CUlaunchAttribute::from_bytes) {
        attributes.push(resolve(session, head, attribute)?);
    }
    Ok(params)
}

/// Resolves the event in an attribute, whose wire id is in the first half of its value.
fn resolve(
    session: &mut Session,
    head: &FrameHead,
    mut attribute: CUlaunchAttribute,
) -> Result<CUlaunchAttribute, Fault> {
    match attribute.id {
        launch_attribute::PROGRAMMATIC_EVENT | launch_attribute::LAUNCH_COMPLETION_EVENT => {
            let id = u32::try_from(attribute.value[0]).map_err(|_| CUresult::ERROR_INVALID_HANDLE)?;
            let event: CUevent = session.handle(head, id)?;
            attribute.value[0] = event.address();
            Ok(attribute)
        }
        // Its value is an address in the program that the driver would write to.
        launch_attribute::DEVICE_UPDATABLE_KERNEL_NODE => Err(CUresult::ERROR_NOT_SUPPORTED.into()),
        _ => Ok(attribute),
    }
}

/// Launches, with the parameters as one block.
fn launch(driver: &Driver, function: CUfunction, config: &CUlaunchConfig, params: &[u8]) -> CUresult {
    let mut size = params.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(launch_param::BUFFER_POINTER as usize),
        params.as_ptr().cast_mut().cast(),
        std::ptr::without_provenance_mut(launch_param::BUFFER_SIZE as usize),
        (&raw mut size).cast(),
        std::ptr::without_provenance_mut(launch_param::END as usize),
    ];
    let extra = if params.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
    let none = std::ptr::null_mut();
    if config.numAttrs > 0 {
        // SAFETY: configuration, attributes and parameter list are locals that outlive the call; the driver copies
        // the parameters before it returns, and checks their size against the function.
        return unsafe { driver.cuLaunchKernelEx(config, function, none, extra) };
    }
    let CUlaunchConfig { gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, .. } = *config;
    let (shared, stream) = (config.sharedMemBytes, config.hStream);
    // SAFETY: as above.
    unsafe {
        driver.cuLaunchKernel(
            function, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, shared, stream, none, extra,
        )
    }
}
