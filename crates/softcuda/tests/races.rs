//! `KATYDID_SOFT_RACES`: a program whose blocks add to the same words gets a report of the race by name, only on request.
//!
//! This is a separate binary, since it is also that program, with kernels that `hold` would stop.

#![expect(unsafe_code, reason = "calls functions of a library by name")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::ptr::null_mut;

use katydid_cuda_sys::CUresult;

/// A kernel in which each thread of each block adds 1 to the word of its number, not atomically: line 6 loads, line 8 stores.
const PTX: &CStr = c".version 7.0
.target sm_75
.visible .entry count(.param .u64 words) {
    .reg .b32 %r<3>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [words]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;
    ld.global.u32 %r2, [%d2];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%d2], %r2;
    ret;
}";

/// Returns a symbol of the library as a function.
fn function<F: Copy>(name: &str) -> F {
    let path = std::env::current_exe().unwrap().with_file_name("libkatydid_softcuda.so");
    let (path, name) = (CString::new(path.to_str().unwrap()).unwrap(), CString::new(name).unwrap());
    // SAFETY: both are texts; the library stays open for good, and each caller names the type of the function.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "{name:?}");
        std::mem::transmute_copy(&found)
    }
}

#[test]
#[ignore = "the program of the other test"]
fn a_program_with_a_race() {
    type Create = unsafe extern "C" fn(*mut *mut c_void, u32, i32) -> CUresult;
    type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> CUresult;
    type Named = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const i8) -> CUresult;
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> CUresult;
    type Launch = unsafe extern "C" fn(
        *mut c_void,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        *mut c_void,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CUresult;
    let (mut context, mut module, mut kernel, mut words) = (null_mut(), null_mut(), null_mut(), 0_u64);
    // SAFETY: the driver API's functions with their types; outputs are locals, and the kernel's words are allocated.
    unsafe {
        assert_eq!(function::<unsafe extern "C" fn(u32) -> CUresult>("cuInit")(0), CUresult::SUCCESS);
        assert_eq!(function::<Create>("cuCtxCreate_v2")(&mut context, 0, 0), CUresult::SUCCESS);
        assert_eq!(function::<Load>("cuModuleLoadData")(&mut module, PTX.as_ptr().cast()), CUresult::SUCCESS);
        assert_eq!(function::<Named>("cuModuleGetFunction")(&mut kernel, module, c"count".as_ptr()), CUresult::SUCCESS);
        assert_eq!(function::<Allocate>("cuMemAlloc_v2")(&mut words, 4096), CUresult::SUCCESS);
        let mut arguments = [(&raw mut words).cast()];
        let launch: Launch = function("cuLaunchKernel");
        let launched = launch(kernel, 4, 1, 1, 64, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut());
        assert_eq!(launched, CUresult::SUCCESS);
        assert_eq!(function::<unsafe extern "C" fn() -> CUresult>("cuCtxSynchronize")(), CUresult::SUCCESS);
    }
}

/// Returns the program's standard error.
fn standard_error(seed: &str) -> String {
    let program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_program_with_a_race", "--ignored", "--nocapture"])
        .env("KATYDID_SOFT_RACES", seed)
        .output()
        .unwrap();
    assert!(program.status.success(), "{program:?}");
    String::from_utf8(program.stderr).unwrap()
}

#[test]
fn a_race_is_told_by_kernel_lines_and_threads() {
    for seed in ["1", "2"] {
        let stderr = standard_error(seed);
        let reports: Vec<&str> =
            stderr.lines().filter(|line| line.contains("race in count: global memory at 0x")).collect();
        assert!(!reports.is_empty(), "{stderr}");
        for line in reports {
            assert!(line.contains("at PTX line 6") && line.contains("store at PTX line 8 by thread"), "{line}");
        }
    }
    assert!(!standard_error("0").contains("race in"));
}
