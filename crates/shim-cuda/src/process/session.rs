//! The one session of this process, as `cuInit` set it up with the worker.

use std::sync::OnceLock;

use katydid_arena::NegotiatedArenas;
use katydid_client::regions::Regions;
use katydid_client::session::Session;
use katydid_cuda_sys::CUresult;
use katydid_wire::facts::Facts;

/// The program's side of the session.
pub(crate) struct Shim {
    pub(crate) session: Session<CUresult>,
    /// The worker's facts about its devices, by the worker's ordinals.
    pub(crate) facts: Facts,
    /// The address map: the owner of every address of GPU memory.
    pub(crate) regions: Regions,
    /// Whether launches wait for their kernels (`CUDA_LAUNCH_BLOCKING`).
    pub(crate) launches_block: bool,
    /// Reserves the address ranges as long as the process lives.
    pub(crate) arenas: NegotiatedArenas,
}

static PROCESS_SHIM: OnceLock<Shim> = OnceLock::new();

/// Returns the session of this process, with its tables.
///
/// # Errors
///
/// `ERROR_NOT_INITIALIZED` before `cuInit`.
#[inline]
pub(crate) fn shim() -> Result<&'static Shim, CUresult> {
    PROCESS_SHIM.get().ok_or(CUresult::ERROR_NOT_INITIALIZED)
}

/// Sets the session, unless there is one; returns the existing one.
pub(crate) fn fill(shim: Shim) -> &'static Shim {
    PROCESS_SHIM.get_or_init(|| shim)
}
