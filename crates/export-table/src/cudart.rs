//! The table CUDART (13 words): the primary context's handle, and module loading for runtimes before 12.0.
//!
//! | slot | what                                                     | asked by            |
//! |-----:|----------------------------------------------------------|---------------------|
//! |    1 | load a fatbin wrapper                                    | old runtimes        |
//! |    2 | handle of a primary context, without activating it       | every runtime       |
//! |    6 | load a fatbin wrapper, remembering it by its address     | 11.8                |
//! |    7 | unload what slot 6 loaded from this wrapper              | 11.8, at exit       |
//! |    8 | load a fatbin container                                  | old runtimes        |
//! |   12 | "load compilers"; runtimes from 13.2 on crash on a null  | 13.2 and later      |

#![expect(unsafe_code, reason = "slots take the raw pointers of C callers")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::catalogue;
use crate::facts::{Handle, facts};
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<13> = WordTable::sized::<{ catalogue::CUDART_INDEX }>(
    &[
        (1, load_wrapper as *const () as Word),
        (2, primary_context as *const () as Word),
        (6, load_registered as *const () as Word),
        (7, unload_registered as *const () as Word),
        (8, load_container as *const () as Word),
        (12, load_compilers as *const () as Word),
    ],
    &[10],
);

/// Modules of slot 6 by the address of their wrapper, the only argument of slot 7. A wrapper can be loaded into several
/// contexts; each unload takes the newest.
static REGISTERED_HANDLES: Mutex<Option<HashMap<usize, Vec<Handle>>>> = Mutex::new(None);

unsafe extern "C" fn primary_context(out: *mut Handle, device: i32) -> Status {
    guard(|| {
        // SAFETY: null or writable, which is what the runtime passes.
        let out = unsafe { out.as_mut() }.ok_or(status::INVALID_VALUE)?;
        *out = facts()?.primary_context(device)?;
        Ok(())
    })
}

unsafe extern "C" fn load_wrapper(out: *mut Handle, wrapper: *const c_void) -> Status {
    // SAFETY: slot 1 has the contract of `load`.
    guard(|| unsafe { load(out, wrapper) }.map(drop))
}

unsafe extern "C" fn load_container(container: *const c_void, out: *mut Handle) -> Status {
    // SAFETY: slot 8 has the contract of `load`, with its arguments the other way round.
    guard(|| unsafe { load(out, container) }.map(drop))
}

unsafe extern "C" fn load_registered(out: *mut Handle, wrapper: *const c_void) -> Status {
    guard(|| {
        // SAFETY: slot 6 has the contract of `load`.
        let module = unsafe { load(out, wrapper) }?;
        let mut registered = REGISTERED_HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        registered.get_or_insert_default().entry(wrapper.addr()).or_default().push(module);
        Ok(())
    })
}

extern "C" fn unload_registered(wrapper: *const c_void) -> Status {
    guard(|| {
        let mut registered = REGISTERED_HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = registered.get_or_insert_default().get_mut(&wrapper.addr()).ok_or(status::INVALID_HANDLE)?;
        let module = modules.pop().ok_or(status::INVALID_HANDLE)?;
        drop(registered);
        facts()?.unload_module(module)
    })
}

/// Does nothing: there is no compiler to load.
extern "C" fn load_compilers() -> Status {
    status::SUCCESS
}

/// Loads `image` and writes its module to `out`.
///
/// # Safety
///
/// `out` is null or writable, `image` null or a complete image; the runtime that holds the table upholds both.
unsafe fn load(out: *mut Handle, image: *const c_void) -> Result<Handle, Status> {
    if out.is_null() || image.is_null() {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: a complete image, by this function's contract.
    let module = unsafe { facts()?.load_image(image) }?;
    // SAFETY: writable, by this function's contract; null was refused above.
    unsafe { out.write(module) };
    Ok(module)
}
