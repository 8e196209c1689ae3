//! What every exported symbol passes: when it may be called, panics, error codes, tracing.
//!
//! The rule: nothing unwinds into the program. A call before `cuInit`, after a fork or during process exit is answered
//! without touching the session.

use katydid_client::ffi::catch_panics;
use katydid_client::life::{self, Life};
use katydid_client::session::api_code::ApiCode;
use katydid_cuda_sys::{CUresult, Function};
use katydid_driver_rules::state::log;

use crate::ffi::arguments::refuse;
use crate::process::tracing::{self, CallDetail};
use crate::sync::stream;

/// Runs the body of an exported function.
pub(crate) fn entry(function: Function, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    if tracing::is_off() {
        return run(function, body);
    }
    tracing::traced(function, None, || run(function, body))
}

/// Runs the body of an exported function whose parameters tell its work for the GPU, or its amount of memory.
pub(crate) fn detailed(
    function: Function,
    detail: impl FnOnce() -> CallDetail,
    body: impl FnOnce() -> Result<(), CUresult>,
) -> CUresult {
    if tracing::is_off() {
        return run(function, body);
    }
    tracing::traced(function, Some(detail()), || run(function, body))
}

fn run(function: Function, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    if life::now() != Life::Running
        && let Err(code) = admit(function)
    {
        return code;
    }
    match catch_panics(|| function.name(), body) {
        Some(Ok(())) => CUresult::SUCCESS,
        Some(Err(code)) => {
            // A listener may call any function.
            stream::outside_of_call(|| log::note(function.name(), code));
            code
        }
        None => CUresult::ERROR_UNKNOWN,
    }
}

/// Checks that a function may be called while no session is up.
#[cold]
fn admit(function: Function) -> Result<(), CUresult> {
    let always = matches!(
        function,
        Function::cuDriverGetVersion
            | Function::cuCheckpointProcessGetRestoreThreadId
            | Function::cuCheckpointProcessGetState
            | Function::cuCheckpointProcessLock
            | Function::cuCheckpointProcessCheckpoint
            | Function::cuCheckpointProcessRestore
            | Function::cuCheckpointProcessUnlock
            | Function::cuGetErrorName
            | Function::cuGetErrorString
            | Function::cuGetExportTable
            | Function::cuGetProcAddress
            | Function::cuGetProcAddress_v2
    );
    match life::now() {
        _ if always => Ok(()),
        Life::Exiting => Err(CUresult::ERROR_DEINITIALIZED),
        Life::Fresh if function == Function::cuInit => Ok(()),
        Life::Fresh | Life::Forked => Err(CUresult::ERROR_NOT_INITIALIZED),
        Life::Lost => Err(CUresult::WORKER_LOST),
        Life::Running => Ok(()),
    }
}

/// Answers an unsupported function: reports its name once, and returns `ERROR_NOT_SUPPORTED`.
pub(crate) fn refused(function: Function) -> CUresult {
    entry(function, || Err(refuse(function, "is not supported yet")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_init_only_the_functions_that_need_no_session_run() {
        assert_eq!(entry(Function::cuDeviceGetCount, || Ok(())), CUresult::ERROR_NOT_INITIALIZED);
        assert_eq!(entry(Function::cuDriverGetVersion, || Ok(())), CUresult::SUCCESS);
        assert_eq!(refused(Function::cuGLInit), CUresult::ERROR_NOT_INITIALIZED);
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(entry(Function::cuGetErrorName, || panic!("on purpose")), CUresult::ERROR_UNKNOWN);
    }
}
