//! What a worker asks of the system for itself, before anything else.

#![expect(unsafe_code, reason = "reads the process's personality")]

use std::panic::{PanicHookInfo, set_hook};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

use crate::os::exit::leave;
use crate::os::log::{self, Log};

/// Exit status after a fault in our own code.
const OWN_FAULT_STATUS: i32 = 70;

/// Dies with its server, leaves no core that would hold a program's memory, and ends as a whole when a thread of it
/// panics: half a worker would leave its program waiting.
pub(crate) fn prepare(log: &Log) {
    if let Err(error) = log::keep_first() {
        log.line(format_args!("cannot keep its standard error ({error}); a fault would be told to the program"));
    }
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        log.line(format_args!("cannot ask to die with the server ({error}); it may outlive a killed one"));
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        log.line(format_args!("cannot switch core dumps off ({error}); one would hold the program's memory"));
    }
    if !addresses_are_fixed() {
        log.line(format_args!(
            "address randomisation is on (a container may forbid personality(2)): \
             a checkpoint of this session could not be restored"
        ));
    }
    set_hook(Box::new(|fault| end(fault)));
}

/// Whether this process was started without address randomisation.
fn addresses_are_fixed() -> bool {
    // SAFETY: this argument only asks; nothing is changed.
    let now = unsafe { libc::personality(0xffff_ffff) };
    now != -1 && now & libc::ADDR_NO_RANDOMIZE != 0
}

/// Says where the fault is and leaves.
fn end(fault: &PanicHookInfo<'_>) -> ! {
    Log::early().line(format_args!("fault in Katydid itself: {fault}"));
    leave(OWN_FAULT_STATUS)
}
