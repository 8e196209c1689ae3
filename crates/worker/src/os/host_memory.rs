//! Bounds the machine's memory that a session takes, whatever its program sends.
//!
//! Each buffer of a link is bounded; what a program makes the driver, its journal and pinned pages hold is not. So the monitor
//! measures what the process holds, and ends it beyond the limit. It does so once a second while the limit is far, and up to a
//! hundred times a second near it. If memory runs short earlier, the kernel should end a worker, and not the server or a program
//! beside it.
//!
//! Measuring allocates nothing, because the order of mappings decides where a driver's memory lies.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::control;
use crate::os::exit::{BROKEN_SESSION_STATUS, leave};
use crate::os::memory_files::{self, MemoryFiles};

/// How much the kernel prefers to end a worker; 1000 is the most.
const OOM_SCORE_ADJ: &str = "500";
/// Bytes that suffice for `/proc/self/status`.
const MAX_STATUS_BYTES: usize = 4096;
/// Longest and shortest pause between two measurements.
const MAX_PROCESS_MEASURE_PAUSE: Duration = Duration::from_secs(1);
const MIN_PROCESS_MEASURE_PAUSE: Duration = Duration::from_millis(10);
/// Most bytes that a process takes in a millisecond: some threads that touch new pages.
const GROWTH_BYTES_PER_MS: u64 = 16 << 20;

/// The memory limit of this process.
#[derive(Debug)]
struct ProcessLimit {
    bytes: u64,
    /// Recognizes memory files, where they count.
    files: Option<MemoryFiles>,
}

static HOST_MEMORY_LIMIT_BYTES: OnceLock<ProcessLimit> = OnceLock::new();

/// Sets this process's limit to `bytes`. With `counts_files`, memory files that it has made count even where they are not mapped.
/// Files of a worker for its own user may be the program's.
pub(crate) fn bound(bytes: u64, counts_files: bool) {
    // Where /proc is not writable, the kernel treats a worker like any process.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let files = counts_files.then(MemoryFiles::find).flatten();
    let _ = HOST_MEMORY_LIMIT_BYTES.set(ProcessLimit { bytes, files });
}

/// Ends the process if it holds too much, and tells the server. Otherwise returns for how long it cannot exceed the limit.
pub(crate) fn measure(control: BorrowedFd<'_>) -> Duration {
    let Some((limit, held)) = HOST_MEMORY_LIMIT_BYTES.get().and_then(|limit| Some((limit.bytes, held_bytes(limit)?)))
    else {
        return MAX_PROCESS_MEASURE_PAUSE;
    };
    if held > limit {
        control::holds(control, held);
        leave(BROKEN_SESSION_STATUS);
    }
    pause(limit - held)
}

/// Returns the time in which the process can take `left` bytes, within the bounds.
fn pause(left: u64) -> Duration {
    Duration::from_millis(left / GROWTH_BYTES_PER_MS).clamp(MIN_PROCESS_MEASURE_PAUSE, MAX_PROCESS_MEASURE_PAUSE)
}

fn held_bytes(limit: &ProcessLimit) -> Option<u64> {
    let mut status = [0; MAX_STATUS_BYTES];
    let file = openat(CWD, c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut status).ok()?;
    let mapped = anonymous_bytes(status.get(..length)?)?;
    let Some(files) = &limit.files else { return Some(mapped) };
    let mut open = memory_files::table();
    let all = mapped.saturating_add(files.list(&mut open));
    // Finding what is both open and mapped takes longer. It matters only if the process would otherwise be beyond its limit.
    Some(if all > limit.bytes { mapped.saturating_add(files.unmapped(&mut open)) } else { all })
}

/// Returns the bytes that belong to no file: the process's own memory, also swapped out, and shared memory that it has touched.
fn anonymous_bytes(status: &[u8]) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    // A kernel without swap has no such line.
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
        assert_eq!(pause(u64::MAX), MAX_PROCESS_MEASURE_PAUSE);
        assert_eq!([pause(0), pause(GROWTH_BYTES_PER_MS)], [MIN_PROCESS_MEASURE_PAUSE; 2]);
        assert_eq!(pause(50 * GROWTH_BYTES_PER_MS), Duration::from_millis(50));
    }
}
