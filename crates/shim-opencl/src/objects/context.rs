//! Contexts: devices of one platform, and callbacks for errors and for the end.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::collections::HashSet;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    CONTEXT_DEVICES, CONTEXT_INTEROP_USER_SYNC, CONTEXT_NUM_DEVICES, CONTEXT_PLATFORM, CONTEXT_PROPERTIES,
    CONTEXT_REFERENCE_COUNT,
};
use katydid_opencl_sys::{
    Code, cl_context, cl_context_destroyed, cl_context_notify, cl_device_id, cl_image_format, cl_platform_id, void,
};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclContext, kdclTakesCallback, kdclWaitWrite};
use katydid_wire::opencl::{list as lists, query};

use crate::ffi::arguments::{list, pairs};
use crate::objects::device::{Device, of_type};
use crate::objects::discovery::platform_or_first;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object, objects};
use crate::objects::image_facts::KnownForms;
use crate::objects::info::{QueryBuffer, ask, handles};
use crate::objects::platform::Platform;
use crate::process::per_worker::PerWorker;
use crate::process::session;
use crate::process::upcall::{self, CallbackCall};

/// A context of devices of one platform.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) base: Base,
    pub(crate) devices: Vec<HeldObject<Device>>,
    /// The properties as given, with the final 0; empty if none were given.
    properties: Vec<isize>,
    /// Whether none of its buffers lie in the worker's zero-copy area.
    pub(crate) has_no_zero_copy: AtomicBool,
    /// Whether its driver refuses to use given memory for images.
    pub(crate) has_no_images_in_place: AtomicBool,
    /// Number of commands in its queues at the last in-place image; initially larger than any real number.
    pub(crate) commands_at_image: AtomicU64,
    /// The kinds of images for which its driver is known to use given memory.
    images_in_place: Mutex<KnownForms>,
    /// Token of the error callback ([`crate::process::upcall`]); 0: none.
    token: u64,
    /// Number of queues that it has had.
    queues: AtomicU32,
    /// Whether a blocking write of its only queue was taken for done, and may still run.
    is_writing: AtomicBool,
    /// 1: the worker's driver has made a user event.
    has_made_event: PerWorker,
    /// Number of kernel launches so far. Each may write to all memory that kernels can reach.
    launches: AtomicU64,
    /// Destructor callbacks, called in reverse order.
    destructors: Mutex<Vec<(unsafe extern "C" fn(cl_context, *mut void), usize)>>,
}

kind_of_object! { Context cl_context CONTEXT INVALID_CONTEXT MAX_PROGRAM_OBJECTS, fn ended(&self) { self.end(); } }

impl Context {
    /// Returns the kinds of images that its driver makes in place.
    pub(crate) fn known_forms(&self) -> MutexGuard<'_, KnownForms> {
        self.images_in_place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an enqueued blocking write of its only queue for done. If there is another queue by now, waits for the write.
    pub(crate) fn take_for_done(&self) -> Result<(), Code> {
        // Either this thread sees the other queue, or the thread that makes it sees the write: both accesses are sequentially
        // consistent.
        self.is_writing.store(true, Ordering::SeqCst);
        if self.queues.load(Ordering::SeqCst) > 1 { self.written() } else { Ok(()) }
    }

    /// Counts a new queue. Its commands come after all writes that were taken for done.
    pub(crate) fn count_queue(&self) {
        if self.queues.fetch_add(1, Ordering::SeqCst) > 0 {
            // A failed write does not concern the new queue.
            let _ = self.written();
        }
    }

    /// Waits for the last write that was taken for done, unless another thread has.
    fn written(&self) -> Result<(), Code> {
        if !self.is_writing.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        session::call(&kdclWaitWrite { context: self.base.id }).map(drop)
    }

    /// Returns whether the worker's driver has made a user event: then another one cannot fail.
    pub(crate) fn has_made_event(&self, worker: u32) -> bool {
        self.has_made_event.get(worker) != 0
    }

    /// Notes that the worker's driver has made a user event.
    pub(crate) fn made_event(&self, worker: u32) {
        self.has_made_event.learn(worker, |_| 1);
    }

    /// Counts a kernel launch.
    pub(crate) fn launched(&self) {
        self.launches.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of kernel launches so far.
    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Acquire)
    }

    /// Returns the number of queues so far.
    pub(crate) fn queues(&self) -> u32 {
        self.queues.load(Ordering::SeqCst)
    }

    /// Returns whether it has had at most one queue.
    pub(crate) fn has_one_queue(&self) -> bool {
        self.queues() <= 1
    }

    /// Calls the destructor callbacks, the last one first. The error callback is not called any more.
    pub(crate) fn end(&self) {
        upcall::forget(self.token);
        let list = std::mem::take(&mut *self.destructors.lock().unwrap_or_else(PoisonError::into_inner));
        for (function, data) in list.into_iter().rev() {
            // SAFETY: registered for this one call.
            unsafe { function(self.handle(), ptr::with_exposed_provenance_mut(data)) };
        }
    }

    /// Returns whether all of its devices are processors.
    pub(crate) fn is_of_processors(&self) -> bool {
        self.devices.iter().all(|device| device.is_processor())
    }

    /// Returns whether it includes a device.
    pub(crate) fn has(&self, device: &Device) -> bool {
        self.devices.iter().any(|known| known.base.id == device.base.id)
    }
}

/// A parsed list of properties: the platform, and those that are sent to the driver.
struct Properties {
    platform: Option<Arc<Platform>>,
    for_driver: Vec<i64>,
    properties: Vec<isize>,
}

/// # Safety
///
/// `first` is null or a list that ends with 0.
unsafe fn properties(first: *const isize) -> Result<Properties, Code> {
    // SAFETY: guaranteed by the caller.
    let properties = unsafe { pairs(first) }.unwrap_or_default();
    let (mut platform, mut for_driver) = (None, Vec::new());
    for (at, pair) in properties.chunks_exact(2).enumerate() {
        let (name, value) = (pair[0], pair[1]);
        if properties.chunks_exact(2).take(at).any(|before| before[0] == name) {
            return Err(Code::INVALID_PROPERTY);
        }
        match u32::try_from(name) {
            Ok(CONTEXT_PLATFORM) => {
                let handle = cl_platform_id(ptr::with_exposed_provenance_mut(value.cast_unsigned()));
                platform = Some(object::<Platform>(handle)?);
            }
            Ok(CONTEXT_INTEROP_USER_SYNC) => for_driver.extend([name as i64, value as i64]),
            // Properties of OpenGL, Direct3D and others, whose objects are not forwarded.
            _ => return Err(Code::INVALID_PROPERTY),
        }
    }
    Ok(Properties { platform, for_driver, properties })
}

/// # Safety
///
/// `properties` is null or ends with 0; `devices` holds `num_devices`; `pfn_notify` may be called with `user_data` at
/// any time until the context ends.
pub(crate) unsafe fn create_context(
    properties: *const isize,
    num_devices: u32,
    devices: *const cl_device_id,
    pfn_notify: cl_context_notify,
    user_data: *mut void,
) -> Result<cl_context, Code> {
    // SAFETY: guaranteed by the caller.
    let (properties, devices) = unsafe { (self::properties(properties)?, list(num_devices as usize, devices)) };
    if devices.is_empty() || (pfn_notify.is_none() && !user_data.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let mut devices = objects::<Device>(devices)?;
    // A device that is listed twice counts once.
    let mut ids = HashSet::new();
    devices.retain(|device| ids.insert(device.base.id));
    create(properties, devices, pfn_notify, user_data)
}

fn create(
    properties: Properties,
    devices: Vec<Arc<Device>>,
    notify: cl_context_notify,
    data: *mut void,
) -> Result<cl_context, Code> {
    let first = devices.first().ok_or(Code::INVALID_VALUE)?;
    let platform = properties.platform.as_ref().map_or(first.platform.base.id, |platform| platform.base.id);
    if devices.iter().any(|device| device.platform.base.id != platform) {
        return Err(Code::INVALID_DEVICE);
    }
    let token = match notify {
        Some(function) => {
            let data = data.expose_provenance();
            upcall::register(CallbackCall::Repeated(Arc::new(move |text: &CStr| {
                // SAFETY: callable until the context ends, which forgets it; the text lives as long as the call.
                unsafe { function(text.as_ptr(), ptr::null(), 0, ptr::with_exposed_provenance_mut(data)) }
            })))?
        }
        None => 0,
    };
    let mut arguments = Vec::new();
    platform.put(&mut arguments);
    lists::put(&mut arguments, &properties.for_driver);
    lists::put(&mut arguments, &handle::ids(&devices));
    let context = make(|base| {
        session::call(&kdclContext { context: base.id, token, arguments: &arguments })?;
        let devices = devices.into_iter().map(HeldObject::new).collect();
        Ok(Context {
            base,
            devices,
            properties: properties.properties,
            has_no_zero_copy: AtomicBool::new(false),
            has_no_images_in_place: AtomicBool::new(false),
            commands_at_image: AtomicU64::new(u64::MAX),
            images_in_place: Mutex::default(),
            token,
            queues: AtomicU32::new(0),
            is_writing: AtomicBool::new(false),
            has_made_event: PerWorker::default(),
            launches: AtomicU64::new(0),
            destructors: Mutex::default(),
        })
    });
    Ok(context.inspect_err(|_| upcall::forget(token))?.handle())
}

/// # Safety
///
/// As [`create_context`].
pub(crate) unsafe fn create_context_from_type(
    properties: *const isize,
    device_type: u64,
    pfn_notify: cl_context_notify,
    user_data: *mut void,
) -> Result<cl_context, Code> {
    // SAFETY: guaranteed by the caller.
    let properties = unsafe { self::properties(properties)? };
    if pfn_notify.is_none() && !user_data.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let platform = match &properties.platform {
        Some(platform) => Arc::clone(platform),
        None => platform_or_first(cl_platform_id::NULL)?,
    };
    let devices = of_type(&platform, device_type)?;
    create(properties, devices, pfn_notify, user_data)
}

pub(crate) fn retain_context(context: cl_context) -> Result<(), Code> {
    handle::retain::<Context>(context)
}

pub(crate) fn release_context(context: cl_context) -> Result<(), Code> {
    handle::release::<Context>(context)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_context_info(
    context: cl_context,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let context = object::<Context>(context)?;
    let bytes = match param_name {
        CONTEXT_REFERENCE_COUNT => context.base.count().to_le_bytes().to_vec(),
        CONTEXT_NUM_DEVICES => (context.devices.len() as u32).to_le_bytes().to_vec(),
        CONTEXT_DEVICES => handles(context.devices.iter().map(|device| device.base.handle)),
        CONTEXT_PROPERTIES => handles(context.properties.iter().map(|value| value.cast_unsigned())),
        _ => return Err(Code::INVALID_VALUE),
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// `pfn_notify` may be called once with `user_data`.
pub(crate) unsafe fn set_context_destructor_callback(
    context: cl_context,
    pfn_notify: cl_context_destroyed,
    user_data: *mut void,
) -> Result<(), Code> {
    let context = object::<Context>(context)?;
    session::call(&kdclTakesCallback { object: context.base.id, has_callback: pfn_notify.is_some().into() })?;
    let function = pfn_notify.ok_or(Code::INVALID_VALUE)?;
    let mut list = context.destructors.lock().unwrap_or_else(PoisonError::into_inner);
    list.push((function, user_data.expose_provenance()));
    Ok(())
}

/// # Safety
///
/// `image_formats` is null or has room for `num_entries`; the count is null or writable.
pub(crate) unsafe fn get_supported_image_formats(
    context: cl_context,
    flags: u64,
    image_type: u32,
    num_entries: u32,
    image_formats: *mut cl_image_format,
    num_image_formats: *mut u32,
) -> Result<(), Code> {
    let context = object::<Context>(context)?;
    if num_entries == 0 && !image_formats.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let worker = session::worker()?;
    let cached = context.known_forms().list(worker, flags, image_type);
    let bytes = match cached {
        Some(bytes) => bytes,
        None => {
            let bytes = ask(query::IMAGE_FORMATS, context.base.id, 0, image_type, &flags.to_le_bytes())?;
            // The worker may have changed meanwhile; then it is unknown which one answered.
            if session::worker()? == worker {
                context.known_forms().learn_list(worker, flags, image_type, bytes.clone());
            }
            bytes
        }
    };
    if !image_formats.is_null() {
        for (at, entry) in bytes.chunks_exact(8).enumerate().take(num_entries as usize) {
            let mut left = entry;
            let mut number = || u32::take(&mut left).unwrap_or(0);
            let format = cl_image_format { image_channel_order: number(), image_channel_data_type: number() };
            // SAFETY: below `num_entries`, for which there is room by the contract.
            unsafe { image_formats.add(at).write(format) };
        }
    }
    // SAFETY: by the contract.
    unsafe { write_optional(num_image_formats, (bytes.len() / 8) as u32) };
    Ok(())
}
