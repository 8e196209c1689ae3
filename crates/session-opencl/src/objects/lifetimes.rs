//! Lifetimes of drivers' objects: which must outlive which, and when each is released.
//!
//! A driver counts references, but not every driver holds everything that it uses. PoCL 3.1 releases the context of a queue, and
//! with it the last reference to a part of a device. Then it asks that device for the functions that free the queue. So a session
//! holds, for each object, the objects that it is made of. The driver gets an object back only after everything that is made of
//! it.
//!
//! | object | is made of |
//! |---|---|
//! | part of a device | the whole device |
//! | context | its devices |
//! | queue | context, device |
//! | sampler, pipe, buffer, program, event that the program sets, shared virtual memory | context |
//! | buffer in shared virtual memory | context, and that memory |
//! | part of a buffer | the buffer |
//! | image | context, and the buffer or image that it is a view of |
//! | kernel | program |
//! | event of a command | queue |
//!
//! A driver counts what its commands use too. So memory counts towards the session's limit until its driver reports that nothing
//! of it is left, whatever the program has released. A sub-buffer holds the buffer, a kernel its program, and a command its
//! operands.
//!
//! Session code that uses an object beyond the current frame holds an [`ObjectRef`]: a build, a wait, a copy of contents.

#![expect(unsafe_code, reason = "gives objects back to their drivers")]

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_opencl_sys::constant::DEVICE_REFERENCE_COUNT;
use katydid_opencl_sys::{
    Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem, cl_program, cl_sampler,
    void,
};
use katydid_wire::opencl::kind;

use crate::drivers::call::driver;
use crate::drivers::query::ask;
use crate::memory::address::pointer;
use crate::memory::charge::Charge;
use crate::objects::object::{Handle, Object};

/// A reference to an object; the driver gets the object back after the last reference is dropped.
pub(crate) type ObjectRef = Arc<OwnedObject>;

/// Pseudo-kind of shared virtual memory, which has no ids.
const SVM_KIND: u32 = u32::MAX;

/// An object that a driver made for the session, with the objects that it is made of.
#[derive(Debug)]
pub(crate) struct OwnedObject {
    kind: u32,
    object: Object<*mut void>,
    /// Dropped after the object is released: fields are dropped after `drop` has run.
    made_of: Vec<ObjectRef>,
    /// Charge for the object's memory; dropped as above.
    charge: Mutex<Option<Charge>>,
}

// SAFETY: OpenCL objects may be used from every thread; the pointer is never followed here.
unsafe impl Sync for OwnedObject {}

impl OwnedObject {
    /// Takes ownership of the reference that the driver returned.
    pub(crate) fn new<H: Handle>(object: Object<H>, made_of: Vec<ObjectRef>) -> ObjectRef {
        let Object { handle, api, size } = object;
        Self::shared(H::KIND, Object { handle: handle.pointer(), api, size }, made_of)
    }

    /// Takes ownership of shared virtual memory that a driver allocated at this address.
    pub(crate) fn svm(raw: u64, context: ObjectRef) -> ObjectRef {
        let object = Object { handle: pointer(raw), api: context.object.api, size: 0 };
        Self::shared(SVM_KIND, object, vec![context])
    }

    fn shared(kind: u32, object: Object<*mut void>, made_of: Vec<ObjectRef>) -> ObjectRef {
        Arc::new(Self { kind, object, made_of, charge: Mutex::default() })
    }

    /// Sets the object's charge, and drops the previous one.
    pub(crate) fn set_charge(&self, charge: Option<Charge>) {
        let before = std::mem::replace(&mut *self.charge.lock().unwrap_or_else(PoisonError::into_inner), charge);
        drop(before);
    }

    /// Leaves the charge to the driver, which knows when nothing of the memory is left: commands may still have to run. NVIDIA's
    /// driver counts no references of commands, so a query would not help. If the driver reports no end, the charge ends with the
    /// session's reference.
    fn leave_charge(&mut self) {
        let Object { handle, api, .. } = self.object;
        let charge = self.charge.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(set) = api.clSetMemObjectDestructorCallback else { return };
        let Some(mut charge) = charge.take() else { return };
        charge.is_released();
        let data = Box::into_raw(Box::new(charge));
        // SAFETY: the object lives until it is released below, and the data is for this function.
        if Code(unsafe { set(cl_mem(handle), Some(memory_is_gone), data.cast()) }) != Code::SUCCESS {
            // SAFETY: made above, and the driver has not accepted it.
            drop(unsafe { Box::from_raw(data) });
        }
    }

    /// Returns its kind, as in ids.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Returns the driver's handle, with the driver's functions.
    pub(crate) fn object(&self) -> Object<*mut void> {
        self.object
    }

    /// Returns the objects that it is made of.
    pub(crate) fn made_of(&self) -> &[ObjectRef] {
        &self.made_of
    }
}

/// The driver calls this once, when nothing of a memory object is left.
unsafe extern "C" fn memory_is_gone(_: cl_mem, data: *mut void) {
    // SAFETY: made by `OwnedObject::leave_charge` for this one call.
    drop(unsafe { Box::from_raw(data.cast::<Charge>()) });
}

impl Drop for OwnedObject {
    fn drop(&mut self) {
        if self.kind == kind::MEMORY {
            self.leave_charge();
        }
        let Object { handle, api, .. } = self.object;
        // An object that the driver does not release stays until the process ends.
        let _ = match self.kind {
            // A whole device has no reference count.
            kind::DEVICE if self.made_of.is_empty() => Code::SUCCESS,
            kind::DEVICE => {
                retire(SubDevice { device: cl_device_id(handle), api, whole: std::mem::take(&mut self.made_of) });
                Code::SUCCESS
            }
            kind::CONTEXT => driver!(api, clReleaseContext(cl_context(handle))),
            kind::QUEUE => driver!(api, clReleaseCommandQueue(cl_command_queue(handle))),
            kind::MEMORY => driver!(api, clReleaseMemObject(cl_mem(handle))),
            kind::SAMPLER => driver!(api, clReleaseSampler(cl_sampler(handle))),
            kind::PROGRAM => driver!(api, clReleaseProgram(cl_program(handle))),
            kind::KERNEL => driver!(api, clReleaseKernel(cl_kernel(handle))),
            kind::EVENT => driver!(api, clReleaseEvent(cl_event(handle))),
            SVM_KIND => free(api, handle, &self.made_of),
            // Platforms are never released.
            _ => Code::SUCCESS,
        };
    }
}

/// Frees shared virtual memory.
fn free(api: &Dispatch, out: *mut void, made_of: &[ObjectRef]) -> Code {
    let (Some(free), Some(context)) = (api.clSVMFree, made_of.first()) else { return Code::INVALID_OPERATION };
    // SAFETY: the driver allocated it in this context, which is held, and this value is dropped once.
    unsafe { free(cl_context(context.object.handle), out) };
    Code::SUCCESS
}

/// A part of a device that nothing in the session uses any more.
struct SubDevice {
    device: cl_device_id,
    api: &'static Dispatch,
    whole: Vec<ObjectRef>,
}

// SAFETY: as for `OwnedObject`.
unsafe impl Send for SubDevice {}

/// Parts that nothing in the session uses, each with whether its driver was seen to have no use for it either.
static RETIRED_SUB_DEVICES: Mutex<Vec<(SubDevice, bool)>> = Mutex::new(Vec::new());

/// Keeps a part until its driver has stopped using it. When a queue's last command has ended, a thread of the driver may still be
/// about to free the queue. So a part is released only once a second check finds it unused.
fn retire(part: SubDevice) {
    let mut retired = RETIRED_SUB_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut unused = Vec::new();
    for (part, was_unused) in std::mem::take(&mut *retired) {
        let is_unused = part.references() <= 1;
        if is_unused && was_unused { unused.push(part) } else { retired.push((part, is_unused)) }
    }
    retired.push((part, false));
    drop(retired);
    // Outside of the lock: the whole may be a part itself.
    unused.into_iter().for_each(SubDevice::give_back);
}

impl SubDevice {
    /// Returns the driver's reference count; one reference is the session's. If the driver does not tell, assumes others.
    fn references(&self) -> u32 {
        let null = std::ptr::null_mut();
        let get = |size, out| driver!(self.api, clGetDeviceInfo(self.device, DEVICE_REFERENCE_COUNT, size, out, null));
        ask(get).unwrap_or(u32::MAX)
    }

    fn give_back(self) {
        let _ = driver!(self.api, clReleaseDevice(self.device));
        drop(self.whole);
    }
}

/// Objects that stay with their drivers when the session ends: the process ends then, and commands may still run.
pub(crate) type LeakedRef = ManuallyDrop<ObjectRef>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::empty_table;

    /// One test at a time: all of them observe releases.
    static TEST_LOCK: Mutex<()> = Mutex::new(());
    /// The released objects in order, and the driver's reference count of parts.
    static GIVEN_BACK: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static REFERENCES: Mutex<u32> = Mutex::new(2);

    unsafe extern "C" fn note_device(device: cl_device_id) -> i32 {
        GIVEN_BACK.lock().unwrap().push(device.0.addr());
        0
    }

    unsafe extern "C" fn note_context(context: cl_context) -> i32 {
        GIVEN_BACK.lock().unwrap().push(context.0.addr());
        0
    }

    unsafe extern "C" fn note_queue(queue: cl_command_queue) -> i32 {
        GIVEN_BACK.lock().unwrap().push(queue.0.addr());
        0
    }

    unsafe extern "C" fn note_event(event: cl_event) -> i32 {
        GIVEN_BACK.lock().unwrap().push(event.0.addr());
        0
    }

    unsafe extern "C" fn count(_: cl_device_id, _: u32, _: usize, out: *mut void, _: *mut usize) -> i32 {
        // SAFETY: the caller asks for a count.
        unsafe { out.cast::<u32>().write(*REFERENCES.lock().unwrap()) };
        0
    }

    fn api() -> &'static Dispatch {
        let mut api = empty_table();
        api.clReleaseDevice = Some(note_device);
        api.clReleaseContext = Some(note_context);
        api.clReleaseCommandQueue = Some(note_queue);
        api.clReleaseEvent = Some(note_event);
        api.clGetDeviceInfo = Some(count);
        Box::leak(Box::new(api))
    }

    fn owned<H: Handle>(out: usize, api: &'static Dispatch, made_of: &[&ObjectRef]) -> ObjectRef {
        let handle = H::new(std::ptr::without_provenance_mut(out));
        OwnedObject::new(Object { handle, api, size: 0 }, made_of.iter().map(|hold| Arc::clone(hold)).collect())
    }

    fn given_back() -> Vec<usize> {
        std::mem::take(&mut *GIVEN_BACK.lock().unwrap())
    }

    #[test]
    fn an_object_is_given_back_after_all_that_is_made_of_it_whatever_the_program_releases_first() {
        let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let api = api();
        let whole = owned::<cl_device_id>(1, api, &[]);
        let part = || {
            let part = owned::<cl_device_id>(2, api, &[&whole]);
            let context = owned::<cl_context>(3, api, &[&part]);
            let queue = owned::<cl_command_queue>(4, api, &[&context, &part]);
            let event = owned::<cl_event>(5, api, &[&queue]);
            [part, context, queue, event]
        };
        // Every order in which a program can release four objects.
        for order in 0..256 {
            let mut objects = part().map(Some);
            for step in 0..4 {
                objects[order >> (2 * step) & 3] = None;
            }
            drop(objects);
            let mut order = given_back();
            order.retain(|out| (3..=5).contains(out));
            assert_eq!(order, [5, 4, 3]);
        }
    }

    #[test]
    fn a_part_of_a_device_stays_while_its_driver_uses_it_and_is_found_unused_twice() {
        let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let part =
            || SubDevice { device: cl_device_id(std::ptr::without_provenance_mut(64)), api: api(), whole: Vec::new() };
        let count = || given_back().into_iter().filter(|out| *out == 64).count();
        *REFERENCES.lock().unwrap() = 2;
        (0..4).for_each(|_| retire(part()));
        assert_eq!(count(), 0);
        *REFERENCES.lock().unwrap() = 1;
        retire(part());
        assert_eq!(count(), 0, "found unused for the first time");
        retire(part());
        assert_eq!(count(), 4);
    }
}
