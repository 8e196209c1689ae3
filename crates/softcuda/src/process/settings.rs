//! Settings from the environment: the number of devices, their memory, which of them are visible, how modules load.
//!
//! | variable                 | meaning                                                        | without it            |
//! |--------------------------|----------------------------------------------------------------|-----------------------|
//! | `KATYDID_SOFT_DEVICES`   | number of devices, 0 to 16                                     | 1                     |
//! | `KATYDID_SOFT_MEMORY`    | bytes of each device, with the suffix K, M, G or T             | half of the RAM       |
//! | `KATYDID_SOFT_SHARED`    | folder of the processes that share the memory of the devices   | no sharing            |
//! | `KATYDID_SOFT_DISPLACE` | file with a number of bytes per line: the next process that loads a module moves its variables that far, and removes the line unless it is the last | variables do not move |
//! | `KATYDID_SOFT_RACES`     | reports races of kernels; the number decides the order of warps | no search for races |
//! | `CUDA_VISIBLE_DEVICES`   | ordinals or UUIDs, in the order the program shall see them     | all                   |
//! | `CUDA_MODULE_LOADING`    | `EAGER` changes what `cuModuleGetLoadingMode` says             | lazy                  |
//! | `CUDA_LAUNCH_BLOCKING`   | launches wait for their kernels, and return their errors        | later calls return them |
//! | `KATYDID_LOG`            | anything: reports faults and missing tables on stderr         | only codes            |

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use katydid_cuda_sys::CUuuid;
use katydid_driver_rules::state::environment;

use crate::ffi::report;
use crate::process::attributes;

/// Variable that marks the process as a worker.
const WORKER_VARIABLE: &str = "KATYDID_WORKER";

/// Most devices: more have no room for their address ranges.
pub(crate) const MAX_SOFT_DEVICES: usize = 16;

/// Largest memory of a device. Its arena has half as many addresses again.
const MAX_DEVICE_BYTES: u64 = 256 << 30;

/// Smallest memory of a device: one mapping granule.
const MIN_DEVICE_BYTES: u64 = 2 << 20;

/// Physical indices of the visible devices, in the program's order.
pub(crate) fn visible_devices() -> Vec<usize> {
    visible(devices(), env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
}

/// Returns the number of devices, visible or not.
fn devices() -> usize {
    thread_count(env::var("KATYDID_SOFT_DEVICES").ok().as_deref())
}

fn thread_count(setting: Option<&str>) -> usize {
    setting.and_then(|text| text.trim().parse().ok()).unwrap_or(1).min(MAX_SOFT_DEVICES)
}

/// Parses the list of visible devices. As in the real driver, it ends at the first entry that names no device.
fn visible(count: usize, list: Option<&str>) -> Vec<usize> {
    let Some(list) = list else { return (0..count).collect() };
    let mut chosen: Vec<usize> = Vec::new();
    for entry in list.split(',') {
        match named(entry.trim(), count) {
            Some(index) if !chosen.contains(&index) => chosen.push(index),
            _ => break,
        }
    }
    chosen
}

/// Returns the device of an entry: its number, or its whole UUID.
fn named(entry: &str, count: usize) -> Option<usize> {
    match entry.strip_prefix("GPU-") {
        Some(uuid_text) => {
            let uuid = |index: usize| CUuuid { bytes: attributes::uuid(index) }.to_string();
            (0..count).find(|index| uuid(*index) == uuid_text.to_ascii_lowercase())
        }
        None => entry.parse().ok().filter(|index| *index < count),
    }
}

/// Returns the memory of each device, in multiples of 2 MiB: the same for all processes that see it.
pub(crate) fn device_memory() -> u64 {
    let configured_bytes = env::var("KATYDID_SOFT_MEMORY").ok().and_then(|text| size(&text));
    let bytes = configured_bytes.unwrap_or_else(|| host_memory() / 2 / devices().max(1) as u64);
    (bytes & !(MIN_DEVICE_BYTES - 1)).clamp(MIN_DEVICE_BYTES, MAX_DEVICE_BYTES)
}

/// Returns the folder of the processes that share the memory of their devices.
pub(crate) fn shared_folder() -> Option<PathBuf> {
    env::var_os("KATYDID_SOFT_SHARED").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Returns the bytes by which this process moves the variables of modules, for tests of the consequences.
pub(crate) fn displacement() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let file = env::var_os("KATYDID_SOFT_DISPLACE").map(PathBuf::from);
        file.and_then(|file| next_displacement(&file)).unwrap_or(0)
    });
    *BYTES
}

/// Takes the first line of a file, and removes it unless it is the last.
fn next_displacement(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if !rest.is_empty() {
        fs::write(file, rest).ok()?;
    }
    first.trim().parse().ok()
}

/// Returns whether the program asked for eager loading of modules.
pub(crate) fn eager_loading() -> bool {
    env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER")
}

/// Returns whether launches wait for their kernels.
pub(crate) fn launches_block() -> bool {
    static BLOCKS: LazyLock<bool> = LazyLock::new(environment::launches_block);
    *BLOCKS
}

/// Reports variables of the driver that have no effect. In a worker these are the server's, and the program's side reports its
/// own.
pub(crate) fn tell_without_effect() {
    let set = environment::set(environment::value);
    let without = environment::without_effect(&set, "", true).filter(|_| env::var_os(WORKER_VARIABLE).is_none());
    if let Some(without) = without {
        report(&format!("without effect: {without}: there is nothing here that they change"));
    }
}

/// Returns whether to log errors that otherwise are only a code.
pub(crate) fn logging() -> bool {
    static LOGGING: LazyLock<bool> = LazyLock::new(|| env::var_os("KATYDID_LOG").is_some_and(|it| !it.is_empty()));
    *LOGGING
}

/// Returns the seed of the race search, if that is on. It decides the order of warps and blocks.
pub(crate) fn races() -> Option<u64> {
    static SEED: LazyLock<Option<u64>> = LazyLock::new(|| race_seed(env::var("KATYDID_SOFT_RACES").ok().as_deref()));
    *SEED
}

/// Parses the seed. Empty and 0 are off; a text that is no number counts as 1.
fn race_seed(setting: Option<&str>) -> Option<u64> {
    match setting?.trim() {
        "" | "0" => None,
        text => Some(text.parse().unwrap_or(1)),
    }
}

/// Returns the interpreter threads of a launch, which is also the reported number of multiprocessors.
pub(crate) fn cores() -> usize {
    static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

/// Parses a size such as `512M`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Returns the RAM of the machine in bytes, or the limit of the control group; 2 GiB if neither can be read.
pub(crate) fn host_memory() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(read_host_memory);
    *BYTES
}

/// Reads both files; the smaller number counts.
fn read_host_memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    [machine, group].into_iter().flatten().min().unwrap_or(2 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displacements_are_taken_one_by_one_and_the_last_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("displacements");
        assert_eq!(next_displacement(&file), None);
        fs::write(&file, "4096\n0\n").unwrap();
        assert_eq!([1; 3].map(|_| next_displacement(&file)), [Some(4096), Some(0), Some(0)]);
    }

    #[test]
    fn sizes_take_a_letter() {
        assert_eq!(size("64"), Some(64));
        assert_eq!(size(" 3g "), Some(3 << 30));
        assert_eq!(size("512 M"), Some(512 << 20));
        assert_eq!(size("99999999999T"), None);
        assert_eq!(size("much"), None);
    }

    #[test]
    fn races_are_looked_for_in_an_order_that_a_number_decides() {
        let seeds = [None, Some(""), Some("0"), Some("1"), Some(" 42 "), Some("yes")].map(race_seed);
        assert_eq!(seeds, [None, None, None, Some(1), Some(42), Some(1)]);
    }

    #[test]
    fn the_visible_list_chooses_orders_and_ends_at_nonsense() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(3, Some("2,0")), [2, 0]);
        assert_eq!(visible(3, Some("1,7,0")), [1]);
        assert_eq!(visible(3, Some("GPU-6b617479-6469-6420-736f-667463756402,0,GPU-6b61")), [2, 0]);
        assert_eq!(visible(3, Some("")), Vec::<usize>::new());
        assert_eq!([None, Some(" 3"), Some("x"), Some("99")].map(thread_count), [1, 3, 1, MAX_SOFT_DEVICES]);
    }
}
