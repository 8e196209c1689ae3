//! What tests ask of a supervisor through its environment: to wait where a program holds itself, and to fail at a stage.
//!
//! `KATYDID_CHECKPOINT_AT` is the program's: it holds itself at the frames that the variable counts. A supervisor that was
//! started without it lets such a program go on at once, since nobody would ask for a checkpoint there: a restored program
//! still knows its later frames. `KATYDID_FAULT=STAGE` fails a checkpoint when it comes to the stage, `STAGE:kill`
//! ends the supervisor there, as a crash of the machine's would, and `STAGE:stop` stops it until it gets SIGCONT, so that
//! somebody else can be killed meanwhile. With `impatience` it does not wait for other jobs at all. Without the variables
//! nothing here does anything.

use std::env;
use std::time::Duration;

use katydid_wire::job::ToProgram;
use rustix::process::{Signal, kill_process};
use rustix::thread::gettid;

use crate::checkpoint::CheckpointError;
use crate::job::{Inner, lock};
use crate::members::{Member, Standing};
use crate::stop::PROMPT;
use crate::view::Step;

/// Set: somebody asks for a checkpoint wherever a program holds itself.
const POINTS: &str = "KATYDID_CHECKPOINT_AT";
/// Names the stage.
const FAULT: &str = "KATYDID_FAULT";
/// Stands for a stage in it.
const IMPATIENCE: &str = "impatience";

/// Fails, or does not return, if `step` begins the stage that the environment names.
pub(crate) fn strike(step: &Step) -> Result<(), CheckpointError> {
    strike_at(&step.name())
}

/// The same at a stage that is none of a checkpoint.
pub(crate) fn strike_at(stage: &str) -> Result<(), CheckpointError> {
    let wanted = env::var(FAULT).unwrap_or_default();
    let signal = match wanted.strip_prefix(stage) {
        Some("") => return Err(CheckpointError::Wanted { stage: stage.to_owned() }),
        Some(":kill") => Signal::KILL,
        Some(":stop") => Signal::STOP,
        _ => return Ok(()),
    };
    // There is nothing more certain to be asked of the system; if it refuses, the test notices. Sent to this thread, it takes
    // effect before the next line.
    let _ = kill_process(gettid(), signal);
    Ok(())
}

/// How long to wait for other jobs, which is `usual` for.
pub(crate) fn patience(usual: Duration) -> Duration {
    if env::var(FAULT).is_ok_and(|wanted| wanted == IMPATIENCE) { Duration::ZERO } else { usual }
}

impl Inner {
    /// A program holds itself. It is let go unless somebody will ask for a checkpoint. One that is being taken lets it go
    /// by itself, or has passed it already.
    pub(crate) fn reached(&self, id: u64) {
        if env::var_os(POINTS).is_none() {
            let _turn = lock(&self.turn);
            self.release_reached(|member| member.id == id);
        }
    }

    /// Lets go those that `which` means of the programs that hold themselves.
    pub(crate) fn release_reached(&self, which: impl Fn(&Member) -> bool) {
        // One that is not with its worker goes on when it is brought back to one.
        let holds = |member: &Member| {
            member.reached.is_some() && member.standing == Standing::Present && !self.parked.has(member.id)
        };
        for member in self.members.list().into_iter().filter(|member| holds(member) && which(member)) {
            // One that has ended meanwhile needs no order.
            let _ = self.members.order(member.id, &ToProgram::Release {}, PROMPT);
        }
    }
}
