//! Contexts: what a program's streams, memory and code belong to, and what a fault destroys.
//!
//! The first error of a kernel sticks: every later call in the context gives it, until the context dies. A destroyed
//! context finishes its work first, then everything made in it ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_ptx_exec::Switch;

use crate::code::output::Output;
use crate::code::{library, module};
use crate::context::green;
use crate::context::limits::Limits;
use crate::ffi::Outcome;
use crate::memory::device_heap::DeviceHeaps;
use crate::memory::{allocation, host, ipc, pool, space};
use crate::process::device::Device;
use crate::process::handles::{Registry, mint};
use crate::sync::stream::{self, Role, Stream, StreamSet};
use crate::sync::{event, hold};
use crate::texture::{array, reference};

/// Flags that `cuCtxCreate` and the primary context accept: scheduling, host mapping, local memory, dumps, memory
/// operations. None of them changes what a software device does.
const FLAGS: u32 = 0xff;

/// What `cuCtxGetApiVersion` says of every context but those of the first form of `cuCtxCreate`.
pub(crate) const API_VERSION: u32 = 3020;
/// What it says of those.
pub(crate) const FIRST_API_VERSION: u32 = 3010;

/// A living (or just destroyed) context.
pub(crate) struct Context {
    /// Its handle.
    pub(crate) handle: usize,
    /// What `cuCtxGetId` says: never used twice, unlike the handle of a primary context.
    pub(crate) id: u64,
    /// Its device.
    pub(crate) device: &'static Device,
    /// What `cuCtxGetApiVersion` says of it.
    pub(crate) api_version: u32,
    /// Its limits.
    pub(crate) limits: Limits,
    /// What device code allocates from.
    pub(crate) heaps: DeviceHeaps,
    /// What kernels print.
    pub(crate) output: Output,
    /// Its streams.
    pub(crate) streams: StreamSet,
    /// Preferred cache configuration: kept and reported.
    pub(crate) cache_config: AtomicU32,
    /// Stops running kernels: thrown by the first fault.
    pub(crate) switch: Arc<Switch>,
    flags: AtomicU32,
    /// The code that sticks, 0 for none.
    failure: AtomicU32,
    /// How often the program attached to it.
    pub(crate) attached: AtomicU32,
    /// A thread is destroying it.
    closing: AtomicBool,
    /// A bit for each device whose memory it may use.
    peers: AtomicU32,
}

/// Contexts that live: those of `cuCtxCreate`, and active primary ones.
static CONTEXTS: Registry<Context> = Registry::new();

impl Context {
    /// A context under `handle`, alive until [`destroy`].
    pub(crate) fn new(handle: usize, device: &'static Device, flags: u32, api_version: u32) -> Outcome<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if flags & !FLAGS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let context = Arc::new_cyclic(|this| Self {
            handle,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            api_version,
            limits: Limits::new(),
            heaps: DeviceHeaps::default(),
            output: Output::new(),
            streams: StreamSet::new(Arc::new(Stream::new(this.clone(), Role::Legacy, 0, 0))),
            cache_config: AtomicU32::new(0),
            switch: Arc::default(),
            flags: AtomicU32::new(flags),
            failure: AtomicU32::new(0),
            attached: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            peers: AtomicU32::new(0),
        });
        CONTEXTS.insert(handle, Arc::clone(&context));
        Ok(context)
    }

    /// Ok, or the error that sticks to the context.
    pub(crate) fn healthy(&self) -> Outcome {
        CUresult(self.failure.load(Ordering::Acquire)).ok()
    }

    /// Makes `code` stick, unless another came first, and stops kernels that run.
    pub(crate) fn fail(&self, code: CUresult) {
        let _ = self.failure.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        self.switch.cancel();
        hold::wake();
    }

    /// Whether waits for a value should give up: the context ends or has failed.
    pub(crate) fn gives_up(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.failure.load(Ordering::Acquire) != 0
    }

    /// Waits until everything submitted so far is done, whatever came of it.
    pub(crate) fn drain(&self) {
        for (stream, ticket) in self.streams.tickets(|_| true) {
            stream.wait(ticket);
        }
    }

    /// `cuCtxSynchronize`: as [`Self::drain`], then prints what kernels printed, and gives the error that sticks.
    pub(crate) fn synchronise(&self) -> Outcome {
        self.drain();
        self.output.flush();
        pool::settle(self.device.ordinal);
        self.healthy()
    }

    /// Flags as set at creation or since.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the flags.
    pub(crate) fn set_flags(&self, flags: u32) -> Outcome {
        check_flags(flags)?;
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// A bit for each device whose memory this context may use besides its own.
    pub(crate) fn peers(&self) -> u32 {
        self.peers.load(Ordering::Acquire)
    }

    /// `cuCtxEnablePeerAccess`.
    pub(crate) fn enable_peer(&self, peer: &Self) -> Outcome {
        if peer.device.ordinal == self.device.ordinal {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        let bit = 1 << peer.device.ordinal;
        let before = self.peers.fetch_or(bit, Ordering::AcqRel);
        if before & bit == 0 { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// `cuCtxDisablePeerAccess`.
    pub(crate) fn disable_peer(&self, peer: &Self) -> Outcome {
        let bit = 1 << peer.device.ordinal;
        let before = self.peers.fetch_and(!bit, Ordering::AcqRel);
        if before & bit != 0 { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED) }
    }
}

/// Refuses flags that no context has.
pub(crate) fn check_flags(flags: u32) -> Outcome {
    if flags & !FLAGS == 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// The living context behind a handle; a green one is another name of its primary context.
pub(crate) fn living(handle: usize) -> Option<Arc<Context>> {
    CONTEXTS.get(handle).or_else(|| CONTEXTS.get(green::primary(handle)?))
}

/// `cuCtxCreate`, without making it current.
pub(crate) fn create(device: &'static Device, flags: u32, api_version: u32) -> Outcome<Arc<Context>> {
    Context::new(mint(), device, flags, api_version)
}

/// Ends a context and everything in it. Destructors of context-local storage run while it still lives.
pub(crate) fn destroy(context: &Arc<Context>) {
    // Of two threads that destroy the same context, the second has nothing left to do.
    if context.closing.swap(true, Ordering::AcqRel) {
        return;
    }
    katydid_export_table::context_gone(context.handle);
    CONTEXTS.remove(context.handle);
    context.drain();
    context.output.flush();
    stream::forget(context.id);
    event::forget(context.id);
    library::forget(context.id);
    module::forget(context.id);
    array::forget(context.id);
    reference::forget(context.id);
    release_memory(context);
}

/// Frees every allocation of an ended context.
fn release_memory(context: &Context) {
    let regions = space::read().of_context(context.handle);
    for region in &regions {
        space::write().remove(region.start);
    }
    space::quiet();
    ipc::forget(context.handle);
    for region in &regions {
        if region.is_host() {
            host::give_back(region);
        } else {
            let _ = allocation::give_back(region);
        }
    }
}
