//! Fault injection for tests, which ask through the environment of a supervisor: wait where a program holds itself, or fail at a
//! stage.
//!
//! `KATYDID_CHECKPOINT_AT` is for the program, which holds itself at the frame numbers in the variable. A supervisor that was
//! started without it lets such a program go on at once, since no test would ask for a checkpoint there. A restored program still
//! knows its later frames. `KATYDID_FAULT=STAGE` fails a checkpoint or a move when it comes to the stage, `STAGE:kill` kills the
//! supervisor there, as a crash of the machine would. `STAGE:stop` stops it until it gets SIGCONT, so that a test can kill
//! another process meanwhile. With `no-wait` it does not wait for other jobs at all. With `no-replay` no rehearsal brings a
//! session back; it may precede a stage: `no-replay,keep_workers`. Without the variables this module does nothing.

use std::env;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use rustix::thread::gettid;

use crate::supervisor::view::StageProgress;

/// Variable that names the stage at which a test fails the supervisor.
const FAULT_VARIABLE: &str = "KATYDID_FAULT";
/// Values that stand in place of a stage, or before one.
const NO_WAIT: &str = "no-wait";
const NO_REPLAY: &str = "no-replay";

/// The failure that a test asked for.
#[derive(Debug, thiserror::Error)]
#[error("KATYDID_FAULT wants a failure at stage {stage}")]
pub struct InjectedFailure {
    /// The stage that the variable names.
    pub stage: String,
}

/// Fails, or does not return, if the environment names `stage`.
pub(crate) fn inject(stage: &StageProgress) -> Result<(), InjectedFailure> {
    inject_at(&stage.name())
}

/// Fails, or does not return, if the environment names this stage, which belongs to no checkpoint.
pub(crate) fn inject_at(stage: &str) -> Result<(), InjectedFailure> {
    let faults = env::var(FAULT_VARIABLE).unwrap_or_default();
    let fault = faults.strip_prefix(NO_REPLAY).map_or(&*faults, |rest| rest.trim_start_matches(','));
    let signal = match fault.strip_prefix(stage) {
        Some("") => return Err(InjectedFailure { stage: stage.to_owned() }),
        Some(":kill") => Signal::KILL,
        Some(":stop") => Signal::STOP,
        _ => return Ok(()),
    };
    // No call is more certain; if the system refuses the signal, the test notices. The signal is sent to this thread, so it takes
    // effect before the next line.
    let _ = kill_process(gettid(), signal);
    Ok(())
}

/// Whether a test wants that no replay brings a session back.
pub(crate) fn has_no_replay() -> bool {
    env::var(FAULT_VARIABLE).is_ok_and(|faults| faults.split(',').any(|fault| fault == NO_REPLAY))
}

/// Returns how long to wait for other jobs: `usual`, unless a test wants no wait.
pub(crate) fn wait_limit(usual: Duration) -> Duration {
    if env::var(FAULT_VARIABLE).is_ok_and(|fault| fault == NO_WAIT) { Duration::ZERO } else { usual }
}
