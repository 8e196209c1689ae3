//! Implements calls on pools and on their memory.

use std::sync::Arc;

use katydid_cuda_sys::{CUmemoryPool, CUresult};
use katydid_driver_rules::pool::PoolLocation;

use super::choice;
use super::object::{POOLS, Pool};
use crate::ffi::Outcome;
use crate::memory::space::{self, RangeKind, Region};
use crate::process::state;
use crate::sync::stream::Stream;

/// The pool behind a handle.
pub(crate) fn resolve(handle: CUmemoryPool) -> Outcome<Arc<Pool>> {
    state::ready()?;
    POOLS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemPoolCreate`.
pub(crate) fn create(location: PoolLocation, limit: u64) -> Outcome<Arc<Pool>> {
    Pool::new(location, limit)
}

/// `cuMemPoolDestroy`: ends the handle, and the memory once all of it is freed. Default pools cannot end.
pub(crate) fn destroy(handle: CUmemoryPool) -> Outcome {
    let pool = resolve(handle)?;
    if choice::is_default(&pool) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    choice::forget(&pool);
    POOLS.remove(pool.handle);
    if pool.state().holds_ranges() {
        choice::keep_until_empty(pool);
    }
    Ok(())
}

/// Returns the address of `size` bytes that work in `stream` may use from now on; 0 bytes have no address.
///
/// # Errors
///
/// `OUT_OF_MEMORY`, after waiting for everything that was freed.
pub(crate) fn allocate(pool: &Pool, size: u64, stream: &Stream) -> Outcome<u64> {
    if size == 0 {
        return Ok(0);
    }
    pool.find_range(size, stream.id).or_else(|_| {
        pool.wait_for_freed();
        choice::trim(pool.device(), 0);
        pool.find_range(size, stream.id)
    })
}

/// Returns the pool of a range, even if its handle has ended.
fn owner(region: &Region) -> Outcome<Arc<Pool>> {
    let RangeKind::Pooled { pool, .. } = region.kind else { return Err(CUresult::ERROR_INVALID_VALUE) };
    let pool_object = POOLS.get(pool).or_else(|| choice::ended_pool(pool));
    pool_object.ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemFreeAsync` of a range that came from a pool.
pub(crate) fn free_async(region: &Region, stream: &Arc<Stream>) -> Outcome {
    owner(region)?.free_in(region, stream)
}

/// `cuMemFree` of a range that came from a pool, once no work can use it.
pub(crate) fn free_now(region: &Region) -> Outcome {
    let pool = owner(region)?;
    space::write().remove_same(region.start, region.id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    pool.state().free(region.start, region.size);
    Ok(())
}
