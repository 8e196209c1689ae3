//! Modules, libraries, launches, and the state after a fault.

use super::*;
use katydid_cuda_sys::{CUfunction, CUkernel, CUlibrary, CUmodule, function_attribute};
use std::ptr;

/// `add` writes `a + *counter` to `out[thread]`; `poke` stores to the address that it gets; `counter` starts at 5.
const KERNELS_PTX: &std::ffi::CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry add(.param .u64 out, .param .u32 a)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [a];
    ld.global.u32 %r2, [counter];
    add.s32 %r3, %r1, %r2;
    mov.u32 %r4, %tid.x;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r3;
    ret;
}
.visible .entry poke(.param .u64 where)
.maxntid 64, 1, 1
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

fn module() -> CUmodule {
    let mut module = CUmodule::NULL;
    // SAFETY: a local, and a complete text.
    ok(unsafe { cuModuleLoadData(&mut module, KERNELS_PTX.as_ptr().cast()) });
    module
}

fn function(module: CUmodule, name: &std::ffi::CStr) -> CUfunction {
    let mut function = CUfunction::NULL;
    // SAFETY: a local, and a text.
    ok(unsafe { cuModuleGetFunction(&mut function, module, name.as_ptr()) });
    function
}

/// One block of `threads` threads with these parameters.
fn launch<const N: usize>(function: CUfunction, threads: u32, mut params: [*mut c_void; N]) -> CUresult {
    let values = params.as_mut_ptr();
    // SAFETY: the test passes a pointer for each parameter.
    unsafe { cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, CUstream::NULL, values, ptr::null_mut()) }
}

fn poke(function: CUfunction, mut address: u64) -> CUresult {
    launch(function, 1, [ptr::from_mut(&mut address).cast()])
}

fn word_at(address: u64) -> u32 {
    let mut word = 0_u32;
    // SAFETY: a local of 4 bytes.
    ok(unsafe { cuMemcpyDtoH_v2(ptr::from_mut(&mut word).cast(), address, 4) });
    word
}

#[test]
fn a_kernel_computes_with_its_parameters_and_variables() {
    let _context = TestContext::new();
    let (module, mut out, mut a) = (module(), device_memory(64), 10_u32);
    let (mut counter, mut size) = (0, 0);
    // SAFETY: locals, and texts.
    unsafe {
        ok(cuModuleGetGlobal_v2(&mut counter, &mut size, module, c"counter".as_ptr()));
        assert_eq!((size, word_at(counter)), (4, 5));
        ok(cuMemsetD32_v2(counter, 6, 1));
        let missing = cuModuleGetGlobal_v2(&mut counter, &mut size, module, c"nothing".as_ptr());
        assert_eq!(missing, CUresult::ERROR_NOT_FOUND);
    }
    let add = function(module, c"add");
    assert_eq!(add, function(module, c"add"));
    ok(launch(add, 16, [ptr::from_mut(&mut out).cast(), ptr::from_mut(&mut a).cast()]));
    assert_eq!([word_at(out), word_at(out + 60)], [16, 16]);
}

#[test]
fn launches_that_cannot_be_are_refused_at_the_call() {
    let _context = TestContext::new();
    let poke = function(module(), c"poke");
    let mut address = device_memory(4);
    let value = ptr::from_mut(&mut address).cast();
    assert_eq!(launch(poke, 0, [value]), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(poke, 65, [value]), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(poke, 1, [ptr::null_mut()]), CUresult::ERROR_INVALID_VALUE);
    let junk = CUfunction(ptr::without_provenance_mut(0xdead_0000));
    assert_eq!(launch(junk, 1, [value]), CUresult::ERROR_INVALID_HANDLE);
    // SAFETY: handles by value.
    unsafe {
        let most = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(cuFuncSetAttribute(poke, most, 1 << 20), CUresult::ERROR_INVALID_VALUE);
        ok(cuFuncSetAttribute(poke, most, 100_000));
    }
    ok(launch(poke, 64, [value]));
    assert_eq!(word_at(address), 7);
}

#[test]
fn a_fault_sticks_to_its_context_and_to_no_other() {
    let healthy = TestContext::new();
    let memory = device_memory(4);
    {
        let _broken = TestContext::new();
        let (function, mut nowhere) = (function(module(), c"poke"), 0);
        // SAFETY: addresses by value, and locals.
        unsafe {
            // Reserved and not mapped, so that no other test can get memory there meanwhile.
            ok(cuMemAddressReserve(&mut nowhere, 2 << 20, 0, 0, 0));
            ok(poke(function, nowhere));
            assert_eq!(cuCtxSynchronize(), CUresult::ERROR_ILLEGAL_ADDRESS);
            let mut address = 0;
            assert_eq!(cuMemAlloc_v2(&mut address, 4), CUresult::ERROR_ILLEGAL_ADDRESS);
            assert_eq!(poke(function, memory), CUresult::ERROR_ILLEGAL_ADDRESS);
            assert_eq!(cuStreamQuery(CUstream::NULL), CUresult::ERROR_ILLEGAL_ADDRESS);
        }
    }
    // SAFETY: a handle by value.
    ok(unsafe { cuCtxSetCurrent(healthy.0) });
    ok(poke(function(module(), c"poke"), memory));
    assert_eq!(word_at(memory), 7);
}

#[test]
fn a_library_serves_every_context_and_needs_none_to_be_looked_into() {
    let (mut library, mut kernel, mut count) = (CUlibrary::NULL, CUkernel::NULL, 0);
    let (null, nulls) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: locals, and complete texts.
    unsafe {
        ok(cuInit(0));
        ok(cuLibraryLoadData(&mut library, KERNELS_PTX.as_ptr().cast(), null, nulls, 0, null, nulls, 0));
        ok(cuLibraryGetKernel(&mut kernel, library, c"poke".as_ptr()));
        let missing = cuLibraryGetKernel(&mut kernel, library, c"nothing".as_ptr());
        assert_eq!(missing, CUresult::ERROR_NOT_FOUND);
        ok(cuLibraryGetKernelCount(&mut count, library));
        assert_eq!(count, 2);
        for _ in 0..2 {
            let _context = TestContext::new();
            let (memory, mut function) = (device_memory(4), CUfunction::NULL);
            ok(poke(CUfunction(kernel.0), memory));
            assert_eq!(word_at(memory), 7);
            ok(cuKernelGetFunction(&mut function, kernel));
            assert_ne!(function.0, kernel.0);
            ok(poke(function, memory));
            assert_eq!(
                cuFuncGetParamInfo(CUfunction(kernel.0), 0, null.cast(), null.cast()),
                CUresult::ERROR_INVALID_HANDLE
            );
            let (mut offset, mut size) = (9, 9);
            ok(cuKernelGetParamInfo(kernel, 0, &mut offset, &mut size));
            assert_eq!((offset, size), (0, 8));
            let past = cuKernelGetParamInfo(kernel, 1, &mut offset, &mut size);
            assert_eq!((past, offset, size), (CUresult::ERROR_INVALID_VALUE, 0, 8));
        }
        ok(cuLibraryUnload(library));
        assert_eq!(cuLibraryUnload(library), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuKernelGetLibrary(&mut library, kernel), CUresult::ERROR_INVALID_HANDLE);
    }
}

#[test]
fn a_library_tells_of_a_bad_image_at_its_first_kernel_and_a_module_at_once() {
    let _context = TestContext::new();
    let (mut library, mut kernel, mut module) = (CUlibrary::NULL, CUkernel::NULL, CUmodule::NULL);
    let (null, nulls) = (ptr::null_mut(), ptr::null_mut());
    let junk = c"nonsense".as_ptr().cast();
    // SAFETY: locals, and texts.
    unsafe {
        ok(cuLibraryLoadData(&mut library, junk, null, nulls, 0, null, nulls, 0));
        let first = cuLibraryGetKernel(&mut kernel, library, c"k".as_ptr());
        assert_eq!(first, CUresult::ERROR_INVALID_IMAGE);
        assert_eq!(cuModuleLoadData(&mut module, junk), CUresult::ERROR_INVALID_IMAGE);
        assert_eq!(cuModuleLoadData(&mut module, ptr::null()), CUresult::ERROR_INVALID_VALUE);
    }
}

#[test]
fn unloading_ends_a_module_and_its_functions() {
    let _context = TestContext::new();
    let module = module();
    let function = function(module, c"poke");
    // SAFETY: handles by value.
    unsafe {
        ok(cuFuncLoad(function));
        ok(cuModuleUnload(module));
        assert_eq!(cuModuleUnload(module), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuFuncLoad(function), CUresult::ERROR_INVALID_HANDLE);
    }
}
