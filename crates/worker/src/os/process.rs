//! Process settings that a worker makes before anything else.

#![expect(unsafe_code, reason = "reads the process's personality")]

use std::panic::{PanicHookInfo, set_hook};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

use crate::os::exit::leave;
use crate::os::log::{self, Log};

/// Exit status after a fault in Katydid's own code.
const OWN_FAULT_STATUS: i32 = 70;

/// Makes the process die with its server, leave no core that would contain a program's memory, and end as a whole when one of its
/// threads panics: half a worker would leave its program waiting.
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

/// Returns whether this process was started without address-space randomization.
fn addresses_are_fixed() -> bool {
    // SAFETY: this argument only queries; nothing changes.
    let now = unsafe { libc::personality(0xffff_ffff) };
    now != -1 && now & libc::ADDR_NO_RANDOMIZE != 0
}

/// Reports where the fault is, and exits.
fn end(fault: &PanicHookInfo<'_>) -> ! {
    Log::early().line(format_args!("internal error in Katydid: {fault}"));
    leave(OWN_FAULT_STATUS)
}
