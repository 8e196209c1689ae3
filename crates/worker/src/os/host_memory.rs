//! Bounds what a session takes of its machine's memory, whatever its program sends.
//!
//! Buffers of a link are bounded one by one; what a program has the driver, its journal and pinned pages hold is not. So the
//! monitor looks once a second at what the process holds, and ends it beyond the limit. Where memory runs short earlier than
//! that, the kernel is to end a worker, and not the server or a program beside it.
//!
//! To look allocates nothing: what is mapped when decides where a driver's memory lies.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::system::sysinfo;

use crate::control;
use crate::os::exit::{BROKEN, leave};

/// How much rather than others the kernel ends a worker; 1000 is the most.
const OOM_SCORE_ADJ: &str = "500";
/// What the kernel says of a process is shorter.
const STATUS: usize = 4096;

/// Most bytes that this process may hold.
static LIMIT: OnceLock<u64> = OnceLock::new();

/// Holds this process to `limit` bytes from now on; three quarters of the machine's memory where there is none.
pub(crate) fn bound(limit: Option<u64>) {
    // Where /proc cannot be written to, the kernel chooses as among all processes.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let _ = LIMIT.set(limit.unwrap_or_else(usual));
}

fn usual() -> u64 {
    let system = sysinfo();
    system.totalram * u64::from(system.mem_unit) / 4 * 3
}

/// Ends the process if it holds too much, and tells the server why.
pub(crate) fn look(control: BorrowedFd<'_>) {
    let (Some(limit), Some(held)) = (LIMIT.get(), held_now()) else { return };
    if held > *limit {
        let (held, limit) = (held >> 20, limit >> 20);
        let reason = format!("it held {held} MiB of the machine's memory, and may hold {limit} (serve --host-memory)");
        control::refused(control, &reason);
        leave(BROKEN);
    }
}

fn held_now() -> Option<u64> {
    let mut status = [0; STATUS];
    let file = openat(CWD, c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut status).ok()?;
    held(status.get(..length)?)
}

/// Bytes that are no file's: memory of its own, and shared memory that it has touched.
fn held(status: &[u8]) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    Some((kibibytes("RssAnon:")? + kibibytes("RssShmem:")?) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_read_from_what_the_kernel_says() {
        let status = b"Name:\tx\nVmRSS:\t  9 kB\nRssAnon:\t     100 kB\nRssFile:\t  7 kB\nRssShmem:\t      28 kB\n";
        assert_eq!(held(status), Some(128 << 10));
        assert_eq!(held(b"Name:\tx\n"), None);
        let own = held_now().unwrap();
        assert!((1 << 10..usual()).contains(&own), "{own}");
    }
}
