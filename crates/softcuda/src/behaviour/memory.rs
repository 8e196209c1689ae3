//! Memory, copies, fills, and queries about addresses.

use super::*;
use katydid_cuda_sys::{CUDA_MEMCPY2D, memory_type, pointer_attribute};
use std::ptr;

#[test]
fn bytes_go_up_and_come_down() {
    let _context = TestContext::new();
    let (up, mut down) = ([1_u8, 2, 3, 4], [0_u8; 4]);
    let memory = device_memory(4);
    // SAFETY: locals of the sizes given.
    unsafe {
        ok(cuMemcpyHtoD_v2(memory, up.as_ptr().cast(), 4));
        ok(cuMemcpyDtoH_v2(down.as_mut_ptr().cast(), memory, 4));
        assert_eq!(down, up);
        ok(cuMemsetD16_v2(memory, 0x0807, 2));
        ok(cuMemcpy(ptr::from_mut(&mut down).expose_provenance() as u64, memory, 4));
    }
    assert_eq!(down, [7, 8, 7, 8]);
}

#[test]
fn copies_outside_of_an_allocation_are_refused() {
    let _context = TestContext::new();
    let mut bytes = [0_u8; 32];
    let memory = device_memory(16);
    let host = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: locals of the sizes given; what is refused is not touched.
    unsafe {
        assert_eq!(cuMemcpyHtoD_v2(memory, host, 17), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(memory + 16, host, 1), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemcpyDtoH_v2(host, 0x1234_5678, 1), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(memory, ptr::null(), 1), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemsetD32_v2(memory + 2, 0, 1), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemsetD8_v2(memory, 0, 17), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemFree_v2(memory + 8), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemFree_v2(0x1234_5678), CUresult::ERROR_INVALID_VALUE);
        ok(cuMemFree_v2(memory));
        ok(cuMemFree_v2(0));
    }
}

#[test]
fn a_pageable_source_may_change_after_the_call() {
    let _context = TestContext::new();
    let stream = stream(0);
    let (mut up, mut down) = (7_u32, 0_u32);
    let memory = device_memory(4);
    let gate = StreamGate::new(stream);
    // SAFETY: locals of the sizes given.
    unsafe {
        ok(cuMemcpyHtoDAsync_v2(memory, ptr::from_ref(&up).cast(), 4, stream));
        up = 8;
        gate.open();
        ok(cuMemcpyDtoHAsync_v2(ptr::from_mut(&mut down).cast(), memory, 4, stream));
    }
    assert_eq!((up, down), (8, 7));
}

#[test]
fn rows_are_copied_with_their_pitches() {
    let _context = TestContext::new();
    let up: Vec<u8> = (0..12).collect();
    let mut down = [0_u8; 6];
    let (mut memory, mut pitch) = (0, 0);
    // SAFETY: locals of the sizes given.
    unsafe {
        ok(cuMemAllocPitch_v2(&mut memory, &mut pitch, 4, 3, 4));
        assert_eq!(pitch, 512);
        let to_device = CUDA_MEMCPY2D {
            srcMemoryType: memory_type::HOST,
            srcHost: up.as_ptr().cast(),
            srcPitch: 4,
            dstMemoryType: memory_type::DEVICE,
            dstDevice: memory,
            dstPitch: pitch,
            WidthInBytes: 4,
            Height: 3,
            ..Default::default()
        };
        ok(cuMemcpy2D_v2(&to_device));
        let inner_columns = CUDA_MEMCPY2D {
            srcMemoryType: memory_type::DEVICE,
            srcDevice: memory,
            srcPitch: pitch,
            srcXInBytes: 1,
            dstMemoryType: memory_type::HOST,
            dstHost: down.as_mut_ptr().cast(),
            dstPitch: 2,
            WidthInBytes: 2,
            Height: 3,
            ..Default::default()
        };
        ok(cuMemcpy2D_v2(&inner_columns));
        let too_wide = CUDA_MEMCPY2D { dstPitch: 1, ..inner_columns };
        assert_eq!(cuMemcpy2D_v2(&too_wide), CUresult::ERROR_INVALID_VALUE);
    }
    assert_eq!(down, [1, 2, 5, 6, 9, 10]);
}

#[test]
fn host_memory_is_registered_once_and_freed_once() {
    let _context = TestContext::new();
    let mut own = vec![0_u8; 8192];
    let pointer = own.as_mut_ptr().cast::<c_void>();
    let (mut pinned, mut device) = (ptr::null_mut(), 0);
    // SAFETY: locals of the sizes given.
    unsafe {
        ok(cuMemHostRegister_v2(pointer, 8192, 0));
        assert_eq!(cuMemHostRegister_v2(pointer, 16, 0), CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        ok(cuMemHostGetDevicePointer_v2(&mut device, pointer, 0));
        assert_eq!(device, pointer.addr() as u64);
        ok(cuMemsetD8_v2(device, 9, 8192));
        ok(cuCtxSynchronize());
        ok(cuMemHostUnregister(pointer));
        assert_eq!(cuMemHostUnregister(pointer), CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED);
        let nowhere = ptr::without_provenance_mut(0x10_0000);
        assert_eq!(cuMemHostRegister_v2(nowhere, 4096, 0), CUresult::ERROR_INVALID_VALUE);
        ok(cuMemHostAlloc(&mut pinned, 100, 0));
        ok(cuMemFreeHost(pinned));
        assert_eq!(cuMemFreeHost(pinned), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuMemHostAlloc(&mut pinned, 1 << 50, 0), CUresult::ERROR_OUT_OF_MEMORY);
    }
    assert!(own.iter().all(|byte| *byte == 9));
}

#[test]
fn attributes_of_pointers_are_written_at_their_widths() {
    let scene = TestContext::new();
    // Not a whole number of granules, so that no other test has memory right behind it.
    let memory = device_memory(0xff8);
    let (mut kind, mut context, mut start) = ([0xffff_ffff_u32; 2], 0_u64, 0_u64);
    let (mut ordinal, mut size) = (7_i32, 7_u64);
    // SAFETY: locals of the attributes' widths.
    unsafe {
        let ask = |to: *mut c_void, attribute| cuPointerGetAttribute(to, attribute, memory + 5);
        ok(ask(kind.as_mut_ptr().cast(), pointer_attribute::MEMORY_TYPE));
        ok(ask(ptr::from_mut(&mut context).cast(), pointer_attribute::CONTEXT));
        ok(ask(ptr::from_mut(&mut start).cast(), pointer_attribute::RANGE_START_ADDR));
        let past = cuPointerGetAttribute(kind.as_mut_ptr().cast(), pointer_attribute::MEMORY_TYPE, memory + 0xff8);
        assert_eq!(past, CUresult::ERROR_INVALID_VALUE);
        let mut kinds = [pointer_attribute::DEVICE_ORDINAL, pointer_attribute::RANGE_SIZE];
        let mut outputs = [ptr::from_mut(&mut ordinal).cast(), ptr::from_mut(&mut size).cast()];
        ok(cuPointerGetAttributes(2, kinds.as_mut_ptr(), outputs.as_mut_ptr(), 0x7777));
    }
    assert_eq!((kind, context, start), ([2, 0xffff_ffff], scene.0.address(), memory));
    assert_eq!((ordinal, size), (-2, 7));
}
