//! A context without its streams: its handle, its settings, and its sticky error.
//!
//! The first error of a kernel sticks: every later call in the context returns it, until the context ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::device::check_context_flags;
use katydid_ptx_exec::Switch;

use crate::code::output::ContextOutput;
use crate::context::limits::ContextLimits;
use crate::ffi::Outcome;
use crate::memory::device_heap::DeviceHeaps;
use crate::process::device::Device;
use crate::sync::hold;

/// A context without its streams.
pub(crate) struct Context {
    /// Handle that programs know the context by.
    pub(crate) handle: usize,
    /// Id for `cuCtxGetId`: never used twice, unlike the handle of a primary context.
    pub(crate) id: u64,
    /// Device that its work runs on.
    pub(crate) device: &'static Device,
    /// Version for `cuCtxGetApiVersion`.
    pub(crate) api_version: u32,
    /// Limits that `cuCtxSetLimit` sets.
    pub(crate) limits: ContextLimits,
    /// Heaps of device code.
    pub(crate) heaps: DeviceHeaps,
    /// Output of kernels that was not written yet.
    pub(crate) output: ContextOutput,
    /// Preferred cache configuration, stored for queries.
    pub(crate) cache_config: AtomicU32,
    /// Stops running kernels after the first fault.
    pub(crate) switch: Arc<Switch>,
    flags: AtomicU32,
    /// The sticky error, 0 for none.
    failure: AtomicU32,
    /// How often the program attached to it.
    pub(crate) attached: AtomicU32,
    /// Whether a thread is destroying it.
    closing: AtomicBool,
    /// A bit for each device whose memory it may use.
    peers: AtomicU32,
}

impl Context {
    /// Creates a context with this `handle`.
    pub(crate) fn new(handle: usize, device: &'static Device, flags: u32, api_version: u32) -> Outcome<Self> {
        static NEXT_CONTEXT_ID: AtomicU64 = AtomicU64::new(1);
        check_context_flags(flags)?;
        Ok(Self {
            handle,
            id: NEXT_CONTEXT_ID.fetch_add(1, Ordering::Relaxed),
            device,
            api_version,
            limits: ContextLimits::new(),
            heaps: DeviceHeaps::default(),
            output: ContextOutput::new(),
            cache_config: AtomicU32::new(0),
            switch: Arc::default(),
            flags: AtomicU32::new(flags),
            failure: AtomicU32::new(0),
            attached: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            peers: AtomicU32::new(0),
        })
    }

    /// Fails with the sticky error of the context, if it has one.
    pub(crate) fn healthy(&self) -> Outcome {
        CUresult(self.failure.load(Ordering::Acquire)).ok()
    }

    /// Makes `code` stick, unless another came first, and stops running kernels.
    pub(crate) fn fail(&self, code: CUresult) {
        let _ = self.failure.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        self.switch.cancel();
        hold::wake();
    }

    /// Returns whether waits for a value should give up: the context is ending or has failed.
    pub(crate) fn gives_up(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.failure.load(Ordering::Acquire) != 0
    }

    /// Marks that a thread is destroying the context; false if another one already is.
    pub(crate) fn close(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    /// Returns the flags, as set at creation or since.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags of the context (`cuCtxSetFlags`).
    pub(crate) fn set_flags(&self, flags: u32) -> Outcome {
        check_context_flags(flags)?;
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a bit for each device whose memory this context may use besides its own.
    pub(crate) fn peers(&self) -> u32 {
        self.peers.load(Ordering::Acquire)
    }

    /// `cuCtxEnablePeerAccess`.
    pub(crate) fn enable_peer(&self, peer: &Self) -> Outcome {
        if peer.device.ordinal == self.device.ordinal {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        let bit = 1 << peer.device.ordinal;
        let old_peers = self.peers.fetch_or(bit, Ordering::AcqRel);
        if old_peers & bit == 0 { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// `cuCtxDisablePeerAccess`.
    pub(crate) fn disable_peer(&self, peer: &Self) -> Outcome {
        let bit = 1 << peer.device.ordinal;
        let old_peers = self.peers.fetch_and(!bit, Ordering::AcqRel);
        if old_peers & bit != 0 { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED) }
    }
}
