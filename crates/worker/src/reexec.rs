//! Re-exec of a worker, with the driver's devices in another order. A driver learns its numbering of devices when it starts, from
//! `CUDA_VISIBLE_DEVICES`, and everything in a session refers to these numbers.
//!
//! The rule: it stays the process that the server knows, with the server's note, and everything else is as in a fresh worker. The
//! process that requested this comes back by the session's key. If it does not come in time, it is gone.

#![expect(unsafe_code, reason = "handling of signals that the next start is to find")]

use std::env;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use katydid_cuda_sys::CUuuid;
use katydid_wire::facts::Facts;
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Tells a driver its devices, and their order.
const VISIBLE_DEVICES_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// Passes the server's earlier note. Not in the arguments, which others can read.
const NOTE_VARIABLE: &str = "KATYDID_WORKER_NOTE";
/// How long the companion may take to reconnect.
const REEXEC_COMPANION_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the device order that a driver needs to match `requested_order`: hexadecimal UUIDs, one a line. Returns `None` if it
/// matches already.
///
/// # Errors
///
/// One of the devices does not exist.
pub(crate) fn device_order(facts: &Facts, requested_order: &str) -> Result<Option<String>, String> {
    let have: Vec<String> = facts.devices.iter().map(|device| CUuuid { bytes: device.uuid }.to_string()).collect();
    let spelled = requested_order.lines().map(|line| {
        let found = have.iter().find(|uuid| uuid.replace('-', "") == line);
        found.cloned().ok_or_else(|| format!("there is no GPU {line} here"))
    });
    let spelled = spelled.collect::<Result<Vec<String>, String>>()?;
    if have.starts_with(&spelled) {
        return Ok(None);
    }
    Ok(Some(spelled.iter().map(|uuid| format!("GPU-{uuid}")).collect::<Vec<String>>().join(",")))
}

/// Re-executes this worker with these devices. Returns only if that fails.
pub(crate) fn with_devices(devices: &str, note: &Note) -> io::Error {
    // As in a fresh worker (`server/src/workers/spawn.rs`).
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: this process has set no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    command
        .env(VISIBLE_DEVICES_VARIABLE, devices)
        .env(NOTE_VARIABLE, String::from_utf8_lossy(&note.encode()).as_ref())
        .exec()
}

/// Returns the earlier note, in a re-executed worker.
pub(crate) fn inherited_note() -> Option<Note> {
    env::var(NOTE_VARIABLE).ok().map(|note| Note::decode(note.as_bytes()))
}

/// Waits for the companion on the socket to the server. Returns whether a connection came.
pub(crate) fn has_connection(control: BorrowedFd<'_>) -> bool {
    let timeout = Timespec::try_from(REEXEC_COMPANION_TIMEOUT).ok();
    poll(&mut [PollFd::from_borrowed_fd(control, PollFlags::IN)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use katydid_wire::facts::DeviceFacts;

    use super::*;

    #[test]
    fn driver_gets_a_device_order_only_if_it_differs() {
        let device = |byte: u8| DeviceFacts { uuid: [byte; 16], ..DeviceFacts::default() };
        let facts = Facts { devices: vec![device(1), device(2), device(3)], ..Facts::default() };
        let lines =
            |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}").repeat(16)).collect::<Vec<_>>().join("\n");
        assert_eq!(device_order(&facts, &lines(&[1, 2, 3])), Ok(None));
        assert_eq!(device_order(&facts, ""), Ok(None));
        let expected = "GPU-02020202-0202-0202-0202-020202020202,GPU-01010101-0101-0101-0101-010101010101";
        assert_eq!(device_order(&facts, &lines(&[2, 1])), Ok(Some(expected.to_owned())));
        assert!(device_order(&facts, &lines(&[1, 4])).is_err());
    }
}
