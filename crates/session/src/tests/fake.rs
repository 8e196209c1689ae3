//! The driver of these tests: its functions record their calls and have no other effect.
//!
//! Calls of the main loop are recorded per thread, so that tests do not see each other's.

#![expect(unsafe_code, reason = "plays a C library")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use katydid_cuda_sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUarray, CUcontext, CUevent, CUfunction, CUgraph,
    CUgraphExec, CUgraphNode, CUhostFn, CUipcEventHandle, CUkernel, CUlaunchAttribute, CUlaunchConfig, CUlibrary,
    CUmemAccessDesc, CUmemAllocationProp, CUmodule, CUresult, CUstream, CUstreamAttrValue,
};
use katydid_driver::Driver;

thread_local! {
    /// Driver calls of this thread.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// The result of this thread's next recorded call.
    static NEXT_CODE: RefCell<CUresult> = const { RefCell::new(CUresult::SUCCESS) };
    /// The last number that this thread's driver gave to a surface.
    pub(super) static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// Where this thread's driver places variables of modules, if it chooses.
    pub(super) static ADDRESS_STOCK: RefCell<Option<AddressStock>> = const { RefCell::new(None) };
}

/// Blocks of addresses, handed out from the lowest. A module takes one for other things, then one for its variables.
#[derive(Debug, Default)]
pub(super) struct AddressStock {
    /// Numbers of the blocks in use, counted from the lowest address.
    pub(super) in_use: BTreeSet<u64>,
    /// The blocks of each module, by its handle.
    pub(super) modules: BTreeMap<u64, [u64; 2]>,
    /// Streams alive, and the most that were alive at once: each further one takes a block for good.
    pub(super) streams: Option<(u64, u64)>,
}

impl AddressStock {
    pub(super) const BLOCK: u64 = 2 << 20;

    fn take(&mut self) -> u64 {
        let free = (1..).find(|block| self.in_use.insert(*block));
        free.unwrap_or_default()
    }

    fn begin_stream(&mut self) {
        let Some((alive, most)) = &mut self.streams else { return };
        *alive += 1;
        if alive > most {
            *most = *alive;
            self.take();
        }
    }

    fn end_stream(&mut self) {
        if let Some((alive, _)) = &mut self.streams {
            *alive -= 1;
        }
    }

    fn load(&mut self, module: u64) {
        let blocks = [self.take(), self.take()];
        self.modules.insert(module, blocks);
    }

    fn unload(&mut self, module: u64) {
        for block in self.modules.remove(&module).into_iter().flatten() {
            self.in_use.remove(&block);
        }
    }
}

/// Calls `ask` on the stock, if there is one.
fn of_stock<T>(ask: impl FnOnce(&mut AddressStock) -> T) -> Option<T> {
    ADDRESS_STOCK.with_borrow_mut(|stock| stock.as_mut().map(ask))
}

/// The next handle: handles are consecutive numbers.
static HANDLES: AtomicUsize = AtomicUsize::new(0x1000);
/// Streams in which an event was recorded; synchronising a stream waits for that. Handles are never reused.
static RECORDED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Set once the program has run a host function; a call with a full queue waits for it.
pub(super) static HOST_FUNCTION_RUNS: AtomicU32 = AtomicU32::new(0);

/// Returns this thread's calls since the last time.
pub(super) fn calls() -> Vec<String> {
    CALLS.take()
}

/// Makes the next call of this thread fail.
pub(super) fn fail_next(code: CUresult) {
    NEXT_CODE.set(code);
}

fn note(call: String) -> CUresult {
    CALLS.with_borrow_mut(|calls| calls.push(call));
    NEXT_CODE.replace(CUresult::SUCCESS)
}

fn make<T>(out: *mut T, make: impl FnOnce(*mut c_void) -> T, call: &str) -> CUresult {
    let number = HANDLES.fetch_add(0x10, Ordering::Relaxed);
    let status = note(format!("{call} {number:#x}"));
    // SAFETY: sessions pass a local of this type.
    unsafe { out.write(make(without_provenance_mut(number))) };
    status
}

extern "C" fn set_current(context: CUcontext) -> CUresult {
    note(format!("current {:#x}", context.address()))
}

extern "C" fn state(_device: i32, flags: *mut u32, active: *mut i32) -> CUresult {
    // SAFETY: sessions pass locals.
    unsafe { (flags.write(0), active.write(0)) };
    CUresult::SUCCESS
}

extern "C" fn retain(out: *mut CUcontext, _device: i32) -> CUresult {
    make(out, CUcontext, "retain")
}

extern "C" fn release(device: i32) -> CUresult {
    note(format!("release {device}"))
}

extern "C" fn stream_create(out: *mut CUstream, flags: u32) -> CUresult {
    of_stock(AddressStock::begin_stream);
    make(out, CUstream, &format!("stream {flags}"))
}

extern "C" fn stream_destroy(stream: CUstream) -> CUresult {
    of_stock(AddressStock::end_stream);
    note(format!("destroy {:#x}", stream.address()))
}

/// Waits until an event was recorded in the stream, as a caller waits for the GPU.
extern "C" fn stream_synchronize(stream: CUstream) -> CUresult {
    while !RECORDED.lock().unwrap().contains(&stream.address()) {
        std::thread::yield_now();
    }
    CUresult::SUCCESS
}

extern "C" fn stream_query(stream: CUstream) -> CUresult {
    note(format!("query {:#x}", stream.address()))
}

extern "C" fn event_record(event: CUevent, stream: CUstream) -> CUresult {
    RECORDED.lock().unwrap().insert(stream.address());
    note(format!("record {:#x} {:#x}", event.address(), stream.address()))
}

thread_local! {
    /// How many queries of this thread find the event pending, and the result after that.
    pub(super) static PENDING: Cell<(u32, CUresult)> = const { Cell::new((0, CUresult::SUCCESS)) };
}

extern "C" fn event_query(_event: CUevent) -> CUresult {
    let _ = note("look".to_owned());
    match PENDING.get() {
        (0, found) => found,
        (left, found) => {
            PENDING.set((left - 1, found));
            CUresult::ERROR_NOT_READY
        }
    }
}

extern "C" fn event_synchronize(_event: CUevent) -> CUresult {
    note("wait".to_owned())
}

extern "C" fn event_create(out: *mut CUevent, _flags: u32) -> CUresult {
    make(out, CUevent, "event")
}

/// Events of these tests have no times.
extern "C" fn elapsed(_: *mut f32, _: CUevent, _: CUevent) -> CUresult {
    CUresult::ERROR_INVALID_HANDLE
}

extern "C" fn event_destroy(event: CUevent) -> CUresult {
    note(format!("destroy {:#x}", event.address()))
}

extern "C" fn set_attribute(stream: CUstream, attribute: u32, value: *const CUstreamAttrValue) -> CUresult {
    // SAFETY: sessions pass a local.
    let first = unsafe { (*value).0[0] };
    note(format!("attribute {:#x} {attribute} {first}", stream.address()))
}

extern "C" fn copy_attributes(_to: CUstream, _from: CUstream) -> CUresult {
    note("copy attributes".to_owned())
}

extern "C" fn set_limit(limit: u32, value: usize) -> CUresult {
    note(format!("limit {limit} {value}"))
}

extern "C" fn get_limit(out: *mut usize, _limit: u32) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(7) };
    CUresult::SUCCESS
}

/// Address that the next query of a variable returns.
pub(super) static VARIABLE_ADDRESS: AtomicUsize = AtomicUsize::new(0x7f00_0000_0000);

extern "C" fn module_global(at: *mut u64, size: *mut usize, module: CUmodule, _name: *const c_char) -> CUresult {
    let in_stock = of_stock(|stock| stock.modules.get(&module.address()).map(|[_, block]| block * AddressStock::BLOCK));
    let address = in_stock.flatten().unwrap_or(VARIABLE_ADDRESS.load(Ordering::Relaxed) as u64);
    // SAFETY: sessions pass locals.
    unsafe { (at.write(address), size.write(64)) };
    CUresult::SUCCESS
}

/// Numbers textures and surfaces, per thread.
extern "C" fn surface_create(out: *mut u64, _: *const c_void) -> CUresult {
    let number = NUMBER.replace(NUMBER.get() + 1) + 1;
    // SAFETY: sessions pass a local.
    unsafe { out.write(number) };
    note(format!("surface {number}"))
}

extern "C" fn surface_destroy(number: u64) -> CUresult {
    note(format!("end surface {number}"))
}

extern "C" fn array_create(out: *mut CUarray, _: *const c_void) -> CUresult {
    make(out, CUarray, "array")
}

extern "C" fn get_access(flags: *mut u64, _: *const c_void, _at: u64) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { flags.write(3) };
    CUresult::SUCCESS
}

extern "C" fn address_reserve(out: *mut u64, size: usize, _: usize, address: u64, _: u64) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(address) };
    note(format!("reserve {address:#x} {size:#x}"))
}

extern "C" fn module_unload(module: CUmodule) -> CUresult {
    of_stock(|stock| stock.unload(module.address()));
    note(format!("unload {:#x}", module.address()))
}

extern "C" fn module_load(
    out: *mut CUmodule,
    _image: *const c_void,
    _: u32,
    _: *mut u32,
    _: *mut *mut c_void,
) -> CUresult {
    let status = make(out, CUmodule, "module");
    // SAFETY: written by `make`.
    let module = unsafe { out.read() };
    of_stock(|stock| stock.load(module.address()));
    status
}

extern "C" fn get_function(out: *mut CUfunction, _module: CUmodule, name: *const c_char) -> CUresult {
    // SAFETY: sessions pass a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    make(out, CUfunction, &format!("function {name}"))
}

/// Returns the packed parameters of an `extra` list.
fn params(extra: *mut *mut c_void) -> Vec<u8> {
    if extra.is_null() {
        return Vec::new();
    }
    // SAFETY: the list is pointer marker, pointer, size marker, address of the size, end.
    unsafe {
        let size = extra.add(3).read().cast::<usize>().read();
        std::slice::from_raw_parts(extra.add(1).read().cast::<u8>(), size).to_vec()
    }
}

extern "C" fn launch(
    function: CUfunction,
    x: u32,
    _y: u32,
    _z: u32,
    block: u32,
    _: u32,
    _: u32,
    shared: u32,
    stream: CUstream,
    _: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let (function, stream) = (function.address(), stream.address());
    note(format!("launch {function:#x} {x} {block} {shared} {stream:#x} {:?}", params(extra)))
}

extern "C" fn launch_ex(
    config: *const CUlaunchConfig,
    function: CUfunction,
    _: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: sessions pass a configuration with as many attributes as it states.
    let attributes: &[CUlaunchAttribute] =
        unsafe { std::slice::from_raw_parts((*config).attrs, (*config).numAttrs as usize) };
    let attributes: Vec<_> = attributes.iter().map(|attribute| (attribute.id, attribute.value[0])).collect();
    note(format!("launch {:#x} {attributes:x?} {:?}", function.address(), params(extra)))
}

extern "C" fn copy_in(to: u64, _from: *const c_void, size: usize, stream: CUstream) -> CUresult {
    note(format!("in {to:#x} {size} {:#x}", stream.address()))
}

/// Writes what a device would hold: each byte is the low byte of its address.
extern "C" fn copy_out(to: *mut c_void, from: u64, size: usize, stream: CUstream) -> CUresult {
    let status = note(format!("out {from:#x} {size} {:#x}", stream.address()));
    if status == CUresult::SUCCESS {
        // SAFETY: sessions pass `size` writable bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), size) };
        to.iter_mut().enumerate().for_each(|(at, byte)| *byte = (from as usize + at) as u8);
    }
    status
}

/// Writes nothing: the stream has not come that far.
extern "C" fn write_value(_stream: CUstream, at: u64, value: u32, _flags: u32) -> CUresult {
    note(format!("write {at:#x} {value}"))
}

extern "C" fn copy(to: u64, from: u64, size: usize, _stream: CUstream) -> CUresult {
    note(format!("copy {to:#x} {from:#x} {size}"))
}

extern "C" fn fill(to: u64, value: u32, count: usize, _stream: CUstream) -> CUresult {
    note(format!("fill {to:#x} {value} {count}"))
}

extern "C" fn mem_create(out: *mut u64, size: usize, _: *const CUmemAllocationProp, _: u64) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(7) };
    note(format!("create {size:#x}"))
}

extern "C" fn mem_import(out: *mut u64, _: *const c_void, _: u32) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(8) };
    note("import".to_owned())
}

extern "C" fn event_open(out: *mut CUevent, _handle: CUipcEventHandle) -> CUresult {
    make(out, CUevent, "open event")
}

extern "C" fn mem_map(at: u64, size: usize, _: usize, _: u64, _: u64) -> CUresult {
    note(format!("map {at:#x} {size:#x}"))
}

extern "C" fn set_access(_: u64, _: usize, _: *const CUmemAccessDesc, count: usize) -> CUresult {
    note(format!("access {count}"))
}

extern "C" fn mem_release(_: u64) -> CUresult {
    CUresult::SUCCESS
}

extern "C" fn mem_unmap(at: u64, size: usize) -> CUresult {
    note(format!("unmap {at:#x} {size:#x}"))
}

extern "C" fn host_register(at: *mut c_void, size: usize, _flags: u32) -> CUresult {
    note(format!("register {:#x} {size:#x}", at.addr()))
}

extern "C" fn host_unregister(at: *mut c_void) -> CUresult {
    note(format!("unregister {:#x}", at.addr()))
}

/// Runs the function on its own thread, as a driver does.
extern "C" fn host_function(_stream: CUstream, function: CUhostFn, data: *mut c_void) -> CUresult {
    let data = data.expose_provenance();
    std::thread::spawn(move || {
        if let Some(function) = function {
            // SAFETY: the session passed function and data for this call.
            unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
        }
        HOST_FUNCTION_RUNS.store(1, Ordering::Release);
    });
    CUresult::SUCCESS
}

/// Blocks until the stream's host function has run, as a launch does when the queue is full.
extern "C" fn full_queue() -> CUresult {
    while HOST_FUNCTION_RUNS.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    CUresult::SUCCESS
}

extern "C" fn library_load(out: *mut CUlibrary) -> CUresult {
    make(out, CUlibrary, "library")
}

extern "C" fn library_kernel(out: *mut CUkernel) -> CUresult {
    make(out, CUkernel, "kernel")
}

/// All contexts are on the first device.
extern "C" fn device_of_context(out: *mut i32) -> CUresult {
    // SAFETY: sessions pass a local.
    unsafe { out.write(0) };
    CUresult::SUCCESS
}

extern "C" fn library_module(out: *mut CUmodule, _: CUlibrary) -> CUresult {
    make(out, CUmodule, "library's module")
}

extern "C" fn graph_create(out: *mut CUgraph, _: u32) -> CUresult {
    make(out, CUgraph, "graph")
}

extern "C" fn graph_add_host(
    out: *mut CUgraphNode,
    _: CUgraph,
    _: *const CUgraphNode,
    _: usize,
    _: *const CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    make(out, CUgraphNode, "node")
}

extern "C" fn graph_add_batch(
    out: *mut CUgraphNode,
    _: CUgraph,
    _: *const CUgraphNode,
    _: usize,
    _: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CUresult {
    make(out, CUgraphNode, "node")
}

extern "C" fn graph_end(_: CUgraphExec) -> CUresult {
    note("end of a graph".to_owned())
}

extern "C" fn graph_instantiate(out: *mut CUgraphExec, _: CUgraph, _: u64) -> CUresult {
    make(out, CUgraphExec, "instantiate")
}

extern "C" fn nothing() -> CUresult {
    CUresult::SUCCESS
}

/// The table of these functions.
pub(super) fn driver() -> Driver {
    let find = |name: &CStr| -> *mut c_void {
        match name.to_bytes() {
            b"cuCtxSetCurrent" => set_current as *mut c_void,
            b"cuDevicePrimaryCtxGetState" => state as *mut c_void,
            b"cuDevicePrimaryCtxRetain" => retain as *mut c_void,
            b"cuDevicePrimaryCtxRelease_v2" => release as *mut c_void,
            b"cuStreamCreate" => stream_create as *mut c_void,
            b"cuStreamDestroy_v2" => stream_destroy as *mut c_void,
            b"cuStreamSynchronize" => stream_synchronize as *mut c_void,
            b"cuStreamQuery" => stream_query as *mut c_void,
            b"cuEventCreate" => event_create as *mut c_void,
            b"cuEventElapsedTime" => elapsed as *mut c_void,
            b"cuEventSynchronize" => event_synchronize as *mut c_void,
            b"cuEventQuery" => event_query as *mut c_void,
            b"cuEventDestroy_v2" => event_destroy as *mut c_void,
            b"cuStreamSetAttribute" => set_attribute as *mut c_void,
            b"cuStreamCopyAttributes" => copy_attributes as *mut c_void,
            b"cuCtxSetLimit" => set_limit as *mut c_void,
            b"cuCtxGetLimit" => get_limit as *mut c_void,
            b"cuModuleGetGlobal_v2" => module_global as *mut c_void,
            b"cuModuleUnload" => module_unload as *mut c_void,
            b"cuSurfObjectCreate" => surface_create as *mut c_void,
            b"cuSurfObjectDestroy" => surface_destroy as *mut c_void,
            b"cuArray3DCreate_v2" => array_create as *mut c_void,
            b"cuMemGetAccess" => get_access as *mut c_void,
            b"cuMemAddressReserve" => address_reserve as *mut c_void,
            b"cuEventRecord" => event_record as *mut c_void,
            b"cuModuleLoadDataEx" => module_load as *mut c_void,
            b"cuModuleGetFunction" => get_function as *mut c_void,
            b"cuLaunchKernel" => launch as *mut c_void,
            b"cuLaunchKernelEx" => launch_ex as *mut c_void,
            b"cuMemcpyHtoDAsync_v2" => copy_in as *mut c_void,
            b"cuMemcpyDtoHAsync_v2" => copy_out as *mut c_void,
            b"cuStreamWriteValue32_v2" => write_value as *mut c_void,
            b"cuMemcpyAsync" => copy as *mut c_void,
            b"cuMemsetD32Async" => fill as *mut c_void,
            b"cuMemCreate" => mem_create as *mut c_void,
            b"cuMemImportFromShareableHandle" => mem_import as *mut c_void,
            b"cuMemGetAllocationPropertiesFromHandle" => nothing as *mut c_void,
            b"cuIpcOpenEventHandle" => event_open as *mut c_void,
            b"cuMemMap" => mem_map as *mut c_void,
            b"cuMemSetAccess" => set_access as *mut c_void,
            b"cuMemRelease" => mem_release as *mut c_void,
            b"cuMemUnmap" => mem_unmap as *mut c_void,
            b"cuMemHostRegister_v2" => host_register as *mut c_void,
            b"cuMemHostUnregister" => host_unregister as *mut c_void,
            b"cuLaunchHostFunc" => host_function as *mut c_void,
            b"cuCtxResetPersistingL2Cache" => full_queue as *mut c_void,
            b"cuCtxSynchronize" => nothing as *mut c_void,
            b"cuLibraryLoadData" => library_load as *mut c_void,
            b"cuLibraryGetKernel" => library_kernel as *mut c_void,
            b"cuCtxGetDevice" => device_of_context as *mut c_void,
            b"cuKernelSetAttribute"
            | b"cuKernelSetCacheConfig"
            | b"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" => nothing as *mut c_void,
            b"cuLibraryGetModule" => library_module as *mut c_void,
            b"cuLibraryUnload" => nothing as *mut c_void,
            b"cuGraphCreate" => graph_create as *mut c_void,
            b"cuGraphAddHostNode" => graph_add_host as *mut c_void,
            b"cuGraphInstantiateWithFlags" => graph_instantiate as *mut c_void,
            b"cuGraphLaunch" => nothing as *mut c_void,
            b"cuGraphAddBatchMemOpNode" => graph_add_batch as *mut c_void,
            b"cuGraphExecDestroy" => graph_end as *mut c_void,
            b"cuGraphDestroy" => nothing as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    };
    // SAFETY: each function above has the signature of its counterpart; all are static.
    unsafe { Driver::from_functions(find) }
}
