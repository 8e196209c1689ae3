//! Handles, and the lifetimes of their objects.
//!
//! An object has references of the program (`clRetain…`, `clRelease…`) and of other objects that are made of it ([`HeldObject`]).
//! It ends when both are gone. Then a message tells the worker, the handle becomes free, and its parts are released.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_client::slab::{Slab, SlabSlot};
use katydid_opencl_sys::{Code, void};
use katydid_wire::opencl::message::kdclRelease;
use katydid_wire::opencl::{id, kind};

use crate::ffi::icd;
use crate::process::session;

/// Most objects of most kinds at a time. The worker accepts numbers below 2^24.
pub(crate) const MAX_PROGRAM_OBJECTS: u32 = 1 << 22;
/// Most platforms at a time, or devices and parts of them.
pub(crate) const MAX_DEVICE_HANDLES: u32 = 1 << 14;

/// One reference of the program.
const OWN_REFERENCE: u64 = 1;
/// One reference of another object.
const HELD_REFERENCE: u64 = 1 << 32;

/// The common part of every object.
#[derive(Debug)]
pub(crate) struct Base {
    /// Value of the handle that the program has.
    pub(crate) handle: usize,
    /// The object's id in messages.
    pub(crate) id: u32,
    /// References: the program's in the lower half, other objects' in the upper one.
    references: AtomicU64,
}

impl Base {
    /// Makes the base of a new object, with one reference of the program.
    pub(crate) fn new<T: Object>(slot: SlabSlot) -> Self {
        Self { handle: slot.handle, id: id(T::KIND, slot.index), references: AtomicU64::new(OWN_REFERENCE) }
    }

    /// Returns the number of the program's references.
    pub(crate) fn count(&self) -> u32 {
        self.references.load(Ordering::Relaxed) as u32
    }
}

/// A kind of object.
pub(crate) trait Object: Sized + Send + Sync + 'static {
    /// The kind's number in ids.
    const KIND: u32;
    /// The code for a handle that is not of this kind.
    const INVALID_CODE: Code;
    /// The type of its handles.
    type Handle: Copy;

    /// Returns the objects of this kind.
    fn table() -> &'static ObjectTable<Self>;

    fn base(&self) -> &Base;

    fn value(handle: Self::Handle) -> usize;

    fn handle(&self) -> Self::Handle;

    /// Called when the last reference is gone, before the message to the worker.
    fn ending(&self) {}

    /// Called when the last reference is gone, after the message to the worker.
    fn ended(&self) {}

    /// Returns whether the message to the worker may wait for the next one: its end frees next to nothing for other programs, and
    /// the program cannot observe it.
    fn ends_lazily(&self) -> bool {
        false
    }
}

/// Implements [`Object`] for a type: the handle, the kind's number, the code, the most objects at
/// a time, and the methods for the end.
macro_rules! kind_of_object {
    ($object:ident $handle:ident $kind:ident $wrong:ident $capacity:ident $(, $method:item)*) => {
        impl $crate::objects::handle::Object for $object {
            const KIND: u32 = katydid_wire::opencl::kind::$kind;
            const INVALID_CODE: katydid_opencl_sys::Code = katydid_opencl_sys::Code::$wrong;
            type Handle = katydid_opencl_sys::$handle;

            fn table() -> &'static $crate::objects::handle::ObjectTable<Self> {
                static TABLE: $crate::objects::handle::ObjectTable<$object> =
                    $crate::objects::handle::ObjectTable::new($crate::objects::handle::$capacity);
                &TABLE
            }

            fn base(&self) -> &$crate::objects::handle::Base {
                &self.base
            }

            fn value(handle: katydid_opencl_sys::$handle) -> usize {
                handle.0.addr()
            }

            fn handle(&self) -> katydid_opencl_sys::$handle {
                katydid_opencl_sys::$handle(std::ptr::with_exposed_provenance_mut(self.base.handle))
            }

            $($method)*
        }
    };
}

pub(crate) use kind_of_object;

/// All objects of one kind.
pub(crate) struct ObjectTable<T> {
    slab: OnceLock<Slab<T>>,
    capacity: u32,
}

impl<T> ObjectTable<T> {
    /// Makes a table for at most `capacity` objects at a time.
    pub(crate) const fn new(capacity: u32) -> Self {
        Self { slab: OnceLock::new(), capacity }
    }

    /// Returns the slab of objects. The first call reserves the addresses.
    fn slab(&self) -> Result<&Slab<T>, Code> {
        static RESERVING: Mutex<()> = Mutex::new(());
        if let Some(slab) = self.slab.get() {
            return Ok(slab);
        }
        let _alone = RESERVING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.slab.get().is_none() {
            let slab = Slab::reserve_with(self.capacity, icd::head()).map_err(|_| Code::OUT_OF_HOST_MEMORY)?;
            let _ = self.slab.set(slab);
        }
        self.slab.get().ok_or(Code::OUT_OF_HOST_MEMORY)
    }

    /// Returns the live object of a handle.
    fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.slab.get()?.get(handle)
    }

    /// Runs `work` on the live object of a handle, as [`Slab::with`] does.
    pub(crate) fn with<R>(&self, handle: usize, work: impl FnOnce(&T) -> R) -> Option<R> {
        self.slab.get()?.with(handle, work)
    }

    /// Returns every live object, in the order of their records.
    pub(crate) fn live(&self) -> Vec<Arc<T>> {
        self.slab.get().map(Slab::live).unwrap_or_default()
    }

    fn remove(&self, handle: usize) {
        if let Some(slab) = self.slab.get() {
            slab.remove(handle);
        }
    }
}

/// Returns the object of a handle.
///
/// # Errors
///
/// The code of its kind, also for null.
pub(crate) fn object<T: Object>(handle: T::Handle) -> Result<Arc<T>, Code> {
    T::table().get(T::value(handle)).ok_or(T::INVALID_CODE)
}

/// Runs `work` on the object of a handle without changing its reference count: some calls come a million times a second. `work`
/// must not release an object of this kind.
pub(crate) fn with_object<T: Object>(handle: T::Handle, work: impl FnOnce(&T) -> Result<(), Code>) -> Result<(), Code> {
    T::table().with(T::value(handle), work).unwrap_or(Err(T::INVALID_CODE))
}

/// Returns the objects of a list of handles.
pub(crate) fn objects<T: Object>(handles: &[T::Handle]) -> Result<Vec<Arc<T>>, Code> {
    handles.iter().map(|handle| object::<T>(*handle)).collect()
}

/// Returns the ids of a list of objects.
pub(crate) fn ids<T: Object>(objects: &[Arc<T>]) -> Vec<u32> {
    objects.iter().map(|object| object.base().id).collect()
}

/// Makes an object and its handle; if `make` fails, there is neither.
pub(crate) fn make<T: Object>(make: impl FnOnce(Base) -> Result<T, Code>) -> Result<Arc<T>, Code> {
    T::table().slab()?.try_insert(Code::OUT_OF_HOST_MEMORY, |slot| make(Base::new::<T>(slot)))
}

/// Adds a reference of the program, for a `clRetain…` function.
pub(crate) fn retain<T: Object>(handle: T::Handle) -> Result<(), Code> {
    object::<T>(handle)?.base().references.fetch_add(OWN_REFERENCE, Ordering::Relaxed);
    Ok(())
}

/// Drops a reference of the program, for a `clRelease…` function.
pub(crate) fn release<T: Object>(handle: T::Handle) -> Result<(), Code> {
    let object = object::<T>(handle)?;
    // The program no longer owns an object that only other objects keep alive.
    if object.base().count() == 0 {
        return Err(T::INVALID_CODE);
    }
    drop_reference(&object, OWN_REFERENCE);
    Ok(())
}

fn drop_reference<T: Object>(object: &Arc<T>, reference: u64) {
    if object.base().references.fetch_sub(reference, Ordering::AcqRel) != reference {
        return;
    }
    object.ending();
    // Sent before the handle is free, so that a new object with the same number is made afterwards.
    let message = kdclRelease { object: object.base().id };
    let _ = if object.ends_lazily() { session::enqueue_lazily(&message) } else { session::enqueue(&message) };
    object.ended();
    T::table().remove(object.base().handle);
}

/// A reference of one object to another.
#[derive(Debug)]
pub(crate) struct HeldObject<T: Object>(Arc<T>);

impl<T: Object> HeldObject<T> {
    pub(crate) fn new(object: Arc<T>) -> Self {
        object.base().references.fetch_add(HELD_REFERENCE, Ordering::Relaxed);
        Self(object)
    }
}

impl<T: Object> Clone for HeldObject<T> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl<T: Object> Deref for HeldObject<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Object> Drop for HeldObject<T> {
    fn drop(&mut self) {
        drop_reference(&self.0, HELD_REFERENCE);
    }
}

/// Returns a handle's value as bytes, for queries.
pub(crate) fn bytes<T: Object>(object: &T) -> Vec<u8> {
    (object.base().handle as u64).to_le_bytes().to_vec()
}

/// Kinds are numbered as on the wire.
const _: () = assert!(kind::EVENT == 9 && size_of::<*mut void>() == 8);
