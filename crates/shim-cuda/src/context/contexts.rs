//! Contexts: handles, states and flags are kept here; the worker is asked when one begins, ends, or must be waited for.
//!
//! A primary context has its handle from the start and may be made current before anybody retained it; calls that need
//! the GPU then answer 709, as NVIDIA's driver does. What a context held is forgotten with it.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use katydid_client::regions::Place;
use katydid_client::slab::Slot;
use katydid_cuda_sys::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult, Function};
use katydid_wire::codec::Message;
use katydid_wire::facts::ContextFacts;
use katydid_wire::message::{
    cuCtxDestroy_v2, cuCtxSetCacheConfig, cuCtxSynchronize, kdContextCreate, kdContextRelease, kdContextReset,
    kdContextRetain, kdContextSetLimit,
};

use katydid_graph::Call;

use crate::code::variable;
use crate::context::device;
use crate::context::green::Green;
use crate::context::stack;
use crate::ffi::guard::{enqueue, out, refuse, write_if_given};
use crate::ffi::handle::object;
use crate::graph;
use crate::memory::allocation::{UNKNOWN, in_need};
use crate::memory::{managed, pinned, pool, registered};
use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// Flags that a context may be made with: scheduling in the low bits (at most one), the rest as in the header.
const FLAGS: u32 = 0xff;
/// How the processor waits: spin, yield or block.
const SCHEDULING: u32 = 7;
/// `CU_CTX_SCHED_BLOCKING_SYNC`, of these.
const BLOCKING: u32 = 4;
/// `CU_CTX_MAP_HOST`: set on every context by today's drivers.
const MAP_HOST: u32 = 8;
/// The state of a context that was not begun, or has ended.
const ENDED: u32 = CUresult::ERROR_CONTEXT_IS_DESTROYED.0;
/// Contexts that were begun and have not ended.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// The version that contexts of today's drivers answer, but those of the first form of `cuCtxCreate`.
const API_VERSION: u32 = 3020;
/// What those answer.
const FIRST_API_VERSION: u32 = 3010;

/// A context, primary or made by the program.
pub(crate) struct Context {
    pub(crate) slot: Slot,
    /// The program's ordinal of its device.
    pub(crate) device: u32,
    /// The worker's ordinal.
    position: u32,
    is_primary: bool,
    /// What `cuCtxGetApiVersion` says of it.
    api_version: u32,
    /// There if it is a green one.
    green: OnceLock<Green>,
    /// What a call in it returns before anything else: 0, or why there is no point in trying.
    state: AtomicU32,
    /// Flags that it was, or will be, made with.
    flags: AtomicU32,
    /// What the worker said when it began, with what was set since; none while it is not active.
    facts: RwLock<Option<ContextFacts>>,
    /// How often the primary context is retained.
    retains: Mutex<u32>,
    /// How often the program attached to it.
    attached: AtomicU32,
    /// All messages up to this count have been executed, as far as this context's work goes.
    settled: AtomicU64,
    /// Ids of its two default streams, the first that it has.
    pub(crate) default_streams: [AtomicU64; 2],
}

/// What most calls need of a context, without a share in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// The number that messages carry.
    pub(crate) wire: u32,
    /// The program's ordinal of its device.
    pub(crate) device: u32,
    /// That number of the context that owns what is made in this one, streams apart.
    pub(crate) owner: u32,
}

impl Context {
    /// The primary context of a device, not active.
    pub(crate) fn primary(slot: Slot, device: u32, position: u32) -> Self {
        Self {
            slot,
            device,
            position,
            is_primary: true,
            api_version: API_VERSION,
            green: OnceLock::new(),
            state: AtomicU32::new(ENDED),
            flags: AtomicU32::new(0),
            facts: RwLock::new(None),
            retains: Mutex::new(0),
            attached: AtomicU32::new(0),
            settled: AtomicU64::new(0),
            default_streams: [const { AtomicU64::new(0) }; 2],
        }
    }

    fn made(slot: Slot, device: u32, position: u32, flags: u32) -> Self {
        Self { is_primary: false, flags: AtomicU32::new(flags), ..Self::primary(slot, device, position) }
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// What makes it a green one, if it is.
    pub(crate) fn green(&self) -> Option<&Green> {
        self.green.get()
    }

    /// The context that owns what is made in this one, streams apart: a green one's is its primary context.
    pub(crate) fn owner(self: Arc<Self>) -> Arc<Self> {
        match self.green() {
            Some(green) => Arc::clone(&green.primary),
            None => self,
        }
    }

    /// What most calls need.
    pub(crate) fn home(&self) -> Home {
        let wire = self.wire();
        Home { wire, device: self.device, owner: self.green().map_or(wire, |green| green.primary.wire()) }
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> CUcontext {
        CUcontext(device::handle(self.slot.handle))
    }

    /// # Errors
    ///
    /// `ERROR_CONTEXT_IS_DESTROYED` for one that was never begun, or has ended; the error that ruined it.
    pub(crate) fn check_active(&self) -> Result<(), CUresult> {
        CUresult(self.state.load(Ordering::Relaxed)).ok()
    }

    /// Whether it was begun and has not ended; it may be ruined.
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(Ordering::Relaxed) != ENDED
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

    fn change_facts(&self, change: impl FnOnce(&mut ContextFacts)) {
        if let Some(facts) = self.facts.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            change(facts);
        }
    }

    fn begin(&self, facts: &[u8]) -> Result<(), CUresult> {
        let Ok(facts) = ContextFacts::decode(facts) else {
            return Err(shim()?.session.broken("a context's beginning"));
        };
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        for id in &self.default_streams {
            id.store(stream::next_id(), Ordering::Relaxed);
        }
        if self.state.swap(CUresult::SUCCESS.0, Ordering::Release) == ENDED {
            ACTIVE.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_ended(&self) {
        if self.state.swap(ENDED, Ordering::Release) != ENDED {
            ACTIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the context: destructors of what libraries keep with it run first, then everything that was made in it is
    /// forgotten, then the worker is told with `message`.
    pub(crate) fn end<M: Message>(&self, message: &M) -> Result<(), CUresult> {
        katydid_export_table::context_gone(self.slot.handle);
        self.set_ended();
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = None;
        let shim = shim()?;
        self.end_greens(shim);
        self.forget_objects(shim);
        self.forget_memory(shim);
        shim.session.call(0, message)?;
        shim.upcalls.context_ended(self.wire());
        pinned::register_again()
    }

    /// Green contexts of this one end with it.
    fn end_greens(&self, shim: &Shim) {
        let of_this = |green: &Green| green.primary.slot == self.slot;
        for green in shim.contexts.live().iter().filter(|context| context.green().is_some_and(of_this)) {
            green.set_ended();
            green.forget_objects(shim);
        }
    }

    fn forget_objects(&self, shim: &Shim) {
        let mine = |context: &Arc<Self>| context.slot == self.slot;
        for stream in shim.streams.live().iter().filter(|stream| mine(&stream.context)) {
            shim.streams.remove(stream.slot.handle);
        }
        for event in shim.events.live().iter().filter(|event| mine(&event.context)) {
            shim.events.remove(event.slot.handle);
        }
        for module in shim.modules.live().iter().filter(|module| mine(&module.context)) {
            shim.modules.remove(module.slot.handle);
        }
        for function in shim.functions.live().iter().filter(|function| mine(&function.context)) {
            shim.functions.remove(function.slot.handle);
        }
        for reference in shim.texture_references.live().iter().filter(|it| mine(&it.context)) {
            shim.texture_references.remove(reference.slot.handle);
        }
        for reference in shim.surface_references.live().iter().filter(|it| mine(&it.context)) {
            shim.surface_references.remove(reference.slot.handle);
        }
        for library in shim.libraries.live() {
            library.forget(self);
        }
    }

    fn forget_memory(&self, shim: &Shim) {
        for region in shim.regions.remove_all(|region| region.context == self.slot.handle) {
            // The worker ends the context before it sees any later message, so the memory is free at once.
            if region.place == Place::Device {
                let _ = shim.devices[self.device as usize].free(region.start, 0);
            } else if region.is_host()
                && let Some(pinned) = &shim.pinned
            {
                if region.place == Place::Managed {
                    managed::forget(&region);
                }
                if region.is_registered() {
                    registered::ended();
                }
                pinned.ended(&region, self.wire());
                variable::forget(&region);
            }
        }
        if let Some(pinned) = &shim.pinned {
            pinned.context_ended(self.wire());
        }
    }

    /// Retains a primary context, which begins it if it is not active; `wanted` is told whether it is.
    fn retain(&self, wanted: impl FnOnce(bool) -> bool) -> Result<(), CUresult> {
        let mut retains = self.retains.lock().unwrap_or_else(PoisonError::into_inner);
        let is_active = self.is_active();
        if !is_active {
            let flags = self.flags.load(Ordering::Relaxed);
            let message = kdContextRetain { context: self.wire(), device: self.position as i32, flags };
            self.begin(&shim()?.session.call(0, &message)?.facts)?;
            heed(flags)?;
        }
        *retains += u32::from(wanted(is_active));
        Ok(())
    }

    /// Waits for everything this context was given; memory freed before is usable then.
    pub(crate) fn synchronize(&self) -> Result<(), CUresult> {
        self.wait()?;
        // The only one there is speaks for its device.
        let epoch = if are_several() { settled_on(self.device)? } else { Some(self.settled.load(Ordering::Acquire)) };
        if let Some(epoch) = epoch {
            pool::settled(self.device, epoch)?;
            shim()?.devices[self.device as usize].memory.release_until(epoch);
            pinned::settled(epoch)?;
        }
        Ok(())
    }

    /// Waits for everything this context was given, unless nothing was sent since the last time.
    fn wait(&self) -> Result<(), CUresult> {
        self.wait_by(|shim| shim.session.call(self.wire(), &cuCtxSynchronize {}).map(drop))
    }

    /// The same by a call of one's own.
    fn wait_by(&self, synchronize: impl FnOnce(&Shim) -> Result<(), CUresult>) -> Result<(), CUresult> {
        let shim = shim()?;
        let sent = shim.session.enqueued();
        // A program may spin on this; natively it is 0.3 µs.
        if self.settled.load(Ordering::Acquire) == sent && sent > 0 && !shim.session.is_lost() {
            return Ok(());
        }
        synchronize(shim)?;
        pinned::pull_all()?;
        self.settled.fetch_max(sent, Ordering::AcqRel);
        Ok(())
    }
}

/// Whether there is work of more than one context, which nothing puts in order.
pub(crate) fn are_several() -> bool {
    ACTIVE.load(Ordering::Relaxed) > 1
}

/// An error has ruined a context: from now on its calls return that error.
pub(crate) fn faulted(wire: u32, code: CUresult) {
    let context = shim().ok().zip(wire.checked_sub(1)).and_then(|(shim, index)| shim.contexts.get_index(index));
    if let Some(context) = context {
        let _ = context.state.compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The count of messages that every active context of a device has passed; none without an active one.
fn settled_on(device: u32) -> Result<Option<u64>, CUresult> {
    let contexts = shim()?.contexts.live();
    let active = contexts.iter().filter(|context| context.device == device && context.is_active());
    Ok(active.map(|context| context.settled.load(Ordering::Acquire)).min())
}

/// Waits for all contexts of a device, and touches no book of its memory: allocations call this. Returns the count of messages that is behind it then.
pub(crate) fn settle_device(device: u32) -> Result<u64, CUresult> {
    for context in shim()?.contexts.live() {
        if context.device == device && context.is_active() {
            context.wait()?;
        }
    }
    Ok(settled_on(device)?.unwrap_or(u64::MAX))
}

/// The same for what the library does by itself: of an earlier call's failure the program is told by a call of its own.
pub(crate) fn settle_quietly(device: u32) -> Result<u64, CUresult> {
    for context in shim()?.contexts.live() {
        if context.device == device && context.is_active() {
            context.wait_by(|shim| shim.session.ask(context.wire(), &cuCtxSynchronize {}).map(drop))?;
        }
    }
    Ok(settled_on(device)?.unwrap_or(u64::MAX))
}

/// Wire id of a context in which something can be done with a device that the worker knows by this ordinal; 0 without one.
pub(crate) fn any_on(position: usize) -> Result<u32, CUresult> {
    let contexts = shim()?.contexts.live();
    let active = contexts.iter().find(|context| context.position as usize == position && context.is_active());
    Ok(active.map_or(0, |context| context.wire()))
}

/// Waits for all contexts of all devices; returns the count of messages that is behind them then.
pub(crate) fn settle_all() -> Result<u64, CUresult> {
    let mut epoch = u64::MAX;
    for device in 0..shim()?.devices.len() {
        epoch = epoch.min(settle_device(device as u32)?);
    }
    Ok(epoch)
}

/// The context of a handle (0: the current one).
pub(crate) fn or_current(handle: usize) -> Result<Arc<Context>, CUresult> {
    if handle == 0 { stack::required() } else { object(CUcontext(device::handle(handle))) }
}

/// A program of which one context is to wait asleep does so in all of them.
fn heed(flags: u32) -> Result<(), CUresult> {
    if flags & SCHEDULING == BLOCKING {
        shim()?.session.disable_spin();
    }
    Ok(())
}

fn check_flags(flags: u32) -> Result<(), CUresult> {
    let scheduling = flags & SCHEDULING;
    if flags & !FLAGS != 0 || scheduling.count_ones() > 1 { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// The same handle every time; the first retain begins the context.
///
/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn primary_retain(target: *mut CUcontext, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = &device::device(ordinal)?.primary;
    context.retain(|_| true)?;
    target.write(context.handle());
    Ok(())
}

/// The primary context of a device, retained.
pub(crate) fn retained(ordinal: CUdevice) -> Result<Arc<Context>, CUresult> {
    let context = &device::device(ordinal)?.primary;
    context.retain(|_| true)?;
    Ok(Arc::clone(context))
}

/// A green context of a primary one. `ask` has the worker make it, by the numbers of both, and gives its id and facts.
pub(crate) fn make_green(
    primary: Arc<Context>,
    position: u32,
    ask: impl FnOnce(u32, u32) -> Result<(u64, Vec<u8>), CUresult>,
) -> Result<Arc<Context>, CUresult> {
    let shim = shim()?;
    let (device, owner) = (primary.device, primary.wire());
    let made = |slot| Context::made(slot, device, position, 0);
    let context = shim.contexts.insert(made).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let begun = ask(context.wire(), owner).and_then(|(id, facts)| {
        let _ = context.green.set(Green { primary, id });
        context.begin(&facts)
    });
    if let Err(code) = begun {
        shim.contexts.remove(context.slot.handle);
        return Err(code);
    }
    Ok(context)
}

/// The first device's primary context, made active if it is not.
pub(crate) fn first() -> Result<Arc<Context>, CUresult> {
    let context = &device::device(0)?.primary;
    context.retain(|is_active| !is_active)?;
    Ok(Arc::clone(context))
}

/// The last release ends the context; one too many is an error.
pub(crate) fn primary_release(ordinal: CUdevice) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    let mut retains = context.retains.lock().unwrap_or_else(PoisonError::into_inner);
    *retains = retains.checked_sub(1).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    let last = *retains == 0 && context.is_active();
    drop(retains);
    if last {
        context.end(&kdContextRelease { context: context.wire(), device: context.position as i32 })?;
    }
    Ok(())
}

/// Ends the context and everything in it; its retainers have yet to release it.
pub(crate) fn primary_reset(ordinal: CUdevice) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    context.flags.store(0, Ordering::Relaxed);
    if context.is_active() {
        context.end(&kdContextReset { context: context.wire(), device: context.position as i32 })?;
    }
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn primary_state(ordinal: CUdevice, flags: *mut u32, active: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (flags, active) = unsafe { (out(flags)?, out(active)?) };
    let context = &device::device(ordinal)?.primary;
    flags.write(context.flags.load(Ordering::Relaxed));
    active.write(i32::from(context.is_active()));
    Ok(())
}

/// The flags of the next beginning. They only say how the processor waits, so they are not sent to an active context.
pub(crate) fn primary_set_flags(ordinal: CUdevice, flags: u32) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    check_flags(flags)?;
    context.flags.store(flags, Ordering::Relaxed);
    if context.is_active() { heed(flags) } else { Ok(()) }
}

/// As before CUDA 11: an active context keeps the flags that it has.
pub(crate) fn primary_set_first_flags(ordinal: CUdevice, flags: u32) -> Result<(), CUresult> {
    check_flags(flags)?;
    if device::device(ordinal)?.primary.is_active() {
        return Err(CUresult::ERROR_PRIMARY_CONTEXT_ACTIVE);
    }
    primary_set_flags(ordinal, flags)
}

/// A context of the program's own, current at once.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create(target: *mut CUcontext, flags: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_as(target, flags, ordinal, API_VERSION) }
}

/// As CUDA 2 made them, but with device pointers as wide as everywhere.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create_first(target: *mut CUcontext, flags: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_as(target, flags, ordinal, FIRST_API_VERSION) }
}

/// Makes a context that answers `api_version`.
///
/// # Safety
///
/// As [`primary_retain`].
unsafe fn create_as(target: *mut CUcontext, flags: u32, ordinal: CUdevice, api_version: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let position = device::device(ordinal)?.position;
    check_flags(flags)?;
    let shim = shim()?;
    let made = |slot| Context { api_version, ..Context::made(slot, ordinal as u32, position as u32, flags) };
    let context = shim.contexts.insert(made).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let message = kdContextCreate { context: context.wire(), device: position as i32, flags };
    let begun = shim.session.call(0, &message).and_then(|reply| context.begin(&reply.facts));
    if let Err(code) = begun {
        shim.contexts.remove(context.slot.handle);
        return Err(code);
    }
    target.write(context.handle());
    stack::push(context);
    heed(flags)
}

/// With execution affinity, which is refused when any is asked for.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create_v3(
    target: *mut CUcontext,
    _affinities: *mut CUexecAffinityParam,
    count: i32,
    flags: u32,
    ordinal: CUdevice,
) -> Result<(), CUresult> {
    if count != 0 {
        return Err(refuse(Function::cuCtxCreate_v3, "with execution affinity is not supported yet"));
    }
    // SAFETY: handed on.
    unsafe { create(target, flags, ordinal) }
}

/// With parameters, which are refused when they ask for anything.
///
/// # Safety
///
/// As [`primary_retain`]; `params` is null or readable.
pub(crate) unsafe fn create_v4(
    target: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    ordinal: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: null or readable, by the contract.
    let asked = !params.is_null() && unsafe { params.read_unaligned() }.asks_for_something();
    if asked {
        return Err(refuse(Function::cuCtxCreate_v4, "with parameters is not supported yet"));
    }
    // SAFETY: handed on.
    unsafe { create(target, flags, ordinal) }
}

/// Whether creation parameters ask for more than an ordinary context.
trait Asks {
    fn asks_for_something(&self) -> bool;
}

impl Asks for CUctxCreateParams {
    fn asks_for_something(&self) -> bool {
        self.numExecAffinityParams != 0 || !self.cigParams.is_null()
    }
}

/// Ends a context of the program's own. On the calling thread it is no longer current; on others it stays, ended.
pub(crate) fn destroy(handle: CUcontext) -> Result<(), CUresult> {
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = object(handle)?;
    if context.is_primary || context.green().is_some() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let ended = context.end(&cuCtxDestroy_v2 { ctx: context.wire() });
    if stack::get().is_some_and(|top| top.slot == context.slot) {
        stack::pop();
    }
    shim()?.contexts.remove(context.slot.handle);
    ended
}

/// One more user of the current context.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn attach(target: *mut CUcontext, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = stack::active()?;
    context.attached.fetch_add(1, Ordering::Relaxed);
    target.write(context.handle());
    Ok(())
}

/// One user less of the current context; the last, who created it, ends it.
pub(crate) fn detach(handle: CUcontext) -> Result<(), CUresult> {
    let context = stack::active()?;
    if context.handle() != handle {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let less = |users: u32| users.checked_sub(1);
    if context.attached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
        return Ok(());
    }
    destroy(handle)
}

/// `cuCtxSetCurrent`; null takes the top away.
pub(crate) fn set_current(handle: CUcontext) -> Result<(), CUresult> {
    stack::set(if handle.is_null() { None } else { Some(object(handle)?) });
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn get_current(target: *mut CUcontext) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    unsafe { out(target) }?.write(stack::get().map_or(CUcontext::NULL, |context| context.handle()));
    Ok(())
}

/// `cuCtxPushCurrent`.
pub(crate) fn push_current(handle: CUcontext) -> Result<(), CUresult> {
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    stack::push(object(handle)?);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`]; null is allowed here.
pub(crate) unsafe fn pop_current(target: *mut CUcontext) -> Result<(), CUresult> {
    let context = stack::pop().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    // SAFETY: null or writable, by the contract.
    unsafe { write_if_given(target, context.handle()) };
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn device(target: *mut CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.device as CUdevice);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn device_of(target: *mut CUdevice, handle: CUcontext) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(or_current(handle.0.addr())?.device as CUdevice);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn flags(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::required()?;
    let mapped = if context.is_primary { MAP_HOST } else { 0 };
    target.write(context.flags.load(Ordering::Relaxed) | mapped);
    Ok(())
}

/// `cuCtxSetFlags`: kept here; they only say how the processor waits.
pub(crate) fn set_flags(flags: u32) -> Result<(), CUresult> {
    let context = stack::active()?;
    check_flags(flags)?;
    context.flags.store(flags, Ordering::Relaxed);
    heed(flags)
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn id(handle: CUcontext, target: *mut u64) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(or_current(handle.0.addr())?.id()?);
    Ok(())
}

/// `cuCtxSynchronize`.
pub(crate) fn synchronize() -> Result<(), CUresult> {
    graph::forbid_context()?;
    stack::active()?.synchronize()
}

/// `cuCtxSynchronize` of any context.
pub(crate) fn synchronize_of(handle: CUcontext) -> Result<(), CUresult> {
    let context = or_current(handle.0.addr())?;
    context.check_active()?;
    graph::of_process().forbid(Call::Context(context.slot.handle))?;
    context.synchronize()
}

/// Sets a limit; the worker says what became of the value.
pub(crate) fn set_limit(limit: u32, value: usize) -> Result<(), CUresult> {
    graph::forbid()?;
    let context = stack::active()?;
    let message = kdContextSetLimit { limit, value: value as u64 };
    let shim = shim()?;
    let set = || shim.session.call(context.wire(), &message);
    let actual = in_need(context.device, UNKNOWN, set)?.actual;
    context.change_facts(|facts| {
        if let Some(answer) = facts.limits.get_mut(limit as usize) {
            answer.value = actual;
        }
    });
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn limit(target: *mut usize, limit: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let answer = stack::required()?.with_facts(|facts| facts.limits.get(limit as usize).copied())?;
    let answer = answer.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    CUresult(answer.code).ok()?;
    target.write(answer.value as usize);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn cache_config(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.with_facts(|facts| facts.cache_config)?);
    Ok(())
}

/// A preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(config: u32) -> Result<(), CUresult> {
    let context = stack::active()?;
    if config > 3 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    enqueue(&cuCtxSetCacheConfig { config })?;
    context.change_facts(|facts| facts.cache_config = config);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn shared_mem_config(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.with_facts(|facts| facts.shared_config)?);
    Ok(())
}

/// Accepted without effect, as drivers for sm_50 and later do.
pub(crate) fn set_shared_mem_config(_config: u32) -> Result<(), CUresult> {
    stack::active().map(drop)
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn api_version(handle: CUcontext, target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = or_current(handle.0.addr())?;
    context.check_active().map_err(|_| CUresult::ERROR_INVALID_CONTEXT)?;
    target.write(context.api_version);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`]; null is allowed here.
pub(crate) unsafe fn stream_priority_range(least: *mut i32, greatest: *mut i32) -> Result<(), CUresult> {
    let range = stack::required()?.with_facts(|facts| (facts.least_priority, facts.greatest_priority))?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_if_given(least, range.0);
        write_if_given(greatest, range.1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_way_of_waiting_may_be_asked_for() {
        for flags in [0, 1, 2, 4, 4 | MAP_HOST, 0x10, 0x80] {
            assert_eq!(check_flags(flags), Ok(()), "{flags:#x}");
        }
        for flags in [3, 7, 0xff, 0x100, 0xffff] {
            assert_eq!(check_flags(flags), Err(CUresult::ERROR_INVALID_VALUE), "{flags:#x}");
        }
    }

    #[test]
    fn an_inactive_context_has_a_handle_but_no_facts() {
        let context = Context::primary(Slot { handle: 0x1000, index: 3 }, 1, 2);
        assert_eq!((context.wire(), context.handle().0.addr()), (4, 0x1000));
        assert_eq!(context.check_active(), Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
        assert_eq!(context.id(), Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
        context.begin(&ContextFacts { id: 9, ..ContextFacts::default() }.encode()).unwrap();
        assert_eq!(context.id(), Ok(9));
    }
}
