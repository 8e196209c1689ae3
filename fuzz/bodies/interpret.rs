//! One untrusted PTX text: parsed, loaded, and each kernel run for a moment, with pauses that save its state as bytes.
//!
//! Shared by the fuzz target `ptx` and by the test of kept and mutated texts. The rule it checks: whatever the text says, the
//! worst that happens is an error or a fault. A paused grid is the same after its bytes were read again.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use katydid_ptx_exec::{
    AddressRange, DeviceHeap, GlobalMemory, Grid, Host, Kernel, Launch, Program, Progress, RunLimits, Switch,
    TargetDevice,
};

/// Bytes of the device's memory: variables, then one buffer for kernels, then their heap.
const MEMORY_BYTES: usize = 1 << 16;
/// Warp instructions of a kernel between two pauses, and the number of pauses.
const BUDGET: u64 = 1500;
const PAUSES: usize = 3;

/// A device that allocates its memory from the start and never frees any.
struct Device {
    bytes: Vec<AtomicU8>,
    used: Mutex<u64>,
}

impl Device {
    fn new() -> Self {
        let bytes = std::iter::repeat_with(|| AtomicU8::new(0)).take(MEMORY_BYTES).collect();
        Self { bytes, used: Mutex::new(0) }
    }

    fn base(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    fn take(&self, size: u64, align: u64) -> Option<u64> {
        let mut used = self.used.lock().ok()?;
        let start = (self.base() + *used).checked_next_multiple_of(align.max(1))?;
        let end = start.checked_add(size)?.checked_sub(self.base())?;
        if end > MEMORY_BYTES as u64 {
            return None;
        }
        *used = end;
        Some(start)
    }
}

impl Host for Device {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let (start, end) = (self.base(), self.base() + MEMORY_BYTES as u64);
        (start..end).contains(&address).then_some(AddressRange { start, end, writable: true })
    }

    fn print(&self, _: &[u8]) {}

    fn assert_failed(&self, _: &str) {}

    fn allocate(&self, _: DeviceHeap, size: u64, align: u64) -> Option<u64> {
        self.take(size, align)
    }
}

/// The device while it loads a program.
struct Loading<'a>(&'a Device);

impl GlobalMemory for Loading<'_> {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        self.0.take(size, align)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let start = (address - self.0.base()) as usize;
        for (cell, byte) in self.0.bytes[start..].iter().zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
    }
}

/// Loads the text and runs its kernels; returns whether the text was loaded.
pub(crate) fn interpret(text: &str) -> bool {
    let device = Device::new();
    let target = TargetDevice { major: 9, minor: 0 };
    let Ok(program) = Program::load(&[text], &mut Loading(&device), target) else { return false };
    let buffer = device.take(1024, 256).unwrap_or(device.base());
    for kernel in program.kernels().iter().take(4) {
        run(&device, kernel, buffer);
    }
    true
}

/// Runs a kernel whose parameters all hold the address of the buffer.
fn run(device: &Device, kernel: &Arc<Kernel>, buffer: u64) {
    let params = buffer.to_le_bytes().into_iter().cycle().take(kernel.param_bytes as usize).collect();
    let launch = Launch {
        kernel: Arc::clone(kernel),
        grid: [2, 1, 1],
        block: kernel.required_block.unwrap_or([40, 1, 1]),
        dynamic_shared: 256,
        params,
        cooperative: false,
        cluster: None,
    };
    let Ok(mut grid) = Grid::new(launch) else { return };
    for _ in 0..PAUSES {
        let limits = RunLimits { threads: 1, budget: BUDGET };
        let Ok(Progress::Paused) = grid.run(device, limits, &Switch::new()) else { return };
        let bytes = grid.to_bytes();
        grid = match Grid::from_bytes(&bytes, |_, _| Some(Arc::clone(kernel))) {
            Ok(same) => same,
            Err(error) => panic!("a paused grid is refused: {error}"),
        };
    }
}
