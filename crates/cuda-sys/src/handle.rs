//! Opaque handles of the driver API: one type a kind, as the `handle` and `object` lines of `spec/cuda.api` say.

#![expect(unsafe_code, reason = "handles are pointers only in name and may cross threads")]

use std::ffi::c_void;

macro_rules! handles {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the driver API: opaque, compared by value, never dereferenced here.")]
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub *mut c_void);

        // SAFETY: the pointer is a name for an object of the driver; nothing in Rust dereferences it, and the
        // driver API may be called with it from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`; a shared handle is a shared number.
        unsafe impl Sync for $name {}

        impl $name {
            /// The null handle, which names no object.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// True for the null handle.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }

            /// The handle as a number.
            pub fn address(self) -> u64 {
                self.0 as u64
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }
    )*};
}

include!(concat!(env!("OUT_DIR"), "/handles.rs"));

/// `CU_STREAM_LEGACY`: the default stream that waits for all blocking streams of its context.
pub const CU_STREAM_LEGACY: CUstream = CUstream(std::ptr::without_provenance_mut(1));
/// `CU_STREAM_PER_THREAD`: the default stream of the calling thread.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(std::ptr::without_provenance_mut(2));
