//! Functions that drivers call: each turns a call into an upcall under the program's token.

#![expect(unsafe_code, reason = "C functions that drivers call with what they were registered with")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::{Dispatch, char, cl_context, cl_mem, cl_program, void};

use crate::calls::session_shared::OpenclSessionShared;
use crate::calls::upcalls::PendingCallback;

/// Longest error text that is sent to the program, in bytes.
const MAX_NOTICE_BYTES: usize = 4096;

/// The session to notify, and the token to use.
pub(crate) struct Notify {
    shared: Arc<OpenclSessionShared>,
    token: u64,
}

impl Notify {
    /// Returns the user data for a driver. [`Notify::forget`] takes it back; so does the callback if it comes only once.
    pub(crate) fn leak(shared: &Arc<OpenclSessionShared>, token: u64) -> *mut void {
        Box::into_raw(Box::new(Self { shared: Arc::clone(shared), token })).cast()
    }

    /// Takes back user data that a driver did not accept.
    ///
    /// # Safety
    ///
    /// `data` came from [`Notify::leak`], and the driver refused it.
    pub(crate) unsafe fn forget(data: *mut void) {
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(data.cast::<Self>()) });
    }

    fn push_callback(&self, status: i32, text: &[u8]) {
        let text = text.get(..MAX_NOTICE_BYTES).unwrap_or(text).to_vec();
        self.shared.upcalls.push(PendingCallback { token: self.token, status, text });
    }
}

/// The callback of a memory object's end: called once.
pub(crate) unsafe extern "C" fn memory(_: cl_mem, data: *mut void) {
    // SAFETY: registered with a leaked `Notify`, and called once for it.
    unsafe { Box::from_raw(data.cast::<Notify>()) }.push_callback(0, &[]);
}

/// The callback at a program's end. It does nothing: the shim calls the program's own callbacks.
pub(crate) unsafe extern "C" fn nothing_of_program(_: cl_program, _: *mut void) {}

/// The callback at a context's end. It does nothing: the shim calls the program's own callbacks.
pub(crate) unsafe extern "C" fn nothing_of_context(_: cl_context, _: *mut void) {}

/// Receivers of context errors, by the user data that drivers pass. A driver may keep a context, and call, longer than the
/// program does.
static CONTEXT_LISTENERS: Mutex<BTreeMap<usize, Notify>> = Mutex::new(BTreeMap::new());

/// A context's entry among the listeners; dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Listener(usize);

impl Listener {
    /// Registers a listener that forwards a driver's errors of a context to the program, under its token.
    pub(crate) fn new(shared: &Arc<OpenclSessionShared>, token: u64) -> Self {
        static LAST_LISTENER_KEY: AtomicUsize = AtomicUsize::new(0);
        let key = LAST_LISTENER_KEY.fetch_add(1, Ordering::Relaxed) + 1;
        listeners().insert(key, Notify { shared: Arc::clone(shared), token });
        Self(key)
    }

    /// Returns the user data for the driver: a key, not an address.
    pub(crate) fn data(&self) -> *mut void {
        ptr::without_provenance_mut(self.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = listeners().remove(&self.0);
        // Dropped outside of the lock.
        drop(gone);
    }
}

fn listeners() -> MutexGuard<'static, BTreeMap<usize, Notify>> {
    CONTEXT_LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callback of a context's errors. It may run at any time, even without a listener.
pub(crate) unsafe extern "C" fn context(text: *const char, _: *const void, _: usize, data: *mut void) {
    if text.is_null() {
        return;
    }
    // SAFETY: drivers give a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    if let Some(notify) = listeners().get(&data.addr()) {
        notify.push_callback(0, text);
    }
}

/// Builds whose drivers are to report the end, by the user data that they receive. A driver that refuses a build may or may not
/// call.
static PENDING_BUILDS: Mutex<BTreeMap<usize, Arc<BuildResult>>> = Mutex::new(BTreeMap::new());

/// What a driver has reported of a build.
#[derive(Debug, Default)]
struct BuildResult {
    /// The functions that keep the program of a link beyond the call.
    keeps: Option<&'static Dispatch>,
    state: Mutex<EndState>,
    has_come: Condvar,
}

#[derive(Debug, Default)]
struct EndState {
    has_come: bool,
    /// The program that was kept, as a number; 0: none.
    program: usize,
}

/// The end of a build as its driver reports it, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct BuildEnd {
    key: usize,
    end: Arc<BuildResult>,
}

impl BuildEnd {
    /// Returns the end of a build of a program that the session holds.
    pub(crate) fn new() -> Self {
        Self::of(BuildResult::default())
    }

    /// Returns the end of a link. Its program is retained when the driver reports it.
    pub(crate) fn keeping(api: &'static Dispatch) -> Self {
        Self::of(BuildResult { keeps: Some(api), ..BuildResult::default() })
    }

    fn of(end: BuildResult) -> Self {
        static LAST_BUILD_KEY: AtomicUsize = AtomicUsize::new(0);
        let (key, end) = (LAST_BUILD_KEY.fetch_add(1, Ordering::Relaxed) + 1, Arc::new(end));
        builds().insert(key, Arc::clone(&end));
        Self { key, end }
    }

    /// Returns the user data for the driver: a key, not an address.
    pub(crate) fn data(&self) -> *mut void {
        ptr::without_provenance_mut(self.key)
    }

    /// Returns whether the driver has called.
    pub(crate) fn has_come(&self) -> bool {
        self.end.lock().has_come
    }

    /// Waits until the driver has called.
    pub(crate) fn wait_for(&self) {
        let mut state = self.end.lock();
        while !state.has_come {
            state = self.end.has_come.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the driver has called, and removes the notification.
    pub(crate) fn wait(self) {
        self.wait_for();
    }

    /// Returns the program of a link, with a reference for the caller; null if the driver named none.
    pub(crate) fn take_program(&self) -> cl_program {
        let program = std::mem::take(&mut self.end.lock().program);
        cl_program(ptr::with_exposed_provenance_mut(program))
    }
}

impl Drop for BuildEnd {
    fn drop(&mut self) {
        builds().remove(&self.key);
    }
}

impl BuildResult {
    fn lock(&self) -> MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn builds() -> MutexGuard<'static, BTreeMap<usize, Arc<BuildResult>>> {
    PENDING_BUILDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callback of a build or link: called once, or never if the driver refuses it.
pub(crate) unsafe extern "C" fn build(program: cl_program, data: *mut void) {
    let Some(end) = builds().remove(&data.addr()) else { return };
    let mut state = end.lock();
    if let Some(retain) = end.keeps.and_then(|api| api.clRetainProgram).filter(|_| program != cl_program::NULL) {
        // SAFETY: the driver names a program that lives until this returns.
        let code = unsafe { retain(program) };
        state.program = if code == 0 { program.0.expose_provenance() } else { 0 };
    }
    state.has_come = true;
    drop(state);
    end.has_come.notify_all();
}

#[cfg(test)]
mod tests {
    use katydid_session_core::{Capture, Usage};

    use super::*;

    #[test]
    fn a_context_is_listened_to_until_its_end() {
        let shared = Arc::new(OpenclSessionShared::new(Arc::new(Usage::new(None)), Capture::default()));
        let (first, second) = (Listener::new(&shared, 7), Listener::new(&shared, 8));
        let (data, gone) = (second.data(), first.data());
        drop(first);
        for data in [gone, data] {
            // SAFETY: called as a driver calls it.
            unsafe { context(c"no".as_ptr(), ptr::null(), 0, data) };
        }
        let tokens: Vec<u64> = shared.upcalls.pending().iter().map(|due| due.token).collect();
        assert_eq!(tokens, [8]);
        drop(second);
        assert_eq!(Arc::strong_count(&shared), 1, "nothing is left of them");
    }
}
