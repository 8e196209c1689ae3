//! Runs a program as a child, so that to its caller katydid looks like the program itself.
//!
//! Signals sent to katydid are passed on. Those that a terminal sends (Ctrl-C) reach the program without us, because
//! both are in the terminal's foreground group: they are caught here and not sent twice. A signal that our caller
//! ignored, as `nohup` does, stays ignored in the program.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Signals that are passed on.
const FORWARDED: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];

/// Starts the program, waits for it, and says how it ended.
///
/// # Errors
///
/// The program could not be started; signals are then handled as before.
pub(crate) fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let caught = FORWARDED.into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(caught)?;
    let mut child = command.spawn()?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let closer = signals.handle();
    thread::scope(|scope| {
        scope.spawn(|| {
            for origin in signals.forever().filter(|origin| !is_from_terminal(origin)) {
                if let Some(signal) = Signal::from_named_raw(origin.signal) {
                    // Fails only when the program has just ended.
                    let _ = pidfd_send_signal(&pidfd, signal);
                }
            }
        });
        let ended = wait(&mut child);
        closer.close();
        ended
    })
}

/// A signal that we catch interrupts the wait, not the program.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        match child.wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The kernel sends what is typed; processes send the rest.
fn is_from_terminal(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Kernel)
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let mask = fs::read_to_string("/proc/self/status").ok().and_then(|status| ignored_mask(&status));
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// The mask as `/proc/PID/status` writes it: hexadecimal, bit N - 1 for signal N.
fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The status as a shell gives it: 128 + N for signal N.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A signal to this process reaches every program that is supervised at that moment: one at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn shell(script: &str) -> u8 {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        exit_code(run(Command::new("/bin/sh").args(["-c", script])).unwrap())
    }

    #[test]
    fn a_status_is_passed_on() {
        assert_eq!(shell("exit 7"), 7);
    }

    #[test]
    fn a_signal_becomes_128_and_its_number() {
        assert_eq!(shell("kill -TERM $$"), 128 + 15);
    }

    #[test]
    fn a_signal_sent_to_us_reaches_the_program() {
        assert_eq!(shell("trap 'exit 9' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done"), 9);
    }

    #[test]
    fn ignored_signals_are_found_in_the_kernels_words() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_mask(status), Some(0x1001));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        assert_eq!(run(&mut Command::new("/no/such/program")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
