//! Kernels stopped in the middle by the library's private symbols, as for a checkpoint of a session.
//!
//! These functions affect all kernels of a process, so the tests here take turns, in a separate binary.

#![expect(unsafe_code, reason = "calls functions of a library by name")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUcontext, CUresult, CUstream};
use katydid_tests::deadline::hang::until;

/// A kernel that sets `words[1]` when it has begun, waits until `words[0]` is set, and leaves 7 in `words[2]`.
const PTX: &CStr = c".version 7.0
.target sm_75
.address_size 64
.visible .entry wait(.param .u64 words) {
    .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [words];
    atom.global.add.u32 %r2, [%d1+4], 1;
    L: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %p, %r1, 0; @%p bra L;
    mov.u32 %r1, 7; st.global.u32 [%d1+8], %r1; ret;
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

type Plain = unsafe extern "C" fn() -> CUresult;
type Visit = unsafe extern "C" fn(*mut c_void, CUcontext, CUstream, *const u8, usize) -> CUresult;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// Calls a function without arguments, which must succeed.
fn plain(name: &str) {
    let call: Plain = function(name);
    // SAFETY: no arguments.
    assert_eq!(unsafe { call() }, CUresult::SUCCESS, "{name}");
}

/// Returns the output of `katydid_softcuda_save`: context, stream and bytes of each launch.
type Saved = Vec<(usize, usize, Vec<u8>)>;

unsafe extern "C" fn keep(
    all: *mut c_void,
    context: CUcontext,
    stream: CUstream,
    at: *const u8,
    size: usize,
) -> CUresult {
    // SAFETY: `saved` passes its list, and the bytes are lent for the call.
    let (all, bytes) = unsafe { (&mut *all.cast::<Saved>(), std::slice::from_raw_parts(at, size)) };
    all.push((context.address() as usize, stream.address() as usize, bytes.to_vec()));
    CUresult::SUCCESS
}

fn saved() -> Saved {
    let save: unsafe extern "C" fn(Option<Visit>, *mut c_void) -> CUresult = function("katydid_softcuda_save");
    let mut all = Saved::new();
    // SAFETY: `keep` takes the list.
    assert_eq!(unsafe { save(Some(keep), (&raw mut all).cast()) }, CUresult::SUCCESS);
    all
}

/// A context with the kernel, and pinned memory that host and kernel can see.
struct Fixture {
    context: CUcontext,
    kernel: *mut c_void,
    words: *mut u32,
    /// Guard that lets only one test run at a time.
    _guard: MutexGuard<'static, ()>,
}

impl Fixture {
    fn new() -> Self {
        static DRIVER_LOCK: Mutex<()> = Mutex::new(());
        let guard = DRIVER_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let init: unsafe extern "C" fn(u32) -> CUresult = function("cuInit");
        let create: unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult = function("cuCtxCreate_v2");
        let load: unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> CUresult = function("cuModuleLoadData");
        let find: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const i8) -> CUresult =
            function("cuModuleGetFunction");
        let pinned: unsafe extern "C" fn(*mut *mut c_void, usize) -> CUresult = function("cuMemAllocHost_v2");
        let (mut context, mut module, mut kernel, mut words) = (CUcontext::NULL, null_mut(), null_mut(), null_mut());
        // SAFETY: locals, and texts.
        let codes = unsafe {
            [
                init(0),
                create(&raw mut context, 0, 0),
                load(&raw mut module, PTX.as_ptr().cast()),
                find(&raw mut kernel, module, c"wait".as_ptr()),
                pinned(&raw mut words, 12),
            ]
        };
        assert_eq!(codes, [CUresult::SUCCESS; 5]);
        let fixture = Self { context, kernel, words: words.cast(), _guard: guard };
        (0..3).for_each(|index| fixture.set(index, 0));
        fixture
    }

    fn word(&self, index: usize) -> u32 {
        // SAFETY: three words of pinned memory, which the kernel writes too.
        unsafe { self.words.add(index).read_volatile() }
    }

    fn set(&self, index: usize, value: u32) {
        // SAFETY: as in `word`.
        unsafe { self.words.add(index).write_volatile(value) };
    }

    /// Launches the kernel in a new stream and waits until it has begun.
    fn launch(&self) -> CUstream {
        let stream = stream();
        let launch: Launch = function("cuLaunchKernel");
        let mut words = self.words.expose_provenance() as u64;
        let mut params = [(&raw mut words).cast::<c_void>()];
        // SAFETY: handles by value, and locals.
        let code = unsafe { launch(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), null_mut()) };
        assert_eq!(code, CUresult::SUCCESS);
        self.until_begun();
        stream
    }

    fn until_begun(&self) {
        until("the kernel has begun", || self.word(1) != 0);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A context finishes its work first, which must not wait for a kernel of a failed test.
        self.set(0, 1);
        plain("katydid_softcuda_release");
        let destroy: unsafe extern "C" fn(CUcontext) -> CUresult = function("cuCtxDestroy_v2");
        // SAFETY: a handle by value.
        let _ = unsafe { destroy(self.context) };
    }
}

fn stream() -> CUstream {
    let create: unsafe extern "C" fn(*mut CUstream, u32) -> CUresult = function("cuStreamCreate");
    let mut stream = CUstream::NULL;
    // SAFETY: a local.
    assert_eq!(unsafe { create(&raw mut stream, 1) }, CUresult::SUCCESS);
    stream
}

fn on_stream(name: &str, stream: CUstream) -> CUresult {
    let call: unsafe extern "C" fn(CUstream) -> CUresult = function(name);
    // SAFETY: a handle by value.
    unsafe { call(stream) }
}

#[test]
fn a_kernel_put_aside_goes_on_where_it_was_and_once_more_from_its_bytes() {
    let fixture = Fixture::new();
    let stream = fixture.launch();
    plain("katydid_softcuda_hold");
    fixture.set(0, 1);
    let mut all = saved();
    assert_eq!(all.len(), 1);
    let (context, of, bytes) = all.remove(0);
    assert_eq!((context, of), (fixture.context.address() as usize, stream.address() as usize));
    assert_eq!(on_stream("cuStreamQuery", stream), CUresult::ERROR_NOT_READY);
    assert_eq!(fixture.word(2), 0, "nothing runs while everything is held");
    plain("katydid_softcuda_release");
    assert_eq!(on_stream("cuStreamSynchronize", stream), CUresult::SUCCESS);
    assert_eq!((fixture.word(1), fixture.word(2)), (1, 7));

    fixture.set(2, 0);
    let go_on: unsafe extern "C" fn(CUstream, *const u8, usize) -> CUresult = function("katydid_softcuda_continue");
    let other = self::stream();
    // SAFETY: the bytes live during the calls.
    let codes = unsafe { [go_on(other, bytes.as_ptr(), bytes.len()), go_on(other, bytes.as_ptr(), bytes.len() - 1)] };
    assert_eq!(codes, [CUresult::SUCCESS, CUresult::ERROR_INVALID_VALUE]);
    assert_eq!(on_stream("cuStreamSynchronize", other), CUresult::SUCCESS);
    assert_eq!((fixture.word(1), fixture.word(2)), (1, 7), "it ended, and did not begin again");
}

#[test]
fn kernels_that_would_never_end_are_cancelled_wherever_they_are() {
    for held in [false, true] {
        let fixture = Fixture::new();
        let stream = fixture.launch();
        if held {
            plain("katydid_softcuda_hold");
        }
        plain("katydid_softcuda_cancel");
        assert_eq!(on_stream("cuStreamSynchronize", stream), CUresult::ERROR_LAUNCH_FAILED);
        plain("katydid_softcuda_release");
        assert_eq!(fixture.word(2), 0);
    }
}

#[test]
fn instructions_are_counted() {
    let executed: unsafe extern "C" fn() -> u64 = function("katydid_softcuda_executed");
    let fixture = Fixture::new();
    // SAFETY: no arguments.
    let before = unsafe { executed() };
    fixture.set(0, 1);
    assert_eq!(on_stream("cuStreamSynchronize", fixture.launch()), CUresult::SUCCESS);
    // SAFETY: no arguments.
    let ran = unsafe { executed() } - before;
    assert_eq!(ran, 9, "the kernel straight through: 8 of its text, and a mark that it reads what others write");
}
