//! Bounds what a session takes of its machine's memory, whatever its program sends.
//!
//! Buffers of a link are bounded one by one; what a program has the driver, its journal and pinned pages hold is not. So the
//! monitor looks at what the process holds, and ends it beyond the limit: once a second while that is far, and up to a hundred times
//! a second near it. Where memory runs short earlier than that, the kernel is to end a worker, and not the server or a program beside
//! it.
//!
//! To look allocates nothing: what is mapped when decides where a driver's memory lies.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::control;
use crate::os::exit::{BROKEN_SESSION_STATUS, leave};
use crate::os::memory_files::{self, MemoryFiles};

/// How much rather than others the kernel ends a worker; 1000 is the most.
const OOM_SCORE_ADJ: &str = "500";
/// What the kernel says of a process is shorter.
const MAX_STATUS_BYTES: usize = 4096;
/// Bounds of the time between two measurements.
const MAX_MEASURE_PAUSE: Duration = Duration::from_secs(1);
const MIN_MEASURE_PAUSE: Duration = Duration::from_millis(10);
/// Bytes that a process takes in a millisecond at most: some threads that touch new pages.
const GROWTH_BYTES_PER_MS: u64 = 16 << 20;

/// What this process may hold.
#[derive(Debug)]
struct ProcessLimit {
    bytes: u64,
    /// Recognises memory files, where they count.
    files: Option<MemoryFiles>,
}

static HOST_MEMORY_LIMIT_BYTES: OnceLock<ProcessLimit> = OnceLock::new();

/// Holds this process to `bytes` from now on. `counts_files`: memory files that it has made count even where they are not mapped. Of
/// a worker for its own user they may be the program's.
pub(crate) fn bound(bytes: u64, counts_files: bool) {
    // Where /proc cannot be written to, the kernel chooses as among all processes.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let files = counts_files.then(MemoryFiles::find).flatten();
    let _ = HOST_MEMORY_LIMIT_BYTES.set(ProcessLimit { bytes, files });
}

/// Ends the process if it holds too much, and tells the server so. How long it cannot hold too much from here on.
pub(crate) fn look(control: BorrowedFd<'_>) -> Duration {
    let Some((limit, held)) = HOST_MEMORY_LIMIT_BYTES.get().and_then(|limit| Some((limit.bytes, held_bytes(limit)?)))
    else {
        return MAX_MEASURE_PAUSE;
    };
    if held > limit {
        control::holds(control, held);
        leave(BROKEN_SESSION_STATUS);
    }
    pause(limit - held)
}

/// Until `left` bytes can be taken.
fn pause(left: u64) -> Duration {
    Duration::from_millis(left / GROWTH_BYTES_PER_MS).clamp(MIN_MEASURE_PAUSE, MAX_MEASURE_PAUSE)
}

fn held_bytes(limit: &ProcessLimit) -> Option<u64> {
    let mut status = [0; MAX_STATUS_BYTES];
    let file = openat(CWD, c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut status).ok()?;
    let mapped = anonymous_bytes(status.get(..length)?)?;
    let Some(files) = &limit.files else { return Some(mapped) };
    let mut open = memory_files::table();
    let all = mapped.saturating_add(files.list(&mut open));
    // To find what is both open and mapped takes longer, and is needed by those who would be beyond their limit otherwise.
    Some(if all > limit.bytes { mapped.saturating_add(files.unmapped(&mut open)) } else { all })
}

/// Bytes that are no file's: memory of its own, swapped out too, and shared memory that it has touched.
fn anonymous_bytes(status: &[u8]) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    // A kernel without swap does not speak of it.
    let swapped = kibibytes("VmSwap:").unwrap_or(0);
    Some((kibibytes("RssAnon:")? + kibibytes("RssShmem:")? + swapped) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_parsed_from_proc_status() {
        let status = b"Name:\tx\nVmRSS:\t  9 kB\nRssAnon:\t     100 kB\nRssFile:\t  7 kB\nRssShmem:\t      28 kB\nVmSwap:\t       4 kB\n";
        assert_eq!(anonymous_bytes(status), Some(132 << 10));
        assert_eq!(anonymous_bytes(b"Name:\tx\n"), None);
        let own = held_bytes(&ProcessLimit { bytes: u64::MAX, files: None }).unwrap();
        assert!((1 << 10..1 << 40).contains(&own), "{own}");
    }

    #[test]
    fn looks_are_the_closer_the_less_is_left() {
        assert_eq!(pause(u64::MAX), MAX_MEASURE_PAUSE);
        assert_eq!([pause(0), pause(GROWTH_BYTES_PER_MS)], [MIN_MEASURE_PAUSE; 2]);
        assert_eq!(pause(50 * GROWTH_BYTES_PER_MS), Duration::from_millis(50));
    }
}
