//! A grid that moves from process to process: each runs a part of it and leaves its state for the next.
//!
//! Device memory is a file that all of them map at the same address.
//!
//! This is a separate binary without a harness. Without arguments it is the test; with a folder and a number it is one of the
//! processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;

use common::{HEADER, TARGET, busy};
use katydid_ptx_exec::{AddressRange, GlobalMemory, Grid, Host, Launch, Program, Progress, RunLimits, Switch};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

/// Address of device memory in every process, and its size in bytes.
const BASE: u64 = 0x2000_0000_0000;
const MEMORY_BYTES: usize = 1 << 16;

/// Offsets in device memory: of the results, of a counter, and of the program's variables.
const OUTPUT: u64 = 0x1000;
const COUNTER: u64 = 0x100;
const VARIABLES: u64 = 0x8000;

const BLOCKS: u32 = 3;

/// Device memory of this process.
struct Memory {
    /// End of the variables.
    end: u64,
    /// Whether variables get their first values.
    fresh: bool,
}

impl Memory {
    /// Maps the file.
    fn map(folder: &Path, fresh: bool) -> Self {
        let path = folder.join("memory");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(MEMORY_BYTES as u64).unwrap();
        let address = std::ptr::with_exposed_provenance_mut(BASE as usize);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        #[expect(unsafe_code, reason = "maps memory at a fixed address")]
        // SAFETY: the kernel places nothing there unless the range is free; the descriptor is open.
        let mapped = unsafe {
            libc::mmap(address, MEMORY_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), 0)
        };
        assert_eq!(mapped, address, "the address range of device memory is free");
        Self { end: BASE + VARIABLES, fresh }
    }
}

impl GlobalMemory for Memory {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let start = self.end.next_multiple_of(align);
        self.end = start + size;
        Some(start)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        if self.fresh {
            let target: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
            #[expect(unsafe_code, reason = "device memory is plain memory here")]
            // SAFETY: `allocate` gave out addresses inside the mapping only, and nothing runs yet.
            unsafe {
                target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
    }
}

impl Host for Memory {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let range = AddressRange { start: BASE, end: BASE + MEMORY_BYTES as u64, writable: true };
        (range.start..range.end).contains(&address).then_some(range)
    }

    fn print(&self, _: &[u8]) {}

    fn assert_failed(&self, text: &str) {
        panic!("{text}");
    }
}

fn load(memory: &mut Memory) -> Program {
    let text = format!("{HEADER}{}", busy::text(true));
    Program::load(&[&text], memory, TARGET).unwrap()
}

fn new_launch(program: &Program) -> Launch {
    let params = [BASE + OUTPUT, BASE + COUNTER].into_iter().flat_map(u64::to_le_bytes).collect();
    let (grid, block) = ([BLOCKS, 1, 1], [busy::THREADS, 1, 1]);
    Launch {
        kernel: program.kernel("k").unwrap(),
        grid,
        block,
        dynamic_shared: 0,
        params,
        cooperative: true,
        cluster: None,
    }
}

/// Runs one process: it takes the state of the last one (the first starts the grid), runs for a while, and leaves its state.
fn part(folder: &Path, number: u32) {
    let mut memory = Memory::map(folder, number == 0);
    let program = load(&mut memory);
    let mut grid = if number == 0 {
        Grid::new(new_launch(&program)).unwrap()
    } else {
        let bytes = fs::read(folder.join("state")).unwrap();
        Grid::from_bytes(&bytes, |name, _| program.kernel(name)).unwrap()
    };
    for _ in 0..20 {
        if grid.run(&memory, RunLimits { threads: 2, budget: 150 }, &Switch::new()).unwrap() == Progress::Done {
            fs::remove_file(folder.join("state")).unwrap();
            return;
        }
    }
    fs::write(folder.join("state"), grid.to_bytes()).unwrap();
}

fn results(folder: &Path) -> Vec<u8> {
    let bytes = fs::read(folder.join("memory")).unwrap();
    bytes[OUTPUT as usize..][..(BLOCKS * busy::THREADS * 4) as usize].to_vec()
}

/// Runs parts in separate processes until no state is left; returns how many it took.
fn in_parts(folder: &Path) -> u32 {
    let me = std::env::current_exe().unwrap();
    for number in 0.. {
        let status = Command::new(&me).arg(folder).arg(number.to_string()).status().unwrap();
        assert!(status.success(), "part {number}");
        if !folder.join("state").exists() {
            return number + 1;
        }
    }
    unreachable!("the loop has no end")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [folder, number] = arguments.as_slice()
        && let Ok(number) = number.parse()
    {
        return part(Path::new(folder), number);
    }
    let (moved, stayed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let parts = in_parts(moved.path());
    assert!(parts > 4, "{parts} processes took part");
    let mut memory = Memory::map(stayed.path(), true);
    let launch = new_launch(&load(&mut memory));
    katydid_ptx_exec::run(&launch, &memory, 2, &Switch::new()).unwrap();
    assert_eq!(results(moved.path()), results(stayed.path()));
    assert!(results(stayed.path()).iter().any(|byte| *byte != 0));
    println!("a grid moved through {parts} processes");
}
