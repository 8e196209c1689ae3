//! The life of a process.
//!
//! A binary of its own: the process as a whole has one life, and the test forks.

#![expect(unsafe_code, reason = "forks")]

use katydid_client::life::{Life, is_running, lose, now, start};

fn nothing() {}

/// Runs as an exit handler. The exit status shows that it ran, and what it saw.
fn leave_with_seven() {
    let code = if now() == Life::Exiting { 7 } else { 8 };
    // SAFETY: ends the process without further handlers.
    unsafe { libc::_exit(code) };
}

/// The exit status of a child that runs `body`.
fn status_of_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `body`, which takes no lock that another thread could hold.
    status_of(unsafe { libc::fork() }, body)
}

/// Returns the exit status of a child that was made without the C library.
fn status_of_raw_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: as above.
    status_of(unsafe { libc::syscall(libc::SYS_fork) } as libc::pid_t, body)
}

fn status_of(child: libc::pid_t, body: impl FnOnce() -> i32) -> i32 {
    if child == 0 {
        let code = body();
        // SAFETY: ends the child without the handlers of the test's harness.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above, into a local.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_of_a_running_process_is_refused_and_exit_ends_it() {
    assert_eq!(now(), Life::Fresh);
    let status = status_of_child(|| {
        start(nothing, leave_with_seven);
        // SAFETY: ends this child, running the handler registered the line before.
        unsafe { libc::exit(0) }
    });
    assert_eq!(status, 7, "the exit handler runs, and sees that the process is on its way out");

    start(nothing, nothing);
    assert!(is_running());
    for child in [status_of_child, status_of_raw_child] {
        assert_eq!(child(|| i32::from(is_running() || now() != Life::Forked || now() != Life::Forked)), 0);
    }
    assert!(is_running());
    assert!(lose() && !lose(), "the first who loses the worker tells it");
    assert_eq!(now(), Life::Lost);
}
