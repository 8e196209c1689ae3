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

/// Longest text of an error that travels.
const MAX_NOTICE_BYTES: usize = 4096;

/// Whom to tell, under which token.
pub(crate) struct Notify {
    shared: Arc<OpenclSessionShared>,
    token: u64,
}

impl Notify {
    /// What a driver is given as user data. It is taken back by [`Notify::forget`], or by the call if there is one only.
    pub(crate) fn leak(shared: &Arc<OpenclSessionShared>, token: u64) -> *mut void {
        Box::into_raw(Box::new(Self { shared: Arc::clone(shared), token })).cast()
    }

    /// Takes back what a driver did not accept.
    ///
    /// # Safety
    ///
    /// `data` came from [`Notify::leak`], and the driver refused it.
    pub(crate) unsafe fn forget(data: *mut void) {
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(data.cast::<Self>()) });
    }

    fn tell(&self, status: i32, text: &[u8]) {
        let text = text.get(..MAX_NOTICE_BYTES).unwrap_or(text).to_vec();
        self.shared.upcalls.push(PendingCallback { token: self.token, status, text });
    }
}

/// The callback of a memory object's end: called once.
pub(crate) unsafe extern "C" fn memory(_: cl_mem, data: *mut void) {
    // SAFETY: registered with a leaked `Notify`, and called once for it.
    unsafe { Box::from_raw(data.cast::<Notify>()) }.tell(0, &[]);
}

/// The callback of a program's end, which does nothing: the program's side tells its own callbacks.
pub(crate) unsafe extern "C" fn nothing_of_program(_: cl_program, _: *mut void) {}

/// The callback of a context's end, which does nothing: the program's side tells its own callbacks.
pub(crate) unsafe extern "C" fn nothing_of_context(_: cl_context, _: *mut void) {}

/// The receivers of errors of contexts, by the user data that their drivers pass: a driver may have a context, and call, for longer
/// than the program has.
static CONTEXT_LISTENERS: Mutex<BTreeMap<usize, Notify>> = Mutex::new(BTreeMap::new());

/// A context's place among the listeners, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener(usize);

impl Listener {
    /// Tells the program what a driver says of a context, under its token.
    pub(crate) fn new(shared: &Arc<OpenclSessionShared>, token: u64) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let key = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        listeners().insert(key, Notify { shared: Arc::clone(shared), token });
        Self(key)
    }

    /// What the driver is given as user data: no place in memory.
    pub(crate) fn data(&self) -> *mut void {
        ptr::without_provenance_mut(self.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = listeners().remove(&self.0);
        // Outside of the lock.
        drop(gone);
    }
}

fn listeners() -> MutexGuard<'static, BTreeMap<usize, Notify>> {
    CONTEXT_LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callback of a context's errors: may be called at any time, also when no thread listens any more.
pub(crate) unsafe extern "C" fn context(text: *const char, _: *const void, _: usize, data: *mut void) {
    if text.is_null() {
        return;
    }
    // SAFETY: drivers give a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    if let Some(notify) = listeners().get(&data.addr()) {
        notify.tell(0, text);
    }
}

/// Builds whose ends drivers are to tell, by what the drivers are given as user data: a driver may refuse a build and call, or not.
static PENDING_BUILDS: Mutex<BTreeMap<usize, Arc<BuildResult>>> = Mutex::new(BTreeMap::new());

/// What a driver has told of a build.
#[derive(Debug, Default)]
struct BuildResult {
    /// The functions with which the program of a link is kept beyond the call.
    keeps: Option<&'static Dispatch>,
    state: Mutex<EndState>,
    has_come: Condvar,
}

#[derive(Debug, Default)]
struct EndState {
    has_come: bool,
    /// The kept program, as a number; 0: none.
    program: usize,
}

/// The end of a build, as its driver tells it, until the value is dropped.
#[derive(Debug)]
pub(crate) struct BuildEnd {
    key: usize,
    end: Arc<BuildResult>,
}

impl BuildEnd {
    /// The end of a build of a program that the session holds.
    pub(crate) fn new() -> Self {
        Self::of(BuildResult::default())
    }

    /// The end of a link, whose program is retained when it comes.
    pub(crate) fn keeping(api: &'static Dispatch) -> Self {
        Self::of(BuildResult { keeps: Some(api), ..BuildResult::default() })
    }

    fn of(end: BuildResult) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let (key, end) = (LAST.fetch_add(1, Ordering::Relaxed) + 1, Arc::new(end));
        builds().insert(key, Arc::clone(&end));
        Self { key, end }
    }

    /// What the driver is given as user data: no place in memory.
    pub(crate) fn data(&self) -> *mut void {
        ptr::without_provenance_mut(self.key)
    }

    /// Whether the driver has called.
    pub(crate) fn has_come(&self) -> bool {
        self.end.lock().has_come
    }

    /// Returns once the driver has called.
    pub(crate) fn wait_for(&self) {
        let mut state = self.end.lock();
        while !state.has_come {
            state = self.end.has_come.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns once the driver has called, and leaves nothing of the notification.
    pub(crate) fn wait(self) {
        self.wait_for();
    }

    /// The program of a link, with a reference for the caller; null if the driver named none.
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
        // SAFETY: the driver names a program that is there until this returns.
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
            // SAFETY: as a driver calls.
            unsafe { context(c"no".as_ptr(), ptr::null(), 0, data) };
        }
        let tokens: Vec<u64> = shared.upcalls.pending().iter().map(|due| due.token).collect();
        assert_eq!(tokens, [8]);
        drop(second);
        assert_eq!(Arc::strong_count(&shared), 1, "nothing is left of them");
    }
}
