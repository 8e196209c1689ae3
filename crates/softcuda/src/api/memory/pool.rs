//! Stream-ordered allocation, and its memory pools.
//!
//! Codes are those of driver 580. An allocation of 0 bytes succeeds without an address. A pointer that is no allocation's start
//! fails with 1. So does a freed one, whether or not its stream has reached the free.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{
    CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool, CUresult, CUstream,
    location_type,
};
use katydid_driver_rules::pool::{self as rules, PoolAttribute, PoolLocation};
use katydid_graph::CaptureOutcome;

use crate::ffi::{In, Out, Outcome, api, unsupported};
use crate::graphs;
use crate::memory::allocation;
use crate::memory::pool::{self, Pool, named, of_device, resolve};
use crate::process::{device, state};
use crate::sync::stream::Stream;
use crate::sync::streams;

/// Returns the handle of a pool.
fn as_handle(pool: &Pool) -> CUmemoryPool {
    CUmemoryPool(std::ptr::without_provenance_mut(pool.handle))
}

/// Returns the pool of allocations in a stream.
fn pool_of(stream: &Stream) -> Outcome<std::sync::Arc<Pool>> {
    pool::current(of_device(stream.context()?.device))
}

/// Returns the device that a grant names, and whether it gets access. Only devices can get it.
fn granted(description: &CUmemAccessDesc, pool: &Pool) -> Outcome<(i32, bool)> {
    if description.location.type_ != location_type::DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let device = device::get(description.location.id)?;
    let is_own = pool.location == of_device(device);
    Ok((device.ordinal, rules::device_grant(description.flags, is_own)?))
}

api! {
    /// Allocates memory for later work of the stream.
    fn cuMemAllocAsync(address: Out<u64>, size: usize, stream: CUstream) {
        let stream = streams::resolve(stream)?;
        let device = stream.context()?.device.ordinal;
        if let Some(captured) = graphs::of_process().take_alloc(stream.capture_stream(), size, device)? {
            address.set(captured);
            return Ok(());
        }
        graphs::forbid()?;
        address.set(pool::allocate(&*pool_of(&stream)?, size as u64, &stream)?);
    }

    /// Allocates from any pool, whatever the stream's device.
    fn cuMemAllocFromPoolAsync(address: Out<u64>, size: usize, pool: CUmemoryPool, stream: CUstream) {
        let (pool, stream) = (resolve(pool)?, streams::resolve(stream)?);
        let device = stream.context()?.device.ordinal;
        if let Some(captured) = graphs::of_process().take_alloc(stream.capture_stream(), size, device)? {
            address.set(captured);
            return Ok(());
        }
        graphs::forbid()?;
        address.set(pool::allocate(&pool, size as u64, &stream)?);
    }

    /// Frees in stream order, also memory of `cuMemAlloc`. Null is allowed.
    fn cuMemFreeAsync(address: u64, stream: CUstream) {
        let stream = streams::resolve(stream)?;
        if graphs::of_process().take_free(stream.capture_stream(), address)? == CaptureOutcome::Yes {
            return Ok(());
        }
        graphs::forbid()?;
        if graphs::of_process().free(address)? {
            return Ok(());
        }
        allocation::free_async(address, &stream)?;
    }

    /// Returns the pool that a device uses unless another is selected.
    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: i32) {
        state::ready()?;
        pool.set(as_handle(&*pool::default_of_device(device::get(device)?)?));
    }

    /// Returns the pool for allocations on the device.
    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: i32) {
        state::ready()?;
        pool.set(as_handle(&*pool::current(of_device(device::get(device)?))?));
    }

    /// Selects the pool of a device. A pool of another device or of the host fails with 1.
    fn cuDeviceSetMemPool(device: i32, pool: CUmemoryPool) {
        let pool = resolve(pool)?;
        let device = device::get(device).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        pool::select(of_device(device), &pool)?;
    }

    /// Returns the default pool of a location: of a device, of the host, or for managed memory.
    fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) {
        state::ready()?;
        pool.set(as_handle(&*pool::default_of(named(location.0, kind)?)?));
    }

    /// Returns the selected pool of a location, or the default one.
    fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) {
        state::ready()?;
        pool.set(as_handle(&*pool::current(named(location.0, kind)?)?));
    }

    /// Selects the pool of a location. A pool of another location fails with 1.
    fn cuMemSetMemPool(location: In<CUmemLocation>, kind: u32, pool: CUmemoryPool) {
        let pool = resolve(pool)?;
        pool::select(named(location.0, kind)?, &pool)?;
    }

    /// Creates a pool. The size limit is rounded up to whole blocks. No other process can share it.
    fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) {
        graphs::forbid()?;
        state::ready()?;
        let properties = properties.0;
        let wanted = named(properties.location, properties.allocType)?;
        if properties.reserved.iter().any(|byte| *byte != 0) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if properties.handleTypes != 0 {
            return Err(unsupported("a memory pool shared with other processes"));
        }
        pool.set(as_handle(&*pool::create(wanted, properties.maxSize as u64)?));
    }

    /// Destroys a pool; its allocations live until they are freed. A default pool fails with 1.
    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        pool::destroy(pool)?;
    }

    /// Frees unused blocks as long as `keep` bytes stay reserved.
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        resolve(pool)?.trim(keep as u64);
    }

    /// Returns an attribute: flags have 4 bytes, sizes 8.
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) {
        let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
        // SAFETY: the caller's variable is as long as the attribute.
        unsafe { attribute.write(value, pool.attribute(attribute)) }?;
    }

    /// Sets an attribute. High-water marks can only become 0, current sizes cannot be set.
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) {
        let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
        // SAFETY: the caller's variable is as long as the attribute.
        pool.set_attribute(attribute, unsafe { attribute.read(value) }?)?;
    }

    /// Grants access: all grants or none. The pool's own device keeps its access.
    fn cuMemPoolSetAccess(pool: CUmemoryPool, grants: *const CUmemAccessDesc, count: usize) {
        let pool = resolve(pool)?;
        // SAFETY: the caller's array has `count` entries.
        let grants = unsafe { rules::grants(grants, count) }?;
        for (device, allowed) in grants.iter().map(|one| granted(one, &pool)).collect::<Outcome<Vec<_>>>()? {
            pool.grant(device, allowed);
        }
    }

    /// Returns the access of a device, or of the host to its own memory.
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: CUmemoryPool, location: In<CUmemLocation>) {
        let pool = resolve(pool)?;
        let grants = match location.0.type_ {
            location_type::DEVICE => {
                pool.grants(device::get(location.0.id).map_err(|_| CUresult::ERROR_INVALID_VALUE)?.ordinal)
            }
            location_type::HOST => pool.location == PoolLocation::Host,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        flags.set(rules::access(grants));
    }

    /// Fails: no pool can be exported.
    fn cuMemPoolExportToShareableHandle(_handle: *mut c_void, pool: CUmemoryPool, _kind: u32, _flags: u64) {
        resolve(pool)?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }

    /// Fails: no pool can be exported.
    fn cuMemPoolExportPointer(_data: Out<CUmemPoolPtrExportData>, _address: u64) {
        state::ready()?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
}
