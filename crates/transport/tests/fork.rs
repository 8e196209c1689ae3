//! A program that forks: the child abandons the session, which continues in the parent and ends with the parent alone.
//!
//! A binary of its own: the test forks, and counts the mappings of its process.

#![expect(unsafe_code, reason = "forks")]

mod common;

use common::{ECHO, Path, link, work};
use katydid_transport::LinkError;

/// Runs in the child, where nothing may panic. Returns 0 if all is as expected, else the number of the step.
fn child(link: &dyn katydid_transport::ProgramLink) -> i32 {
    link.abandon();
    if !matches!(link.call(ECHO, 0, &[], &mut Vec::new()), Err(LinkError::Forked)) {
        return 1;
    }
    if !matches!(link.enqueue(ECHO, 0, &[]), Err(LinkError::Forked)) {
        return 2;
    }
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    // One is the worker's, which is a thread of this test; the program's own must be missing.
    let is_inherited = |name: &[u8]| maps.windows(name.len()).filter(|window| *window == name).count() > 1;
    if maps.is_empty() || is_inherited(b"katydid-channel") || is_inherited(b"katydid-staging") { 3 } else { 0 }
}

#[test]
fn a_child_lets_go_and_the_parent_goes_on() {
    for path in [Path::Shm, Path::Unix, Path::Tcp, Path::Tls] {
        let (connection, worker) = link(path);
        let hangup = worker.hangup();
        let worker = std::thread::spawn(|| work(worker));
        connection.link.call(ECHO, 0, &[b"before"], &mut Vec::new()).unwrap();
        let (kept_end, end) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child runs `child`, which takes no lock that another thread can hold (its allocations are
        // guarded by the C library's own fork handlers), waits for the parent and leaves without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(kept_end);
            let result = child(&*connection.link);
            let _ = std::io::Read::read(&mut &end, &mut [0]);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(result) };
        }
        drop(end);
        connection.link.call(ECHO, 0, &[b"after"], &mut Vec::new()).unwrap();
        drop(connection);
        // The child still lives, and holds nothing that would keep the session alive.
        hangup.wait();
        worker.join().unwrap();
        drop(kept_end);
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "{path:?}: step {}", status >> 8);
    }
}
