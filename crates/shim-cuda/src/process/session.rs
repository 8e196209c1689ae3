//! The one session of this process: what `cuInit` has set up with the worker.

use std::sync::OnceLock;

use katydid_arena::NegotiatedArenas;
use katydid_client::regions::Regions;
use katydid_client::session::Session;
use katydid_cuda_sys::CUresult;
use katydid_wire::facts::Facts;

/// The program's side of the session.
pub(crate) struct Shim {
    pub(crate) session: Session<CUresult>,
    /// What the worker said of its devices, by the worker's ordinals.
    pub(crate) facts: Facts,
    /// What every address of GPU memory belongs to.
    pub(crate) regions: Regions,
    /// Launches wait for their kernels (`CUDA_LAUNCH_BLOCKING`).
    pub(crate) launches_block: bool,
    /// Keeps the ranges free for as long as the process lives.
    pub(crate) arenas: NegotiatedArenas,
}

static PROCESS_SHIM: OnceLock<Shim> = OnceLock::new();

/// The session of this process, and what came with it.
///
/// # Errors
///
/// `ERROR_NOT_INITIALIZED` before `cuInit`.
#[inline]
pub(crate) fn shim() -> Result<&'static Shim, CUresult> {
    PROCESS_SHIM.get().ok_or(CUresult::ERROR_NOT_INITIALIZED)
}

/// Sets the session, unless there is one; returns the one that there is.
pub(crate) fn fill(shim: Shim) -> &'static Shim {
    PROCESS_SHIM.get_or_init(|| shim)
}
