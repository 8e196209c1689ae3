//! The C interface: stops panics, turns errors into `CUresult`, and C arguments into safe ones.
//!
//! The generated symbols call [`entry`]. The [`api`] macro declares the functions of `crate::api`. Its parameter types ([`Out`],
//! [`MaybeOut`], [`Text`], plain numbers and handles) check arguments as far as possible before a body runs.

#![expect(unsafe_code, reason = "wraps the raw pointers of C callers")]

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys as sys;
use sys::CUresult;

// The generated symbols call this beside `entry` and `refused`.
pub(crate) use crate::sync::default_stream::with_per_thread_default;

/// Result of every function of the core.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// Runs one exported function. A panic is a bug of softcuda: the library reports it, and the caller gets `UNKNOWN`.
pub(crate) fn entry(function: sys::Function, body: impl FnOnce() -> CUresult) -> CUresult {
    let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        report(&format!("{}: internal error in Katydid; please report it", function.name()));
        CUresult::ERROR_UNKNOWN
    });
    if code != CUresult::SUCCESS {
        // A listener may call any function.
        crate::sync::default_stream::outside_of_call(|| katydid_driver_rules::state::log::note(function.name(), code));
    }
    code
}

/// Writes a line to stderr. Ignores errors: a program may have closed it.
pub(crate) fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "katydid softcuda: {text}");
}

/// Refuses a function that is not implemented: reports its name once on stderr, and returns `NOT_SUPPORTED`.
pub(crate) fn refused(function: sys::Function) -> CUresult {
    static REPORTED_FUNCTIONS: Mutex<Option<HashSet<sys::Function>>> = Mutex::new(None);
    let mut reported = REPORTED_FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.get_or_insert_default().insert(function) {
        report(&format!("{} is not supported by the software device", function.name()));
    }
    CUresult::ERROR_NOT_SUPPORTED
}

/// Reports once for each `what` that a call asked for something that the software device lacks.
pub(crate) fn unsupported(what: &str) -> CUresult {
    static REPORTED_FEATURES: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut reported = REPORTED_FEATURES.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.get_or_insert_default().insert(what.to_owned()) {
        report(&format!("{what} is not supported by the software device"));
    }
    CUresult::ERROR_NOT_SUPPORTED
}

/// A C argument that converts to this type, or is refused with a code.
pub(crate) trait Argument: Sized {
    /// The type in the C signature.
    type C;

    /// # Safety
    ///
    /// A pointer must be null, or valid for what the driver API says the function does with it, for the whole call.
    unsafe fn from_c(raw: Self::C) -> Outcome<Self>;
}

/// A non-null output of a call.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Writes the answer to the caller's memory.
    pub(crate) fn set(&self, value: T) {
        // SAFETY: not null, and writable for the whole call, as the creator of the `Out` promised.
        unsafe { self.0.write_unaligned(value) };
    }
}

impl<T> Argument for Out<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Outcome<Self> {
        NonNull::new(raw).map(Self).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// An output that the caller may omit.
pub(crate) struct MaybeOut<T>(Option<Out<T>>);

impl<T> MaybeOut<T> {
    /// Returns whether the caller wants the answer.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Writes the answer if it is wanted.
    pub(crate) fn set(&self, value: T) {
        if let Some(out) = &self.0 {
            out.set(value);
        }
    }
}

impl<T> Argument for MaybeOut<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Outcome<Self> {
        Ok(Self(NonNull::new(raw).map(Out)))
    }
}

/// A structure of the caller, copied.
pub(crate) struct In<T>(pub(crate) T);

impl<T: sys::Pod> Argument for In<T> {
    type C = *const T;

    unsafe fn from_c(raw: *const T) -> Outcome<Self> {
        let raw = NonNull::new(raw.cast_mut()).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: not null, and readable as `from_c` demands; any bits are a value of a `Pod`.
        Ok(Self(unsafe { raw.read_unaligned() }))
    }
}

/// A NUL-terminated text of the caller.
pub(crate) struct Text<'call>(&'call CStr);

impl<'call> Text<'call> {
    /// Returns the text as a name. An empty one fails with `INVALID_VALUE`. Names of PTX are ASCII, so one that is not UTF-8
    /// names nothing.
    pub(crate) fn name(&self) -> Outcome<&'call str> {
        match self.0.to_str() {
            Ok("") => Err(CUresult::ERROR_INVALID_VALUE),
            Ok(name) => Ok(name),
            Err(_) => Err(CUresult::ERROR_NOT_FOUND),
        }
    }

    /// The bytes without the NUL.
    pub(crate) fn bytes(&self) -> &'call [u8] {
        self.0.to_bytes()
    }
}

impl Argument for Text<'_> {
    type C = *const c_char;

    unsafe fn from_c(raw: *const c_char) -> Outcome<Self> {
        if raw.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, NUL-terminated and unchanged during the call, as `from_c` demands.
        Ok(Self(unsafe { CStr::from_ptr(raw) }))
    }
}

/// An output of several elements, whose capacity is another argument.
pub(crate) struct Buffer<T>(*mut T, PhantomData<T>);

impl<T> Buffer<T> {
    /// Writes as many of `values` as fit `capacity`, in order.
    pub(crate) fn fill(&self, capacity: usize, values: impl IntoIterator<Item = T>) -> Outcome {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for (at, value) in values.into_iter().take(capacity).enumerate() {
            // SAFETY: not null, and the caller's buffer has room for as many elements as its length argument says.
            unsafe { self.0.add(at).write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T> Argument for Buffer<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Outcome<Self> {
        Ok(Self(raw, PhantomData))
    }
}

/// Arguments without conversion: numbers, callbacks, and pointers that the body checks itself.
macro_rules! plain {
    ($($ty:ty),* $(,)?) => {$(
        impl Argument for $ty {
            type C = Self;

            unsafe fn from_c(raw: Self) -> Outcome<Self> {
                Ok(raw)
            }
        }
    )*};
}

plain!(
    u8,
    u16,
    u32,
    u64,
    usize,
    i32,
    f32,
    CUresult,
    sys::CUmemLocation,
    sys::CUhostFn,
    sys::CUipcEventHandle,
    sys::CUipcMemHandle,
    sys::CUstreamCallback,
    sys::CUoccupancyB2DSize,
    sys::CUlogsCallback,
);

/// Handles need no conversion either.
macro_rules! handles {
    ($($ty:ident)*) => {
        plain!($(sys::$ty),*);
    };
}

sys::for_each_handle!(handles);

impl<T> Argument for *const T {
    type C = Self;

    unsafe fn from_c(raw: Self) -> Outcome<Self> {
        Ok(raw)
    }
}

impl<T> Argument for *mut T {
    type C = Self;

    unsafe fn from_c(raw: Self) -> Outcome<Self> {
        Ok(raw)
    }
}

/// Returns the address of a pointer without its provenance, for look-ups of ranges.
pub(crate) fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Declares functions of the driver API: `fn name(parameter: Argument, …) { body }`. The body runs with converted arguments and
/// may use `?` with a `CUresult`. Its end means success.
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($param:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// Pointers must be null or valid as the driver API demands.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's names and parameters")]
        pub(crate) unsafe fn $name(
            $($param: <$ty as $crate::ffi::Argument>::C),*
        ) -> katydid_cuda_sys::CUresult {
            let body = || -> $crate::ffi::Outcome {
                $(
                    // SAFETY: the caller's promise, above.
                    let $param = unsafe { <$ty as $crate::ffi::Argument>::from_c($param) }?;
                )*
                $body
                #[allow(unreachable_code, reason = "some bodies only ever refuse")]
                Ok(())
            };
            body().into()
        }
    )*};
}

pub(crate) use api;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_unknown_error() {
        assert_eq!(entry(sys::Function::cuInit, || panic!("on purpose")), CUresult::ERROR_UNKNOWN);
    }

    #[test]
    fn null_outputs_are_refused_unless_optional() {
        // SAFETY: null is allowed for every argument.
        let (must, may) =
            unsafe { (Out::<u32>::from_c(std::ptr::null_mut()), MaybeOut::<u32>::from_c(std::ptr::null_mut())) };
        assert_eq!(must.err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert!(may.is_ok_and(|out| out.0.is_none()));
    }
}
