//! Functions that drivers call: each turns a call into an upcall under the program's token.

#![expect(unsafe_code, reason = "C functions that drivers call with what they were registered with")]

use std::ffi::CStr;
use std::sync::Arc;

use katydid_opencl_sys::{char, cl_event, cl_mem, void};

use crate::shared::Shared;
use crate::upcalls::Due;

/// Longest text of an error that travels.
const MAX_TEXT: usize = 4096;

/// Whom to tell, under which token.
pub(crate) struct Notify {
    shared: Arc<Shared>,
    token: u64,
}

impl Notify {
    /// What a driver is given as user data. It is taken back by [`Notify::forget`], or by the call if there is one only.
    pub(crate) fn leak(shared: &Arc<Shared>, token: u64) -> *mut void {
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
        let text = text.get(..MAX_TEXT).unwrap_or(text).to_vec();
        self.shared.upcalls.push(Due { token: self.token, status, text });
    }
}

/// Of an event: called once.
pub(crate) unsafe extern "C" fn event(_: cl_event, status: i32, data: *mut void) {
    // SAFETY: registered with a leaked `Notify`, and called once for it.
    unsafe { Box::from_raw(data.cast::<Notify>()) }.tell(status, &[]);
}

/// Of a memory object: called once.
pub(crate) unsafe extern "C" fn memory(_: cl_mem, data: *mut void) {
    // SAFETY: as above.
    unsafe { Box::from_raw(data.cast::<Notify>()) }.tell(0, &[]);
}

/// Of a context: may be called at any time, so its `Notify` stays.
pub(crate) unsafe extern "C" fn context(text: *const char, _: *const void, _: usize, data: *mut void) {
    if !text.is_null() {
        // SAFETY: drivers give a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        // SAFETY: registered with a leaked `Notify` that is never taken back.
        unsafe { &*data.cast::<Notify>() }.tell(0, text);
    }
}
