//! The hook that records calls if `KATYDID_TRACE` names a file. Off, it costs one relaxed load.

use std::ffi::c_char;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use katydid_client::environment::{program_name, variable};
use katydid_client::life::{self, Life};
use katydid_client::output::report;
use katydid_client::session::round_trips;
use katydid_client::trace::{CallId, Lookup, TraceWriter, TracedCall, now};
use katydid_cuda_sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUfunction, CUlaunchConfig, CUresult, CUstream, CUuuid, Function, FunctionClass,
    Lookup as LookupAnswer, proc_address,
};
use katydid_driver_rules::device::proc_address_flags;

use crate::ffi::arguments::text;
use crate::launch::target::LaunchTarget;
use crate::sync::gpu_time;

/// The environment has not been read yet.
const TRACING_UNKNOWN: u8 = 0;
const TRACING_OFF: u8 = 1;
const TRACING_ON: u8 = 2;

static TRACING_STATE: AtomicU8 = AtomicU8::new(TRACING_UNKNOWN);
static TRACE_WRITER: OnceLock<Option<TraceWriter>> = OnceLock::new();

/// Returns whether calls need not be recorded.
#[inline]
pub(crate) fn is_off() -> bool {
    TRACING_STATE.load(Ordering::Relaxed) == TRACING_OFF
}

/// Details of a call's work from its parameters. The generated entry points make it when calls are recorded.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallDetail {
    stream: Option<CUstream>,
    bytes: u64,
    kernel: Option<(CUfunction, u32)>,
    shape: Option<([u32; 3], [u32; 3])>,
    lookup: Option<Lookup>,
}

#[expect(unsafe_code, reason = "reads structures of C callers")]
impl CallDetail {
    pub(crate) fn stream(self, stream: CUstream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    pub(crate) fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) fn kernel(self, function: CUfunction, shared: u32) -> Self {
        Self { kernel: Some((function, shared)), ..self }
    }

    pub(crate) fn shape(self, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { shape: Some((grid, block)), ..self }
    }

    /// # Safety
    ///
    /// `config` is null or readable.
    pub(crate) unsafe fn config(self, config: *const CUlaunchConfig, function: CUfunction) -> Self {
        if config.is_null() {
            return self;
        }
        // SAFETY: not null, so readable by the contract.
        let config = unsafe { config.read_unaligned() };
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        self.stream(config.hStream).kernel(function, config.sharedMemBytes).shape(grid, block)
    }

    /// # Safety
    ///
    /// `copy` is null or readable.
    pub(crate) unsafe fn rows(self, copy: *const CUDA_MEMCPY2D) -> Self {
        if copy.is_null() {
            return self;
        }
        // SAFETY: not null, so readable by the contract.
        let copy = unsafe { copy.read_unaligned() };
        self.bytes(copy.WidthInBytes.saturating_mul(copy.Height) as u64)
    }

    /// # Safety
    ///
    /// `copy` is null or readable.
    pub(crate) unsafe fn slices(self, copy: *const CUDA_MEMCPY3D) -> Self {
        if copy.is_null() {
            return self;
        }
        // SAFETY: not null, so readable by the contract.
        let copy = unsafe { copy.read_unaligned() };
        self.bytes(copy.WidthInBytes.saturating_mul(copy.Height).saturating_mul(copy.Depth) as u64)
    }

    /// Adds a function that is looked up, and the answer.
    ///
    /// # Safety
    ///
    /// `symbol` is null or a C string.
    pub(crate) unsafe fn symbol(self, symbol: *const c_char, version: i32, flags: u64) -> Self {
        // SAFETY: null or a C string, by the contract.
        let Ok(name) = (unsafe { text(symbol) }) else { return self };
        let name = String::from_utf8_lossy(name).into_owned();
        let version = version.unsigned_abs();
        let is_found = proc_address_flags(version, flags)
            .is_ok_and(|per_thread| matches!(proc_address(&name, version, per_thread), LookupAnswer::Found(_)));
        Self { lookup: Some(Lookup { name, version, is_found }), ..self }
    }

    /// Adds a private table that is looked up, and the answer.
    ///
    /// # Safety
    ///
    /// `id` is null or readable.
    pub(crate) unsafe fn table(self, id: *const CUuuid) -> Self {
        if id.is_null() {
            return self;
        }
        // SAFETY: not null, so readable by the contract; an id is its 16 bytes, which have no alignment.
        let id = unsafe { id.cast::<katydid_export_table::Id>().read() };
        let name = format!("table {}", katydid_export_table::title(&id));
        let is_found = katydid_export_table::lookup(&id).is_some();
        Self { lookup: Some(Lookup { name, version: 0, is_found }), ..self }
    }

    /// Returns the stream of the function's work on the GPU, if it has any: the default one if it names none.
    fn work(&self, function: Function) -> Option<CUstream> {
        let name = function.name();
        let is_work =
            ["cuLaunchKernel", "cuLaunchCooperative", "cuLaunchGrid", "cuGraphLaunch", "cuMemcpy", "cuMemset"]
                .iter()
                .any(|start| name.starts_with(start))
                || name == "cuLaunch";
        is_work.then(|| self.stream.unwrap_or(CUstream::NULL))
    }

    /// Writes the record; `stream` is that of work whose function may name none.
    fn record(&self, stream: Option<CUstream>, of: CallId, writer: &TraceWriter) {
        let stream = self.stream.or(stream).map(|stream| stream.0.addr() as u64);
        if stream.is_some() || self.bytes > 0 {
            writer.work(of, stream, self.bytes);
        }
        if let Some((function, shared)) = self.kernel
            && let Ok(target) = LaunchTarget::of(function)
        {
            writer.kernel(of, target.name().to_bytes(), shared);
        }
        if let Some((grid, block)) = self.shape {
            writer.shape(of, grid, block);
        }
        if let Some(lookup) = &self.lookup {
            writer.lookup(of, lookup);
        }
    }
}

/// Runs a call and records it, with the details of its work.
pub(crate) fn traced(function: Function, detail: Option<CallDetail>, call: impl FnOnce() -> CUresult) -> CUresult {
    // The file is the parent's: a forked child records nothing in it.
    let Some(writer) = writer().filter(|_| life::now() != Life::Forked) else { return call() };
    let stream = detail.as_ref().and_then(|detail| detail.work(function));
    let span = stream.and_then(gpu_time::begin);
    let (start, trips_before) = (now(), round_trips());
    let result = call();
    if life::now() == Life::Forked {
        return result;
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let duration = now() - start;
    let round_trips = round_trips().wrapping_sub(trips_before);
    writer.record(&TracedCall { function: function.number(), thread, start, duration, result: result.0, round_trips });
    if let Some(detail) = detail {
        detail.record(stream, (thread, start), writer);
    }
    if let (Some(span), Some(stream)) = (span, stream) {
        gpu_time::end(span, stream, (thread, start), result == CUresult::SUCCESS);
    }
    if function.class() == FunctionClass::Blocking || gpu_time::is_much() {
        gpu_time::collect(writer);
    }
    result
}

/// Truncates the file to its length, at the end of the process.
pub(crate) fn finish() {
    if let Some(Some(writer)) = TRACE_WRITER.get() {
        gpu_time::collect(writer);
        writer.finish();
    }
}

fn writer() -> Option<&'static TraceWriter> {
    let writer = TRACE_WRITER.get_or_init(|| {
        let path = variable("KATYDID_TRACE")?;
        TraceWriter::create(Path::new(&path), &program_name())
            .inspect_err(|error| report(format_args!("KATYDID_TRACE={path}: {error}; calls are not recorded")))
            .ok()
    });
    TRACING_STATE.store(if writer.is_some() { TRACING_ON } else { TRACING_OFF }, Ordering::Relaxed);
    writer.as_ref()
}
