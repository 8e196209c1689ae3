//! Bounds the machine's memory that workers hold, as measured from outside: a worker measures itself, but its children and
//! hostile native code in it escape that.
//!
//! One thread measures all workers. What counts is each worker's process group, in which seccomp keeps its children: one pass
//! over `/proc` finds its members. The thread measures once a second, and more often the less memory is left. A group beyond its
//! limit is killed.
//!
//! The kernel reports what each process maps. Memory that several of them share is subtracted only beyond the limit, since that
//! takes longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::system::sysinfo;

/// Longest and shortest pause between two measurements.
const MAX_GROUP_MEASURE_PAUSE: Duration = Duration::from_secs(1);
const MIN_GROUP_MEASURE_PAUSE: Duration = Duration::from_millis(20);
/// Most bytes that processes take in a millisecond: some threads that touch new pages.
const GROWTH_BYTES_PER_MS: u64 = 16 << 20;
/// Shortest pause between two measurements, as a multiple of the time that the first one took.
const MIN_IDLE_PER_MEASUREMENT: u32 = 20;
/// Most descriptors of a process that are checked.
const MAX_DESCRIPTORS: usize = 16 << 10;
/// Bytes of a block, as `stat` counts them.
const STAT_BLOCK_BYTES: u64 = 512;
/// Most bytes read of a file in `/proc` about a process.
const MAX_CGROUP_FILE_BYTES: u64 = 8192;

/// The memory limit of one worker. The server sets it, and passes it to each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostMemoryLimit {
    /// Most bytes of the machine's memory.
    pub(crate) bytes: u64,
}

impl Default for HostMemoryLimit {
    /// Returns three quarters of the machine's memory.
    fn default() -> Self {
        let system = sysinfo();
        Self { bytes: system.totalram * u64::from(system.mem_unit) / 4 * 3 }
    }
}

impl HostMemoryLimit {
    /// Returns why a worker that holds `held` bytes is ended.
    pub(crate) fn reason(self, held: u64) -> String {
        let (held, limit) = (held >> 20, self.bytes >> 20);
        format!("it held {held} MiB of the machine's memory, and may hold {limit} (serve --host-memory)")
    }
}

/// The memory limit of a server's workers, and the workers that it applies to.
#[derive(Debug)]
pub(crate) struct HostMemory {
    limit: HostMemoryLimit,
    /// Whether workers' memory files count even where they are not mapped. Files of workers for their own user may be the
    /// program's.
    counts_files: bool,
    state: Mutex<State>,
    /// Notified when another worker is watched, or the server stops.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Process groups, by the id of their leader, and why each was ended.
    groups: BTreeMap<u32, Arc<OnceLock<String>>>,
    stopping: bool,
}

/// A watched worker, until this is dropped. Its process must not be reaped before.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    memory: Arc<HostMemory>,
    group: u32,
    ended: Arc<OnceLock<String>>,
}

impl HostMemory {
    pub(crate) fn new(limit: HostMemoryLimit, counts_files: bool) -> Self {
        Self { limit, counts_files, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Watches the process group of a worker.
    pub(crate) fn watch(self: &Arc<Self>, group: u32) -> MemoryWatch {
        let ended = Arc::<OnceLock<String>>::default();
        self.lock().groups.insert(group, Arc::clone(&ended));
        self.changed.notify_all();
        MemoryWatch { memory: Arc::clone(self), group, ended }
    }

    /// Measures all workers until the server stops.
    pub(crate) fn run(&self) {
        let files = self.counts_files.then(MemoryFiles::find).flatten();
        let mut pause = MIN_GROUP_MEASURE_PAUSE;
        while let Some(groups) = self.wait(pause) {
            let start = Instant::now();
            let members = members(&groups);
            let left = members.iter().map(|(group, members)| self.check_group(*group, members, files.as_ref())).min();
            pause = self::pause(left.unwrap_or(u64::MAX)).max(start.elapsed() * MIN_IDLE_PER_MEASUREMENT);
        }
    }

    /// Returns the groups to measure after a pause; none once the server stops.
    fn wait(&self, pause: Duration) -> Option<BTreeSet<u32>> {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, pause, |state| !state.stopping);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let waited = self.changed.wait_while(state, |state| state.groups.is_empty() && !state.stopping);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.stopping).then(|| state.groups.keys().copied().collect())
    }

    /// Measures a group, and ends it if it holds too much. Returns the bytes that it may still take.
    fn check_group(&self, group: u32, members: &[u32], files: Option<&MemoryFiles>) -> u64 {
        let held = resident_bytes(members, files, self.limit.bytes);
        let Some(left) = self.limit.bytes.checked_sub(held) else {
            self.end(group, held);
            return u64::MAX;
        };
        left
    }

    /// Ends a group. While a worker is watched its process exists, so no other group has the number.
    fn end(&self, group: u32, held: u64) {
        let state = self.lock();
        let Some(ended) = state.groups.get(&group) else { return };
        let Some(pid) = i32::try_from(group).ok().and_then(Pid::from_raw) else { return };
        let _ = ended.set(self.limit.reason(held));
        let _ = kill_process_group(pid, Signal::KILL);
    }

    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Locks the state. Each change is one statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryWatch {
    /// Returns why the worker was ended, if it was.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.memory.lock().groups.remove(&self.group);
    }
}

/// Returns the time in which processes can take `left` bytes, within the bounds.
fn pause(left: u64) -> Duration {
    Duration::from_millis(left / GROWTH_BYTES_PER_MS).clamp(MIN_GROUP_MEASURE_PAUSE, MAX_GROUP_MEASURE_PAUSE)
}

/// Finds the processes of each group.
fn members(groups: &BTreeSet<u32>) -> BTreeMap<u32, Vec<u32>> {
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let Ok(all) = fs::read_dir("/proc") else { return members };
    let processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for process in processes {
        let group = text(process, "stat").ok().and_then(|stat| group_in(&stat));
        if let Some(group) = group.filter(|group| groups.contains(group)) {
            members.entry(group).or_default().push(process);
        }
    }
    members
}

fn text(process: u32, name: &str) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(format!("/proc/{process}/{name}"))?.take(MAX_CGROUP_FILE_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Parses the process group, which follows the name in parentheses, in which any characters may occur. None for an ended process.
fn group_in(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_ascii_whitespace();
    let is_alive = !matches!(words.next()?, "Z" | "X");
    words.nth(1)?.parse().ok().filter(|_| is_alive)
}

/// Sums the named lines of a `/proc` file, which are in KiB. Returns bytes.
fn sum(text: &str, names: &[&str]) -> u64 {
    let line = |name: &&str| text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'));
    let kibibytes = |line: &str| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
    names.iter().filter_map(line).filter_map(kibibytes).fold(0, |all, more| all.saturating_add(more << 10))
}

/// A process's own memory, and shared memory, in bytes.
#[derive(Clone, Copy, Default)]
struct ProcessMemory {
    own: u64,
    shared: u64,
}

impl ProcessMemory {
    fn all(self) -> u64 {
        self.own.saturating_add(self.shared)
    }

    fn and(self, other: Self) -> Self {
        Self { own: self.own.saturating_add(other.own), shared: self.shared.saturating_add(other.shared) }
    }

    /// Returns what a process maps; none for an ended process.
    fn mapped(process: u32) -> Option<Self> {
        let status = text(process, "status").ok()?;
        Some(Self { own: sum(&status, &["RssAnon", "VmSwap"]), shared: sum(&status, &["RssShmem"]) })
    }

    /// Returns the process's own memory, and its share of memory that others map as well. None where the system hides that from
    /// the server.
    fn share(process: u32) -> Option<Self> {
        let rollup = text(process, "smaps_rollup").ok()?;
        Some(Self { own: sum(&rollup, &["Pss_Anon", "SwapPss"]), shared: sum(&rollup, &["Pss_Shmem"]) })
    }
}

/// Returns the bytes that processes hold: exact where that is more than `limit`, otherwise an upper bound.
fn resident_bytes(members: &[u32], files: Option<&MemoryFiles>, limit: u64) -> u64 {
    let mapped: Vec<ProcessMemory> = members.iter().filter_map(|member| ProcessMemory::mapped(*member)).collect();
    let unmapped = files.map_or(0, |files| files.file_bytes(members));
    let with_files = |held: ProcessMemory| ProcessMemory { shared: held.shared.max(unmapped), ..held }.all();
    let rough = with_files(mapped.iter().fold(ProcessMemory::default(), |all, one| all.and(*one)));
    if rough <= limit || mapped.len() < 2 {
        return rough;
    }
    let shares: Option<ProcessMemory> =
        members.iter().try_fold(ProcessMemory::default(), |all, member| Some(all.and(ProcessMemory::share(*member)?)));
    // A child that has just been forked has all pages of its parent. Where shares are unknown, the largest process counts.
    let largest = || mapped.iter().copied().max_by_key(|held| held.all()).unwrap_or_default();
    with_files(shares.unwrap_or_else(largest))
}

/// Prefix of the kernel's names of memory files.
const MEMFD_PREFIX: &[u8] = b"/memfd:";

/// Recognizes memory files, of which the kernel counts only the mapped part.
#[derive(Debug)]
struct MemoryFiles {
    device: u64,
}

impl MemoryFiles {
    /// Returns none where the system has no memory files.
    fn find() -> Option<Self> {
        let file = memfd_create(c"katydid-probe", MemfdFlags::CLOEXEC).ok()?;
        Some(Self { device: fstat(file).ok()?.st_dev })
    }

    /// Returns the bytes of memory files that these processes have open, each file once. Files that a program of another user has
    /// passed are that user's.
    fn file_bytes(&self, members: &[u32]) -> u64 {
        let mut files = BTreeMap::new();
        for member in members {
            let folder = format!("/proc/{member}/fd");
            let (Ok(process), Ok(open)) = (fs::metadata(format!("/proc/{member}")), fs::read_dir(folder)) else {
                continue;
            };
            let links = open.take(MAX_DESCRIPTORS).flatten().map(|entry| entry.path());
            // Other files are not queried: one on a network may not answer.
            let links = links
                .filter(|link| fs::read_link(link).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(MEMFD_PREFIX)));
            let found = links.filter_map(|link| fs::metadata(link).ok());
            let own = found.filter(|file| file.dev() == self.device && file.uid() == process.uid());
            files.extend(own.map(|file| (file.ino(), file.blocks() * STAT_BLOCK_BYTES)));
        }
        files.values().fold(0, |all, bytes| all.saturating_add(*bytes))
    }
}

/// Starts the measuring thread.
pub(crate) fn start(memory: &Arc<HostMemory>) -> io::Result<thread::JoinHandle<()>> {
    let memory = Arc::clone(memory);
    thread::Builder::new().name("host-memory".to_owned()).spawn(move || memory.run())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use katydid_tests::deadline::hang::until;

    use super::*;

    #[test]
    fn proc_files_parse_with_any_process_name() {
        assert_eq!(group_in("7 (a) b (c) S 1 42 42 0 -1"), Some(42));
        assert_eq!([group_in("7 (a) Z 1 42 42 0 -1"), group_in("7 (a")], [None; 2]);
        let status = "Name:\tRssAnon: 9 kB\nVmSwap:\t      8 kB\nRssAnon:\t     100 kB\nRssShmem:\t      28 kB\n";
        assert_eq!(sum(status, &["RssAnon", "VmSwap"]), 108 << 10);
        assert_eq!(sum(status, &["RssShmem", "Pss"]), 28 << 10);
        let own = ProcessMemory::mapped(std::process::id()).unwrap().all();
        assert!((64 << 10..HostMemoryLimit::default().bytes).contains(&own), "{own}");
    }

    #[test]
    fn looks_are_the_closer_the_less_is_left() {
        assert_eq!(pause(u64::MAX), MAX_GROUP_MEASURE_PAUSE);
        assert_eq!([pause(0), pause(GROWTH_BYTES_PER_MS)], [MIN_GROUP_MEASURE_PAUSE; 2]);
    }

    /// A group whose leader's child does the work and prints a line.
    fn group(script: &str) -> std::process::Child {
        let script = format!("/bin/bash -c '{script}; echo done; read -r end' & wait");
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &script]).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A shell that holds some MiB in a variable.
    const HOLDS: &str = "printf -v held %100000000s x; exec < <(sleep 1000)";

    #[test]
    fn children_of_a_worker_count_and_all_end_beyond_the_limit() {
        let memory = Arc::new(HostMemory::new(HostMemoryLimit { bytes: 64 << 20 }, true));
        let looks = start(&memory).unwrap();
        let mut child = group(HOLDS);
        let watch = memory.watch(child.id());
        assert_eq!(child.wait_with_signal(), Some(9));
        assert!(watch.ended().unwrap().contains("--host-memory"), "{watch:?}");
        let members = |group| members(&BTreeSet::from([group])).remove(&group).unwrap_or_default();
        until("the end of the children", || members(child.id()).iter().all(|process| *process == child.id()));
        drop(watch);
        memory.stop();
        looks.join().unwrap();
    }

    trait Ends {
        fn wait_with_signal(&mut self) -> Option<i32>;
    }

    impl Ends for std::process::Child {
        fn wait_with_signal(&mut self) -> Option<i32> {
            std::os::unix::process::ExitStatusExt::signal(&self.wait().unwrap())
        }
    }

    #[test]
    fn shared_memory_of_processes_counts_once() {
        let mut file = File::from(memfd_create(c"shared", MemfdFlags::CLOEXEC).unwrap());
        io::Write::write_all(&mut file, &vec![1; 8 << 20]).unwrap();
        let files = MemoryFiles::find().unwrap();
        let own = std::process::id();
        assert!((8 << 20..9 << 20).contains(&files.file_bytes(&[own, own])), "it is counted twice, or not at all");
    }
}
