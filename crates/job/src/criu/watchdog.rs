//! Waits for CRIU as long as it makes progress, however much it has to save or restore, and however slow the disk is.
//!
//! CRIU makes progress while files grow in its folders, or while it or a descendant uses the processor. Two rules hold. A process
//! that is given up is killed with all its descendants, since another command may run it. And it is given up only after a check
//! at or after the deadline, since the watchdog itself may have been suspended for that long.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open};

use crate::process::tree;
use crate::process::tree::Process;

/// How long CRIU may go without a sign of progress.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks for signs.
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Processor time that counts as one sign, in ticks of 10 ms: a process that only polls now and then
/// uses less within [`PROGRESS_TIMEOUT`].
const TICKS_PER_SIGN: u64 = 25;

/// Waits for a child. If `signs` returns the same number for `timeout`, kills the child and its descendants, and returns no
/// status.
pub(crate) fn wait_with_progress(
    child: &mut Child,
    timeout: Duration,
    signs: &dyn Fn() -> u64,
) -> io::Result<Option<ExitStatus>> {
    let pid = tree::raw(child.id()).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let (mut last_signs, mut since) = (None, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = timeout.saturating_sub(since.elapsed());
        let pause = Timespec::try_from(left.min(PROGRESS_POLL_INTERVAL)).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&pause)) {
            Ok(0) => {
                let is_over = since.elapsed() >= timeout;
                let now = Some(signs());
                if now != last_signs {
                    (last_signs, since) = (now, Instant::now());
                } else if is_over {
                    tree::signal(&tree::tree(child.id())?, Signal::KILL);
                    child.wait()?;
                    return Ok(None);
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Calls `wait` until it returns a result; each call gets a deadline. Returns `None` if `signs` returns the same number for
/// `timeout`.
pub(crate) fn wait_until_idle<T>(
    mut wait: impl FnMut(Instant) -> io::Result<Option<T>>,
    timeout: Duration,
    signs: &dyn Fn() -> u64,
) -> io::Result<Option<T>> {
    let (mut last_signs, mut since) = (None, Instant::now());
    loop {
        let until = Instant::now() + PROGRESS_POLL_INTERVAL.min(timeout);
        if let Some(ended) = wait(until)? {
            return Ok(Some(ended));
        }
        let is_over = since.elapsed() >= timeout;
        let now = Some(signs());
        if now != last_signs {
            (last_signs, since) = (now, Instant::now());
        } else if is_over {
            return Ok(None);
        }
    }
}

/// A number that changes when files in `folder` grow, or `processes` compute.
pub(crate) fn signs(folder: &Path, processes: &[Process]) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|stat| stat.len()).sum();
    let ticks: u64 = processes.iter().map(|process| tree::ticks(process.pid)).sum();
    bytes.wrapping_add(ticks / TICKS_PER_SIGN)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[test]
    fn a_process_that_stands_still_is_ended() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        assert_eq!(wait_with_progress(&mut child, SHORT, &|| 7).unwrap(), None);
        let mut child = Command::new("/bin/true").spawn().unwrap();
        assert!(wait_with_progress(&mut child, PROGRESS_TIMEOUT, &|| 7).unwrap().unwrap().success());
    }

    #[test]
    fn a_process_that_gets_on_is_waited_for() {
        let looks = Cell::new(0);
        let signs = || {
            looks.set(looks.get() + 1);
            looks.get().min(20)
        };
        // A timeout of zero, as if each check came after the deadline.
        for timeout in [SHORT, Duration::ZERO] {
            looks.set(0);
            let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            assert_eq!(wait_with_progress(&mut child, timeout, &signs).unwrap(), None);
            assert!(looks.get() > 20, "{}", looks.get());
            looks.set(0);
            assert_eq!(wait_until_idle(|_| Ok(None::<()>), timeout, &signs).unwrap(), None);
            assert!(looks.get() > 20, "{}", looks.get());
        }
    }

    #[test]
    fn descendants_are_ended_too() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        let script = format!("sleep 1000 & echo $! > {0}.part; mv {0}.part {0}; wait", note.display());
        let mut child = Command::new("/bin/sh").args(["-c", &script]).spawn().unwrap();
        let looks = Cell::new(0);
        // It makes progress until the other process is there.
        let signs = || {
            looks.set(looks.get() + u64::from(!note.exists()));
            looks.get()
        };
        assert_eq!(wait_with_progress(&mut child, SHORT, &signs).unwrap(), None);
        let below: u32 = fs::read_to_string(&note).unwrap().trim().parse().unwrap();
        while !tree::has_ended(below) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn files_and_computing_are_signs() {
        let folder = tempfile::tempdir().unwrap();
        let before = signs(folder.path(), &[]);
        fs::write(folder.path().join("pages-1.img"), "page").unwrap();
        assert_ne!(signs(folder.path(), &[]), before);
        let us = [Process { pid: std::process::id(), parent: 0, state: 'R' }];
        let before = signs(folder.path(), &us);
        while signs(folder.path(), &us) == before {
            std::hint::black_box(before.pow(1));
        }
    }
}
