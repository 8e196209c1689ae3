//! Descriptors and threads that CRIU's images do not record, or only in part. They refuse a checkpoint while the programs run.
//!
//! | what | read from |
//! |---|---|
//! | descriptors of the kernel's own files that CRIU has no image for | `/proc/PID/fd` |
//! | a queue of POSIX messages | the kind of file system behind a descriptor |
//! | a counter of `eventfd` that counts down by one, or beyond 32 bits | `/proc/PID/fdinfo` |
//! | a `timerfd` of an alarm clock | `/proc/PID/fdinfo` |
//! | memory that only its process may read | `/proc/PID/fd`, `/proc/PID/maps` |
//! | a thread with a deadline | `sched_getscheduler` |
//!
//! The rule: what this process may not inspect counts for nothing; CRIU checks it again.

#![expect(unsafe_code, reason = "policies of threads have no safe interface")]

use std::fs;
use std::path::Path;

use rustix::fs::statfs;

use crate::process::losses::Loss;
use crate::process::memory::maps;
use crate::process::tree;
use crate::process::tree::Process;

/// Prefix of the kernel's names for its own files, and the names of those that CRIU does not dump.
const ANONYMOUS_PREFIX: &str = "anon_inode:";
const ANONYMOUS_FILES: [(&str, Loss); 7] = [
    (
        "[perf_event]",
        Loss { what: "has a performance event open (perf_event_open)", remedy: "close it, or end the profiler" },
    ),
    ("[userfaultfd]", Loss { what: "has a userfaultfd open", remedy: "close it" }),
    ("[landlock-ruleset]", Loss { what: "has a Landlock ruleset open", remedy: "close it once it is in force" }),
    ("seccomp notify", Loss { what: "has a listener of seccomp open", remedy: "close it" }),
    ("bpf-prog", Loss { what: "has a BPF program open", remedy: "pin it, and close it" }),
    ("bpf_link", Loss { what: "has a link of a BPF program open", remedy: "pin it, and close it" }),
    ("kvm-vm", Loss { what: "has a virtual machine of KVM open", remedy: "end it" }),
];

/// Names of a counter's and a timer's file.
const EVENTFD_LINK: &str = "anon_inode:[eventfd]";
const TIMERFD_LINK: &str = "anon_inode:[timerfd]";
/// `CLOCK_REALTIME_ALARM` and `CLOCK_BOOTTIME_ALARM`.
const ALARM_CLOCKS: [u64; 2] = [8, 9];

const SEMAPHORE: Loss = Loss {
    what: "has an eventfd of the kind EFD_SEMAPHORE",
    remedy: "close it, or use a semaphore of POSIX (sem_init)",
};
const LARGE_COUNT: Loss = Loss { what: "has an eventfd that counts more than 32 bits hold", remedy: "read it first" };
const ALARM_CLOCK: Loss =
    Loss { what: "has a timerfd of an alarm clock", remedy: "use CLOCK_REALTIME or CLOCK_BOOTTIME" };
const MESSAGE_QUEUE: Loss =
    Loss { what: "has a queue of POSIX messages open (mq_open)", remedy: "close it (mq_close)" };
const SECRET_MEMORY: Loss =
    Loss { what: "has memory that no other process may read (memfd_secret)", remedy: "unmap it, and close its file" };
const DEADLINE: Loss = Loss {
    what: "has a thread with a deadline (SCHED_DEADLINE)",
    remedy: "give it another policy for the checkpoint, such as SCHED_FIFO (chrt)",
};

/// Name of the file behind secret memory, and the file system type of message queues.
const SECRET_MEMORY_NAME: &str = "/secretmem";
const MQUEUE_MAGIC: i64 = 0x1980_0202;

/// Finds the first process with a resource that CRIU would not dump, or only in part.
pub(crate) fn find(tree: &[Process]) -> Option<(u32, Loss)> {
    tree.iter().find_map(|process| Some((process.pid, of_process(process.pid)?)))
}

fn of_process(pid: u32) -> Option<Loss> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let of_descriptor = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok()?;
        let number = entry.file_name().into_string().ok()?;
        of_link(&target, &entry.path(), || {
            fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default()
        })
    };
    entries
        .into_iter()
        .find_map(of_descriptor)
        .or_else(|| has_secret_memory(pid).then_some(SECRET_MEMORY))
        .or_else(|| tree::threads(pid).into_iter().any(has_deadline).then_some(DEADLINE))
}

/// The loss that the file behind a descriptor's link would be, if any.
fn of_link(target: &str, link: &Path, info: impl FnOnce() -> String) -> Option<Loss> {
    match target {
        EVENTFD_LINK => of_counter(&info()),
        TIMERFD_LINK => of_clock(&info()),
        _ if target.starts_with(SECRET_MEMORY_NAME) => Some(SECRET_MEMORY),
        _ if target.starts_with('/') => is_message_queue(link).then_some(MESSAGE_QUEUE),
        _ => {
            let kind = target.strip_prefix(ANONYMOUS_PREFIX)?;
            ANONYMOUS_FILES.iter().find(|(known, _)| kind.starts_with(known)).map(|(_, loss)| *loss)
        }
    }
}

/// The kernel shows the kind of a counter since Linux 6.5.
fn of_counter(info: &str) -> Option<Loss> {
    let number = |name: &str, radix| u64::from_str_radix(tree::proc_field(info, name)?, radix).ok();
    if number("eventfd-semaphore:", 10) == Some(1) {
        return Some(SEMAPHORE);
    }
    number("eventfd-count:", 16).filter(|count| *count > u64::from(u32::MAX)).map(|_| LARGE_COUNT)
}

fn of_clock(info: &str) -> Option<Loss> {
    let clock = tree::proc_field(info, "clockid:")?.parse().ok()?;
    ALARM_CLOCKS.contains(&clock).then_some(ALARM_CLOCK)
}

fn is_message_queue(link: &Path) -> bool {
    statfs(link).is_ok_and(|found| found.f_type == MQUEUE_MAGIC)
}

fn has_secret_memory(pid: u32) -> bool {
    maps::of(pid).iter().any(|mapping| mapping.path() == Some(Path::new(SECRET_MEMORY_NAME)))
}

fn has_deadline(tid: u32) -> bool {
    // SAFETY: it takes a number only.
    let policy = unsafe { libc::sched_getscheduler(tid.cast_signed()) };
    policy == libc::SCHED_DEADLINE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(target: &str, info: &str) -> Option<Loss> {
        of_link(target, Path::new("/proc/self/fd/0"), || info.to_owned())
    }

    #[test]
    fn counters_and_clocks_are_read_as_the_kernel_writes_them() {
        let counter = |count: &str, kind: u8| {
            let info = format!("pos:\t0\neventfd-count: {count}\neventfd-id: 22\neventfd-semaphore: {kind}\n");
            linked(EVENTFD_LINK, &info)
        };
        assert_eq!(counter("               5", 1), Some(SEMAPHORE));
        assert_eq!(counter("        ffffffff", 0), None);
        assert_eq!(counter("       100000000", 0), Some(LARGE_COUNT));
        assert_eq!(linked(EVENTFD_LINK, "eventfd-count:                5\n"), None);
        assert_eq!(linked(TIMERFD_LINK, "clockid: 8\nticks: 0\n"), Some(ALARM_CLOCK));
        assert_eq!(linked(TIMERFD_LINK, "clockid: 1\nticks: 0\n"), None);
    }

    #[test]
    fn files_of_the_kernel_that_criu_knows_pass() {
        for kind in ["[eventpoll]", "[signalfd]", "inotify", "[fanotify]", "bpf-map", "[pidfd]"] {
            assert_eq!(linked(&format!("anon_inode:{kind}"), ""), None, "{kind}");
        }
        for kind in ["[perf_event]", "bpf-prog", "[userfaultfd]", "kvm-vm"] {
            assert!(linked(&format!("anon_inode:{kind}"), "").is_some(), "{kind}");
        }
        assert_eq!(linked("/secretmem (deleted)", ""), Some(SECRET_MEMORY));
        assert_eq!((linked("/dev/null", ""), linked("pipe:[7]", "")), (None, None));
    }

    #[test]
    fn a_process_without_any_of_these_loses_nothing() {
        assert_eq!(of_process(std::process::id()), None);
    }
}
