//! Objects of types with an `object` line in `spec/cuda.api`: the shim makes the handles, the worker makes and ends the
//! objects.
//!
//! The shim only knows the context of an object; the object ends with it.
#![allow(dead_code, reason = "generated symbols call this, as many as there are such types")]

use std::io;
use std::sync::Arc;

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::CUresult;

use crate::context::record::Context;
use crate::context::stack;
use crate::ffi::handle::{Handle, HandleTable};

/// The shim's record of an object.
pub(crate) struct Object {
    slot: SlabSlot,
    context: Arc<Context>,
}

impl Object {
    /// The number that messages carry.
    fn wire(&self) -> u32 {
        self.slot.index + 1
    }
}

/// A type of handles whose objects have such records.
pub(crate) trait ObjectHandle: Handle<Object = Object> {
    /// Returns the handle of an address.
    fn from_address(address: usize) -> Self;
}

macro_rules! objects {
    ($($ty:ident)*) => {
        $(
            impl Handle for katydid_cuda_sys::$ty {
                type Object = Object;

                fn table() -> &'static HandleTable<Object> {
                    static OBJECTS: HandleTable<Object> = HandleTable::new();
                    &OBJECTS
                }

                fn value(self) -> usize {
                    self.0.addr()
                }
            }

            impl crate::ffi::handle::Wire for katydid_cuda_sys::$ty {
                fn wire(self) -> Result<u32, CUresult> {
                    crate::ffi::handle::object(self).map(|it| it.wire())
                }
            }

            impl crate::ffi::handle::OwningContext for katydid_cuda_sys::$ty {
                fn owning_context(self) -> Result<u32, CUresult> {
                    crate::ffi::handle::object(self).map(|it| it.context.wire())
                }
            }

            impl ObjectHandle for katydid_cuda_sys::$ty {
                fn from_address(address: usize) -> Self {
                    Self(crate::ffi::arguments::handle(address))
                }
            }
        )*

        /// Returns the tables of all types.
        fn tables() -> Vec<&'static HandleTable<Object>> {
            vec![$(<katydid_cuda_sys::$ty as Handle>::table()),*]
        }
    };
}

katydid_cuda_sys::for_each_object!(objects);

/// Reserves the tables: `capacity` objects of each type.
///
/// # Errors
///
/// When there is no address space left.
pub(crate) fn reserve(capacity: u32) -> io::Result<()> {
    tables().iter().try_for_each(|table| table.reserve(capacity))
}

/// Forgets the objects of a context that ends.
///
/// # Errors
///
/// `ERROR_NOT_INITIALIZED` before `cuInit`.
pub(crate) fn forget(context: &Context) -> Result<(), CUresult> {
    for table in tables() {
        let objects = table.get()?;
        for object in objects.live().iter().filter(|object| object.context.slot == context.slot) {
            objects.remove(object.slot.handle);
        }
    }
    Ok(())
}

/// Makes a handle in the current context; `send` has the worker make the object under the given id.
///
/// # Errors
///
/// The error of `send`; `ERROR_OUT_OF_MEMORY` for a full table, and the codes for a missing context.
pub(crate) fn make<H: ObjectHandle, R>(send: impl FnOnce(u32) -> Result<R, CUresult>) -> Result<(H, R), CUresult> {
    let (context, mut reply) = (stack::active()?.owner(), None);
    let object = H::table().get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let object = Object { slot, context };
        reply = Some(send(object.wire())?);
        Ok(object)
    })?;
    Ok((H::from_address(object.slot.handle), reply.ok_or(CUresult::ERROR_UNKNOWN)?))
}

/// Ends a handle. Returns the context in which to tell the worker, and the id of the object.
///
/// # Errors
///
/// The code of its kind, for an invalid handle.
pub(crate) fn end<H: ObjectHandle>(handle: H) -> Result<(u32, u32), CUresult> {
    let object = H::table().get()?.remove(handle.value()).ok_or(H::INVALID_CODE)?;
    Ok((object.context.wire(), object.wire()))
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::CUexternalMemory;

    use super::*;
    use crate::ffi::handle::{owning_context, wire};

    // A type without other objects in this crate.
    objects!(CUexternalMemory);

    #[test]
    fn an_object_has_an_id_and_a_context_until_it_ends() {
        let [table] = tables()[..] else { panic!("one type") };
        table.reserve(16).unwrap();
        let context = Arc::new(Context::primary(SlabSlot { handle: 0x1000, index: 3 }, 0, 0));
        let object = table.get().unwrap().insert(|slot| Object { slot, context }).unwrap();
        let handle = CUexternalMemory::from_address(object.slot.handle);
        assert_eq!((wire(handle), owning_context(handle)), (Ok(object.wire()), Ok(4)));
        assert_eq!(end(handle), Ok((4, object.wire())));
        assert_eq!(
            (end(handle), wire(handle)),
            (Err(CUresult::ERROR_INVALID_HANDLE), Err(CUresult::ERROR_INVALID_HANDLE))
        );
    }

    #[test]
    fn an_object_is_made_in_a_context_only() {
        let result = make::<CUexternalMemory, ()>(|_| panic!("nothing may be sent"));
        assert_eq!(result.err(), Some(CUresult::ERROR_INVALID_CONTEXT));
    }
}
