//! `cuInit`: makes the process ready.

use katydid_cuda_sys::CUresult;

use crate::process::{device, facts, settings, state};

/// `cuInit`: makes the devices, and registers the handlers for fork and exit, once.
pub(crate) fn initialize(flags: u32) -> Result<(), CUresult> {
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !state::may_begin() {
        return state::ready();
    }
    if device::all().is_empty() {
        return Err(CUresult::ERROR_NO_DEVICE);
    }
    state::watch(settings::tell_without_effect);
    facts::install();
    state::begin();
    state::ready()
}
