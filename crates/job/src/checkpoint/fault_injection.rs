//! What tests ask of a supervisor through its environment: to wait where a program holds itself, and to fail at a stage.
//!
//! `KATYDID_CHECKPOINT_AT` is the program's: it holds itself at the frames that the variable counts. A supervisor that was
//! started without it lets such a program go on at once, since no test would ask for a checkpoint there: a restored program
//! still knows its later frames. `KATYDID_FAULT=STAGE` fails a checkpoint or a move when it comes to the stage, `STAGE:kill`
//! ends the supervisor there, as a crash of the machine's would, and `STAGE:stop` stops it until it gets SIGCONT, so that
//! another process can be killed meanwhile. With `no-wait` it does not wait for other jobs at all; with `no-replay` no rehearsal
//! brings a session back, which may stand before a stage: `no-replay,keep_workers`. Without the variables
//! nothing here does anything.

use std::env;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use rustix::thread::gettid;

use crate::supervisor::view::ProgressStep;

/// Variable that names the stage at which a test fails the supervisor.
const FAULT_VARIABLE: &str = "KATYDID_FAULT";
/// Stand for a stage in it.
const NO_WAIT: &str = "no-wait";
const NO_REPLAY: &str = "no-replay";

/// The failure that a test asked for.
#[derive(Debug, thiserror::Error)]
#[error("KATYDID_FAULT wants a failure at stage {stage}")]
pub struct InjectedFailure {
    /// The stage that the variable names.
    pub stage: String,
}

/// Fails, or does not return, if `step` begins the stage that the environment names.
pub(crate) fn inject(step: &ProgressStep) -> Result<(), InjectedFailure> {
    inject_at(&step.name())
}

/// Fails, or does not return, at a stage that belongs to no checkpoint, if the environment names it.
pub(crate) fn inject_at(stage: &str) -> Result<(), InjectedFailure> {
    let faults = env::var(FAULT_VARIABLE).unwrap_or_default();
    let fault = faults.strip_prefix(NO_REPLAY).map_or(&*faults, |rest| rest.trim_start_matches(','));
    let signal = match fault.strip_prefix(stage) {
        Some("") => return Err(InjectedFailure { stage: stage.to_owned() }),
        Some(":kill") => Signal::KILL,
        Some(":stop") => Signal::STOP,
        _ => return Ok(()),
    };
    // There is nothing more certain to be asked of the system; if it refuses, the test notices. Sent to this thread, it takes
    // effect before the next line.
    let _ = kill_process(gettid(), signal);
    Ok(())
}

/// Whether no replay is to bring a session back.
pub(crate) fn has_no_replay() -> bool {
    env::var(FAULT_VARIABLE).is_ok_and(|faults| faults.split(',').any(|fault| fault == NO_REPLAY))
}

/// How long to wait for other jobs, which is `usual` for.
pub(crate) fn wait_limit(usual: Duration) -> Duration {
    if env::var(FAULT_VARIABLE).is_ok_and(|fault| fault == NO_WAIT) { Duration::ZERO } else { usual }
}
