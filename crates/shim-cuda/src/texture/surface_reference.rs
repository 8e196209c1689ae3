//! Surface references: named in a module, bound to an array.
#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUarray, CUmodule, CUresult, CUsurfref};
use katydid_wire::message::{kdSurfaceReference, kdSurfaceReferenceSet};

use crate::context::record::Context;
use crate::context::stack;
use crate::ffi::arguments::{handle, out, text};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::process::session::shim;

/// A surface reference of a module.
pub(crate) struct SurfaceReference {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    /// Handle of its module.
    module: usize,
    name: Vec<u8>,
    /// The program's handle of the array; 0 for none.
    bound: Mutex<usize>,
}

/// Surface references of all modules.
pub(crate) static SURFACE_REFERENCES: HandleTable<SurfaceReference> = HandleTable::new();

impl Handle for CUsurfref {
    type Object = SurfaceReference;

    fn table() -> &'static HandleTable<SurfaceReference> {
        &SURFACE_REFERENCES
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl SurfaceReference {
    /// The number that messages carry: even, as those of textures are odd.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index * 2 + 2
    }
}

/// Returns a module's reference of a name: the same handle every time.
///
/// # Safety
///
/// `target` is null or writable, `name` null or a C string.
pub(crate) unsafe fn of_module(target: *mut CUsurfref, module: CUmodule, name: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, name) = unsafe { (out(target)?, text(name)?) };
    stack::active()?;
    let (session, references, module) = (&shim()?.session, SURFACE_REFERENCES.get()?, object(module)?);
    let owner = module.slot.handle;
    let existing = references.live().into_iter().find(|it| it.module == owner && it.name == name);
    let make = || {
        references.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message = kdSurfaceReference { reference: slot.index * 2 + 2, module: module.wire(), name };
            let context = Arc::clone(&module.context);
            session.call(context.wire(), &message)?;
            Ok(SurfaceReference { slot, context, module: owner, name: name.to_vec(), bound: Mutex::new(0) })
        })
    };
    let reference = existing.map_or_else(make, Ok)?;
    target.write(CUsurfref(handle(reference.slot.handle)));
    Ok(())
}

/// Forgets the references of a module that ended.
pub(crate) fn forget_module(module: usize) -> Result<(), CUresult> {
    let references = SURFACE_REFERENCES.get()?;
    for reference in references.live().iter().filter(|it| it.module == module) {
        references.remove(reference.slot.handle);
    }
    Ok(())
}

/// Binds the reference to an array. Flags have no meaning yet.
pub(crate) fn set_array(reference: CUsurfref, array: CUarray, flags: u32) -> Result<(), CUresult> {
    let (reference, array) = (object(reference)?, object(array)?);
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut bound = reference.bound.lock().unwrap_or_else(PoisonError::into_inner);
    let message = kdSurfaceReferenceSet { reference: reference.wire(), array: array.wire() };
    shim()?.session.call(reference.context.wire(), &message)?;
    *bound = array.slot.handle;
    Ok(())
}

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn array(target: *mut CUarray, reference: CUsurfref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let bound = *object(reference)?.bound.lock().unwrap_or_else(PoisonError::into_inner);
    if bound == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    target.write(CUarray(handle(bound)));
    Ok(())
}
