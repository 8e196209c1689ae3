//! Runs a program as a child, so that katydid looks like the program itself to its caller.
//!
//! Signals to katydid are passed on. A terminal's signals (Ctrl-C) reach a program of the same process group directly, because
//! both are in the terminal's foreground group. So katydid catches them, and does not send them twice. A signal that the caller
//! ignored, as `nohup` does, stays ignored in the program. If katydid is killed outright, the program dies too, and so do all
//! processes of its job, running or stopped: the guard kills them.

use std::env;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;

use crate::ignored_signals::is_ignored;
use crate::interrupt;
use katydid_cli_core::child::dies_with_us;
use katydid_job::criu::io_uring_filter;
use katydid_job::process::tree;
use katydid_job::supervisor::guard::Guard;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::gettid;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXCPU};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

/// Signals that are passed on.
const FORWARDED_SIGNALS: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGWINCH, SIGCONT];

/// The lowest id that a program gets: higher than the number of a restore's own processes and threads.
const FIRST_ID: i32 = 1000;

/// Starts the program, reports its process id, waits for it, and returns how it ended.
///
/// # Errors
///
/// The program could not be started; signals are then handled as before.
pub(crate) fn run(command: &mut Command, started: impl FnOnce(u32)) -> io::Result<ExitStatus> {
    let signals = signals()?;
    dies_with_us(command);
    let mut child = command.spawn()?;
    started(child.id());
    passing_on(signals, child.id(), || wait(&mut child))
}

/// Runs the program of a job below a guard, which ends the whole job if this process is killed outright. The program runs without
/// io_uring, unless it `has_rings`.
///
/// # Errors
///
/// See [`run`]; or there is no guard.
pub(crate) fn run_guarded(command: &Command, has_rings: bool, started: impl FnOnce(u32)) -> io::Result<ExitStatus> {
    let signals = signals()?;
    pass_first_ids();
    // The process below the guard inherits the guard's filter.
    let before = if has_rings { |_: &mut Command| {} } else { io_uring_filter::refuse };
    let guard = Guard::spawn(&env::current_exe()?, command, &[], before)?;
    let program = guard.first();
    started(program);
    wait_until_end(guard, signals, (program, program))
}

/// Uses up the first ids of a PID namespace, which a later restore of the job needs for its own processes. In a new container ids
/// begin anew, so these would have the job's ids by then. A thread takes an id as a process does.
fn pass_first_ids() {
    let next_id = || Some(thread::Builder::new().spawn(gettid).ok()?.join().ok()?.as_raw_nonzero().get());
    // If the kernel gives few ids, none is that high.
    (0..FIRST_ID).take_while(|_| next_id().is_some_and(|id| id < FIRST_ID)).for_each(drop);
}

/// Waits for a running program: `child` is the guard's child to wait for, `program` the process to signal. Returns the status as
/// a shell does. The `signals` are caught from before the program is announced, since its user may interrupt it at once.
///
/// # Errors
///
/// The guard's link cannot be read.
pub(crate) fn wait_for_program(guard: Guard, signals: PendingSignals, child: u32, program: u32) -> io::Result<u8> {
    wait_until_end(guard, signals, (child, program)).map(exit_code)
}

/// Signals that wait to be passed on.
pub(crate) struct PendingSignals {
    /// Signals that have arrived.
    early: Vec<Origin>,
    /// Iterator over further signals.
    caught: SignalsInfo<WithOrigin>,
}

fn wait_until_end(mut guard: Guard, signals: PendingSignals, (child, program): (u32, u32)) -> io::Result<ExitStatus> {
    let status = passing_on(signals, program, || guard.wait(child))?;
    guard.release();
    Ok(status)
}

/// Catches the signals that the caller does not ignore. From here on they are the program's.
///
/// # Errors
///
/// The system's error.
pub(crate) fn signals() -> io::Result<PendingSignals> {
    let mut caught =
        SignalsInfo::<WithOrigin>::new(FORWARDED_SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)))?;
    let before = interrupt::pause();
    // A signal that came in between is in both lists.
    let mut early: Vec<Origin> = caught.pending().collect();
    let unheard: Vec<Origin> =
        before.into_iter().filter(|one| !early.iter().any(|other| other.signal == one.signal)).collect();
    early.extend(unheard);
    Ok(PendingSignals { early, caught })
}

/// Passes signals on to `program` while `wait` waits.
fn passing_on<T>(mut signals: PendingSignals, program: u32, wait: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // The program may have ended, and another parent may have reaped it.
    let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let PendingSignals { early, caught } = &mut signals;
    let closer = caught.handle();
    thread::scope(|scope| {
        scope.spawn(|| {
            let reaches_both = |origin: &Origin| is_from_terminal(origin) && is_of_our_group(program);
            let is_passed_on = |origin: &Origin| !reaches_both(origin) && !is_for_us_alone(origin);
            for origin in early.drain(..).chain(caught.forever()).filter(is_passed_on) {
                if let (Some(pidfd), Some(signal)) = (&pidfd, Signal::from_named_raw(origin.signal)) {
                    // Fails only when the program has just ended.
                    let _ = pidfd_send_signal(pidfd, signal);
                }
            }
        });
        let ended = wait();
        closer.close();
        ended
    })
}

/// Waits for the program; a caught signal interrupts only the system call.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        match child.wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether a terminal sent the signal: the kernel sends what is typed, processes send the rest.
fn is_from_terminal(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Kernel)
}

/// Whether a command continues only the supervisor, for the time of a request, and not the program
/// (`katydid_job::process::stopped::wake`).
fn is_for_us_alone(origin: &Origin) -> bool {
    origin.signal == SIGCONT && matches!(origin.cause, Cause::Sent(Sent::Queue))
}

/// Whether a terminal's signal to this process also reaches the program.
fn is_of_our_group(program: u32) -> bool {
    let group = |pid| tree::group_and_session(pid).map(|(group, _)| group);
    group(program) == group(std::process::id())
}

/// The exit status as a shell reports it: 128 + N for signal N.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use std::os::unix::process::CommandExt;

    use super::*;

    /// A signal to this process reaches every program that is supervised at that moment, so tests run one at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn shell(script: &str) -> u8 {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        exit_code(run(Command::new("/bin/sh").args(["-c", script]), |_| {}).unwrap())
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
    fn a_program_that_left_our_group_is_of_another() {
        let mut child = Command::new("/bin/sleep").arg("1000").process_group(0).spawn().unwrap();
        assert!(is_of_our_group(std::process::id()) && !is_of_our_group(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_missing_program_is_an_error() {
        assert_eq!(run(&mut Command::new("/no/such/program"), |_| {}).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
