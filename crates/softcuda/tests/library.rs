//! The library as a program opens it: its symbols, and its state before `cuInit`, in a forked child, and at its end.
//!
//! This is a separate binary, since the tests fork, and need a process in which no test has called `cuInit`.

#![expect(unsafe_code, reason = "calls functions of a library by name")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUresult, Function};

/// Lock that is held while libraries are opened and while a test forks: a child gets the loader in its current state.
static LOADER: Mutex<()> = Mutex::new(());

fn loader() -> MutexGuard<'static, ()> {
    LOADER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the library, which cargo builds beside the tests.
fn path() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.with_file_name("libkatydid_softcuda.so")
}

/// Returns a symbol of the library; null if it does not exist.
fn symbol(name: &str) -> *mut c_void {
    let (path, name) = (CString::new(path().to_str().unwrap()).unwrap(), CString::new(name).unwrap());
    let _loader = loader();
    // SAFETY: both are texts; the library stays open for good.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{:?}: {:?}", path, CStr::from_ptr(libc::dlerror()));
        libc::dlsym(library, name.as_ptr())
    }
}

/// Returns a function of the library.
fn function<F: Copy>(name: &str) -> F {
    let found = symbol(name);
    assert!(!found.is_null(), "{name}");
    // SAFETY: each test names the type that the function of this name has.
    unsafe { std::mem::transmute_copy(&found) }
}

type Init = unsafe extern "C" fn(u32) -> CUresult;
type Number = unsafe extern "C" fn(*mut i32) -> CUresult;

/// Runs `body` in a child process; returns true if it returned true there.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    let loader = loader();
    // SAFETY: the child only calls functions of the library and ends without running handlers of the test.
    let child = unsafe { libc::fork() };
    drop(loader);
    match child {
        0 => {
            let failed = i32::from(!body());
            // SAFETY: has no preconditions.
            unsafe { libc::_exit(failed) }
        }
        child => {
            let mut status = -1;
            // SAFETY: a local.
            unsafe { libc::waitpid(child, &mut status, 0) };
            status == 0
        }
    }
}

#[test]
fn every_function_of_the_driver_is_exported_and_the_marker_with_them() {
    let missing: Vec<_> = Function::ALL.iter().filter(|it| symbol(it.name()).is_null()).collect();
    assert_eq!(missing, Vec::<&Function>::new());
    assert!(!symbol("katydid_softcuda_marker").is_null());
}

#[test]
fn before_the_start_only_questions_about_the_driver_are_answered() {
    let (count, version): (Number, Number) = (function("cuDeviceGetCount"), function("cuDriverGetVersion"));
    let refused: unsafe extern "C" fn() -> CUresult = function("cuEGLApiInit");
    let uninitialized = || {
        let mut number = 0;
        // SAFETY: a local.
        unsafe {
            count(&mut number) == CUresult::ERROR_NOT_INITIALIZED
                && version(&mut number) == CUresult::SUCCESS
                && number == 13000
                && refused() == CUresult::ERROR_NOT_SUPPORTED
        }
    };
    assert!(in_child(uninitialized));
}

#[test]
fn a_child_of_an_initialized_process_is_told_so() {
    let (init, count): (Init, Number) = (function("cuInit"), function("cuDeviceGetCount"));
    let (mut here, mut there) = (0, 0);
    let parent_then_child = || {
        // SAFETY: locals.
        let ready = unsafe { init(0) == CUresult::SUCCESS && count(&mut here) == CUresult::SUCCESS };
        let refused = in_child(|| {
            // SAFETY: a local.
            unsafe {
                init(0) == CUresult::ERROR_NOT_INITIALIZED && count(&mut there) == CUresult::ERROR_NOT_INITIALIZED
            }
        });
        // SAFETY: a local.
        ready && refused && unsafe { count(&mut here) } == CUresult::SUCCESS
    };
    assert!(in_child(parent_then_child));
}
