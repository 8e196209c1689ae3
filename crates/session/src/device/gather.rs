//! Asks a driver for all facts that programs query and that cannot change.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::CStr;

use katydid_cuda_sys::{
    CUcontext, CUfunction, CUkernel, CUmemAllocationProp, CUmemLocation, CUresult, CUuuid, allocation_type,
    location_type,
};
use katydid_driver::Driver;
use katydid_wire::facts::{
    ContextFacts, DeviceFacts, DriverAnswer, Facts, FunctionFacts, P2P_ATTRIBUTE_COUNT, ParameterFacts, PeerFacts,
};

use crate::device::ask::{answer, ask};

/// Highest device attribute that is asked for: CUDA 13 ends below 150.
const DEVICE_ATTRIBUTES: u32 = 200;
/// Number of context limits that are asked for (`CUlimit`).
const CONTEXT_LIMITS: u32 = 16;
/// Number of function attributes that are asked for (`CUfunction_attribute`).
const FUNCTION_ATTRIBUTES: u32 = 16;
/// Bytes for a name or a bus id.
const TEXT_BYTES: usize = 256;

/// Returns all facts about the devices.
///
/// # Errors
///
/// The driver's code for a query that a working driver always answers.
pub fn devices(driver: &Driver) -> Result<Facts, CUresult> {
    // SAFETY: the output is a local.
    let driver_version = ask(|out| unsafe { driver.cuDriverGetVersion(out) })?;
    // SAFETY: the output is a local.
    let count = ask::<i32>(|out| unsafe { driver.cuDeviceGetCount(out) })?;
    let devices = (0..count).map(|ordinal| device(driver, ordinal)).collect::<Result<_, _>>()?;
    let peers = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let peers = peers.map(|(from, to)| peer(driver, from, to)).collect();
    Ok(Facts { driver_version, devices, peers })
}

fn device(driver: &Driver, ordinal: i32) -> Result<DeviceFacts, CUresult> {
    // SAFETY: the output is a local.
    let device = ask(|out| unsafe { driver.cuDeviceGet(out, ordinal) })?;
    // SAFETY: the buffer has as many bytes as said.
    let name = text(|out, length| unsafe { driver.cuDeviceGetName(out, length, device) })?;
    // SAFETY: as above.
    let pci_bus_id = text(|out, length| unsafe { driver.cuDeviceGetPCIBusId(out, length, device) })?;
    // SAFETY: the output is a local.
    let uuid = ask::<CUuuid>(|out| unsafe { driver.cuDeviceGetUuid(out, device) })?.bytes;
    // SAFETY: the output is a local.
    let total = ask::<usize>(|out| unsafe { driver.cuDeviceTotalMem_v2(out, device) })?;
    let attributes = (1..=DEVICE_ATTRIBUTES)
        // SAFETY: the output is a local; a driver refuses numbers it does not know.
        .map(|id| answer(|out| unsafe { driver.cuDeviceGetAttribute(out, id, device) }))
        .collect();
    let granularity = granularity(driver, device)?;
    Ok(DeviceFacts { name, pci_bus_id, uuid, total_memory: total as u64, granularity, attributes })
}

/// Returns the granularity of `cuMemCreate`, in bytes.
fn granularity(driver: &Driver, device: i32) -> Result<u64, CUresult> {
    let location = CUmemLocation { type_: location_type::DEVICE, id: device };
    let requested = CUmemAllocationProp { type_: allocation_type::PINNED, location, ..Default::default() };
    // SAFETY: `requested` and the output are locals. 0 asks for the minimum.
    let bytes = ask::<usize>(|out| unsafe { driver.cuMemGetAllocationGranularity(out, &raw const requested, 0) })?;
    Ok(bytes as u64)
}

fn peer(driver: &Driver, from: i32, to: i32) -> PeerFacts {
    // SAFETY: the output is a local.
    let can_access = answer(|out| unsafe { driver.cuDeviceCanAccessPeer(out, from, to) });
    let mut attributes = [DriverAnswer::default(); P2P_ATTRIBUTE_COUNT];
    for (id, slot) in (1..).zip(&mut attributes) {
        // SAFETY: the output is a local.
        *slot = answer(|out| unsafe { driver.cuDeviceGetP2PAttribute(out, id, from, to) });
    }
    PeerFacts { can_access, attributes }
}

/// Returns a text that the driver writes into a buffer.
fn text(call: impl FnOnce(*mut std::ffi::c_char, i32) -> CUresult) -> Result<String, CUresult> {
    let mut buffer = [0_u8; TEXT_BYTES];
    call(buffer.as_mut_ptr().cast(), TEXT_BYTES as i32).ok()?;
    Ok(CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
}

/// Returns the facts of the current context, `handle`. Facts that a driver does not know are zero.
pub(crate) fn context(driver: &Driver, handle: CUcontext) -> ContextFacts {
    let (mut least_priority, mut greatest_priority) = (0, 0);
    // SAFETY: both outputs are locals.
    let _ = unsafe { driver.cuCtxGetStreamPriorityRange(&raw mut least_priority, &raw mut greatest_priority) };
    ContextFacts {
        // SAFETY: here and below, the output is a local.
        id: ask(|out| unsafe { driver.cuCtxGetId(handle, out) }).unwrap_or_default(),
        // SAFETY: as above.
        api_version: ask(|out| unsafe { driver.cuCtxGetApiVersion(handle, out) }).unwrap_or_default(),
        // SAFETY: as above.
        flags: ask(|out| unsafe { driver.cuCtxGetFlags(out) }).unwrap_or_default(),
        least_priority,
        greatest_priority,
        // SAFETY: as above.
        cache_config: ask(|out| unsafe { driver.cuCtxGetCacheConfig(out) }).unwrap_or_default(),
        // SAFETY: as above.
        shared_config: ask(|out| unsafe { driver.cuCtxGetSharedMemConfig(out) }).unwrap_or_default(),
        limits: (0..CONTEXT_LIMITS).map(|id| limit(driver, id)).collect(),
    }
}

fn limit(driver: &Driver, id: u32) -> DriverAnswer<u64> {
    // SAFETY: the output is a local; a driver refuses numbers it does not know.
    let DriverAnswer { code, value } = answer::<usize>(|out| unsafe { driver.cuCtxGetLimit(out, id) });
    DriverAnswer { code, value: value as u64 }
}

/// Returns the facts of a function.
pub(crate) fn function(driver: &Driver, function: CUfunction) -> FunctionFacts {
    let attributes = (0..FUNCTION_ATTRIBUTES)
        // SAFETY: the output is a local, the handle alive.
        .map(|id| answer(|out| unsafe { driver.cuFuncGetAttribute(out, id, function) }))
        .collect();
    FunctionFacts { attributes, parameters: parameters_of_function(driver, function) }
}

/// Returns the offsets and sizes of a function's packed parameters.
pub(crate) fn parameters_of_function(driver: &Driver, function: CUfunction) -> Vec<ParameterFacts> {
    // SAFETY: the outputs are locals, the handle is the driver's own.
    parameters(|index, offset, size| unsafe { driver.cuFuncGetParamInfo(function, index, offset, size) })
}

/// Returns the facts of a kernel on the current context's device.
pub(crate) fn kernel(driver: &Driver, kernel: CUkernel) -> FunctionFacts {
    let attributes = (0..FUNCTION_ATTRIBUTES)
        .map(|id| {
            answer(|out| match current_device(driver) {
                // SAFETY: the output is a local, the handle alive.
                Ok(device) => unsafe { driver.cuKernelGetAttribute(out, id, kernel, device) },
                Err(code) => code,
            })
        })
        .collect();
    FunctionFacts { attributes, parameters: parameters_of_kernel(driver, kernel) }
}

/// Returns the parameters of a kernel.
pub(crate) fn parameters_of_kernel(driver: &Driver, kernel: CUkernel) -> Vec<ParameterFacts> {
    // SAFETY: the outputs are locals, the handle is the driver's own.
    parameters(|index, offset, size| unsafe { driver.cuKernelGetParamInfo(kernel, index, offset, size) })
}

/// Returns the device of the current context.
pub(crate) fn current_device(driver: &Driver) -> Result<i32, CUresult> {
    // SAFETY: the output is a local.
    ask(|out| unsafe { driver.cuCtxGetDevice(out) })
}

/// Returns all parameters: a driver refuses the first index without one.
fn parameters(call: impl Fn(usize, *mut usize, *mut usize) -> CUresult) -> Vec<ParameterFacts> {
    let parameter = |index| {
        let (mut offset, mut size) = (0, 0);
        call(index, &raw mut offset, &raw mut size).ok().ok()?;
        Some(ParameterFacts { offset: u32::try_from(offset).ok()?, size: u32::try_from(size).ok()? })
    };
    (0..katydid_wire::frame::MAX_FRAME_BYTES).map_while(parameter).collect()
}
