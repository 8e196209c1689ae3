//! Facts about this library for the private tables.

#![expect(unsafe_code, reason = "passes on an image without a length")]

use std::ffi::{CString, c_void};
use std::sync::Arc;

use katydid_cuda_sys::{CUmodule, CUresult, CUstream};
use katydid_export_table::{ContextState, DeviceIdentity, DriverFacts, Handle, Status};

use katydid_driver_rules::device::DRIVER_VERSION;
use katydid_ptx_exec::Kernel;

use crate::code::module;
use crate::code::module_image::Code;
use crate::context::{contexts, stack};
use crate::process::{device, state};
use crate::sync::streams;

/// Added to a stream's handle to make its "object". The sum is never a handle itself.
const OBJECT_OFFSET: usize = 8;

/// Has no state: it looks every answer up where the public functions do.
struct Facts;

/// Installs the facts, once.
pub(crate) fn install() {
    katydid_export_table::install(&Facts);
}

impl DriverFacts for Facts {
    fn driver_version(&self) -> u32 {
        DRIVER_VERSION
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        let identity = |device: &device::Device| DeviceIdentity {
            uuid: device.uuid(),
            pci_domain: 0,
            pci_bus: device.pci_bus(),
            pci_device: 0,
        };
        device::all().iter().map(identity).collect()
    }

    fn alive(&self) -> Result<(), Status> {
        state::ready().map_err(|code| code.0)
    }

    fn current_context(&self) -> Handle {
        stack::handle()
    }

    fn context_state(&self, handle: Handle) -> ContextState {
        match contexts::living(handle) {
            Some(_) => ContextState::Active,
            None if device::by_primary(handle).is_some() => ContextState::Inactive,
            None => ContextState::Unknown,
        }
    }

    fn primary_context(&self, ordinal: i32) -> Result<Handle, Status> {
        device::get(ordinal).map(|device| device.primary_handle).map_err(|code| code.0)
    }

    fn context_device(&self, handle: Handle) -> Result<i32, Status> {
        stack::device_of(handle).map(|device| device.ordinal).map_err(|code| code.0)
    }

    fn context_id(&self, handle: Handle) -> Result<u64, Status> {
        stack::named(handle).map(|context| context.id).map_err(|code| code.0)
    }

    /// Returns the object of a stream. Default streams have the same handles in all contexts, so they share two objects; the
    /// context tells them apart.
    fn stream_object(&self, handle: Handle, stream: Handle, per_thread: bool) -> Result<Handle, Status> {
        let stream_handle = match stream {
            0..=2 => stack::named(handle)
                .map(|context| streams::default_of(&context, stream == 2 || (stream == 0 && per_thread)).handle),
            _ => streams::created(CUstream(std::ptr::with_exposed_provenance_mut(stream))).map(|stream| stream.handle),
        };
        stream_handle.map(|handle| handle + OBJECT_OFFSET).map_err(|code| code.0)
    }

    fn stream_id(&self, handle: Handle, object: Handle) -> Result<u64, Status> {
        let stream = object.wrapping_sub(OBJECT_OFFSET);
        let stream_record = match stream {
            1 | 2 => stack::named(handle).map(|context| streams::default_of(&context, stream == 2)),
            _ => streams::created(CUstream(std::ptr::with_exposed_provenance_mut(stream))),
        };
        stream_record.map(|stream| stream.id).map_err(|code| code.0)
    }

    unsafe fn load_image(&self, image: *const c_void) -> Result<Handle, Status> {
        let context = stack::usable().map_err(|code| code.0)?;
        // SAFETY: a complete image, by the contract of this function.
        let loaded = unsafe { Code::at(image) }.and_then(|code| module::load(&context, &code));
        loaded.map(|module| module.handle).map_err(|refusal| refusal.code.0)
    }

    fn module_functions(&self, handle: Handle) -> Result<Vec<(Handle, CString)>, Status> {
        let handle = CUmodule(std::ptr::with_exposed_provenance_mut(handle));
        let module = module::resolve(handle).map_err(|code| code.0)?;
        let handle_of = |kernel: &Arc<Kernel>| module.function(&kernel.name).map(|it| (it.handle, it.name.clone()));
        module.kernels().iter().map(handle_of).collect::<Result<_, _>>().map_err(|code| code.0)
    }

    /// Returns the clusters: each pair of multiprocessors goes to the next one in turn, as on a GPU.
    fn multiprocessor_locations(&self) -> Result<(Vec<u8>, Vec<u8>), Status> {
        const CLUSTERS: u32 = 8;
        let context = stack::usable().map_err(|_| CUresult::ERROR_INVALID_CONTEXT.0)?;
        let pairs = context.device.multiprocessors().div_ceil(2);
        Ok((0..pairs).map(|pair| ((pair % CLUSTERS) as u8, (pair / CLUSTERS) as u8)).unzip())
    }

    fn unload_module(&self, handle: Handle) -> Result<(), Status> {
        let module = module::resolve(CUmodule(std::ptr::with_exposed_provenance_mut(handle)));
        module.and_then(|module| module::unload(module.handle)).map_err(|code| code.0)
    }
}
