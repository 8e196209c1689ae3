//! Environment variables of CUDA: a report at the start of the session about those without effect, or with only a part of
//! it.
//!
//! `katydid_driver_rules::state::environment` lists the variables and where they take effect.

use katydid_client::output::report;
use katydid_client::session::Session;
use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::environment::{Effect, set, value, without_driver_cache, without_effect};
use katydid_wire::message::kdEnvironment;

/// Reports the variables that the worker's driver was not started with. Asks the worker only if the program has some.
///
/// # Errors
///
/// The session has ended.
pub(crate) fn report_without_effect(session: &Session<CUresult>) -> Result<(), CUresult> {
    let program = set(value);
    if program.iter().all(|(variable, _)| variable.effect == Effect::Program) {
        return Ok(());
    }
    let reply = session.call(0, &kdEnvironment {})?;
    let in_effect = String::from_utf8_lossy(&reply.settings);
    if let Some(without) = without_effect(&program, &in_effect, reply.isSoft != 0) {
        let remedy = match reply.isSoft {
            0 => {
                "a GPU's driver reads its variables when its worker starts: set them for `katydid serve` (docs/reference/environment.md)"
            }
            _ => "the server's driver is softcuda, which has nothing that they change (docs/reference/environment.md)",
        };
        report(format_args!("without effect: {without}: {remedy}"));
    }
    if let Some(divided) = without_driver_cache(&program, &in_effect, reply.isSoft != 0) {
        let remedy = "a GPU's driver has its own cache, as the server's variables say: set them for `katydid serve` too \
                      (docs/reference/environment.md)";
        report(format_args!("for NVRTC alone: {divided}: {remedy}"));
    }
    Ok(())
}
