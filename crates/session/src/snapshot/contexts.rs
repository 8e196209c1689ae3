//! Contexts for copies: those of the program, and one held temporarily for a device without any.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult, device_attribute};
use katydid_driver::Driver;

use super::error::{SnapshotError, refused};
use crate::device::ask::ask;
use crate::device::gather::current_device;
use crate::state::Session;

/// A context that can be made current.
#[derive(Debug, Clone, Copy)]
pub(super) struct SwitchableContext(pub(super) CUcontext);

impl SwitchableContext {
    /// Makes it current on this thread.
    pub(super) fn enter(self, driver: &Driver) -> Result<(), SnapshotError> {
        // SAFETY: a living context of the session.
        unsafe { driver.cuCtxSetCurrent(self.0) }.ok().map_err(refused("enter a context"))
    }
}

/// The contexts of a session.
pub(super) struct Contexts {
    driver: Arc<Driver>,
    /// Wire id, device ordinal and handle of each context.
    all: Vec<(u32, i32, CUcontext)>,
    /// One for each device that has memory.
    of_device: BTreeMap<i32, CUcontext>,
    /// Devices whose primary context was retained here.
    retained_devices: Vec<i32>,
}

impl Contexts {
    /// Finds them. [`Session::reenter`] restores the current context of this thread.
    pub(super) fn of(session: &Session) -> Result<Self, SnapshotError> {
        let driver = Arc::clone(&session.shared.driver);
        let mut contexts = Self { driver, all: Vec::new(), of_device: BTreeMap::new(), retained_devices: Vec::new() };
        for (id, handle, _) in session.tables.contexts.all() {
            if session.green_contexts.contains_key(&id) {
                continue;
            }
            let device = contexts.device_of(handle)?;
            contexts.all.push((id, device, handle));
        }
        let warm = session.warm.iter().map(|warm| (warm.device, warm.handle));
        let copy_contexts =
            session.snapshots.copy_contexts().iter().map(|copy_context| (copy_context.device, copy_context.context));
        for (device, handle) in copy_contexts.chain(contexts.all.iter().map(|(_, device, handle)| (*device, *handle))) {
            contexts.of_device.entry(device).or_insert(handle);
        }
        for (device, handle) in warm {
            contexts.of_device.entry(device).or_insert(handle);
        }
        for (device, ..) in session.device.ranges() {
            contexts.hold(device)?;
        }
        Ok(contexts)
    }

    fn device_of(&self, handle: CUcontext) -> Result<i32, SnapshotError> {
        SwitchableContext(handle).enter(&self.driver)?;
        current_device(&self.driver).map_err(refused("ask for the device of a context"))
    }

    /// Retains a context for a device: a program may have ended its contexts and kept its memory.
    fn hold(&mut self, device: i32) -> Result<(), SnapshotError> {
        if !self.of_device.contains_key(&device) {
            // SAFETY: the output is a local.
            let handle = ask(|out| unsafe { self.driver.cuDevicePrimaryCtxRetain(out, device) });
            self.of_device.insert(device, handle.map_err(refused("make a context to copy in"))?);
            self.retained_devices.push(device);
        }
        Ok(())
    }

    /// Returns all contexts of the program: id, device, handle.
    pub(super) fn all(&self) -> &[(u32, i32, CUcontext)] {
        &self.all
    }

    /// Returns a context on a device; if it has none, any: each reaches host memory.
    pub(super) fn of_device(&self, device: i32) -> Result<CUcontext, SnapshotError> {
        let found = self.of_device.get(&device).or_else(|| self.of_device.values().next()).copied();
        found.ok_or(SnapshotError::Driver { what: "find a context to copy in", code: CUresult::ERROR_INVALID_CONTEXT })
    }

    /// Returns the context of a program's id.
    pub(super) fn of_id(&self, id: u32) -> Result<(i32, SwitchableContext), SnapshotError> {
        let found = self.all.iter().find(|(other, ..)| *other == id);
        let missing =
            SnapshotError::Driver { what: "find the context of an object", code: CUresult::ERROR_INVALID_CONTEXT };
        found.map(|(_, device, handle)| (*device, SwitchableContext(*handle))).ok_or(missing)
    }
}

/// Returns the architecture of a device, such as 90.
pub(super) fn architecture(driver: &Driver, device: i32) -> Result<u32, SnapshotError> {
    let attribute = |attribute| {
        // SAFETY: the output is a local.
        ask::<i32>(|out| unsafe { driver.cuDeviceGetAttribute(out, attribute, device) })
            .map_err(refused("ask for the architecture of a device"))
    };
    let major = attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?;
    Ok(u32::try_from(major * 10 + minor).unwrap_or(0))
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for device in &self.retained_devices {
            // SAFETY: takes a number; retained by `hold`.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(*device) };
        }
    }
}

impl Session {
    /// Restores the current context for frames, after others were entered on this thread.
    pub(crate) fn reenter(&self) {
        if let Ok(handle) = self.tables.contexts.get(self.entered)
            && self.entered != 0
        {
            // SAFETY: a live context of the session. A failure here also fails the next frame.
            let _ = unsafe { self.driver().cuCtxSetCurrent(handle) };
        }
    }
}
