//! Attributes of processes and threads that the kernel keeps, CRIU does not restore, and other processes may set. They are read
//! at the checkpoint, and set while the restored processes are stopped.
//!
//! | attribute | of | read from | CRIU 4.2.1 |
//! |---|---|---|---|
//! | processors (`sched_setaffinity`) | thread | system call | those of the restoring side |
//! | policy, nice value, priority, flags, clamps (`sched_setattr`) | thread | system call | policy, nice value and priority |
//! | priority of input and output (`ioprio_set`) | thread | system call | none |
//! | timer slack | thread | `/proc/TID/timerslack_ns` | 50 µs |
//! | `oom_score_adj`, `coredump_filter` | process | `/proc/PID` | the first, unless it is 0 |
//! | personality | process | `/proc/PID/personality` | none: CRIU is started with it |
//! | settings of its own | both | `own_settings.rs` | none |
//!
//! The rule: if the restoring side refuses an attribute, a message names it, and the program goes on without it.

#![expect(unsafe_code, reason = "scheduling attributes have no safe interface")]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::process::own_settings::{self, OfProcess, OfThread};
use crate::process::tree;
use crate::process::tree::Process;

/// `IOPRIO_WHO_PROCESS`: the I/O priority of one thread.
const IOPRIO_WHO_PROCESS: i32 = 1;
/// Length of an affinity mask, in words of 64 processors.
const AFFINITY_MASK_WORDS: usize = 128;
/// Bytes of `struct sched_attr` with clamps.
const SCHED_ATTR_BYTES: u32 = 56;
/// `SCHED_FLAG_RESET_ON_FORK`, `_RECLAIM`, `_DL_OVERRUN`: flags that are saved and set again.
const KEPT_SCHED_FLAGS: u64 = 7;
/// `SCHED_FLAG_UTIL_CLAMP_MIN` and `_MAX`.
const SCHED_FLAG_UTIL_CLAMP: u64 = 0x60;
/// Clamps without effect: none, and all of a processor.
const DEFAULT_UTIL_CLAMPS: (u32, u32) = (0, 1024);

/// Attributes of a process and of its threads, as the image records them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessAttributes {
    /// Process id, in the process's own namespace.
    pub(crate) pid: u32,
    oom_score_adj: Option<i32>,
    coredump_filter: Option<u64>,
    personality: Option<u32>,
    /// Settings that only the process itself can make.
    #[serde(default)]
    own: OfProcess,
    threads: Vec<Thread>,
}

/// Attributes of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Thread {
    /// Thread id, in the thread's own namespace.
    tid: u32,
    /// Affinity mask, 64 processors a word.
    affinity: Option<Vec<u64>>,
    scheduling: Option<Scheduling>,
    ioprio: Option<i32>,
    timer_slack: Option<u64>,
    /// Settings that only the thread itself can make; `None` in images of builds that did not save them.
    #[serde(default)]
    own: Option<OfThread>,
}

/// The kernel's `struct sched_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    least: u32,
    most: u32,
}

/// Reads the attributes of all processes, except memory policies of their mappings.
pub(crate) fn read(processes: &[Process]) -> Vec<ProcessAttributes> {
    read_after(&[], processes)
}

/// Reads the attributes of all processes, with the memory policies of their mappings, for which the kernel visits each page.
pub(crate) fn read_all(processes: &[Process]) -> Vec<ProcessAttributes> {
    let mut saved = read(processes);
    saved.iter_mut().zip(processes).for_each(|(one, process)| one.own.read_mappings(process.pid));
    saved
}

/// Reads the attributes of stopped processes. Settings that only the processes themselves can make come from the `earlier`
/// reading, since reading them again would lengthen the stop.
pub(crate) fn read_after(earlier: &[ProcessAttributes], processes: &[Process]) -> Vec<ProcessAttributes> {
    processes.iter().map(|process| ProcessAttributes::read(process.pid, earlier)).collect()
}

/// The personality of the first process, by which all are restored, unless it is the usual one.
pub(crate) fn personality(saved: &[ProcessAttributes]) -> Option<u32> {
    saved.first()?.personality.filter(|number| *number != 0)
}

/// Finds a process whose personality is not that of the first one, by which all are restored. Returns its id in its own
/// namespace. A process that has ended since it was found has no personality.
pub(crate) fn odd_personality(saved: &[ProcessAttributes]) -> Option<u32> {
    let first = saved.first()?.personality?;
    saved.iter().find(|one| one.personality.is_some_and(|number| number != first)).map(|one| one.pid)
}

/// Makes the command create files for its owner alone: CRIU's own modes let others read its dump.
pub(crate) fn start_with_private_files(command: &mut Command) {
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::umask(Mode::from_raw_mode(0o077));
            Ok(())
        })
    };
}

/// Gives the command, and all its descendants, this personality.
pub(crate) fn start_with_personality(command: &mut Command, personality: u32) {
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::personality(libc::c_ulong::from(personality)) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
}

/// Sets the attributes of restored processes, which are stopped. Returns a line for each attribute that was refused.
pub(crate) fn set(saved: &[ProcessAttributes], processes: &[Process]) -> Vec<String> {
    let mut refused = Vec::new();
    for process in processes {
        let pid = tree::pid_in_own_namespace(process.pid);
        let Some(target) = saved.iter().find(|attributes| attributes.pid == pid) else { continue };
        let mut note = |what: &str, done: io::Result<()>| {
            if let Err(error) = done {
                refused.push(format!("{what} of {} (process {pid}) is not restored: {error}", tree::name(process.pid)));
            }
        };
        let current = read(std::slice::from_ref(process)).pop().unwrap_or_default();
        let write = |name: &str, text: String| fs::write(format!("/proc/{}/{name}", process.pid), text);
        if let Some(value) = target.oom_score_adj.filter(|value| current.oom_score_adj != Some(*value)) {
            note("oom_score_adj", write("oom_score_adj", value.to_string()));
        }
        if let Some(value) = target.coredump_filter.filter(|value| current.coredump_filter != Some(*value)) {
            note("coredump_filter", write("coredump_filter", format!("{value:#x}")));
        }
        own_settings::make(process.pid, process.pid, &target.own.calls(&current.own), &mut note);
        let seen: HashMap<u32, u32> =
            tree::threads(process.pid).into_iter().map(|tid| (tree::pid_in_own_namespace(tid), tid)).collect();
        for thread in &target.threads {
            let current = current.threads.iter().find(|current| current.tid == thread.tid);
            if let Some((tid, current)) = seen.get(&thread.tid).zip(current) {
                thread.set(*tid, current, &mut note);
                let own = thread.own.as_ref().zip(current.own.as_ref());
                let calls = own.map(|(settings, current)| settings.calls(current)).unwrap_or_default();
                own_settings::make(process.pid, *tid, &calls, &mut note);
            }
        }
    }
    refused.dedup();
    refused
}

impl ProcessAttributes {
    fn read(process: u32, earlier: &[Self]) -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
        let hexadecimal = |name: &str| u64::from_str_radix(text(name)?.trim(), 16).ok();
        let pid = tree::pid_in_own_namespace(process);
        let earlier_attributes = earlier.iter().find(|earlier_attributes| earlier_attributes.pid == pid);
        let earlier_threads =
            earlier_attributes.map(|earlier_attributes| earlier_attributes.threads.as_slice()).unwrap_or_default();
        Self {
            pid,
            oom_score_adj: text("oom_score_adj").and_then(|text| text.trim().parse().ok()),
            coredump_filter: hexadecimal("coredump_filter"),
            personality: hexadecimal("personality").and_then(|number| u32::try_from(number).ok()),
            own: earlier_attributes
                .map_or_else(|| OfProcess::read(process), |earlier_attributes| earlier_attributes.own.clone()),
            threads: tree::threads(process)
                .into_iter()
                .map(|tid| Thread::read(process, tid, earlier_threads))
                .collect(),
        }
    }
}

impl Thread {
    fn read(pid: u32, thread: u32, earlier_threads: &[Self]) -> Self {
        let tid = tree::pid_in_own_namespace(thread);
        let own = earlier_threads
            .iter()
            .find(|earlier_threads| earlier_threads.tid == tid)
            .and_then(|earlier_threads| earlier_threads.own.clone());
        let slack = fs::read_to_string(format!("/proc/{thread}/timerslack_ns"));
        Self {
            tid,
            affinity: affinity(thread).ok(),
            scheduling: Scheduling::read(thread).ok(),
            ioprio: ioprio(thread).ok(),
            timer_slack: slack.ok().and_then(|text| text.trim().parse().ok()),
            own: own.or_else(|| Some(OfThread::read(pid, thread))),
        }
    }

    fn set(&self, tid: u32, current: &Self, note: &mut dyn FnMut(&str, io::Result<()>)) {
        if let Some(mask) = self.affinity.as_ref().filter(|_| self.affinity != current.affinity) {
            note("the choice of processors", set_affinity(tid, mask));
        }
        if let Some(scheduling) = self.scheduling.filter(|_| self.scheduling != current.scheduling) {
            note("the scheduling", scheduling.set(tid));
        }
        if let Some(value) = self.ioprio.filter(|_| self.ioprio != current.ioprio) {
            note("the priority of input and output", set_ioprio(tid, value));
        }
        // A thread of a real-time policy has no timer slack, and the kernel refuses to set any.
        if let Some(value) = self.timer_slack.filter(|value| *value != 0 && self.timer_slack != current.timer_slack) {
            note("the timer slack", fs::write(format!("/proc/{tid}/timerslack_ns"), value.to_string()));
        }
    }
}

impl Scheduling {
    fn read(tid: u32) -> io::Result<Self> {
        let mut found = Self::default();
        // SAFETY: the kernel writes as many bytes as are said to be there at most.
        let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut found, SCHED_ATTR_BYTES, 0) };
        checked(done).map(|_| found)
    }

    fn set(mut self, tid: u32) -> io::Result<()> {
        self.size = SCHED_ATTR_BYTES;
        self.flags &= KEPT_SCHED_FLAGS;
        // A kernel without clamps refuses the flags.
        if (self.least, self.most) != DEFAULT_UTIL_CLAMPS && self.most != 0 {
            self.flags |= SCHED_FLAG_UTIL_CLAMP;
        }
        // SAFETY: the kernel reads as many bytes as the first field says, which is the size of the structure.
        checked(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const self, 0) }).map(drop)
    }
}

fn affinity(tid: u32) -> io::Result<Vec<u64>> {
    let mut mask = [0_u64; AFFINITY_MASK_WORDS];
    // SAFETY: the kernel writes as many bytes as are said to be there at most.
    let done = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&mask), mask.as_mut_ptr()) };
    let bytes = usize::try_from(checked(done)?).unwrap_or(0);
    let mut words = mask.get(..bytes / 8).unwrap_or_default().to_vec();
    while words.last() == Some(&0) {
        words.pop();
    }
    Ok(words)
}

/// Sets the affinity of a thread. The kernel ignores processors that do not exist or are not allowed here, and refuses a mask
/// without any other.
fn set_affinity(tid: u32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as are said to be there.
    let done = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(mask), mask.as_ptr()) };
    checked(done).map(drop)
}

fn ioprio(tid: u32) -> io::Result<i32> {
    // SAFETY: it takes numbers only.
    let value = checked(unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) })?;
    i32::try_from(value).map_err(io::Error::other)
}

fn set_ioprio(tid: u32, value: i32) -> io::Result<()> {
    // SAFETY: it takes numbers only.
    checked(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, value) }).map(drop)
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::injection::Tracee;

    #[test]
    fn a_process_that_has_ended_has_no_odd_personality() {
        let mut ended = Command::new("/bin/true").spawn().unwrap();
        ended.wait().unwrap();
        let saved = read(&[std::process::id(), ended.id()].map(|pid| Process { pid, parent: 1, state: 'S' }));
        assert_eq!(odd_personality(&saved), None);
    }

    #[test]
    fn process_attributes_read_from_one_are_set_in_another() {
        let sleep = || Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let (mut first, mut second) = (sleep(), sleep());
        let process = |pid| [Process { pid, parent: 1, state: 'S' }];
        fs::write(format!("/proc/{}/oom_score_adj", first.id()), "321").unwrap();
        fs::write(format!("/proc/{}/coredump_filter", first.id()), "0x7").unwrap();
        set_ioprio(first.id(), 2 << 13 | 6).unwrap();
        let batch = Scheduling { policy: 3, nice: 5, flags: 1, ..Scheduling::default() };
        batch.set(first.id()).unwrap();
        let one = affinity(first.id()).unwrap().iter().position(|word| *word != 0).unwrap();
        let mut mask = vec![0; one + 1];
        mask[one] = 1 << affinity(first.id()).unwrap()[one].trailing_zeros();
        set_affinity(first.id(), &mask).unwrap();
        for (number, arguments) in [
            (libc::SYS_prctl, [libc::PR_MCE_KILL as u64, 1, 1, 0, 0, 0]),
            // `MPOL_LOCAL`, without a node.
            (libc::SYS_set_mempolicy, [4, 0, 0, 0, 0, 0]),
        ] {
            Tracee::attach(first.id(), first.id()).unwrap().call(number, arguments).unwrap();
        }
        let mut expected = read(&process(first.id()));
        (expected[0].pid, expected[0].threads[0].tid) = (second.id(), second.id());
        assert_eq!(set(&expected, &process(second.id())), Vec::<String>::new());
        assert_eq!(read(&process(second.id())), expected);
        // Settings that are known are not read again.
        expected[0].threads[0].own = Some(OfThread::default());
        assert_eq!(read_after(&expected, &process(second.id())), expected);
        assert_eq!(expected[0].threads[0].affinity.as_ref(), Some(&mask));
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn mixed_personalities_are_reported() {
        let with = |pid, number| ProcessAttributes { pid, personality: Some(number), ..ProcessAttributes::default() };
        assert_eq!(odd_personality(&[with(1, 0x40000), with(2, 0x40000)]), None);
        assert_eq!(personality(&[with(1, 0x40000)]), Some(0x40000));
        assert_eq!(odd_personality(&[with(1, 0), with(2, 0x40000)]), Some(2));
    }
}
