//! Contexts and handles.

use super::*;
use katydid_cuda_sys::{CUfunction, CUmodule};

#[test]
fn contexts_are_a_stack_and_set_replaces_its_top() {
    let outer = TestContext::new();
    let inner = TestContext::new();
    let mut current = CUcontext::NULL;
    // SAFETY: locals.
    unsafe {
        ok(cuCtxGetCurrent(&mut current));
        assert_eq!(current, inner.0);
        ok(cuCtxSetCurrent(outer.0));
        ok(cuCtxPopCurrent_v2(&mut current));
        assert_eq!(current, outer.0);
        ok(cuCtxGetCurrent(&mut current));
        assert_eq!(current, outer.0);
        ok(cuCtxSetCurrent(CUcontext::NULL));
        assert_eq!(cuCtxPopCurrent_v2(&mut current), CUresult::ERROR_INVALID_CONTEXT);
    }
}

#[test]
fn an_inactive_primary_context_can_be_current_but_not_work() {
    let mut handle = CUcontext::NULL;
    let (mut device, mut address) = (9, 0);
    // SAFETY: locals.
    unsafe {
        ok(cuInit(0));
        assert_eq!(cuMemAlloc_v2(&mut address, 16), CUresult::ERROR_INVALID_CONTEXT);
        ok(cuDevicePrimaryCtxRetain(&mut handle, 0));
        ok(cuDevicePrimaryCtxRelease_v2(0));
        ok(cuCtxSetCurrent(handle));
        ok(cuCtxGetDevice(&mut device));
        assert_eq!(device, 0);
        assert_eq!(cuMemAlloc_v2(&mut address, 16), CUresult::ERROR_CONTEXT_IS_DESTROYED);
        ok(cuCtxSetCurrent(CUcontext::NULL));
    }
}

#[test]
fn a_destroyed_context_is_gone_for_every_thread() {
    let scene = TestContext::new();
    let handle = scene.0;
    let mut address = 0;
    // SAFETY: locals.
    unsafe {
        ok(cuCtxPushCurrent_v2(handle));
        std::thread::spawn(move || drop(scene)).join().unwrap();
        assert_eq!(cuMemAlloc_v2(&mut address, 16), CUresult::ERROR_CONTEXT_IS_DESTROYED);
        assert_eq!(cuCtxSetCurrent(handle), CUresult::ERROR_INVALID_CONTEXT);
        assert_eq!(cuCtxDestroy_v2(handle), CUresult::ERROR_INVALID_CONTEXT);
    }
}

#[test]
fn garbage_handles_are_refused_by_kind() {
    let _context = TestContext::new();
    let junk = std::ptr::without_provenance_mut::<c_void>(0xdead_0000);
    let mut device = 0;
    let mut version = 0;
    // SAFETY: handles by value, and locals.
    unsafe {
        assert_eq!(cuStreamSynchronize(CUstream(junk)), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuEventQuery(CUevent(junk)), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuEventQuery(CUevent::NULL), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuModuleUnload(CUmodule(junk)), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuFuncLoad(CUfunction(junk)), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuCtxGetDevice_v2(&mut device, CUcontext(junk)), CUresult::ERROR_INVALID_CONTEXT);
        assert_eq!(cuCtxGetApiVersion(CUcontext(junk), &mut version), CUresult::ERROR_INVALID_CONTEXT);
        assert_eq!(cuCtxGetDevice(std::ptr::null_mut()), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuInit(1), CUresult::ERROR_INVALID_VALUE);
    }
}

#[test]
fn handles_end_with_their_context() {
    let scene = TestContext::new();
    let (stream, event) = (stream(0), event());
    drop(scene);
    // SAFETY: handles by value.
    unsafe {
        assert_eq!(cuStreamQuery(stream), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuEventQuery(event), CUresult::ERROR_INVALID_HANDLE);
    }
}
