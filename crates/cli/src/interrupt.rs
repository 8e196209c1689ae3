//! Handles signals in a command that owes a document, or has folders among temporary files. The command completes the document,
//! leaves nothing behind, and dies by the signal, as its caller expects.
//!
//! The rule: a signal is either the command's or the program's, and none is lost. It is the command's from [`watch`] on, until
//! [`pause`] is called because a program gets it (`supervise.rs`). That also returns signals that arrived but were not handled
//! yet. A second signal ends the command at once, since the reader of its document may not read.
//!
//! Signals during the parsing of the command line are held ([`hold`]): it is not known yet whether a document is owed. Before
//! `main` begins, nothing can be written; the system needs about a millisecond to load the command.

#![expect(unsafe_code, reason = "has signals of a thread wait")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Origin;
use signal_hook::low_level::{emulate_default_handler, signal_name};

use crate::ignored_signals::is_ignored;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, print_message};
use katydid_job::process::shared_memory;
use katydid_job::process::signals::END_REQUEST_SIGNALS;
use katydid_job::supervisor::{folder, guard};

/// A thread that waits for signals, and the handle that ends its wait. The thread returns the signals that came before its end.
type SignalWatch = (Handle, JoinHandle<Vec<Origin>>);

/// The watch, and what goes on without the command.
static SIGNAL_WATCH: Mutex<(Option<SignalWatch>, &str)> = Mutex::new((None, ""));

fn state() -> MutexGuard<'static, (Option<SignalWatch>, &'static str)> {
    SIGNAL_WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Signals that are held for this thread, until the value is dropped.
pub(crate) struct HeldSignals {
    /// Signals that were held before.
    before: libc::sigset_t,
}

/// Holds the signals that end a command, in a process with one thread. Returns `None` if the system refuses.
pub(crate) fn hold() -> Option<HeldSignals> {
    let (mut held, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets outlive the calls; the first is made empty before signals are added, and the last call fills the second.
    let is_done = unsafe {
        libc::sigemptyset(held.as_mut_ptr());
        for signal in END_REQUEST_SIGNALS {
            libc::sigaddset(held.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr()) == 0
    };
    // SAFETY: filled by the call above, where that succeeded.
    is_done.then(|| HeldSignals { before: unsafe { before.assume_init() } })
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the system.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Starts to handle signals, except those that the caller ignored.
///
/// # Errors
///
/// The system's error.
pub(crate) fn watch() -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::work(format!(
            "cannot catch signals: {error}; allow more open files (ulimit -n) and processes (ulimit -u)"
        ))
    };
    if state().0.is_some() {
        return Ok(());
    }
    let signals =
        SignalsInfo::new(END_REQUEST_SIGNALS.into_iter().filter(|&signal| !is_ignored(signal))).map_err(failed)?;
    let handle = signals.handle();
    let handle_signals = move || handle_signals(signals);
    let thread = thread::Builder::new().name("signals".to_owned()).spawn(handle_signals).map_err(failed)?;
    state().0 = Some((handle, thread));
    Ok(())
}

/// Makes a file that may not grow further (`ulimit -f`) an error of the write, as a full disk is. Otherwise a signal would end
/// the command silently. Started programs get the signal as usual: only ignored signals are inherited.
pub(crate) fn take_full_files_for_errors() {
    if !is_ignored(SIGXFSZ) {
        // Without it the signal ends this command, as any other.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// Stops handling signals, which are the program's from now on, or are dropped. Returns those that have arrived. Does not return
/// if a signal is about to end the command.
pub(crate) fn pause() -> Vec<Origin> {
    let Some((handle, thread)) = state().0.take() else { return Vec::new() };
    handle.close();
    thread.join().unwrap_or_default()
}

/// Sets what another process goes on with, for the last message.
pub(crate) fn leaves(what: &'static str) {
    state().1 = what;
}

/// Waits for a signal, and ends the process by it.
fn handle_signals(mut signals: SignalsInfo<WithOrigin>) -> Vec<Origin> {
    let Some(Origin { signal, .. }) = signals.forever().next() else { return signals.pending().collect() };
    let at_once = move || signals.forever().for_each(|origin| die(origin.signal));
    // Without the thread, the last output waits for its reader.
    let _ = thread::Builder::new().name("second-signal".to_owned()).spawn(at_once);
    // Called first: removing the files makes CRIU fail, and its guard sees an end.
    let has_guards = guard::leave_jobs();
    let name = signal_name(signal).unwrap_or("a signal");
    let goes_on = state().1;
    let word =
        if goes_on.is_empty() { format!("interrupted by {name}") } else { format!("interrupted by {name}; {goes_on}") };
    if document::interrupt(&word, u8::try_from(128 + signal).unwrap_or(u8::MAX)) {
        print_message(word);
    }
    shared_memory::undo_all();
    katydid_scratch::remove_all();
    if !has_guards {
        folder::remove_all();
    }
    die(signal);
    Vec::new()
}

/// Ends as if the signal had not been caught.
fn die(signal: i32) {
    // If the signal cannot be raised, this exits all the same.
    let _ = emulate_default_handler(signal);
    std::process::exit(128 + signal);
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGXCPU;

    use super::*;

    /// The signal would end the test's process.
    #[test]
    fn what_comes_while_signals_are_held_is_for_the_handler_that_is_set_meanwhile() {
        let held = hold().unwrap();
        // SAFETY: a signal for this thread, which waits.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), SIGXCPU) }, 0);
        let mut caught = SignalsInfo::<WithOrigin>::new([SIGXCPU]).unwrap();
        assert_eq!(caught.pending().count(), 0);
        drop(held);
        assert_eq!(caught.pending().map(|origin| origin.signal).collect::<Vec<_>>(), [SIGXCPU]);
    }
}
