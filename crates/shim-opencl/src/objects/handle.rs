//! Handles, and how long the objects behind them live.
//!
//! An object has references of the program's (`clRetain…`, `clRelease…`) and of other objects that are made of it
//! ([`HeldObject`]). With the last of both it ends: the worker is told, the handle is free, and what it was made of is let go.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_client::slab::{Slab, Slot};
use katydid_opencl_sys::{Code, void};
use katydid_wire::opencl::message::kdclRelease;
use katydid_wire::opencl::{id, kind};

use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::event::Event;
use crate::objects::kernel::Kernel;
use crate::objects::memory::Memory;
use crate::objects::platform::Platform;
use crate::objects::program::Program;
use crate::objects::queue::Queue;
use crate::objects::sampler::Sampler;
use crate::process::shim::{Shim, shim};

/// A reference of the program's.
const OWN_REFERENCE: u64 = 1;
/// A reference of another object.
const HELD_REFERENCE: u64 = 1 << 32;

/// What every object has.
#[derive(Debug)]
pub(crate) struct Base {
    /// The handle's value.
    pub(crate) handle: usize,
    /// What the worker knows it as.
    pub(crate) id: u32,
    /// References: the program's in the lower half, other objects' in the upper one.
    references: AtomicU64,
}

impl Base {
    /// The base of a new object, with one reference of the program's.
    pub(crate) fn new<T: Object>(slot: Slot) -> Self {
        Self { handle: slot.handle, id: id(T::KIND, slot.index), references: AtomicU64::new(OWN_REFERENCE) }
    }

    /// References of the program's.
    pub(crate) fn count(&self) -> u32 {
        self.references.load(Ordering::Relaxed) as u32
    }
}

/// A kind of object.
pub(crate) trait Object: Sized + Send + Sync + 'static {
    /// Its number in ids.
    const KIND: u32;
    /// The code for a handle that is none of this kind.
    const WRONG: Code;
    /// Its handles.
    type Handle: Copy;

    fn slab(shim: &Shim) -> &Slab<Self>;

    fn base(&self) -> &Base;

    fn value(handle: Self::Handle) -> usize;

    fn handle(&self) -> Self::Handle;

    /// The last reference is gone, and the worker has been told.
    fn ended(&self) {}
}

/// Gives an object's type its place: the kind's number, the code, the handle, the slab.
#[macro_export]
macro_rules! kind_of_object {
    ($object:ident $handle:ident $kind:ident $wrong:ident $slab:ident $(, $ended:item)?) => {
        impl $crate::objects::handle::Object for $object {
            const KIND: u32 = katydid_wire::opencl::kind::$kind;
            const WRONG: katydid_opencl_sys::Code = katydid_opencl_sys::Code::$wrong;
            type Handle = katydid_opencl_sys::$handle;

            fn slab(shim: &$crate::process::shim::Shim) -> &katydid_client::slab::Slab<Self> {
                &shim.$slab
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

            $($ended)?
        }
    };
}

kind_of_object! { Platform cl_platform_id PLATFORM INVALID_PLATFORM platforms }
kind_of_object! { Device cl_device_id DEVICE INVALID_DEVICE devices }
kind_of_object! { Queue cl_command_queue QUEUE INVALID_COMMAND_QUEUE queues }
kind_of_object! { Sampler cl_sampler SAMPLER INVALID_SAMPLER samplers }
kind_of_object! { Kernel cl_kernel KERNEL INVALID_KERNEL kernels }
kind_of_object! { Event cl_event EVENT INVALID_EVENT events }
kind_of_object! { Memory cl_mem MEMORY INVALID_MEM_OBJECT memories }
kind_of_object! { Context cl_context CONTEXT INVALID_CONTEXT contexts, fn ended(&self) { self.end(); } }
kind_of_object! { Program cl_program PROGRAM INVALID_PROGRAM programs, fn ended(&self) { self.call_destructors(); } }

/// The object behind a handle.
///
/// # Errors
///
/// The code of its kind, for null too.
pub(crate) fn object<T: Object>(handle: T::Handle) -> Result<Arc<T>, Code> {
    let shim = shim().map_err(|_| T::WRONG)?;
    T::slab(shim).get(T::value(handle)).ok_or(T::WRONG)
}

/// Has `work` done with the object behind a handle: what is called a million times a second takes no share in it. `work` ends no
/// object of this kind.
pub(crate) fn lent<T: Object>(handle: T::Handle, work: impl FnOnce(&T) -> Result<(), Code>) -> Result<(), Code> {
    let shim = shim().map_err(|_| T::WRONG)?;
    T::slab(shim).lend(T::value(handle), work).unwrap_or(Err(T::WRONG))
}

/// The objects behind a list of handles.
pub(crate) fn objects<T: Object>(handles: &[T::Handle]) -> Result<Vec<Arc<T>>, Code> {
    handles.iter().map(|handle| object::<T>(*handle)).collect()
}

/// The ids of a list of objects.
pub(crate) fn ids<T: Object>(objects: &[Arc<T>]) -> Vec<u32> {
    objects.iter().map(|object| object.base().id).collect()
}

/// Makes an object and its handle; when `make` fails, there is neither.
pub(crate) fn make<T: Object>(make: impl FnOnce(Base) -> Result<T, Code>) -> Result<Arc<T>, Code> {
    let shim = shim()?;
    T::slab(shim).try_insert(Code::OUT_OF_HOST_MEMORY, |slot| make(Base::new::<T>(slot)))
}

/// `clRetain…`.
pub(crate) fn retain<T: Object>(handle: T::Handle) -> Result<(), Code> {
    object::<T>(handle)?.base().references.fetch_add(OWN_REFERENCE, Ordering::Relaxed);
    Ok(())
}

/// `clRelease…`.
pub(crate) fn release<T: Object>(handle: T::Handle) -> Result<(), Code> {
    let object = object::<T>(handle)?;
    // One that only other objects keep alive is none of the program's any more.
    if object.base().count() == 0 {
        return Err(T::WRONG);
    }
    let_go(&object, OWN_REFERENCE);
    Ok(())
}

fn let_go<T: Object>(object: &Arc<T>, reference: u64) {
    if object.base().references.fetch_sub(reference, Ordering::AcqRel) != reference {
        return;
    }
    let Ok(shim) = shim() else { return };
    // Told before the handle is free: a new object of the same number is made after.
    let _ = shim.link.enqueue(&kdclRelease { object: object.base().id });
    object.ended();
    T::slab(shim).remove(object.base().handle);
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
        let_go(&self.0, HELD_REFERENCE);
    }
}

/// The id of a live object that may be an argument of a kernel, found by the value of its handle.
pub(crate) fn any_argument(value: usize) -> Option<u32> {
    let shim = shim().ok()?;
    let memory = shim.memories.lend(value, |memory| memory.base.id);
    memory
        .or_else(|| shim.samplers.lend(value, |sampler| sampler.base.id))
        .or_else(|| shim.queues.lend(value, |queue| queue.base.id))
}

/// A handle's value as bytes, for queries.
pub(crate) fn bytes<T: Object>(object: &T) -> Vec<u8> {
    (object.base().handle as u64).to_le_bytes().to_vec()
}

/// Kinds are numbered as the wire has them.
const _: () = assert!(kind::EVENT == 9 && size_of::<*mut void>() == 8);
