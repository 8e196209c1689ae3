//! Launch attributes and cooperative launches; codes are those of driver 580 on an H200.

use super::*;
use katydid_cuda_sys::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUmodule, function_attribute,
};
use std::ptr;

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// `together`: block 1 writes, block 0 waits for it; only with both on the device at once does it end.
const KERNELS_PTX: &std::ffi::CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry none() { ret; }
.visible .entry square() .reqntid 8, 8 { ret; }
.visible .entry together(.param .u64 word)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [word];
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    st.volatile.global.u32 [%rd1], 7;
    ret;
WAIT:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.ne.u32 %p2, %r2, 7;
    @%p2 bra WAIT;
    ret;
}
";

fn function(name: &std::ffi::CStr) -> CUfunction {
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    // SAFETY: locals, and complete texts.
    unsafe {
        ok(cuModuleLoadData(&mut module, KERNELS_PTX.as_ptr().cast()));
        ok(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    }
    function
}

fn cooperative(function: CUfunction, blocks: u32, threads: u32, shared: u32, params: *mut *mut c_void) -> CUresult {
    // SAFETY: the test passes a pointer for each parameter.
    unsafe { cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, shared, CUstream::NULL, params) }
}

fn multiprocessors() -> u32 {
    let mut count = 0;
    // SAFETY: a local.
    ok(unsafe { cuDeviceGetAttribute(&mut count, 16, 0) });
    count as u32
}

#[test]
fn blocks_of_a_cooperative_grid_may_wait_for_each_other() {
    let _context = TestContext::new();
    let (together, mut word, mut blocks) = (function(c"together"), device_memory(4), 0_u32);
    let mut params = [ptr::from_mut(&mut word).cast()];
    // SAFETY: addresses by value, and a local of 4 bytes.
    unsafe {
        ok(cuMemsetD32_v2(word, 0, 1));
        ok(cooperative(together, 2, 32, 0, params.as_mut_ptr()));
        ok(cuMemcpyDtoH_v2(ptr::from_mut(&mut blocks).cast(), word, 4));
    }
    assert_eq!(blocks, 7);
    assert_eq!(cooperative(together, 2, 32, 0, ptr::null_mut()), INVALID_VALUE);
}

#[test]
fn a_cooperative_grid_must_fit_the_device() {
    let _context = TestContext::new();
    let (none, most) = (function(c"none"), multiprocessors() * 32);
    let large = CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    let codes = [(0, 32, 0), (most, 32, 0), (most + 1, 32, 0), (most / 16 + 1, 1024, 0), (1, 32, 50_000)]
        .map(|(blocks, threads, shared)| cooperative(none, blocks, threads, shared, ptr::null_mut()));
    assert_eq!(codes, [INVALID_VALUE, CUresult::SUCCESS, large, large, large]);
    assert_eq!(cooperative(CUfunction::NULL, 1, 1, 0, ptr::null_mut()), CUresult::ERROR_INVALID_HANDLE);
    let launch_on = |hStream| CUDA_LAUNCH_PARAMS {
        function: none,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        hStream,
        ..Default::default()
    };
    let stream = stream(1);
    let launch = |mut list: [CUDA_LAUNCH_PARAMS; 2], count, flags| {
        // SAFETY: a list of two.
        unsafe { cuLaunchCooperativeKernelMultiDevice(list.as_mut_ptr(), count, flags) }
    };
    ok(launch([launch_on(stream), launch_on(stream)], 1, 0));
    assert_eq!(
        [(2, 0), (0, 0), (1, 4)].map(|(count, flags)| launch([launch_on(stream); 2], count, flags)),
        [INVALID_VALUE; 3]
    );
    assert_eq!(launch([launch_on(CUstream::NULL); 2], 1, 0), CUresult::ERROR_INVALID_HANDLE);
}

#[test]
fn launch_attributes_are_taken_or_refused_as_on_a_gpu() {
    let _context = TestContext::new();
    let none = function(c"none");
    let launch = |id: u32, first: u64, blocks: u32| {
        let mut attribute = CUlaunchAttribute { id, ..Default::default() };
        attribute.value[0] = first;
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            attrs: &mut attribute,
            numAttrs: 1,
            ..Default::default()
        };
        // SAFETY: one attribute, a local; the kernel has no parameters.
        unsafe { cuLaunchKernelEx(&config, none, ptr::null_mut(), ptr::null_mut()) }
    };
    let zeros: Vec<u32> = (0..20).map(|id| launch(id, 0, 1).0).collect();
    assert_eq!(zeros, [0, 0, 0, 1, 0, 0, 0, 400, 0, 0, 0, 0, 400, 801, 0, 1, 0, 1, 1, 1]);
    assert_eq!([launch(8, 99, 1), launch(14, 100, 1), launch(2, 1, 1)], [CUresult::SUCCESS; 3]);
    assert_eq!([launch(14, 101, 1), launch(14, u64::from(u32::MAX), 1), launch(3, 1, 1)], [INVALID_VALUE; 3]);
    assert_eq!(launch(2, 1, multiprocessors() * 32 + 1), CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

#[test]
fn required_blocks_and_attributes_of_functions_are_kept() {
    let _context = TestContext::new();
    let (none, square) = (function(c"none"), function(c"square"));
    let launch = |x, y| {
        let (stream, nulls) = (CUstream::NULL, ptr::null_mut());
        // SAFETY: no parameters.
        unsafe { cuLaunchKernel(square, 1, 1, 1, x, y, 1, 0, stream, nulls, nulls) }
    };
    assert_eq!([launch(8, 8), launch(64, 1), launch(16, 8)], [CUresult::SUCCESS, INVALID_VALUE, INVALID_VALUE]);
    let most = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let set = |attribute, value| {
        // SAFETY: numbers and a handle.
        unsafe { cuFuncSetAttribute(none, attribute, value) }
    };
    let valid_values = [(most, 232_448), (most, 49_152), (9, -1), (9, 50), (14, 1), (15, 2)];
    let refused = [(0, 5), (1, 5), (4, 5), (most, -1), (most, 232_449), (9, -2), (9, 101), (10, 1), (15, 3), (16, 0)];
    assert_eq!(valid_values.map(|(attribute, value)| set(attribute, value)), [CUresult::SUCCESS; 6]);
    assert_eq!(refused.map(|(attribute, value)| set(attribute, value)), [INVALID_VALUE; 10]);
}
