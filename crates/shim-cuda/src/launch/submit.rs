//! Launches: validated, packed and queued, without a reply.
//!
//! The call refuses the same launches as NVIDIA's driver, with its codes (measured on driver 580): wrong geometry, too much
//! shared memory and missing parameters give 1, too many registers 701.
#![expect(unsafe_code, reason = "reads parameters and attributes of C callers")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_LAUNCH_PARAMS, CUcontext, CUevent, CUfunction, CUkernel, CUlaunchAttribute, CUlaunchConfig, CUresult,
    CUstream, device_attribute, function_attribute, launch_attribute,
};
use katydid_driver_rules::caller;
use katydid_driver_rules::launch::{self as rules, GeometryLimits};
use katydid_driver_rules::occupancy::threads_by_registers;
use katydid_wire::message::kdLaunch;

use crate::code::properties::Code;
use crate::context::device::{self, Device};
use crate::context::stack;
use crate::ffi::arguments::refuse;
use crate::ffi::handle::{object, peek, wire};
use crate::graph::capture;
use crate::launch::target::LaunchTarget;
use crate::launch::{backpressure, clusters, occupancy};
use crate::memory::pinned;
use crate::process::session::shim;
use crate::sync::{stream, wait};

/// Entries of a thread's cache of targets: programs launch the same few again and again.
const TARGET_CACHE_ENTRIES: usize = 64;

/// Bytes of a launch.
#[derive(Default)]
struct LaunchBuffer(Vec<u8>);

thread_local! {
    /// Attributes and packed parameters of the current launch, reused to save an allocation; boxed, so that one word is
    /// moved.
    static LAUNCH_BUFFER: Cell<Option<Box<LaunchBuffer>>> = const { Cell::new(None) };
    /// The program's attributes of the current launch, reused to save an allocation.
    static ATTRIBUTES: Cell<Vec<CUlaunchAttribute>> = const { Cell::new(Vec::new()) };
    /// Targets of this thread's latest launches, by a hash of their handles.
    static TARGET_CACHE: RefCell<[Option<CachedTarget>; TARGET_CACHE_ENTRIES]> = const { RefCell::new([const { None }; TARGET_CACHE_ENTRIES]) };
}

/// A cached target. A launch that finds its target here touches no reference count.
struct CachedTarget {
    handle: usize,
    /// Distinguishes targets that have had the same handle.
    generation: u32,
    target: LaunchTarget,
}

impl CachedTarget {
    /// Passes the target to `launch`, from the calling thread's cache if it is there.
    ///
    /// # Errors
    ///
    /// As [`LaunchTarget::of`], and as `launch`.
    fn with_target(
        function: CUfunction,
        launch: impl Fn(&LaunchTarget) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let handle = function.0.addr();
        let generation = peek(function).or_else(|_| peek(CUkernel(function.0)))?.generation;
        let outcome = TARGET_CACHE.try_with(|cache| {
            // Records are a cache line apart.
            let mut cache = cache.try_borrow_mut().ok()?;
            let entry = &mut cache[handle / 64 % TARGET_CACHE_ENTRIES];
            if !entry.as_ref().is_some_and(|cached| cached.handle == handle && cached.generation == generation) {
                *entry = Some(Self { handle, generation, target: LaunchTarget::of(function).ok()? });
            }
            entry.as_ref().map(|cached| launch(&cached.target))
        });
        match outcome {
            Ok(Some(launched)) => launched,
            // The thread is ending, or this is a launch inside of another one.
            _ => launch(&LaunchTarget::of(function)?),
        }
    }
}

/// Geometry of a launch: blocks, threads, shared memory in bytes.
#[derive(Clone, Copy)]
struct LaunchGeometry {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

impl LaunchGeometry {
    /// Checks that the geometry fits code and device.
    ///
    /// # Errors
    ///
    /// As the driver: 1 for a geometry that never fits, 701 if it lacks registers.
    fn check(&self, code: &Code, device: &Device) -> Result<(), CUresult> {
        let value = |attribute: u32| device.value(attribute).unsigned_abs();
        let limits = GeometryLimits {
            grid: [
                value(device_attribute::MAX_GRID_DIM_X),
                value(device_attribute::MAX_GRID_DIM_Y),
                value(device_attribute::MAX_GRID_DIM_Z),
            ],
            block: [
                value(device_attribute::MAX_BLOCK_DIM_X),
                value(device_attribute::MAX_BLOCK_DIM_Y),
                value(device_attribute::MAX_BLOCK_DIM_Z),
            ],
            threads: value(device_attribute::MAX_THREADS_PER_BLOCK),
        };
        let threads = limits.check(self.grid, self.block)?;
        self.check_code(threads, code, device)
    }

    fn check_code(&self, block_threads: u64, code: &Code, device: &Device) -> Result<(), CUresult> {
        let threads = code.attribute(function_attribute::MAX_THREADS_PER_BLOCK)?.unsigned_abs();
        if block_threads > u64::from(threads) {
            // If registers limit a block, the attribute is exactly the number of threads that they allow.
            let registers = code.attribute(function_attribute::NUM_REGS)?.unsigned_abs();
            let available = device.value(device_attribute::MAX_REGISTERS_PER_BLOCK).unsigned_abs();
            let out_of_registers = threads_by_registers(registers, available) == threads;
            let code =
                if out_of_registers { CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES } else { CUresult::ERROR_INVALID_VALUE };
            return Err(code);
        }
        let shared = code.attribute(function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)?.unsigned_abs();
        if self.shared > shared { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Checks that a cooperative grid fits on the device at once.
    fn check_cooperative(&self, target: &LaunchTarget, device: &Device) -> Result<(), CUresult> {
        let threads = rules::threads(self.block) as i32;
        let each = occupancy::blocks(target, threads, u64::from(self.shared), 0)?;
        let multiprocessors = device.value(device_attribute::MULTIPROCESSOR_COUNT);
        rules::check_cooperative(self.grid, each.unsigned_abs(), multiprocessors.unsigned_abs())
    }
}

/// The locations of the parameters.
#[derive(Clone, Copy)]
struct Params {
    array: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// # Safety
///
/// `params` and `extra` are null or as `cuLaunchKernel` documents them for this function.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn kernel(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), CUresult> {
    let shape = LaunchGeometry { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    // SAFETY: handed on.
    unsafe { launch(function, shape, stream, &[], Params { array: params, extra }) }
}

/// # Safety
///
/// As [`kernel`].
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn cooperative_kernel(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
) -> Result<(), CUresult> {
    let shape = LaunchGeometry { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    let params = Params { array: params, extra: std::ptr::null_mut() };
    // SAFETY: handed on.
    unsafe { launch(function, shape, stream, &[rules::cooperative()], params) }
}

/// Launches one cooperative grid per device, in created streams. Grids of several devices cannot wait for each other; the
/// runtime of CUDA 13 can no longer ask for that.
///
/// # Safety
///
/// `list` is null or has `count` entries, each with parameters as for [`kernel`].
pub(crate) unsafe fn cooperative_kernels(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let list = unsafe { rules::multi_device(list, count, flags, device::all()?.len()) }?;
    let device_of = |entry: &CUDA_LAUNCH_PARAMS| object(entry.hStream).map(|stream| stream.context.device);
    rules::check_distinct(list.iter().map(device_of).collect::<Result<Vec<_>, _>>()?)?;
    for entry in list {
        let grid = [entry.gridDimX, entry.gridDimY, entry.gridDimZ];
        let block = [entry.blockDimX, entry.blockDimY, entry.blockDimZ];
        let shape = LaunchGeometry { grid, block, shared: entry.sharedMemBytes };
        let params = Params { array: entry.kernelParams, extra: std::ptr::null_mut() };
        // SAFETY: the entry's parameters, by the contract.
        unsafe { launch(entry.function, shape, entry.hStream, &[rules::cooperative()], params) }?;
    }
    Ok(())
}

/// # Safety
///
/// As [`kernel`]; `config` is null or readable, with as many attributes as it says.
pub(crate) unsafe fn kernel_ex(
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: null or readable, by the contract.
    let config = unsafe { caller::read(config) }?;
    // SAFETY: the attributes are there, by the contract.
    let requested = unsafe { rules::attributes(&config) }?;
    let mut attributes = ATTRIBUTES.try_with(Cell::take).unwrap_or_default();
    attributes.clear();
    for attribute in requested {
        attributes.push(portable(attribute)?);
    }
    let shape = LaunchGeometry {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
    };
    // SAFETY: handed on.
    let launched = unsafe { launch(function, shape, config.hStream, &attributes, Params { array: params, extra }) };
    let _ = ATTRIBUTES.try_with(|cell| cell.set(attributes));
    launched
}

/// Makes an attribute for the worker: an event in it becomes its wire id.
fn portable(mut attribute: CUlaunchAttribute) -> Result<CUlaunchAttribute, CUresult> {
    match attribute.id {
        launch_attribute::PROGRAMMATIC_EVENT | launch_attribute::LAUNCH_COMPLETION_EVENT => {
            let event = CUevent(std::ptr::without_provenance_mut(attribute.value[0] as usize));
            attribute.value[0] = u64::from(wire(event)?);
            Ok(attribute)
        }
        launch_attribute::DEVICE_UPDATABLE_KERNEL_NODE => Err(refuse(
            katydid_cuda_sys::Function::cuLaunchKernelEx,
            "with a device-updatable node is not supported yet",
        )),
        _ => Ok(attribute),
    }
}

/// # Safety
///
/// As [`kernel`].
unsafe fn launch(
    function: CUfunction,
    shape: LaunchGeometry,
    stream: CUstream,
    attributes: &[CUlaunchAttribute],
    params: Params,
) -> Result<(), CUresult> {
    let launching = || katydid_graph::Launch {
        function: function.0.addr(),
        kernel: 0,
        context: 0,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        array: params.array,
        extra: params.extra,
        attributes: attributes.iter().map(|attribute| (attribute.id, attribute.value)).collect(),
    };
    // SAFETY: the contract of this function.
    if unsafe { capture::launch(stream, launching) }? {
        return Ok(());
    }
    backpressure::take_slot(stream)?;
    // SAFETY: handed on.
    CachedTarget::with_target(function, |target| unsafe { launch_now(target, shape, stream, attributes, params) })?;
    if shim()?.launches_block { wait::synchronize(stream) } else { Ok(()) }
}

/// Launches a target in a stream that is not captured.
///
/// # Safety
///
/// As [`kernel`], for the function or kernel that is `target`.
unsafe fn launch_now(
    target: &LaunchTarget,
    shape: LaunchGeometry,
    stream: CUstream,
    attributes: &[CUlaunchAttribute],
    params: Params,
) -> Result<(), CUresult> {
    let current = stack::ids();
    let (stream, of_stream) = stream::wire_and_ids(stream, current)?;
    // On a thread without a context, the stream determines the context.
    let context = match (of_stream, current) {
        (Some(of_stream), None) => of_stream,
        _ => stack::active_ids()?,
    };
    target.check_context(of_stream.unwrap_or(context))?;
    let device = &device::all()?[context.device as usize];
    let code = target.code_on(context.device)?;
    if attributes.iter().any(|attribute| attribute.id == launch_attribute::COOPERATIVE && attribute.value[0] != 0) {
        // A grid with too much shared memory also exceeds the device.
        LaunchGeometry { shared: 0, ..shape }.check(code, device)?;
        shape.check_cooperative(target, device)?;
    }
    shape.check(code, device)?;
    clusters::check(code, shape.grid, attributes)?;
    let mut buffer = LAUNCH_BUFFER.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let LaunchBuffer(block) = &mut *buffer;
    block.clear();
    attributes.iter().for_each(|attribute| add(block, attribute));
    let start = block.len();
    // SAFETY: handed on.
    unsafe { code.layout.pack(params.array, params.extra, block) }?;
    let named = pinned::push_named([&block[start..]], context.wire, stream)?;
    let (function, kernel) = target.wire();
    let sent = shim()?.session.enqueue(
        context.wire,
        &kdLaunch {
            function,
            kernel,
            gridX: shape.grid[0],
            gridY: shape.grid[1],
            gridZ: shape.grid[2],
            blockX: shape.block[0],
            blockY: shape.block[1],
            blockZ: shape.block[2],
            sharedSize: shape.shared,
            stream,
            attributeCount: attributes.len() as u32,
            attributesAndParams: block,
        },
    );
    named.sent();
    let _ = LAUNCH_BUFFER.try_with(|entry| entry.set(Some(buffer)));
    sent
}

/// Appends an attribute in the driver's form, without an allocation for its bytes.
fn add(block: &mut Vec<u8>, attribute: &CUlaunchAttribute) {
    block.extend_from_slice(&attribute.id.to_le_bytes());
    block.extend_from_slice(&attribute.pad);
    attribute.value.iter().for_each(|word| block.extend_from_slice(&word.to_le_bytes()));
}

/// Checks a launch for a node of a graph, and packs its parameters.
///
/// # Errors
///
/// As the launch itself.
///
/// # Safety
///
/// As [`kernel`], for the function or kernel that is named.
pub(crate) unsafe fn for_node(launch: &katydid_graph::Launch) -> Result<katydid_graph::Code, CUresult> {
    let context = match launch.context {
        0 => stack::active()?,
        handle => object(CUcontext(std::ptr::with_exposed_provenance_mut(handle)))?,
    };
    let named = if launch.function == 0 { launch.kernel } else { launch.function };
    let target = LaunchTarget::of(CUfunction(std::ptr::with_exposed_provenance_mut(named)))?;
    let shape = LaunchGeometry { grid: launch.grid, block: launch.block, shared: launch.shared };
    let device = &device::all()?[context.device as usize];
    let code = target.code_on(context.device)?;
    shape.check(code, device)?;
    let cooperative = launch.attributes.get(&launch_attribute::COOPERATIVE).is_some_and(|value| value[0] != 0);
    if cooperative {
        shape.check_cooperative(&target, device)?;
    }
    if launch.attributes.contains_key(&launch_attribute::DEVICE_UPDATABLE_KERNEL_NODE) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let mut bytes = Vec::new();
    // SAFETY: handed on.
    unsafe { code.layout.pack(launch.array, launch.extra, &mut bytes) }?;
    let offsets = (0..code.layout.count()).filter_map(|at| code.layout.get(at)).map(|it| it.offset as usize).collect();
    Ok(katydid_graph::Code {
        bytes,
        offsets,
        context: context.slot.handle,
        name: target.name().to_string_lossy().into(),
        keep_alive: katydid_graph::KeepAlive(Arc::new(target)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::record::Context;
    use katydid_client::memory::Arena;
    use katydid_client::slab::SlabSlot;
    use katydid_cuda_sys::Pod as _;
    use katydid_wire::facts::{DeviceFacts, DriverAnswer, FunctionFacts};

    /// Makes a device like an H200, as far as launches check it.
    fn device() -> Device {
        let mut attributes = vec![DriverAnswer { code: 0, value: 0 }; 16];
        for (id, value) in
            [(1, 1024), (2, 1024), (3, 1024), (4, 64), (5, i32::MAX), (6, 65535), (7, 65535), (12, 65536)]
        {
            attributes[id - 1].value = value;
        }
        let facts = DeviceFacts { attributes, ..DeviceFacts::default() };
        let primary = Arc::new(Context::primary(SlabSlot { handle: 64, index: 0 }, 0, 0));
        Device { position: 0, facts, primary, memory: Arena::new(0..0, 0), is_idle: false.into() }
    }

    /// Makes code with at most `threads` threads a block, and `registers` registers a thread.
    fn code(threads: i32, registers: i32) -> Code {
        let mut attributes = vec![DriverAnswer { code: 0, value: 0 }; 16];
        attributes[0].value = threads;
        attributes[4].value = registers;
        attributes[8].value = 49152;
        Code::decode(&FunctionFacts { attributes, parameters: Vec::new() }.encode()).unwrap()
    }

    fn check(code: &Code, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<(), CUresult> {
        LaunchGeometry { grid, block, shared }.check(code, &device())
    }

    const INVALID_VALUE: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_VALUE);

    #[test]
    fn geometry_and_shared_memory_beyond_the_limits_are_refused_at_the_call() {
        let code = code(1024, 8);
        assert_eq!(check(&code, [1, 65535, 65535], [32, 32, 1], 49152), Ok(()));
        for (grid, block, shared) in [([1, 65536, 1], [1; 3], 0), ([1; 3], [1, 1, 65], 0), ([1; 3], [1; 3], 49153)] {
            assert_eq!(check(&code, grid, block, shared), INVALID_VALUE, "{grid:?} {block:?} {shared}");
        }
    }

    #[test]
    fn launch_bounds_are_an_invalid_value_and_registers_a_lack_of_resources() {
        assert_eq!(check(&code(128, 8), [1, 1, 1], [129, 1, 1], 0), INVALID_VALUE);
        let lack = Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        assert_eq!(check(&code(256, 255), [1, 1, 1], [512, 1, 1], 0), lack);
    }

    #[test]
    fn an_attribute_travels_as_the_driver_has_it() {
        let attribute =
            CUlaunchAttribute { id: 0x0102_0304, pad: [5, 6, 7, 8], value: [9, 10, 11, 12, 13, 14, 15, !0] };
        let mut block = vec![0];
        add(&mut block, &attribute);
        assert_eq!(block[1..], attribute.to_bytes());
    }
}
