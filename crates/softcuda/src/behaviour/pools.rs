//! Stream-ordered allocation and pools; codes and numbers are those of driver 580 on an H200.

use super::*;
use katydid_cuda_sys::{
    CUgraph, CUgraphExec, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, allocation_type, location_type,
    pointer_attribute, pool_attribute,
};
use katydid_driver_rules::pool::POOL_BLOCK_BYTES;
use std::ptr;

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// A pool of the test's own, so that no other test counts in it.
fn pool() -> CUmemoryPool {
    limited_pool(0)
}

/// A pool of the test's own, with a limit.
fn limited_pool(limit: usize) -> CUmemoryPool {
    let location = CUmemLocation { type_: location_type::DEVICE, id: 0 };
    let properties =
        CUmemPoolProps { allocType: allocation_type::PINNED, location, maxSize: limit, ..Default::default() };
    let mut pool = CUmemoryPool::NULL;
    // SAFETY: locals.
    ok(unsafe { cuMemPoolCreate(&mut pool, &properties) });
    pool
}

fn attribute(pool: CUmemoryPool, attribute: u32) -> u64 {
    let mut value = 0_u64;
    // SAFETY: a local of 8 bytes, which is room for every attribute.
    ok(unsafe { cuMemPoolGetAttribute(pool, attribute, ptr::from_mut(&mut value).cast()) });
    value
}

fn set(pool: CUmemoryPool, attribute: u32, mut value: u64) -> CUresult {
    // SAFETY: a local of 8 bytes.
    unsafe { cuMemPoolSetAttribute(pool, attribute, ptr::from_mut(&mut value).cast()) }
}

fn from(pool: CUmemoryPool, size: usize, stream: CUstream) -> u64 {
    let mut address = 0;
    // SAFETY: a local.
    ok(unsafe { cuMemAllocFromPoolAsync(&mut address, size, pool, stream) });
    address
}

/// Bytes reserved now and used now.
fn counts(pool: CUmemoryPool) -> (u64, u64) {
    (attribute(pool, pool_attribute::RESERVED_MEM_CURRENT), attribute(pool, pool_attribute::USED_MEM_CURRENT))
}

#[test]
fn places_are_packed_into_blocks_that_go_back_at_synchronization() {
    let _context = TestContext::new();
    let (pool, stream) = (pool(), stream(1));
    let addresses = [from(pool, 1000, stream), from(pool, 1, stream), from(pool, 3 << 20, stream)];
    assert_eq!([addresses[1] - addresses[0], addresses[2] - addresses[1]], [1024, 512]);
    assert_eq!(counts(pool), (POOL_BLOCK_BYTES, (3 << 20) + 1001));
    let large = from(pool, 40 << 20, stream);
    assert_eq!((large - addresses[2], counts(pool).0), (3 << 20, 2 * POOL_BLOCK_BYTES));
    // SAFETY: handles and addresses by value.
    unsafe {
        for block in addresses.into_iter().chain([large]) {
            ok(cuMemFreeAsync(block, stream));
        }
        assert_eq!(counts(pool).1, 0);
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(counts(pool), (0, 0));
    assert_eq!(attribute(pool, pool_attribute::USED_MEM_HIGH), (43 << 20) + 1001);
    assert_eq!(attribute(pool, pool_attribute::RESERVED_MEM_HIGH), 2 * POOL_BLOCK_BYTES);
    // SAFETY: a handle by value.
    ok(unsafe { cuMemPoolDestroy(pool) });
}

#[test]
fn the_release_threshold_keeps_memory_and_trimming_gives_it_back() {
    let _context = TestContext::new();
    let (pool, stream) = (pool(), stream(1));
    ok(set(pool, pool_attribute::RELEASE_THRESHOLD, u64::MAX));
    // SAFETY: handles and addresses by value.
    unsafe {
        ok(cuMemFreeAsync(from(pool, 5 << 20, stream), stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(counts(pool), (POOL_BLOCK_BYTES, 0));
        ok(cuMemPoolTrimTo(pool, 1));
        assert_eq!(counts(pool).0, POOL_BLOCK_BYTES);
        ok(cuMemPoolTrimTo(pool, 0));
        assert_eq!(counts(pool).0, 0);
        ok(cuMemPoolDestroy(pool));
    }
}

#[test]
fn a_stream_has_its_own_freed_place_at_once_and_others_when_it_got_there() {
    let _context = TestContext::new();
    let (pool, first, second) = (pool(), stream(1), stream(1));
    // SAFETY: handles and addresses by value.
    unsafe {
        let block = from(pool, 4096, first);
        let gate = StreamGate::new(first);
        ok(cuMemsetD8Async(block, 1, 4096, first));
        ok(cuMemFreeAsync(block, first));
        let elsewhere = from(pool, 4096, second);
        assert_ne!(elsewhere, block);
        assert_eq!(from(pool, 4000, first), block);
        // The old work still has its memory, although that was freed and reused before the work ran.
        ok(cuMemsetD8Async(block, 2, 4000, first));
        gate.open();
        ok(cuStreamSynchronize(first));
        ok(cuMemFreeAsync(elsewhere, second));
        ok(cuStreamSynchronize(second));
        assert_eq!(from(pool, 4096, first), elsewhere);
        ok(cuMemPoolDestroy(pool));
    }
}

/// Both kinds of node that look memory up: a fill, and copies within the device and to the host.
#[test]
fn a_graph_has_its_memory_until_a_free_behind_its_launch_has_its_turn() {
    let _context = TestContext::new();
    let (stream, mut graph, mut built) = (stream(1), CUgraph::NULL, CUgraphExec::NULL);
    let (mut addresses, mut read) = ([0; 2], [0_u8; 16]);
    // SAFETY: locals, and handles and addresses by value.
    unsafe {
        addresses.iter_mut().for_each(|block| ok(cuMemAllocAsync(block, 4096, stream)));
        ok(cuStreamBeginCapture_v2(stream, 1));
        ok(cuMemsetD8Async(addresses[0], 7, 4096, stream));
        ok(cuMemcpyDtoDAsync_v2(addresses[1], addresses[0], 4096, stream));
        ok(cuMemcpyDtoHAsync_v2(read.as_mut_ptr().cast(), addresses[1], read.len(), stream));
        ok(cuStreamEndCapture(stream, &mut graph));
        ok(cuGraphInstantiateWithFlags(&mut built, graph, 0));
        let gate = StreamGate::new(stream);
        ok(cuGraphLaunch(built, stream));
        addresses.into_iter().for_each(|block| ok(cuMemFreeAsync(block, stream)));
        gate.open();
        ok(cuStreamSynchronize(stream));
        assert_eq!(read, [7; 16]);
        ok(cuGraphExecDestroy(built));
        ok(cuGraphDestroy(graph));
    }
}

#[test]
fn freed_memory_is_unknown_at_once_and_freed_once() {
    let _context = TestContext::new();
    let stream = stream(1);
    let (mut block, mut value) = (0, 0_u64);
    // SAFETY: locals of the sizes given; what is refused is not touched.
    unsafe {
        ok(cuMemAllocAsync(&mut block, 0, stream));
        assert_eq!(block, 0);
        ok(cuMemFreeAsync(0, stream));
        assert_eq!(cuMemAllocAsync(&mut block, 1 << 50, stream), CUresult::ERROR_OUT_OF_MEMORY);
        ok(cuMemAllocAsync(&mut block, 1000, stream));
        let ask = |value: &mut u64| {
            cuPointerGetAttribute(ptr::from_mut(value).cast(), pointer_attribute::MEMPOOL_HANDLE, block + 5)
        };
        ok(ask(&mut value));
        let mut default = CUmemoryPool::NULL;
        ok(cuDeviceGetDefaultMemPool(&mut default, 0));
        assert_eq!(value, default.address());
        assert_eq!(cuMemFreeAsync(block + 8, stream), INVALID_VALUE);
        let gate = StreamGate::new(stream);
        ok(cuMemFreeAsync(block, stream));
        assert_eq!([cuMemFreeAsync(block, stream), cuMemFree_v2(block), ask(&mut value)], [INVALID_VALUE; 3]);
        assert_eq!(cuMemsetD8Async(block, 0, 1, stream), INVALID_VALUE);
        gate.open();
        ok(cuMemAllocAsync(&mut block, 1000, stream));
        ok(cuMemFree_v2(block));
        ok(cuMemFreeAsync(device_memory(4096), stream));
    }
}

#[test]
fn a_limit_beyond_all_memory_is_none() {
    let _context = TestContext::new();
    let stream = stream(1);
    for limit in [usize::MAX, usize::MAX - (POOL_BLOCK_BYTES as usize), 2 * POOL_BLOCK_BYTES as usize] {
        let pool = limited_pool(limit);
        let block = from(pool, POOL_BLOCK_BYTES as usize + 1, stream);
        // SAFETY: handles and addresses by value.
        unsafe {
            ok(cuMemFreeAsync(block, stream));
            ok(cuStreamSynchronize(stream));
            ok(cuMemPoolDestroy(pool));
        }
    }
    // SAFETY: by value.
    ok(unsafe { cuStreamDestroy_v2(stream) });
}

#[test]
fn pools_are_made_chosen_and_ended_as_on_a_gpu() {
    let _context = TestContext::new();
    let (pool, mut current, mut flags) = (pool(), CUmemoryPool::NULL, 77);
    let mut at = |type_, id| {
        // SAFETY: locals.
        (unsafe { cuMemPoolGetAccess(&mut flags, pool, &mut CUmemLocation { type_, id }) }, flags)
    };
    assert_eq!([at(1, 0).1, at(2, 0).1], [3, 0]);
    assert_eq!(at(1, 7).0, INVALID_VALUE);
    let grant = |type_, id, flags| {
        let grant = CUmemAccessDesc { location: CUmemLocation { type_, id }, flags };
        // SAFETY: one entry, a local.
        unsafe { cuMemPoolSetAccess(pool, &grant, 1) }
    };
    assert_eq!([grant(1, 0, 1), grant(2, 0, 3)], [CUresult::ERROR_NOT_SUPPORTED; 2]);
    assert_eq!([grant(1, 0, 0), grant(1, 7, 3)], [CUresult::ERROR_INVALID_DEVICE; 2]);
    assert_eq!([grant(1, 0, 3), grant(1, 0, 2)], [CUresult::SUCCESS, INVALID_VALUE]);
    assert_eq!([set(pool, 5, 0), set(pool, 6, 7), set(pool, 9, 0), set(pool, 0, 0)], [INVALID_VALUE; 4]);
    ok(set(pool, 2, 5));
    assert_eq!(attribute(pool, 2), 1);
    // SAFETY: locals, and handles by value.
    unsafe {
        let mut host = CUmemLocation { type_: location_type::HOST, id: 0 };
        ok(cuMemGetDefaultMemPool(&mut current, &mut host, 1));
        assert_eq!(cuMemSetMemPool(&mut host, 1, pool), INVALID_VALUE);
        assert_eq!([cuMemGetMemPool(&mut current, &mut host, 3), cuDeviceSetMemPool(7, pool)], [INVALID_VALUE; 2]);
        ok(cuDeviceGetDefaultMemPool(&mut current, 0));
        assert_eq!(cuMemPoolDestroy(current), INVALID_VALUE);
        let block = from(pool, 100, CUstream::NULL);
        ok(cuMemPoolDestroy(pool));
        assert_eq!(cuMemPoolTrimTo(pool, 0), INVALID_VALUE);
        ok(cuMemFreeAsync(block, CUstream::NULL));
        ok(cuCtxSynchronize());
    }
}
