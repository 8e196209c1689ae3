//! What calls do with pools and with memory out of them.

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

/// `cuMemPoolDestroy`: the handle ends, and the memory once everything in it is freed. Default pools cannot end.
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

/// An address of `size` bytes that work in `stream` may use from now on; 0 bytes are nowhere.
///
/// # Errors
///
/// `OUT_OF_MEMORY` after everything that was freed has been waited for.
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

/// The pool that a range came from, also one whose handle has ended.
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
