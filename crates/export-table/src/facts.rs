//! The answers of the embedding library for the tables: its version, devices, contexts and streams.
//!
//! Set once, by the first call of the library. Every answer must equal that of the public functions to a program: both sides
//! compute the integrity digest and compare it.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use crate::ffi::{Status, status};

/// An opaque driver handle (context, stream, module) as a number; 0 for none.
pub type Handle = usize;

/// The identity of a device for the program. It must not change while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The bytes of `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// PCI domain, `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`.
    pub pci_domain: u32,
    /// PCI bus, `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`.
    pub pci_bus: u32,
    /// PCI device number, `CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID`.
    pub pci_device: u32,
}

/// State of a context handle: active, inactive or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextState {
    /// A context in use.
    Active,
    /// The handle of a primary context that is not retained.
    Inactive,
    /// Not a context of this library.
    Unknown,
}

/// The answers of the library that embeds the tables. Errors are `CUresult` numbers.
pub trait DriverFacts: Sync {
    /// The number of `cuDriverGetVersion`.
    fn driver_version(&self) -> u32;

    /// All visible devices, in ordinal order.
    fn devices(&self) -> Vec<DeviceIdentity>;

    /// Fails once the library can no longer serve contexts: 4 after process exit began, 3 in a forked child.
    fn alive(&self) -> Result<(), Status>;

    /// The calling thread's current context, 0 if none.
    fn current_context(&self) -> Handle;

    /// State of the context behind a handle.
    fn context_state(&self, context: Handle) -> ContextState;

    /// The handle that a retain of the primary context would return, without retaining or activating it; 101 for an invalid
    /// device.
    fn primary_context(&self, device: i32) -> Result<Handle, Status>;

    /// The ordinal of the device of `context` (0 means the current one).
    fn context_device(&self, context: Handle) -> Result<i32, Status>;

    /// The answer of `cuCtxGetId` for `context`, which is not 0.
    fn context_id(&self, context: Handle) -> Result<u64, Status>;

    /// The address of an object for `stream`, never equal to the handle. `per_thread` tells which default stream a null
    /// handle means.
    fn stream_object(&self, context: Handle, stream: Handle, per_thread: bool) -> Result<Handle, Status>;

    /// The answer of `cuStreamGetId` for the stream of `object`, which is from [`Self::stream_object`].
    fn stream_id(&self, context: Handle, object: Handle) -> Result<u64, Status>;

    /// Loads the image at `image` into the current context, as `cuModuleLoadData` does.
    ///
    /// # Safety
    ///
    /// `image` must point to a complete image: a fatbin wrapper, a container, a cubin or a NUL-terminated text.
    #[expect(unsafe_code, reason = "an image has no length of its own: only the caller knows that it is complete")]
    unsafe fn load_image(&self, image: *const c_void) -> Result<Handle, Status>;

    /// The functions of a module, in the driver's order, with their names.
    fn module_functions(&self, module: Handle) -> Result<Vec<(Handle, CString)>, Status>;

    /// The locations of the current context's multiprocessors: two numbers for each pair of them.
    fn multiprocessor_locations(&self) -> Result<(Vec<u8>, Vec<u8>), Status>;

    /// Unloads a module of [`Self::load_image`].
    fn unload_module(&self, module: Handle) -> Result<(), Status>;
}

static DRIVER_FACTS: OnceLock<&'static dyn DriverFacts> = OnceLock::new();

/// Installs the answers of the embedding library. The first one stays; later calls change nothing.
pub fn install(facts: &'static dyn DriverFacts) {
    DRIVER_FACTS.get_or_init(|| facts);
}

/// Returns the installed answers, or `NOT_INITIALIZED`.
pub(crate) fn facts() -> Result<&'static dyn DriverFacts, Status> {
    DRIVER_FACTS.get().copied().ok_or(status::NOT_INITIALIZED)
}
