//! Managed memory and registration of host memory; codes are those of driver 580 on an H200.

use super::*;
use katydid_cuda_sys::{CUmemLocation, CUmemcpyAttributes, access_order, pointer_attribute};
use std::ptr;

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

fn managed(size: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a local.
    ok(unsafe { cuMemAllocManaged(&mut address, size, 1) });
    address
}

/// Returns the first number of a range attribute.
fn range(address: u64, length: usize, attribute: u32) -> i32 {
    let mut value = -7777;
    // SAFETY: a local of 4 bytes.
    ok(unsafe { cuMemRangeGetAttribute(ptr::from_mut(&mut value).cast(), 4, attribute, address, length) });
    value
}

#[test]
fn host_and_device_use_managed_memory_at_one_address() {
    let _context = TestContext::new();
    let address = managed(4096);
    let pointer = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let (mut bytes, mut host) = ([0_u8; 4], 0_u64);
    // SAFETY: the memory was allocated above, with room for what is done to it.
    unsafe {
        pointer.write_bytes(5, 4096);
        ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, 4));
        ok(cuMemsetD8_v2(address, 9, 100));
        ok(cuCtxSynchronize());
        assert_eq!((bytes, pointer.read(), pointer.add(100).read()), ([5; 4], 9, 5));
        ok(cuPointerGetAttribute(ptr::from_mut(&mut host).cast(), pointer_attribute::HOST_POINTER, address + 3));
        assert_eq!(host, address + 3);
        let mut flags = 0;
        ok(cuMemHostGetFlags(&mut flags, pointer.cast()));
        assert_eq!(flags, 2);
        assert_eq!(cuMemHostGetDevicePointer_v2(&mut host, pointer.cast(), 0), INVALID_VALUE);
        // Farther than any neighbour of the block reaches: other tests have memory at the same time.
        assert_eq!(cuMemsetD8_v2(address + 4095, 0, 1 << 45), INVALID_VALUE);
        ok(cuMemFree_v2(address));
        for (size, flags) in [(0, 1), (100, 0), (100, 3), (100, 4)] {
            assert_eq!(cuMemAllocManaged(&mut host, size, flags), INVALID_VALUE);
        }
        assert_eq!(cuMemAllocManaged(&mut host, 1 << 50, 1), CUresult::ERROR_OUT_OF_MEMORY);
    }
}

#[test]
fn advice_and_prefetching_are_told_back() {
    let _context = TestContext::new();
    let address = managed(10_000);
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8].map(|id| range(address, 10_000, id)), [0, -2, -2, -2, 0, -2, 0, -2]);
    // SAFETY: addresses by value, and locals.
    unsafe {
        ok(cuMemAdvise(address, 5000, 1, 0));
        assert_eq!((range(address, 10_000, 1), range(address, 4000, 1)), (0, 1));
        ok(cuMemAdvise(address, 10_000, 3, 0));
        ok(cuMemAdvise(address, 10_000, 5, 0));
        ok(cuMemAdvise(address, 10_000, 5, -1));
        assert_eq!([2, 5, 6].map(|id| range(address, 10_000, id)), [0, 1, 0]);
        let mut ordinals = [7; 3];
        ok(cuMemRangeGetAttribute(ordinals.as_mut_ptr().cast(), 12, 3, address, 10_000));
        assert_eq!(ordinals, [0, -1, -2]);
        assert_eq!(cuMemRangeGetAttribute(ordinals.as_mut_ptr().cast(), 8, 1, address, 10_000), INVALID_VALUE);
        ok(cuMemPrefetchAsync(address, 10_000, -1, CUstream::NULL));
        assert_eq!([4, 7, 8].map(|id| range(address, 10_000, id)), [-1, 2, -1]);
        let node = CUmemLocation { type_: 3, id: 0 };
        ok(cuMemPrefetchAsync_v2(address, 10_000, node, 0, CUstream::NULL));
        assert_eq!([4, 7, 8].map(|id| range(address, 10_000, id)), [-1, 3, 0]);
        assert_eq!(cuMemPrefetchAsync_v2(address, 10_000, node, 1, CUstream::NULL), INVALID_VALUE);
        assert_eq!(cuMemPrefetchAsync(address, 10_000, 9, CUstream::NULL), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(cuMemPrefetchAsync(address, 20_000, 0, CUstream::NULL), INVALID_VALUE);
        assert_eq!(cuMemPrefetchAsync(device_memory(100), 100, 0, CUstream::NULL), INVALID_VALUE);
        ok(cuMemFree_v2(address));
    }
}

#[test]
fn advice_for_memory_outlives_its_neighbours() {
    let _context = TestContext::new();
    let blocks: Vec<u64> = (0..8).map(|_| managed(100)).collect();
    // SAFETY: addresses by value.
    unsafe {
        ok(cuMemAdvise(blocks[0], 100, 1, 0));
        for &neighbour in &blocks[1..] {
            ok(cuMemFree_v2(neighbour));
        }
        assert_eq!(range(blocks[0], 100, 1), 1);
        ok(cuMemFree_v2(blocks[0]));
    }
}

#[test]
fn memory_is_attached_as_a_whole_and_to_streams_of_the_program() {
    let _context = TestContext::new();
    let (address, stream) = (managed(100), stream(1));
    // SAFETY: handles and addresses by value.
    unsafe {
        ok(cuStreamAttachMemAsync(stream, address, 0, 4));
        ok(cuStreamAttachMemAsync(stream, address, 100, 1));
        assert_eq!(cuStreamAttachMemAsync(stream, address, 5, 1), INVALID_VALUE);
        assert_eq!(cuStreamAttachMemAsync(stream, address + 4, 0, 1), INVALID_VALUE);
        assert_eq!(cuStreamAttachMemAsync(stream, address, 0, 3), INVALID_VALUE);
        ok(cuMemFree_v2(address));
    }
}

#[test]
fn registration_tells_its_flags_and_knows_what_it_may_take() {
    let _context = TestContext::new();
    let mut own = vec![0_u8; 16384];
    let pointer = own.as_mut_ptr().cast::<c_void>();
    // SAFETY: locals of the sizes given; what is refused is not touched.
    unsafe {
        for (flags, shown) in [(0, 2), (1, 3), (8, 2), (11, 3)] {
            let mut value = 99;
            ok(cuMemHostRegister_v2(pointer, 8192, flags));
            ok(cuMemHostGetFlags(&mut value, pointer));
            assert_eq!(value, shown);
            assert_eq!(cuMemHostUnregister(pointer.byte_add(1)), INVALID_VALUE);
            ok(cuMemHostUnregister(pointer));
        }
        assert_eq!([4, 16].map(|flags| cuMemHostRegister_v2(pointer, 8192, flags)), [INVALID_VALUE; 2]);
        let mut pinned = ptr::null_mut();
        ok(cuMemHostAlloc(&mut pinned, 4096, 5));
        let mut value = 99;
        ok(cuMemHostGetFlags(&mut value, pinned));
        assert_eq!(value, 7);
        assert_eq!([cuMemHostRegister_v2(pinned, 4096, 0), cuMemHostUnregister(pinned)], [INVALID_VALUE; 2]);
        ok(cuMemFreeHost(pinned));
    }
}

#[test]
fn a_batch_of_copies_is_checked_whole_and_names_the_wrong_one() {
    let _context = TestContext::new();
    let (stream, memory) = (stream(1), device_memory(300));
    let (bytes, mut back, mut wrong) = ([1_u8, 2, 3], [0_u8; 300], 77);
    let from = |at: usize| ptr::from_ref(&bytes[at]).expose_provenance() as u64;
    let mut targets = [memory, memory + 100, memory + 200];
    let (mut sources, mut sizes, mut firsts) = ([from(0), from(1), from(2)], [1, 1, 1], [0, 1, 2]);
    let mut kinds = [access_order::STREAM, access_order::ANY, access_order::DURING_API_CALL]
        .map(|srcAccessOrder| CUmemcpyAttributes { srcAccessOrder, ..Default::default() });
    let mut copy = |targets: &mut [u64; 3], sizes: &mut [usize; 3], count, many, stream| {
        let (targets, sources, sizes) = (targets.as_mut_ptr(), sources.as_mut_ptr(), sizes.as_mut_ptr());
        let (kinds, firsts) = (kinds.as_mut_ptr(), firsts.as_mut_ptr());
        // SAFETY: arrays of three entries each.
        let code =
            unsafe { cuMemcpyBatchAsync(targets, sources, sizes, count, kinds, firsts, many, &mut wrong, stream) };
        (code, wrong)
    };
    assert_eq!(copy(&mut targets, &mut sizes, 3, 3, stream), (CUresult::SUCCESS, usize::MAX));
    assert_eq!(copy(&mut targets, &mut sizes, 3, 3, CUstream::NULL), (INVALID_VALUE, usize::MAX));
    assert_eq!(copy(&mut targets, &mut sizes, 3, 0, stream), (INVALID_VALUE, usize::MAX));
    assert_eq!(copy(&mut targets, &mut sizes, 0, 3, stream), (INVALID_VALUE, usize::MAX));
    assert_eq!(copy(&mut targets, &mut [1, 0, 1], 3, 3, stream), (INVALID_VALUE, 1));
    assert_eq!(copy(&mut [memory, memory, memory + 299], &mut [1, 1, 2], 3, 3, stream), (INVALID_VALUE, 2));
    // SAFETY: a local of that size.
    unsafe {
        ok(cuStreamSynchronize(stream));
        ok(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), memory, 300));
    }
    assert_eq!([back[0], back[100], back[200]], bytes);
}
