//! A device for tests: memory, a host that keeps printed text, and kernels made of a few lines of PTX.
//!
//! Memory consists of atomic bytes, so that tests read it in safe code while the interpreter writes it.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod busy;

use katydid_ptx_exec::{
    AddressRange, DeviceHeap, Fault, GlobalMemory, Grid, Host, Launch, LoadError, Program, Progress, RunLimits, Switch,
    TargetDevice, run,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Beginning of every text.
pub(crate) const HEADER: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

/// The device that programs are loaded for.
pub(crate) const TARGET: TargetDevice = TargetDevice { major: 9, minor: 0 };

/// Size of a device's memory in bytes.
const MEMORY_BYTES: usize = 1 << 20;

/// Memory and output.
pub(crate) struct Device {
    bytes: Vec<AtomicU8>,
    /// Start and end of each allocation.
    ranges: Mutex<Vec<(u64, u64)>>,
    /// End of the read-only addresses.
    pub read_only_below: u64,
    printed: Mutex<Vec<u8>>,
    /// Multicast stretches: start, size, and the addresses that they stand for.
    multicast: Mutex<Vec<(u64, u64, Vec<u64>)>>,
}

impl Default for Device {
    fn default() -> Self {
        Self::new(MEMORY_BYTES)
    }
}

impl Device {
    /// Makes a device with `size` bytes of memory.
    pub(crate) fn new(size: usize) -> Self {
        let bytes = std::iter::repeat_with(|| AtomicU8::new(0)).take(size).collect();
        Self {
            bytes,
            ranges: Mutex::default(),
            read_only_below: 0,
            printed: Mutex::default(),
            multicast: Mutex::default(),
        }
    }

    fn base(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    /// Makes an allocation, 256-byte aligned, with a gap after it.
    pub(crate) fn allocate(&self, size: u64) -> u64 {
        let mut ranges = self.ranges.lock().unwrap();
        let end = ranges.last().map_or(self.base(), |(_, end)| *end);
        let start = (end + 16).next_multiple_of(256);
        assert!(start + size <= self.base() + self.bytes.len() as u64, "test memory is too small");
        ranges.push((start, start + size));
        start
    }

    /// Makes a stretch stand for others.
    pub(crate) fn multicast(&self, start: u64, size: u64, replicas: &[u64]) {
        self.multicast.lock().unwrap().push((start, size, replicas.to_vec()));
    }

    /// Makes an allocation that holds `words`.
    pub(crate) fn put(&self, words: &[u32]) -> u64 {
        let address = self.allocate(words.len() as u64 * 4);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.store(address, &bytes);
        address
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        let start = (address - self.base()) as usize;
        for (cell, byte) in self.bytes[start..].iter().zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
    }

    /// Returns the bytes at `address`.
    pub(crate) fn bytes(&self, address: u64, size: usize) -> Vec<u8> {
        let start = (address - self.base()) as usize;
        self.bytes[start..start + size].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Changes the word at `address`, even while a kernel runs.
    pub(crate) fn set_word(&self, address: u64, word: u32) {
        self.store(address, &word.to_le_bytes());
    }

    /// Returns the words at `address`.
    pub(crate) fn words(&self, address: u64, count: usize) -> Vec<u32> {
        let bytes = self.bytes(address, count * 4);
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Returns the double words at `address`.
    pub(crate) fn doubles(&self, address: u64, count: usize) -> Vec<u64> {
        let bytes = self.bytes(address, count * 8);
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Returns everything printed so far.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8(self.printed.lock().unwrap().clone()).unwrap()
    }

    /// Loads `text` after the usual header.
    pub(crate) fn load(&self, text: &str) -> Result<Program, LoadError> {
        Program::load(&[&format!("{HEADER}{text}")], &mut Globals(self), TARGET)
    }

    /// Runs kernel `k` of `text`.
    pub(crate) fn run(&self, text: &str, grid: [u32; 3], block: [u32; 3], params: &[u64]) -> Result<(), Fault> {
        let program = self.load(text).unwrap_or_else(|error| panic!("{error}"));
        run(&launch(&program, grid, block, params), self, 2, &Switch::new())
    }

    /// Runs a kernel, pausing after every `budget` instructions; returns how often it paused.
    pub(crate) fn run_in_pieces(&self, launch: Launch, budget: u64) -> Result<u32, Fault> {
        let mut grid = Grid::new(launch)?;
        let mut pauses = 0;
        while grid.run(self, RunLimits { threads: 1, budget }, &Switch::new())? == Progress::Paused {
            pauses += 1;
        }
        Ok(pauses)
    }
}

/// Returns a launch of kernel `k` with 8-byte parameters.
pub(crate) fn launch(program: &Program, grid: [u32; 3], block: [u32; 3], params: &[u64]) -> Launch {
    let kernel = program.kernel("k").unwrap();
    let params = params.iter().flat_map(|param| param.to_le_bytes()).collect();
    Launch { kernel, grid, block, dynamic_shared: 0, params, cooperative: false, cluster: None }
}

impl Host for Device {
    fn replicas(&self, address: u64) -> Option<Vec<u64>> {
        let ranges = self.multicast.lock().unwrap();
        let (start, _, replicas) = ranges.iter().find(|(start, size, _)| (*start..start + size).contains(&address))?;
        Some(replicas.iter().map(|cell| cell + (address - start)).collect())
    }

    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let ranges = self.ranges.lock().unwrap();
        let (start, end) = *ranges.iter().find(|(start, end)| (*start..*end).contains(&address))?;
        Some(AddressRange { start, end, writable: start >= self.read_only_below })
    }

    fn print(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }

    fn assert_failed(&self, text: &str) {
        self.print(text.as_bytes());
    }

    fn allocate(&self, _: DeviceHeap, size: u64, _: u64) -> Option<u64> {
        (size <= 4096).then(|| Self::allocate(self, size))
    }

    fn free(&self, _: DeviceHeap, address: u64) {
        self.ranges.lock().unwrap().retain(|(start, _)| *start != address);
    }
}

/// Addresses for a program's variables.
pub(crate) struct Globals<'a>(pub &'a Device);

impl GlobalMemory for Globals<'_> {
    fn allocate(&mut self, size: u64, _: u64) -> Option<u64> {
        (size < self.0.bytes.len() as u64 / 8).then(|| self.0.allocate(size))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.0.store(address, bytes);
    }
}

/// Operands of one lane: `a` to `d`.
pub(crate) type Operands = [u64; 4];

/// Runs `body` once for each element of `operands`, one lane each, and returns the value that it left in `%d0`.
///
/// Operands are in `%d4..%d7`, their low parts in `%r4..`, `%f4..`, `%h4..`, and their bits in `%g4..` (`f64`). `%r0` and `%f0`
/// can be the result too, by way of `result` ("r", "f", "g", "h", "p" or "d").
pub(crate) fn evaluate(body: &str, result: &str, operands: &[Operands]) -> Vec<u64> {
    let device = Device::default();
    let words: Vec<u32> =
        operands.iter().flatten().flat_map(|operand| [*operand as u32, (*operand >> 32) as u32]).collect();
    let (input, output) = (device.put(&words), device.allocate(operands.len() as u64 * 8));
    let finish = match result {
        "r" => "cvt.u64.u32 %d0, %r0;",
        "f" => "mov.b32 %r0, %f0; cvt.u64.u32 %d0, %r0;",
        "g" => "mov.b64 %d0, %g0;",
        "h" => "cvt.u64.u16 %d0, %h0;",
        "p" => "selp.u64 %d0, 1, 0, %p0;",
        _ => "",
    };
    let mut unpack = String::new();
    for index in 4..8 {
        unpack += &format!(
            "ld.global.u64 %d{index}, [%in+{}]; cvt.u32.u64 %r{index}, %d{index}; mov.b32 %f{index}, %r{index};
             cvt.u16.u64 %h{index}, %d{index}; mov.b64 %g{index}, %d{index};\n",
            8 * (index - 4)
        );
    }
    let text = format!(
        ".visible .entry k(.param .u64 in, .param .u64 out) {{
            .reg .pred %p<8>; .reg .b16 %h<9>; .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .f32 %f<9>; .reg .f64 %g<9>;
            .reg .b64 %in, %out; .reg .b32 %lane;
            ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
            mov.u32 %lane, %tid.x;
            mad.wide.u32 %in, %lane, 32, %in;
            mad.wide.u32 %out, %lane, 8, %out;
            {unpack}
            {body}
            {finish}
            st.global.u64 [%out], %d0;
            ret;
        }}"
    );
    device.run(&text, [1, 1, 1], [operands.len() as u32, 1, 1], &[input, output]).unwrap();
    device.doubles(output, operands.len())
}

/// Runs `evaluate` on one lane among others with different operands, so that a mix-up of lanes shows.
pub(crate) fn once(body: &str, result: &str, operands: Operands) -> u64 {
    let mut all = [[0x5555_1234_5678_9abd; 4]; 11];
    all[5] = operands;
    evaluate(body, result, &all)[5]
}

/// Returns an `f32` as an operand.
pub(crate) fn f(value: f32) -> u64 {
    u64::from(value.to_bits())
}

/// Returns an `i32` as an operand.
pub(crate) fn i(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// Returns the `f32` in a result of `once`.
pub(crate) fn to_f32(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}
