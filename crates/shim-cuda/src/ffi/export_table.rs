//! `cuGetExportTable`: the private tables, filled with this library's own answers.
#![expect(unsafe_code, reason = "reads and writes pointers of C callers")]

use std::ffi::{CString, c_void};

use katydid_client::life::{self, Life};
use katydid_client::session::api_code::ApiCode;
use katydid_cuda_sys::{CUresult, CUstream, CUuuid, device_attribute};
use katydid_export_table::{ContextState, DeviceIdentity, DriverFacts, Handle, Id, Status};

use katydid_wire::message::kdMultiprocessorPositions;

use crate::code::module;
use crate::context::record::CONTEXTS;
use crate::context::{device, stack};
use crate::ffi::arguments;
use crate::process::session::shim;
use crate::sync::stream;

/// The driver's answers for the tables.
struct TableAnswers;

/// Installs the answers for the tables; until then they have none.
pub(crate) fn install() {
    katydid_export_table::install(&TableAnswers);
}

/// # Safety
///
/// `table` is null or writable, `id` null or readable.
pub(crate) unsafe fn get(table: *mut *const c_void, id: *const CUuuid) -> Result<(), CUresult> {
    // SAFETY: by the contract; an id is its 16 bytes.
    CUresult(unsafe { katydid_export_table::get(table, id.cast::<Id>()) }).ok()
}

impl DriverFacts for TableAnswers {
    fn driver_version(&self) -> u32 {
        device::DRIVER_VERSION.unsigned_abs()
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        let Ok(devices) = device::all() else { return Vec::new() };
        let identity = |device: &device::Device| DeviceIdentity {
            uuid: device.facts.uuid,
            pci_domain: device.value(device_attribute::PCI_DOMAIN_ID).unsigned_abs(),
            pci_bus: device.value(device_attribute::PCI_BUS_ID).unsigned_abs(),
            pci_device: device.value(device_attribute::PCI_DEVICE_ID).unsigned_abs(),
        };
        devices.iter().map(identity).collect()
    }

    fn alive(&self) -> Result<(), Status> {
        match life::now() {
            Life::Running => Ok(()),
            Life::Exiting => Err(CUresult::ERROR_DEINITIALIZED.0),
            Life::Fresh | Life::Forked => Err(CUresult::ERROR_NOT_INITIALIZED.0),
            Life::Lost => Err(CUresult::WORKER_LOST.0),
        }
    }

    fn current_context(&self) -> Handle {
        stack::get().map_or(0, |context| context.slot.handle)
    }

    fn context_state(&self, context: Handle) -> ContextState {
        match CONTEXTS.get().ok().and_then(|contexts| contexts.get(context)) {
            Some(context) if context.is_active() => ContextState::Active,
            Some(_) => ContextState::Inactive,
            None => ContextState::Unknown,
        }
    }

    fn primary_context(&self, ordinal: i32) -> Result<Handle, Status> {
        device::device(ordinal).map(|device| device.primary.slot.handle).map_err(|code| code.0)
    }

    fn context_device(&self, context: Handle) -> Result<i32, Status> {
        stack::or_current(context).map(|context| context.device as i32).map_err(|code| code.0)
    }

    fn context_id(&self, context: Handle) -> Result<u64, Status> {
        stack::or_current(context).and_then(|context| context.id()).map_err(|code| code.0)
    }

    fn stream_object(&self, _context: Handle, handle: Handle, per_thread: bool) -> Result<Handle, Status> {
        let handle = if handle == 0 && per_thread { 2 } else { handle };
        stream::object_address(CUstream(arguments::handle(handle))).map_err(|code| code.0)
    }

    fn stream_id(&self, _context: Handle, object: Handle) -> Result<u64, Status> {
        stream::id_of_object(object).map_err(|code| code.0)
    }

    unsafe fn load_image(&self, image: *const c_void) -> Result<Handle, Status> {
        // SAFETY: a complete image, by the trait's contract.
        unsafe { module::load(image, &[]) }.map(|module| module.slot.handle).map_err(|code| code.0)
    }

    fn module_functions(&self, module: Handle) -> Result<Vec<(Handle, CString)>, Status> {
        module::functions_of(katydid_cuda_sys::CUmodule(arguments::handle(module))).map_err(|code| code.0)
    }

    fn multiprocessor_locations(&self) -> Result<(Vec<u8>, Vec<u8>), Status> {
        let context = stack::active().map_err(|_| CUresult::ERROR_INVALID_CONTEXT.0)?;
        let shim = shim().map_err(|code| code.0)?;
        let reply = shim.session.call(context.wire(), &kdMultiprocessorPositions {}).map_err(|code| code.0)?;
        Ok((reply.first, reply.second))
    }

    fn unload_module(&self, module: Handle) -> Result<(), Status> {
        module::unload(katydid_cuda_sys::CUmodule(arguments::handle(module))).map_err(|code| code.0)
    }
}
