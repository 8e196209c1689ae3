//! Stream-ordered allocation, and the pools that it takes from.
//!
//! Codes are those of driver 580: nothing (0 bytes) succeeds and is nowhere, a pointer that is no allocation's start
//! gives 1, and so does one that was freed, whether or not its stream has got there.

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

/// The handle of a pool.
fn as_handle(pool: &Pool) -> CUmemoryPool {
    CUmemoryPool(std::ptr::without_provenance_mut(pool.handle))
}

/// The pool that allocations in a stream come from.
fn pool_of(stream: &Stream) -> Outcome<std::sync::Arc<Pool>> {
    pool::current(of_device(stream.context()?.device))
}

/// The device that an access description names, and whether it is granted access: only devices are.
fn granted(description: &CUmemAccessDesc, pool: &Pool) -> Outcome<(i32, bool)> {
    if description.location.type_ != location_type::DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let device = device::get(description.location.id)?;
    let is_own = pool.location == of_device(device);
    Ok((device.ordinal, rules::device_grant(description.flags, is_own)?))
}

api! {
    /// The address may be used by work that comes after in the stream.
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

    /// From any pool, whatever the stream's device.
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

    /// Memory of `cuMemAlloc` can be freed in a stream as well; null is nothing to free.
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

    /// The pool that stands for the device unless another was chosen.
    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: i32) {
        state::ready()?;
        pool.set(as_handle(&*pool::default_of_device(device::get(device)?)?));
    }

    /// The pool that allocations on the device come from.
    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: i32) {
        state::ready()?;
        pool.set(as_handle(&*pool::current(of_device(device::get(device)?))?));
    }

    /// A pool of another device or of the host gives 1.
    fn cuDeviceSetMemPool(device: i32, pool: CUmemoryPool) {
        let pool = resolve(pool)?;
        let device = device::get(device).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        pool::select(of_device(device), &pool)?;
    }

    /// Of a device, of the host, or managed.
    fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) {
        state::ready()?;
        pool.set(as_handle(&*pool::default_of(named(location.0, kind)?)?));
    }

    /// The one that was chosen last, or the default one.
    fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) {
        state::ready()?;
        pool.set(as_handle(&*pool::current(named(location.0, kind)?)?));
    }

    /// A pool of another place gives 1.
    fn cuMemSetMemPool(location: In<CUmemLocation>, kind: u32, pool: CUmemoryPool) {
        let pool = resolve(pool)?;
        pool::select(named(location.0, kind)?, &pool)?;
    }

    /// The size limit is rounded up to whole blocks; pools are never shared with other processes.
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

    /// What was allocated in it stays until it is freed. A default pool gives 1.
    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        pool::destroy(pool)?;
    }

    /// Frees unused blocks as long as `keep` bytes stay reserved.
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        resolve(pool)?.trim(keep as u64);
    }

    /// Flags have 4 bytes, sizes 8.
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) {
        let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
        // SAFETY: the caller's variable is as long as the attribute.
        unsafe { attribute.write(value, pool.attribute(attribute)) }?;
    }

    /// High marks can be set to 0 only, what is current not at all.
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) {
        let (pool, attribute) = (resolve(pool)?, PoolAttribute::new(attribute)?);
        // SAFETY: the caller's variable is as long as the attribute.
        pool.set_attribute(attribute, unsafe { attribute.read(value) }?)?;
    }

    /// All or nothing, and the pool's own device keeps what it has.
    fn cuMemPoolSetAccess(pool: CUmemoryPool, grants: *const CUmemAccessDesc, count: usize) {
        let pool = resolve(pool)?;
        // SAFETY: the caller's array has `count` entries.
        let grants = unsafe { rules::grants(grants, count) }?;
        for (device, allowed) in grants.iter().map(|one| granted(one, &pool)).collect::<Outcome<Vec<_>>>()? {
            pool.grant(device, allowed);
        }
    }

    /// Of a device, or of the host to its own memory.
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

    /// No pool was made for that.
    fn cuMemPoolExportToShareableHandle(_handle: *mut c_void, pool: CUmemoryPool, _kind: u32, _flags: u64) {
        resolve(pool)?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }

    /// No pool was made for that.
    fn cuMemPoolExportPointer(_data: Out<CUmemPoolPtrExportData>, _address: u64) {
        state::ready()?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
}
