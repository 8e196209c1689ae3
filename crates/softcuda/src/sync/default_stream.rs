//! The meaning of a null stream handle in the thread's present call: the legacy default stream, or the thread's own.

use std::cell::Cell;

use katydid_cuda_sys::CUresult;

thread_local! {
    /// Whether a null handle means the thread's own default stream.
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a null handle means the calling thread's own default stream.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD_DEFAULT.get()
}

/// Runs a `_ptsz` or `_ptds` function, where a null stream is the calling thread's.
pub(crate) fn with_per_thread_default(body: impl FnOnce() -> CUresult) -> CUresult {
    with_default(true, body)
}

/// Runs a function of the program in the middle of a call. Its calls are not part of that call.
pub(crate) fn outside_of_call(body: impl FnOnce()) {
    with_default(false, body);
}

fn with_default<T>(is_per_thread: bool, body: impl FnOnce() -> T) -> T {
    let was_per_thread = PER_THREAD_DEFAULT.replace(is_per_thread);
    let result = body();
    PER_THREAD_DEFAULT.set(was_per_thread);
    result
}
