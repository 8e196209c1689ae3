//! The processes that a test waits for (its programs, its servers, and their descendants) and their usage.
//!
//! Tests run in parallel, each on its own thread. Each process is recorded with the thread that started it, so that another
//! test's work does not hide a hang.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The role of a process in the test that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    Program,
    /// A server. Tests that started none use the servers of others.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pid: u32,
    role: ProcessRole,
    thread: ThreadId,
}

static STARTED_PROCESSES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// A process that a test started; dropping this removes it from the records.
#[derive(Debug)]
pub(crate) struct WatchedChild(Entry);

impl WatchedChild {
    pub(crate) fn remember(pid: u32, role: ProcessRole) -> Self {
        let entry = Entry { pid, role, thread: thread::current().id() };
        STARTED_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        Self(entry)
    }
}

impl Drop for WatchedChild {
    fn drop(&mut self) {
        STARTED_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).retain(|entry| *entry != self.0);
    }
}

/// Returns the processes that a thread started: its programs and servers, or all servers if it has none.
fn roots_of(thread: ThreadId) -> Vec<u32> {
    let started = STARTED_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let has_server = started.iter().any(|entry| entry.thread == thread && entry.role == ProcessRole::Server);
    let is_root = |entry: &&Entry| entry.thread == thread || (entry.role == ProcessRole::Server && !has_server);
    started.iter().filter(is_root).map(|entry| entry.pid).collect()
}

/// Usage of processes between two checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    pub(crate) processor: Duration,
    /// Time in which threads wanted a processor and got none.
    pub(crate) delayed: Duration,
    /// Bytes read and written.
    pub(crate) bytes: u64,
}

impl ProcessUsage {
    pub(crate) const NOTHING: Self = Self { processor: Duration::ZERO, delayed: Duration::ZERO, bytes: 0 };

    /// Returns the calling thread's usage since it began.
    pub(crate) fn of_this_thread() -> Self {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let mut nanos = text.split_whitespace().map(|number| Duration::from_nanos(number.parse().unwrap_or(0)));
        Self { processor: nanos.next().unwrap_or_default(), delayed: nanos.next().unwrap_or_default(), bytes: 0 }
    }

    /// Returns the usage minus `other`.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(other.processor),
            delayed: self.delayed.saturating_sub(other.delayed),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// Returns the sum of both.
    pub(crate) fn with(&self, other: &Self) -> Self {
        Self {
            processor: self.processor + other.processor,
            delayed: self.delayed + other.delayed,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// The processes of a wait.
#[derive(Debug)]
pub(crate) struct WatchedProcesses {
    thread: ThreadId,
    further: Option<u32>,
    /// Usage of each process at the last check.
    last: HashMap<u32, ProcessUsage>,
}

impl WatchedProcesses {
    pub(crate) fn of_this_thread() -> Self {
        Self::new(None)
    }

    /// Adds one more process, whichever thread started it.
    pub(crate) fn with(pid: u32) -> Self {
        Self::new(Some(pid))
    }

    fn new(further: Option<u32>) -> Self {
        let mut watched = Self { thread: thread::current().id(), further, last: HashMap::new() };
        // Earlier usage does not count.
        let _ = watched.used();
        watched
    }

    /// Returns all processes now.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let roots: Vec<u32> = self.further.into_iter().chain(roots_of(self.thread)).collect();
        members(&roots, &relations())
    }

    /// Returns the usage since the last check. A new process counts with its whole usage.
    pub(crate) fn used(&mut self) -> ProcessUsage {
        let now: HashMap<u32, ProcessUsage> = self.processes().into_iter().map(|pid| (pid, sums(pid))).collect();
        let mut total = ProcessUsage::default();
        for (pid, sum) in &now {
            let before = self.last.get(pid).copied().unwrap_or_default();
            total.processor += sum.processor.saturating_sub(before.processor);
            // The usage of ended threads is lost, so sums may decrease.
            total.delayed += sum.delayed.saturating_sub(before.delayed);
            total.bytes += sum.bytes.saturating_sub(before.bytes);
        }
        self.last = now;
        total
    }
}

/// A process with its relations to others.
struct Relation {
    pid: u32,
    parent: u32,
    group: u32,
    session: u32,
}

fn relations() -> Vec<Relation> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| {
        let fields = stat(pid)?;
        let number = |index: usize| fields.get(index).and_then(|field| field.parse().ok());
        Some(Relation { pid, parent: number(1)?, group: number(2)?, session: number(3)? })
    })
    .collect()
}

/// Returns `roots` and their descendants, including orphans in a group or a session that one of them leads.
fn members(roots: &[u32], relations: &[Relation]) -> Vec<u32> {
    let mut members: HashSet<u32> = roots.iter().copied().collect();
    let mut new_members: Vec<u32> = relations.iter().map(|it| it.pid).filter(|pid| members.contains(pid)).collect();
    loop {
        let belongs = |it: &&Relation| [it.parent, it.group, it.session].iter().any(|pid| members.contains(pid));
        let new: Vec<u32> =
            relations.iter().filter(|it| !members.contains(&it.pid)).filter(belongs).map(|it| it.pid).collect();
        if new.is_empty() {
            return new_members;
        }
        members.extend(&new);
        new_members.extend(new);
    }
}

/// Returns the fields of `/proc/PID/stat` after the name, which may contain anything; the state is the first.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect())
}

/// Returns a process's usage since it began, including ended children. Parts that cannot be read count as 0.
fn sums(pid: u32) -> ProcessUsage {
    const PROCESSOR_TICK: Duration = Duration::from_millis(10);
    let fields = stat(pid).unwrap_or_default();
    // User and system time of the process and of reaped children: fields 14 to 17 of the whole line.
    let ticks = (11..15).filter_map(|index| fields.get(index)?.parse::<u32>().ok()).fold(0, u32::saturating_add);
    ProcessUsage { processor: PROCESSOR_TICK * ticks, delayed: delayed(pid), bytes: moved(pid) }
}

fn delayed(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    let nanos = texts.filter_map(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    Duration::from_nanos(nanos.fold(0, u64::saturating_add))
}

fn moved(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let moved = io.lines().filter_map(|line| line.strip_prefix("rchar: ").or_else(|| line.strip_prefix("wchar: ")));
    moved.filter_map(|number| number.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::program::Running;
    use crate::watch::until;

    fn relation([pid, parent, group, session]: [u32; 4]) -> Relation {
        Relation { pid, parent, group, session }
    }

    #[test]
    fn descendants_and_orphans_of_the_group_belong_to_a_process() {
        let all = [
            [2, 1, 2, 2],
            [3, 2, 3, 2],
            [4, 3, 4, 4],
            // An orphan of the group, one of the session, and unrelated processes.
            [5, 1, 2, 1],
            [6, 1, 6, 2],
            [7, 1, 1, 1],
            [8, 7, 8, 8],
        ]
        .map(relation);
        let mut found = members(&[2], &all);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5, 6]);
        assert_eq!(members(&[99], &all), [0; 0]);
    }

    #[test]
    fn a_thread_has_what_it_started_and_the_servers_of_others_only_without_its_own() {
        let here = thread::current().id();
        let server = WatchedChild::remember(u32::MAX - 1, ProcessRole::Server);
        let elsewhere = thread::spawn(|| {
            let program = WatchedChild::remember(u32::MAX - 2, ProcessRole::Program);
            let roots = roots_of(thread::current().id());
            assert!(roots.contains(&(u32::MAX - 2)) && roots.contains(&(u32::MAX - 1)), "{roots:?}");
            program
        });
        let program = elsewhere.join().unwrap();
        assert_eq!(roots_of(here), [u32::MAX - 1]);
        drop((server, program));
        assert!(!roots_of(here).contains(&(u32::MAX - 1)));
    }

    #[test]
    fn the_work_of_a_child_and_the_bytes_that_it_moves_count() {
        let script = "echo ready; read x; head -c 9000000 /dev/zero | cat >/dev/null; sleep 600";
        let mut running = Running::start(Command::new("sh").args(["-c", script]), Stdio::piped()).unwrap();
        running.wait_for("ready", Duration::from_secs(60)).unwrap();
        let mut watched = WatchedProcesses::with(running.pid());
        running.close_input();
        let mut bytes = 0;
        until("the bytes were moved", || {
            bytes += watched.used().bytes;
            watched.processes().len() == 2 && bytes > 0
        })
        .unwrap();
        let spins = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]), Stdio::null()).unwrap();
        let (mut watched, mut worked) = (WatchedProcesses::with(spins.pid()), Duration::ZERO);
        until("processor time was used", || {
            worked += watched.used().processor;
            worked > Duration::from_millis(50)
        })
        .unwrap();
    }
}
