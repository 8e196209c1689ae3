//! The record of a context: its handle, state, flags, and the worker's facts about it.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUcontext, CUgreenCtx, CUresult};
use katydid_driver_rules::device::API_VERSION;
use katydid_wire::facts::ContextFacts;

use crate::ffi::arguments::handle;
use crate::ffi::handle::{Handle, HandleTable, Wire, object};
use crate::process::session::shim;

/// The state of a context that never began, or has ended.
const CONTEXT_ENDED: u32 = CUresult::ERROR_CONTEXT_IS_DESTROYED.0;
/// Number of contexts that have begun and not ended.
static ACTIVE_CONTEXTS: AtomicUsize = AtomicUsize::new(0);
/// Counts from the id of a driver's first stream, the legacy one.
static NEXT_STREAM_ID: AtomicU64 = AtomicU64::new(7);

/// All contexts that have a handle.
pub(crate) static CONTEXTS: HandleTable<Context> = HandleTable::new();

impl Handle for CUcontext {
    type Object = Context;

    const INVALID_CODE: CUresult = CUresult::ERROR_INVALID_CONTEXT;

    fn table() -> &'static HandleTable<Context> {
        &CONTEXTS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUcontext {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|context| context.wire())
    }
}

/// A context, primary or made by the program.
pub(crate) struct Context {
    pub(crate) slot: SlabSlot,
    /// The program's ordinal of its device.
    pub(crate) device: u32,
    /// The worker's ordinal of its device.
    pub(super) position: u32,
    pub(super) is_primary: bool,
    /// The answer of `cuCtxGetApiVersion`.
    pub(super) api_version: u32,
    /// Set if it is a green context.
    pub(super) green: OnceLock<GreenContext>,
    /// What a call in it returns before anything else: 0, or the error that ended or ruined it.
    pub(super) state: AtomicU32,
    /// Flags that it was made with, or will begin with.
    pub(super) flags: AtomicU32,
    /// The worker's facts of its start, with later changes; none while it is not active.
    pub(super) facts: RwLock<Option<ContextFacts>>,
    /// How often the primary context is retained.
    pub(super) retains: Mutex<u32>,
    /// How often the program attached to it.
    pub(super) attached: AtomicU32,
    /// All messages up to this count have been executed, as far as this context's work goes.
    pub(super) completed: AtomicU64,
    /// Ids of its two default streams, its first streams.
    pub(crate) default_streams: [AtomicU64; 2],
}

/// The properties of a green context.
pub(crate) struct GreenContext {
    /// Owns what is made in it, except streams.
    pub(crate) primary: Arc<Context>,
    /// A number that no other green context has had.
    pub(crate) id: u64,
}

/// The ids of a context that most calls need, without a reference to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextIds {
    /// The number that messages carry.
    pub(crate) wire: u32,
    /// The program's ordinal of its device.
    pub(crate) device: u32,
    /// Wire number of the context that owns what is made in this one, except streams.
    pub(crate) owner: u32,
}

impl Context {
    /// Makes the record of a device's primary context, not active.
    pub(crate) fn primary(slot: SlabSlot, device: u32, position: u32) -> Self {
        Self {
            slot,
            device,
            position,
            is_primary: true,
            api_version: API_VERSION,
            green: OnceLock::new(),
            state: AtomicU32::new(CONTEXT_ENDED),
            flags: AtomicU32::new(0),
            facts: RwLock::new(None),
            retains: Mutex::new(0),
            attached: AtomicU32::new(0),
            completed: AtomicU64::new(0),
            default_streams: [const { AtomicU64::new(0) }; 2],
        }
    }

    pub(super) fn new(slot: SlabSlot, device: u32, position: u32, flags: u32) -> Self {
        Self { is_primary: false, flags: AtomicU32::new(flags), ..Self::primary(slot, device, position) }
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Its properties as a green context, if it is one.
    pub(crate) fn green(&self) -> Option<&GreenContext> {
        self.green.get()
    }

    /// Returns the context that owns what is made in this one, except streams: for a green context, its primary one.
    pub(crate) fn owner(self: Arc<Self>) -> Arc<Self> {
        match self.green() {
            Some(green) => Arc::clone(&green.primary),
            None => self,
        }
    }

    /// Returns the ids that most calls need.
    pub(crate) fn ids(&self) -> ContextIds {
        let wire = self.wire();
        ContextIds { wire, device: self.device, owner: self.green().map_or(wire, |green| green.primary.wire()) }
    }

    /// Its handle as the program has it.
    pub(crate) fn handle(&self) -> CUcontext {
        CUcontext(handle(self.slot.handle))
    }

    /// Its handle as a green context; null for another context.
    pub(crate) fn green_handle(&self) -> CUgreenCtx {
        self.green().map_or(CUgreenCtx::NULL, |_| CUgreenCtx(self.handle().0))
    }

    /// Checks that a call in it may proceed.
    ///
    /// # Errors
    ///
    /// `ERROR_CONTEXT_IS_DESTROYED` for one that never began, or has ended; the error that ruined it.
    pub(crate) fn check_active(&self) -> Result<(), CUresult> {
        CUresult(self.state.load(Ordering::Relaxed)).ok()
    }

    /// Returns whether it has begun and not ended; it may be ruined.
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(Ordering::Relaxed) != CONTEXT_ENDED
    }

    /// Its number, as `cuCtxGetId` gives it.
    pub(crate) fn id(&self) -> Result<u64, CUresult> {
        self.with_facts(|facts| facts.id)
    }

    /// Reads the facts of an active context.
    pub(crate) fn with_facts<R>(&self, read: impl FnOnce(&ContextFacts) -> R) -> Result<R, CUresult> {
        let facts = self.facts.read().unwrap_or_else(PoisonError::into_inner);
        facts.as_ref().map(read).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
    }

    pub(super) fn change_facts(&self, change: impl FnOnce(&mut ContextFacts)) {
        if let Some(facts) = self.facts.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            change(facts);
        }
    }

    pub(super) fn begin(&self, facts: &[u8]) -> Result<(), CUresult> {
        let Ok(facts) = ContextFacts::decode(facts) else {
            return Err(shim()?.session.broken("a context's beginning"));
        };
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        for id in &self.default_streams {
            id.store(next_stream_id(), Ordering::Relaxed);
        }
        if self.state.swap(CUresult::SUCCESS.0, Ordering::Release) == CONTEXT_ENDED {
            ACTIVE_CONTEXTS.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn set_ended(&self) {
        if self.state.swap(CONTEXT_ENDED, Ordering::Release) != CONTEXT_ENDED {
            ACTIVE_CONTEXTS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns whether more than one context has work, between which there is no order.
pub(crate) fn are_several() -> bool {
    ACTIVE_CONTEXTS.load(Ordering::Relaxed) > 1
}

/// Marks a context as ruined by an error: its calls return that error from now on.
pub(crate) fn faulted(wire: u32, code: CUresult) {
    let contexts = CONTEXTS.get().ok();
    let context = contexts.zip(wire.checked_sub(1)).and_then(|(contexts, index)| contexts.get_index(index));
    if let Some(context) = context {
        let _ = context.state.compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns the wire id of an active context on a device that the worker knows by this ordinal; 0 without one.
pub(crate) fn any_on(position: usize) -> Result<u32, CUresult> {
    let contexts = CONTEXTS.get()?.live();
    let active = contexts.iter().find(|context| context.position as usize == position && context.is_active());
    Ok(active.map_or(0, |context| context.wire()))
}

/// Returns a new stream id, unique in the process.
pub(crate) fn next_stream_id() -> u64 {
    NEXT_STREAM_ID.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inactive_context_has_a_handle_but_no_facts() {
        let context = Context::primary(SlabSlot { handle: 0x1000, index: 3 }, 1, 2);
        assert_eq!((context.wire(), context.handle().0.addr()), (4, 0x1000));
        assert_eq!(context.check_active(), Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
        assert_eq!(context.id(), Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
        context.begin(&ContextFacts { id: 9, ..ContextFacts::default() }.encode()).unwrap();
        assert_eq!(context.id(), Ok(9));
    }
}
