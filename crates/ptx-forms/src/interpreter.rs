//! The interpreter as a device, without a driver around it, for the crate's own tests.

use crate::case::{Argument, Case};
use crate::device::{Device, DeviceAnswer, DeviceError};
use katydid_ptx_exec::{
    AddressRange, FaultKind, GlobalMemory, Host, Launch, LoadError, Program, Switch, TargetDevice, run,
};
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the device's memory, all free at the start of every case.
const DEVICE_MEMORY_BYTES: usize = 4 << 20;

/// Target of programs: the GPU of the recorded answers.
const TARGET_DEVICE: TargetDevice = TargetDevice { major: 9, minor: 0 };

/// Memory whose bytes are atomics, so that safe code reads what the interpreter writes.
struct Memory {
    bytes: Vec<AtomicU8>,
    /// Allocations, in order.
    ranges: Vec<(u64, u64)>,
}

impl Memory {
    fn base(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    /// Allocates zeroed memory, with a gap after the last allocation, so that overruns are noticed.
    fn stretch(&mut self, size: usize, align: u64) -> Option<u64> {
        let end = self.ranges.last().map_or(self.base(), |(_, end)| *end);
        let start = (end + 16).next_multiple_of(align.max(256));
        let limit = self.base() + self.bytes.len() as u64;
        self.ranges.push((start, start + size as u64));
        (start + size as u64 <= limit).then_some(start)
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        let start = (address - self.base()) as usize;
        for (cell, byte) in self.bytes.iter().skip(start).zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
    }

    fn read(&self, address: u64, size: usize) -> impl Iterator<Item = u8> {
        let start = (address - self.base()) as usize;
        self.bytes.iter().skip(start).take(size).map(|byte| byte.load(Ordering::Relaxed))
    }
}

impl GlobalMemory for Memory {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        self.stretch(usize::try_from(size).ok()?, align)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.store(address, bytes);
    }
}

impl Host for Memory {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let (start, end) = *self.ranges.iter().find(|(start, end)| (*start..*end).contains(&address))?;
        Some(AddressRange { start, end, writable: true })
    }

    fn print(&self, _: &[u8]) {}

    fn assert_failed(&self, _: &str) {}
}

/// Loads a text and drops it.
pub(crate) fn load(text: &str) -> Result<(), LoadError> {
    let mut memory = Memory { bytes: Vec::new(), ranges: Vec::new() };
    Program::load(&[text], &mut memory, TARGET_DEVICE).map(|_| ())
}

/// The interpreter with a few megabytes of memory.
#[derive(Debug, Default)]
pub struct Interpreter;

impl Device for Interpreter {
    fn ask(&mut self, case: &Case) -> Result<DeviceAnswer, DeviceError> {
        let bytes = std::iter::repeat_with(|| AtomicU8::new(0)).take(DEVICE_MEMORY_BYTES).collect();
        let mut memory = Memory { bytes, ranges: Vec::new() };
        let program = match Program::load(&[&case.text], &mut memory, TARGET_DEVICE) {
            Ok(program) => program,
            Err(error) => return Ok(DeviceAnswer::Refused { code: load_code(&error), log: error.to_string() }),
        };
        let Some(kernel) = program.kernel("k") else {
            return Ok(DeviceAnswer::Refused { code: 500, log: "there is no entry k".to_owned() });
        };
        let mut params = Vec::new();
        let mut outputs = Vec::new();
        for argument in &case.arguments {
            push(&mut params, &mut outputs, argument, &mut memory)?;
        }
        let launch = Launch {
            kernel,
            grid: case.grid,
            block: case.block,
            dynamic_shared: case.dynamic,
            params,
            cooperative: case.cooperative,
            cluster: case.cluster,
        };
        Ok(match run(&launch, &memory, 1, &Switch::new()) {
            Ok(()) => {
                DeviceAnswer::Done(outputs.iter().flat_map(|(address, size)| memory.read(*address, *size)).collect())
            }
            Err(fault) => DeviceAnswer::Faulted { code: fault_code(fault.kind), log: fault.to_string() },
        })
    }
}

/// Puts an argument into memory and into the parameter buffer, and notes the outputs.
fn push(
    params: &mut Vec<u8>,
    outputs: &mut Vec<(u64, usize)>,
    argument: &Argument,
    memory: &mut Memory,
) -> Result<(), DeviceError> {
    let (content, size, is_output): (&[u8], usize, bool) = match argument {
        Argument::Input(bytes) => (bytes, bytes.len(), false),
        Argument::Output(size) => (&[], *size, true),
        Argument::InOut(bytes) => (bytes, bytes.len(), true),
        Argument::Scalar(bytes) => {
            params.resize(params.len().next_multiple_of(bytes.len()), 0);
            params.extend(bytes);
            return Ok(());
        }
    };
    let address = memory.stretch(size, 256).ok_or(DeviceError::Call { call: "allocation", code: 2 })?;
    memory.store(address, content);
    if is_output {
        outputs.push((address, size));
    }
    params.resize(params.len().next_multiple_of(8), 0);
    params.extend(address.to_le_bytes());
    Ok(())
}

/// Returns a driver's code for a text that is not loaded.
fn load_code(error: &LoadError) -> u32 {
    match error {
        LoadError::NewerPtx { .. } => 222,
        LoadError::OutOfMemory { .. } => 2,
        _ => 218,
    }
}

/// Returns a driver's code for a fault.
fn fault_code(kind: FaultKind) -> u32 {
    match kind {
        FaultKind::IllegalAddress(_) | FaultKind::StackOverflow => 700,
        FaultKind::MisalignedAddress(_) => 716,
        FaultKind::InvalidPc(_) | FaultKind::BadTensorMap(_) => 715,
        FaultKind::Assert => 710,
        FaultKind::Deadlock => 702,
        FaultKind::BadLaunch => 1,
        _ => 719,
    }
}
