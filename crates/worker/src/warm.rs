//! What a worker does before it has a program: the slow part of starting a driver.

#![expect(unsafe_code, reason = "calls the driver")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult};
use katydid_driver::{Driver, DriverChoice, DriverError, load_compilers, open};
use katydid_session::{CopyContext, ModuleCache, WarmContext, gather};
use katydid_wire::facts::Facts;
use katydid_wire::handshake::SOFTCUDA_DRIVER;

use crate::os::layout;

/// File with the version of NVIDIA's kernel module.
const NVIDIA_VERSION_FILE: &str = "/sys/module/nvidia/version";

/// Set to `kernel`, makes kernels hash the memory of software devices too, to test these kernels without a GPU.
const HASH_VARIABLE: &str = "KATYDID_SNAPSHOT_HASH";

/// Why the worker cannot become warm.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WarmError {
    /// No driver library can be loaded.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver is softcuda, where a GPU was required.
    #[error("--require-gpu was given, and no GPU is used: {reason}")]
    NotAGpu {
        /// Why it is softcuda.
        reason: String,
    },
    /// The driver opened, but does not answer basic questions.
    #[error("{name}: the driver answers {} when asked about its devices; check it with nvidia-smi", code.0)]
    Facts {
        /// Name of the driver, as it calls itself.
        name: String,
        /// Code that the driver answered.
        code: CUresult,
    },
}

/// A driver that has started.
pub(crate) struct WarmDriver {
    /// The loaded library, initialized.
    pub(crate) driver: Arc<Driver>,
    /// The name that the driver reports.
    pub(crate) name: String,
    /// Why `auto` chose softcuda; none where softcuda was requested, or a GPU's driver is used.
    pub(crate) gpu_error: Option<String>,
    /// What the driver reports about its devices.
    pub(crate) facts: Facts,
    /// Contexts retained in advance.
    pub(crate) contexts: Vec<WarmContext>,
    /// What a checkpoint needs in the first context.
    pub(crate) copy_context: Option<CopyContext>,
    /// The server's cache of module images that programs have sent; none without one.
    pub(crate) module_cache: Option<ModuleCache>,
    /// Whether sessions keep a journal.
    pub(crate) has_journal: bool,
}

impl WarmDriver {
    /// Opens a driver, queries its devices, and retains the primary context of the first one: most programs do that first, and it
    /// takes a driver 0.1 s.
    ///
    /// # Errors
    ///
    /// Why this driver is unusable; softcuda is where a GPU is required.
    pub(crate) fn start(choice: &DriverChoice, soft: Option<&Path>, requires_gpu: bool) -> Result<Self, WarmError> {
        layout::fix_layout();
        if *choice != DriverChoice::Soft {
            load_compilers();
        }
        let driver = Driver::new(open(choice, soft)?);
        let gpu_error = driver.gpu_error().map(ToString::to_string);
        if driver.is_soft() && requires_gpu {
            let reason = gpu_error.unwrap_or_else(|| format!("--driver {choice} is softcuda"));
            return Err(WarmError::NotAGpu { reason });
        }
        if driver.is_soft() {
            layout::restore_default_heap();
        }
        let name = name(&driver);
        let facts = gather::devices(&driver).map_err(|code| WarmError::Facts { name: name.clone(), code })?;
        let contexts: Vec<WarmContext> = retain(&driver, 0).into_iter().collect();
        let copy_context = contexts.first().and_then(|context| copy_context(&driver, context));
        let (module_cache, has_journal) = (None, true);
        let driver = Arc::new(driver);
        Ok(Self { driver, name, gpu_error, facts, contexts, copy_context, module_cache, has_journal })
    }
}

/// Retains the primary context of `device`; none when that fails: the program's own call will return the error.
fn retain(driver: &Driver, device: i32) -> Option<WarmContext> {
    let mut handle = CUcontext::NULL;
    // SAFETY: the output is a local.
    let status = unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) };
    (status == CUresult::SUCCESS).then_some(WarmContext { device, handle })
}

/// Creates the copy context here, before any program's first object: later it would move what a driver places after it. Without
/// one, checkpoints copy everything.
fn copy_context(driver: &Driver, context: &WarmContext) -> Option<CopyContext> {
    let mut seed = [0; 8];
    let drawn = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).is_ok();
    // Host code reads a software device's memory as fast as its kernels would, and hashes faster.
    let is_wanted = !driver.is_soft() || std::env::var(HASH_VARIABLE).is_ok_and(|hasher| hasher == "kernel");
    let seed = (drawn && is_wanted).then(|| u64::from_le_bytes(seed));
    CopyContext::make(driver, context.device, context.handle, seed).ok()
}

/// Returns the driver's name, such as `NVIDIA 580.159.04` or `softcuda`.
fn name(driver: &Driver) -> String {
    if driver.is_soft() {
        return SOFTCUDA_DRIVER.to_owned();
    }
    let version = fs::read_to_string(NVIDIA_VERSION_FILE).map(|text| text.trim().to_owned());
    version.map_or_else(|_| "CUDA driver".to_owned(), |version| format!("NVIDIA {version}"))
}
