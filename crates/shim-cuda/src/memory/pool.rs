//! Memory pools and stream-ordered allocation.
//!
//! Pools count their part of the device's arena: only growth sends a message. The call itself returns the address. A block
//! that a stream freed serves that stream again at once, because its old work comes before the new. Other streams get it
//! like any freed memory, after a synchronization. A pool's reserved memory is counted as the driver counts it, in blocks of
//! 32 MiB; a synchronization leaves those in use, or the release threshold.
//! Pools of the host, and of managed memory, count their part of the pinned arena in the same way. Every device and the
//! program reach its memory.
#![expect(unsafe_code, reason = "reads and writes values of C callers")]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_client::regions::{Region, RegionKind};
use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{
    CUdevice, CUdeviceptr, CUipcMemHandle, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult, CUstream, access_flags, location_type,
};
use katydid_driver_rules::caller::read;
use katydid_driver_rules::memory::HANDLE_TYPE_FILE_DESCRIPTOR;
use katydid_driver_rules::pool::{self as rules, POOL_BLOCK_BYTES, PoolAttribute, PoolCounts, PoolLocation};

use crate::context::device::{self, device};
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::graph::{capture, model};
use crate::memory::device_backing::DeviceBacking;
use crate::memory::host_backing::HostBacking;
use crate::memory::registration::PAGE_BYTES;
use crate::memory::{block, idle, ipc, managed, pinned};
use crate::process::session::shim;
use crate::sync::stream;

/// Blocks of a pool begin and end at multiples of this.
const POOL_GRANULE_BYTES: u64 = 512;
/// `CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES`, an attribute for `cuDeviceGetAttribute`.
const MEMPOOL_HANDLE_TYPES: u32 = 119;
/// Host nodes that are accepted have lower numbers.
const MAX_POOL_NODES: i32 = 64;

/// Returns whether the program's processor reaches memory of a location: pages of the pinned arena.
fn is_shared(home: PoolLocation) -> bool {
    home.device().is_none()
}

/// Returns the kind of a region from the pool with this handle.
fn region_kind(home: PoolLocation, pool: usize) -> RegionKind {
    match home {
        PoolLocation::Device(_) => RegionKind::Pooled { pool },
        PoolLocation::Host => RegionKind::HostPooled { pool },
        PoolLocation::Managed(_) => RegionKind::ManagedPooled { pool },
    }
}

/// A pool of memory of a device, of the host, or of both.
pub(crate) struct Pool {
    pub(crate) slot: SlabSlot,
    home: PoolLocation,
    /// Most bytes, as whole blocks; 0 for no limit.
    limit: u64,
    sharing: PoolSharing,
    state: Mutex<PoolState>,
}

/// The programs that use a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolSharing {
    /// Only this program uses the pool.
    Own,
    /// This program's pool; other programs may import allocations of it.
    Exported,
    /// Another program's pool, of which this one imports allocations.
    Imported,
}

/// A block that a stream has freed and no other stream has got yet.
struct FreedBlock {
    /// Address of its first byte.
    address: u64,
    /// Allocated bytes: whole granules.
    extent: u64,
    /// Wire id of that stream.
    stream: u32,
    /// Count of messages after which no work uses it.
    epoch: u64,
}

/// The state of a pool.
struct PoolState {
    freed: Vec<FreedBlock>,
    /// Its counts. The reuse settings change nothing: other streams get blocks only after a synchronization.
    counts: PoolCounts,
    /// Bytes that the driver would have reserved for the pool, as whole blocks.
    reserved: u64,
    /// A bit for each device that was granted access, except a device pool's own; only queries use it.
    granted: u32,
}

/// The pools for calls that name none.
struct PoolChoices(Mutex<Vec<PoolChoice>>);

static POOL_CHOICES: PoolChoices = PoolChoices(Mutex::new(Vec::new()));

/// Pools of all devices and of the host.
pub(crate) static POOLS: HandleTable<Pool> = HandleTable::new();

impl Handle for CUmemoryPool {
    type Object = Pool;

    fn table() -> &'static HandleTable<Pool> {
        &POOLS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

/// The pools of one location for calls that name none.
struct PoolChoice {
    home: PoolLocation,
    /// The pool that exists without being created by the program.
    default: Arc<Pool>,
    /// The pool that allocations come from.
    current: Arc<Pool>,
}

impl PoolState {
    /// Counts `size` more bytes as used.
    fn take(&mut self, size: u64, limit: u64) -> Result<(), CUresult> {
        let used = self.counts.used.saturating_add(size);
        let reserved = used.checked_next_multiple_of(POOL_BLOCK_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if limit != 0 && reserved > limit {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.counts.take(size);
        self.reserved = self.reserved.max(reserved);
        self.counts.note_reserved(self.reserved);
        Ok(())
    }

    /// Releases unused blocks as long as `keep` bytes stay.
    fn trim(&mut self, keep: u64) {
        let needed = self
            .counts
            .used
            .next_multiple_of(POOL_BLOCK_BYTES)
            .max(keep.div_ceil(POOL_BLOCK_BYTES).saturating_mul(POOL_BLOCK_BYTES));
        self.reserved = self.reserved.min(needed);
    }
}

impl Pool {
    fn new(slot: SlabSlot, home: PoolLocation, limit: u64) -> Self {
        let state = PoolState { freed: Vec::new(), counts: PoolCounts::default(), reserved: 0, granted: 0 };
        Self {
            slot,
            home,
            limit: limit.next_multiple_of(POOL_BLOCK_BYTES),
            sharing: PoolSharing::Own,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn handle(&self) -> CUmemoryPool {
        CUmemoryPool(handle(self.slot.handle))
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for work in a stream; 0 bytes give address 0.
    fn allocate(&self, size: u64, stream: u32) -> Result<u64, CUresult> {
        if self.sharing == PoolSharing::Imported {
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        if size == 0 {
            return Ok(0);
        }
        let extent = size.checked_next_multiple_of(POOL_GRANULE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let shim = shim()?;
        let mut state = self.state();
        state.take(size, self.limit)?;
        let PoolLocation::Device(device) = self.home else {
            return allocate_pages(self.home, self.slot.handle, size).inspect_err(|_| state.counts.give_back(size));
        };
        let own = state.freed.iter().position(|freed| freed.stream == stream && freed.extent == extent);
        let address = match own {
            Some(index) => Ok(state.freed.swap_remove(index).address),
            None => allocate_new(device, &mut state, extent),
        };
        let address = address.inspect_err(|_| {
            state.counts.give_back(size);
            let used = state.counts.used;
            state.trim(used);
        })?;
        shim.regions.insert(address, size, region_kind(self.home, self.slot.handle), device, 0);
        Ok(address)
    }

    /// Takes back the memory of a region that has left the address map.
    fn free(&self, region: &Region, stream: u32) -> Result<(), CUresult> {
        let epoch = shim()?.session.enqueued();
        let mut state = self.state();
        state.counts.give_back(region.size);
        if is_shared(self.home) {
            return free_pages(region);
        }
        let extent = region.size.next_multiple_of(POOL_GRANULE_BYTES);
        state.freed.push(FreedBlock { address: region.start, extent, stream, epoch });
        Ok(())
    }

    /// Makes blocks free for all streams again if their work was before `epoch`, after a synchronization.
    fn reclaim_completed(&self, epoch: u64) {
        let Ok(devices) = device::all() else { return };
        let mut state = self.state();
        if let Some(device) = self.home.device().and_then(|device| devices.get(device as usize)) {
            for freed in state.freed.extract_if(.., |freed| freed.epoch <= epoch) {
                let _ = idle::free(device, freed.address, freed.epoch);
            }
        }
        let keep = state.counts.threshold;
        state.trim(keep);
    }

    fn attribute(&self, attribute: PoolAttribute) -> u64 {
        let state = self.state();
        state.counts.attribute(attribute, state.reserved)
    }

    fn set_attribute(&self, attribute: PoolAttribute, value: u64) -> Result<(), CUresult> {
        let mut state = self.state();
        let reserved = state.reserved;
        state.counts.set_attribute(attribute, value, reserved)
    }
}

/// Allocates from a device's arena. Blocks that streams have freed in the pool are given up for it before memory runs out.
fn allocate_new(device: u32, state: &mut PoolState, extent: u64) -> Result<u64, CUresult> {
    let memory = &device::all()?[device as usize].memory;
    let backing = DeviceBacking { ordinal: device };
    match memory.allocate(extent, POOL_GRANULE_BYTES, &backing) {
        Err(CUresult::ERROR_OUT_OF_MEMORY) if !state.freed.is_empty() => {
            for freed in state.freed.drain(..) {
                let _ = memory.free(freed.address, freed.epoch);
            }
            memory.allocate(extent, POOL_GRANULE_BYTES, &backing)
        }
        other => other,
    }
}

/// Allocates whole pages of the pinned arena, which belong to no context.
fn allocate_pages(home: PoolLocation, pool: usize, size: u64) -> Result<u64, CUresult> {
    let pinned = pinned::get().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let pages = size.checked_next_multiple_of(PAGE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = pinned.arena.allocate(pages, PAGE_BYTES, &HostBacking)?;
    let device = match home {
        PoolLocation::Managed(device) => {
            let device = device.unwrap_or(0);
            managed::hold(device, (address, pages), 0)?;
            managed::count();
            device
        }
        PoolLocation::Device(_) | PoolLocation::Host => 0,
    };
    shim()?.regions.insert(address, size, region_kind(home, pool), device, 0);
    Ok(address)
}

/// Frees pages whose region has left the address map; they are used again once the GPU is done with them.
fn free_pages(region: &Region) -> Result<(), CUresult> {
    let shim = shim()?;
    let is_managed = region.is_managed();
    if is_managed {
        managed::forget(region);
    }
    let pinned = pinned::get().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    pinned.forget(region)?;
    if is_managed {
        managed::let_go(region.start)?;
    }
    pinned.arena.free(region.start, shim.session.enqueued()).map(drop).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

impl PoolChoices {
    fn lock(&self) -> MutexGuard<'_, Vec<PoolChoice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `body` on the pools of a location; its default pool is made at first use.
fn with_choice<T>(home: PoolLocation, body: impl FnOnce(&mut PoolChoice) -> T) -> Result<T, CUresult> {
    let mut choices = POOL_CHOICES.lock();
    let index = match choices.iter().position(|choice| choice.home == home) {
        Some(index) => index,
        None => {
            let pool = make(home, 0, PoolSharing::Own)?;
            choices.push(PoolChoice { home, default: Arc::clone(&pool), current: pool });
            choices.len() - 1
        }
    };
    Ok(body(&mut choices[index]))
}

fn make(home: PoolLocation, limit: u64, sharing: PoolSharing) -> Result<Arc<Pool>, CUresult> {
    POOLS.get()?.insert(|slot| Pool { sharing, ..Pool::new(slot, home, limit) }).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Returns the pool of a handle; an invalid handle gives 1.
fn resolve(pool: CUmemoryPool) -> Result<Arc<Pool>, CUresult> {
    object(pool).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// Notes that a synchronization has passed `epoch` on a device.
pub(crate) fn completed(device: u32, epoch: u64) -> Result<(), CUresult> {
    for pool in POOLS.get()?.live().iter().filter(|pool| pool.home.device().is_none_or(|own| own == device)) {
        pool.reclaim_completed(epoch);
    }
    Ok(())
}

/// Returns the device of a stream's context.
fn device_of(stream: CUstream) -> Result<u32, CUresult> {
    stack::wire()?;
    Ok(stream::context_of(stream)?.device)
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn allocate_async(target: *mut CUdeviceptr, size: usize, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    if let Some(address) = capture::allocate(stream, size)? {
        target.write(address);
        return Ok(());
    }
    let (device, wire) = (device_of(stream)?, stream::wire(stream)?);
    let pool = with_choice(PoolLocation::Device(device), |choice| Arc::clone(&choice.current))?;
    target.write(pool.allocate(size as u64, wire)?);
    Ok(())
}

/// # Safety
///
/// As [`allocate_async`].
pub(crate) unsafe fn allocate_from(
    target: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    stack::wire()?;
    let pool = resolve(pool)?;
    if let Some(address) = capture::allocate(stream, size)? {
        target.write(address);
        return Ok(());
    }
    target.write(pool.allocate(size as u64, stream::wire(stream)?)?);
    Ok(())
}

/// Frees memory in stream order. It also takes memory of `cuMemAlloc`.
pub(crate) fn free_async(address: CUdeviceptr, stream: CUstream) -> Result<(), CUresult> {
    stack::wire()?;
    // Nothing may be sent to a captured stream, so its wire id is resolved last.
    if address == 0 || capture::free(stream, address)? {
        return Ok(());
    }
    let wire = stream::wire(stream)?;
    match shim()?.regions.find(address).map(|region| region.kind) {
        Some(RegionKind::Pooled { .. } | RegionKind::HostPooled { .. } | RegionKind::ManagedPooled { .. }) => {
            free(address, wire)
        }
        Some(RegionKind::Device) => block::free(address),
        Some(RegionKind::Mapped) if ipc::is_pooled(address) => ipc::close(address),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Frees the allocation from a pool that starts at exactly this address.
pub(crate) fn free(address: CUdeviceptr, stream: u32) -> Result<(), CUresult> {
    let shim = shim()?;
    let region = shim.regions.remove(address, |region| region.pool().is_some());
    let region = region.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let pool = region.pool().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    ipc::freed(address)?;
    match POOLS.get()?.get(pool) {
        Some(pool) => pool.free(&region, stream),
        None if region.is_host() => free_pages(&region),
        // The pool was destroyed: its memory is freed like any other.
        None => idle::free(&device::all()?[region.device as usize], address, shim.session.enqueued()),
    }
}

/// # Safety
///
/// As [`allocate_async`].
pub(crate) unsafe fn default_of_device(target: *mut CUmemoryPool, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    device(ordinal)?;
    target.write(with_choice(PoolLocation::Device(ordinal.unsigned_abs()), |choice| choice.default.handle())?);
    Ok(())
}

/// # Safety
///
/// As [`allocate_async`].
pub(crate) unsafe fn of_device(target: *mut CUmemoryPool, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    device(ordinal)?;
    target.write(with_choice(PoolLocation::Device(ordinal.unsigned_abs()), |choice| choice.current.handle())?);
    Ok(())
}

/// Sets the current pool of a device; a pool of another device gives 1.
pub(crate) fn set_of_device(ordinal: CUdevice, pool: CUmemoryPool) -> Result<(), CUresult> {
    let pool = resolve(pool)?;
    device(ordinal).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    select(PoolLocation::Device(ordinal.unsigned_abs()), &pool)
}

/// Makes a pool the current one of a location, if it belongs there.
fn select(home: PoolLocation, pool: &Arc<Pool>) -> Result<(), CUresult> {
    if !pool.home.suits(home) || pool.sharing == PoolSharing::Imported {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    with_choice(home, |choice| choice.current = Arc::clone(pool))
}

/// Returns the pool location that a location and an allocation type name. The host's nodes count as one: the system chooses
/// where pages of the pinned arena lie.
fn named(location: &CUmemLocation, kind: u32) -> Result<PoolLocation, CUresult> {
    PoolLocation::named(location, kind, MAX_POOL_NODES, |ordinal| device(ordinal).is_ok())
}

/// # Safety
///
/// As [`allocate_async`]; `location` is null or readable.
pub(crate) unsafe fn default_of(
    target: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    // SAFETY: handed on.
    let location = named(&unsafe { read(location) }?, kind)?;
    target.write(with_choice(location, |choice| choice.default.handle())?);
    Ok(())
}

/// # Safety
///
/// As [`default_of`].
pub(crate) unsafe fn of_location(
    target: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    // SAFETY: handed on.
    let location = named(&unsafe { read(location) }?, kind)?;
    target.write(with_choice(location, |choice| choice.current.handle())?);
    Ok(())
}

/// # Safety
///
/// `location` is null or readable.
pub(crate) unsafe fn set_of_location(
    location: *mut CUmemLocation,
    kind: u32,
    pool: CUmemoryPool,
) -> Result<(), CUresult> {
    let pool = resolve(pool)?;
    // SAFETY: handed on.
    select(named(&unsafe { read(location) }?, kind)?, &pool)
}

/// # Safety
///
/// As [`allocate_async`]; `properties` is null or readable.
pub(crate) unsafe fn create(target: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    // SAFETY: null or readable, by the contract.
    let properties = unsafe { read(properties) }?;
    model::forbid()?;
    let home = named(&properties.location, properties.allocType)?;
    if properties.reserved.iter().any(|byte| *byte != 0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let sharing = match properties.handleTypes {
        0 => PoolSharing::Own,
        HANDLE_TYPE_FILE_DESCRIPTOR if home.device().map(can_share_pools).transpose()? == Some(true) => {
            PoolSharing::Exported
        }
        // As device attribute 119 says.
        _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
    };
    target.write(make(home, properties.maxSize as u64, sharing)?.handle());
    Ok(())
}

/// Returns whether pools of a device can be created for sharing.
fn can_share_pools(ordinal: u32) -> Result<bool, CUresult> {
    Ok(device(ordinal.cast_signed())?.value(MEMPOOL_HANDLE_TYPES).unsigned_abs() & HANDLE_TYPE_FILE_DESCRIPTOR != 0)
}

/// Destroys a pool. Its allocations stay until they are freed; a default pool gives 1.
pub(crate) fn destroy(pool: CUmemoryPool) -> Result<(), CUresult> {
    let pool = resolve(pool)?;
    let mut choices = POOL_CHOICES.lock();
    if choices.iter().any(|choice| Arc::ptr_eq(&choice.default, &pool)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for choice in choices.iter_mut().filter(|choice| Arc::ptr_eq(&choice.current, &pool)) {
        choice.current = Arc::clone(&choice.default);
    }
    drop(choices);
    POOLS.get()?.remove(pool.slot.handle);
    let devices = device::all()?;
    if let Some(device) = pool.home.device().and_then(|device| devices.get(device as usize)) {
        for freed in pool.state().freed.drain(..) {
            let _ = idle::free(device, freed.address, freed.epoch);
        }
    }
    Ok(())
}

/// Frees unused blocks as long as `keep` bytes stay.
pub(crate) fn trim(pool: CUmemoryPool, keep: usize) -> Result<(), CUresult> {
    resolve(pool)?.state().trim(keep as u64);
    Ok(())
}

/// # Safety
///
/// `value` is null or has room for the attribute.
pub(crate) unsafe fn attribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Result<(), CUresult> {
    let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
    // SAFETY: handed on.
    unsafe { attribute.write(value, pool.attribute(attribute)) }
}

/// # Safety
///
/// `value` is null or readable for the attribute's width.
pub(crate) unsafe fn set_attribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Result<(), CUresult> {
    let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
    // SAFETY: handed on.
    pool.set_attribute(attribute, unsafe { attribute.read(value) }?)
}

/// Checks and stores grants: every device reaches the arenas of its peers anyway.
///
/// # Safety
///
/// `grants` is null or has `count` entries.
pub(crate) unsafe fn set_access(
    pool: CUmemoryPool,
    grants: *const CUmemAccessDesc,
    count: usize,
) -> Result<(), CUresult> {
    let pool = resolve(pool)?;
    // SAFETY: handed on.
    for grant in unsafe { rules::grants(grants, count) }? {
        check_grant(&grant, pool.home)?;
        if grant.location.type_ == location_type::DEVICE {
            let (bit, mut state) = (1_u32.checked_shl(grant.location.id.unsigned_abs()).unwrap_or(0), pool.state());
            let allowed = grant.flags == access_flags::READ_WRITE;
            state.granted = if allowed { state.granted | bit } else { state.granted & !bit };
        }
    }
    Ok(())
}

fn check_grant(grant: &CUmemAccessDesc, home: PoolLocation) -> Result<(), CUresult> {
    let is_own = is_shared(home) && matches!(grant.location.type_, location_type::HOST | location_type::HOST_NUMA);
    if is_own && grant.flags == access_flags::READ_WRITE {
        return Ok(());
    }
    if grant.location.type_ != location_type::DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    device(grant.location.id)?;
    rules::device_grant(grant.flags, home.device() == Some(grant.location.id.unsigned_abs())).map(drop)
}

/// Returns the access to a pool. Its own device, or the host, has access, and devices that were granted it. Managed memory
/// is open to all.
///
/// # Safety
///
/// As [`allocate_async`]; `location` is null or readable.
pub(crate) unsafe fn access(
    target: *mut u32,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let pool = resolve(pool)?;
    // SAFETY: handed on.
    let location = unsafe { read(location) }?;
    let granted = match location.type_ {
        location_type::DEVICE => {
            device(location.id).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
            let bit = 1_u32.checked_shl(location.id.unsigned_abs()).unwrap_or(0);
            match pool.home {
                PoolLocation::Device(own) if location.id.unsigned_abs() == own => true,
                PoolLocation::Device(_) | PoolLocation::Host => pool.state().granted & bit != 0,
                PoolLocation::Managed(_) => true,
            }
        }
        location_type::HOST | location_type::HOST_NUMA => is_shared(pool.home),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    target.write(rules::access(granted));
    Ok(())
}

/// Returns the device of a pool that was created for sharing.
pub(crate) fn exported(pool: CUmemoryPool) -> Result<u32, CUresult> {
    let pool = resolve(pool)?;
    pool.home.device().filter(|_| pool.sharing == PoolSharing::Exported).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Makes a pool that stands for another program's.
pub(crate) fn imported(device: u32) -> Result<CUmemoryPool, CUresult> {
    Ok(make(PoolLocation::Device(device), 0, PoolSharing::Imported)?.handle())
}

/// Returns the pointer data of an allocation in a shared pool.
///
/// # Safety
///
/// As [`allocate_async`].
pub(crate) unsafe fn export_pointer(target: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let (shim, pools) = (shim()?, POOLS.get()?);
    let is_exported = |region: &Region| match region.kind {
        RegionKind::Pooled { pool } => pools.get(pool).is_some_and(|pool| pool.sharing == PoolSharing::Exported),
        _ => false,
    };
    let region = shim.regions.find(address).filter(|region| region.start == address && is_exported(region));
    target.write(CUmemPoolPtrExportData(ipc::export(&region.ok_or(CUresult::ERROR_INVALID_VALUE)?)?.reserved));
    Ok(())
}

/// Maps an allocation of another program at an address of this one. It is freed here before it is freed there.
///
/// # Safety
///
/// As [`allocate_async`]; `data` is null or readable.
pub(crate) unsafe fn import_pointer(
    target: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    stack::wire()?;
    if data.is_null() || resolve(pool)?.sharing != PoolSharing::Imported {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    let CUmemPoolPtrExportData(reserved) = unsafe { data.read_unaligned() };
    target.write(ipc::open(&CUipcMemHandle { reserved }, true)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(SlabSlot { handle: 0x1000, index: 0 }, PoolLocation::Device(0), 0)
    }

    #[test]
    fn memory_is_reserved_in_blocks_and_goes_down_to_what_is_kept() {
        let pool = pool();
        let mut state = pool.state();
        state.take(1000, 0).unwrap();
        assert_eq!((state.counts.used, state.reserved), (1000, POOL_BLOCK_BYTES));
        state.take(POOL_BLOCK_BYTES, 0).unwrap();
        assert_eq!(state.reserved, 2 * POOL_BLOCK_BYTES);
        state.counts.used = 0;
        state.trim(1);
        assert_eq!(state.reserved, POOL_BLOCK_BYTES);
        state.trim(0);
        assert_eq!(state.reserved, 0);
        assert_eq!(
            (state.counts.reserved_high, state.counts.used_high),
            (2 * POOL_BLOCK_BYTES, POOL_BLOCK_BYTES + 1000)
        );
    }

    #[test]
    fn a_limit_is_kept_in_blocks() {
        let pool = Pool::new(SlabSlot { handle: 0x1000, index: 0 }, PoolLocation::Device(0), 1);
        assert!(pool.state().take(POOL_BLOCK_BYTES, pool.limit).is_ok());
        assert_eq!(pool.state().take(1, pool.limit), Err(CUresult::ERROR_OUT_OF_MEMORY));
    }

    #[test]
    fn grants_are_for_devices_and_whole() {
        let grant = |type_, id, flags| {
            check_grant(&CUmemAccessDesc { location: CUmemLocation { type_, id }, flags }, PoolLocation::Device(0))
        };
        assert_eq!(grant(location_type::HOST, 0, 3), Err(CUresult::ERROR_NOT_SUPPORTED));
        let host = CUmemLocation { type_: location_type::HOST, id: 0 };
        let of_host = |flags| check_grant(&CUmemAccessDesc { location: host, flags }, PoolLocation::Host);
        assert_eq!((of_host(3), of_host(0)), (Ok(()), Err(CUresult::ERROR_NOT_SUPPORTED)));
        // Without a session no device is known.
        assert!(grant(location_type::DEVICE, 0, 3).is_err());
    }
}
