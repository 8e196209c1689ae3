//! NVML's answers for softcuda's devices: identity, memory, and users. Figures that a processor does not report as a GPU does
//! (temperature, power, links) are not supported, as on a GPU without the sensor.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use katydid_cuda_sys::device_attribute as id;
use katydid_driver::{Driver, DriverChoice, open};
use katydid_session::gather;
use katydid_wire::facts::{DeviceFacts, Facts};
use katydid_wire::nvml::{Function, code};

use super::arguments::{Argument, list, text};
use super::source::{NvmlSource, Processes};

/// Attributes that only NVML's answers need.
const MEMORY_CLOCK_ATTRIBUTE: u32 = 36;
const MEMORY_BUS_ATTRIBUTE: u32 = 37;
const COMPUTE_MODE_ATTRIBUTE: u32 = 20;
/// Interval between two samples of the processors' load.
const LOAD_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// `NVML_VALUE_NOT_AVAILABLE` as 64 bits.
const VALUE_NOT_AVAILABLE: u64 = u64::MAX;
/// `nvmlMemory_v2_t`: its size, with its version in the upper byte.
const MEMORY_V2_VERSION: u32 = 40 | 2 << 24;
/// `NVML_P2P_CAPS_INDEX_READ` and `_WRITE`: the other indices are about links and atomics.
const READ_AND_WRITE: Range<u64> = 0..2;
/// `NVML_P2P_STATUS_OK` and `NVML_P2P_STATUS_NOT_SUPPORTED`
const P2P_STATUS: [u32; 2] = [0, 5];
/// An instance's number where there are no instances.
const NO_INSTANCE: u32 = u32::MAX;

/// Answers NVML's functions for the devices of softcuda.
pub(super) struct Soft {
    facts: Facts,
    processes: Processes,
}

/// The outputs of a function, or its error code.
type CallResult = Result<Vec<Vec<u8>>, u32>;

impl Soft {
    /// Opens softcuda, and queries it. Fails for any other driver.
    pub(super) fn open(choice: &DriverChoice, soft: Option<&Path>, processes: &Processes) -> Result<Self, String> {
        let driver = Driver::new(open(choice, soft).map_err(|error| error.to_string())?);
        if !driver.is_soft() {
            return Err("a GPU's driver, whose NVML is to be asked".to_owned());
        }
        let facts = gather::devices(&driver).map_err(|code| format!("softcuda answers {}", code.0))?;
        Ok(Self::of(facts, processes.clone()))
    }

    /// Creates devices with these facts.
    pub(super) fn of(facts: Facts, processes: Processes) -> Self {
        Self { facts, processes }
    }

    fn device(&self, number: u32) -> Result<&DeviceFacts, u32> {
        self.facts.devices.get(number as usize).ok_or(code::INVALID_ARGUMENT)
    }

    fn device_where(&self, is_it: impl Fn(&DeviceFacts) -> bool) -> CallResult {
        let number = self.facts.devices.iter().position(is_it).ok_or(code::NOT_FOUND)?;
        Ok(vec![(number as u32).to_le_bytes().to_vec()])
    }

    /// Returns the bytes that the processes hold, for a single device only.
    fn used(&self) -> Result<u64, u32> {
        match self.facts.devices.as_slice() {
            [_] => Ok(self.processes.iter().map(|(_, bytes)| bytes).sum()),
            _ => Err(code::NOT_SUPPORTED),
        }
    }

    /// Answers questions about the system, and about which devices there are.
    fn system(&self, name: &str, arguments: &[Argument]) -> CallResult {
        let version = env!("CARGO_PKG_VERSION");
        match (name, arguments) {
            ("nvmlSystemGetDriverVersion" | "nvmlSystemGetNVMLVersion", [Argument::TextBuffer(capacity)]) => {
                Ok(vec![text(*capacity, version)?])
            }
            ("nvmlSystemGetCudaDriverVersion" | "nvmlSystemGetCudaDriverVersion_v2", _) => {
                Ok(vec![self.facts.driver_version.to_le_bytes().to_vec()])
            }
            ("nvmlSystemGetProcessName", [Argument::Value(process), Argument::TextBuffer(capacity)]) => {
                let path = format!("/proc/{}/comm", *process as u32);
                let name = fs::read_to_string(path).map_err(|_| code::NOT_FOUND)?;
                Ok(vec![text(*capacity, name.trim_end())?])
            }
            ("nvmlUnitGetCount" | "nvmlGetExcludedDeviceCount", _) => Ok(vec![0_u32.to_le_bytes().to_vec()]),
            ("nvmlDeviceGetCount" | "nvmlDeviceGetCount_v2", _) => {
                Ok(vec![(self.facts.devices.len() as u32).to_le_bytes().to_vec()])
            }
            ("nvmlDeviceGetHandleByIndex" | "nvmlDeviceGetHandleByIndex_v2", [Argument::Value(number), _]) => {
                self.device(*number as u32)?;
                Ok(vec![(*number as u32).to_le_bytes().to_vec()])
            }
            ("nvmlDeviceGetHandleByUUID", [Argument::Text(uuid), _]) => {
                self.device_where(|device| spelled(&device.uuid).as_bytes() == without_nul(uuid))
            }
            ("nvmlDeviceGetHandleByPciBusId" | "nvmlDeviceGetHandleByPciBusId_v2", [Argument::Text(uuid), _]) => {
                let uuid = std::str::from_utf8(without_nul(uuid)).ok().and_then(pci_address);
                self.device_where(|device| uuid.is_some() && pci_address(&device.pci_bus_id) == uuid)
            }
            _ => Err(code::NOT_SUPPORTED),
        }
    }

    /// Answers questions about one device.
    fn of_device(&self, name: &str, number: u32, arguments: &[Argument]) -> CallResult {
        let device = self.device(number)?;
        let value = |id: u32| device.attribute(id as i32).map_or(0, |answer| answer.value.cast_unsigned());
        let word = |value: u32| Ok(vec![value.to_le_bytes().to_vec()]);
        match (name, arguments) {
            ("nvmlDeviceGetName", [Argument::TextBuffer(capacity)]) => Ok(vec![text(*capacity, &device.name)?]),
            ("nvmlDeviceGetUUID", [Argument::TextBuffer(capacity)]) => {
                Ok(vec![text(*capacity, &spelled(&device.uuid))?])
            }
            ("nvmlDeviceGetPciInfo" | "nvmlDeviceGetPciInfo_v2", _) => Ok(vec![pci(device, 52)]),
            ("nvmlDeviceGetPciInfo_v3", _) => Ok(vec![pci(device, 68)]),
            ("nvmlDeviceGetIndex" | "nvmlDeviceGetMinorNumber", _) => word(number),
            ("nvmlDeviceIsMigDeviceHandle", _) => word(0),
            ("nvmlDeviceGetNumGpuCores", _) => word(value(id::MULTIPROCESSOR_COUNT)),
            ("nvmlDeviceGetMemoryBusWidth", _) => word(value(MEMORY_BUS_ATTRIBUTE)),
            ("nvmlDeviceGetComputeMode", _) => word(value(COMPUTE_MODE_ATTRIBUTE)),
            ("nvmlDeviceGetMaxClockInfo" | "nvmlDeviceGetMaxCustomerBoostClock", [Argument::Value(clock), _]) => {
                // Clocks are in MHz, attributes in kHz. Clock 2 is the memory's.
                word(value(if *clock == 2 { MEMORY_CLOCK_ATTRIBUTE } else { id::CLOCK_RATE }) / 1000)
            }
            ("nvmlDeviceGetCudaComputeCapability", _) => {
                let parts = [id::COMPUTE_CAPABILITY_MAJOR, id::COMPUTE_CAPABILITY_MINOR];
                Ok(parts.map(|part| value(part).to_le_bytes().to_vec()).to_vec())
            }
            ("nvmlDeviceGetMemoryInfo", _) => {
                let (total, used) = (device.total_memory, self.used()?);
                Ok(vec![bytes_of(&[total, total.saturating_sub(used), used])])
            }
            ("nvmlDeviceGetMemoryInfo_v2", [Argument::Versioned(structure)]) => {
                if structure.len() != 40 || structure.first_chunk() != Some(&MEMORY_V2_VERSION.to_le_bytes()) {
                    return Err(code::ARGUMENT_VERSION_MISMATCH);
                }
                let (total, used) = (device.total_memory, self.used()?);
                Ok(vec![bytes_of(&[u64::from(MEMORY_V2_VERSION), total, 0, total.saturating_sub(used), used])])
            }
            // Without a fabric, the state is 0, and everything else is zero.
            ("nvmlDeviceGetGpuFabricInfo", [Argument::Out(length, _)]) => Ok(vec![vec![0; *length]]),
            ("nvmlDeviceGetGpuFabricInfoV", [Argument::Versioned(structure)]) => {
                let version: &[u8; 4] = structure.first_chunk().ok_or(code::ARGUMENT_VERSION_MISMATCH)?;
                let mut reply = version.to_vec();
                reply.resize(structure.len(), 0);
                Ok(vec![reply])
            }
            ("nvmlDeviceGetP2PStatus", [Argument::Device(other), Argument::Value(what), _]) => {
                self.device(*other)?;
                let peer = self.facts.peer(number as usize, *other as usize);
                let reaches = number == *other || peer.is_some_and(|peer| peer.can_access.value != 0);
                let [good, bad] = P2P_STATUS;
                word(if reaches && READ_AND_WRITE.contains(what) { good } else { bad })
            }
            ("nvmlDeviceGetUtilizationRates", _) => {
                let busy = busy().ok_or(code::NOT_SUPPORTED)?;
                Ok(vec![[busy.to_le_bytes(), busy.to_le_bytes()].concat()])
            }
            _ => Err(code::NOT_SUPPORTED),
        }
    }

    /// Returns the processes that use a device.
    fn users(&self, name: &str, number: u32, size: usize) -> Option<Result<Vec<Vec<u8>>, u32>> {
        if name.contains("Graphics") || name.contains("MPS") {
            return Some(self.device(number).map(|_| Vec::new()));
        }
        let is_asked = name.starts_with("nvmlDeviceGetComputeRunningProcesses");
        let element = |(process, bytes): &(u32, u64)| {
            let bytes = if self.facts.devices.len() == 1 { *bytes } else { VALUE_NOT_AVAILABLE };
            let mut element = u64::from(*process).to_le_bytes().to_vec();
            element.extend(bytes.to_le_bytes());
            element.extend([NO_INSTANCE; 2].map(u32::to_le_bytes).as_flattened());
            element.truncate(size);
            element
        };
        let all = || self.device(number).map(|_| self.processes.iter().map(element).collect());
        is_asked.then(all)
    }
}

impl NvmlSource for Soft {
    fn call(&mut self, function: &'static Function, arguments: &[Argument]) -> (u32, Vec<Vec<u8>>) {
        if let [Argument::Device(number), Argument::List(size, capacity, wants_elements)] = arguments
            && let Some(users) = self.users(function.name, *number, *size)
        {
            return users.map_or_else(|code| (code, Vec::new()), |users| list(*capacity, *wants_elements, &users));
        }
        let result = match arguments {
            [Argument::Device(number), rest @ ..] => self.of_device(function.name, *number, rest),
            arguments => self.system(function.name, arguments),
        };
        result.map_or_else(|code| (code, Vec::new()), |outputs| (code::SUCCESS, outputs))
    }
}

fn without_nul(text: &[u8]) -> &[u8] {
    text.strip_suffix(&[0]).unwrap_or(text)
}

fn bytes_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Formats a UUID as `GPU-` and groups of 8-4-4-4-12 digits.
fn spelled(uuid: &[u8; 16]) -> String {
    let mut text = "GPU-".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Parses domain, bus and device of `domain:bus:device.function`.
fn pci_address(text: &str) -> Option<[u32; 3]> {
    let (bus_slot, _) = text.split_once('.').unwrap_or((text, ""));
    let numbers: Option<Vec<u32>> = bus_slot.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    match numbers?.as_slice() {
        [domain, bus, device] => Some([*domain, *bus, *device]),
        [bus, device] => Some([0, *bus, *device]),
        _ => None,
    }
}

/// Encodes an `nvmlPciInfo_t` of a length: a short address, five numbers, and in the newer form the address again.
fn pci(device: &DeviceFacts, length: usize) -> Vec<u8> {
    let [domain, bus, slot] = pci_address(&device.pci_bus_id).unwrap_or_default();
    let mut bytes = format!("{domain:04X}:{bus:02X}:{slot:02X}.0").into_bytes();
    bytes.resize(16, 0);
    bytes.extend([domain, bus, slot, 0, 0].map(u32::to_le_bytes).as_flattened());
    if length > 52 {
        bytes.extend(format!("{domain:08X}:{bus:02X}:{slot:02X}.0").bytes());
    }
    bytes.resize(length, 0);
    bytes
}

/// Returns how busy the processors are over a moment, in percent.
fn busy() -> Option<u32> {
    let first = times(&fs::read_to_string("/proc/stat").ok()?)?;
    thread::sleep(LOAD_SAMPLE_INTERVAL);
    let second = times(&fs::read_to_string("/proc/stat").ok()?)?;
    Some(used(first, second))
}

/// Returns the share of time between two samples that was used, in percent. The kernel may reduce the time of waiting for a disk
/// (proc_stat(5)), so a sum can be less than before.
fn used(first: (u64, u64), second: (u64, u64)) -> u32 {
    let (all, idle) = (second.0.saturating_sub(first.0), second.1.saturating_sub(first.1));
    (100 * idle.min(all)).checked_div(all).map_or(0, |idle| 100 - idle as u32)
}

/// Returns all ticks of the processors, and the idle ones.
fn times(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // The fourth and fifth columns: idle, and waiting for a disk.
    Some((ticks.iter().take(8).sum(), ticks.get(3)? + ticks.get(4)?))
}

#[cfg(test)]
mod tests {
    use katydid_wire::nvml::{function, opcode};

    use super::*;

    fn soft() -> Soft {
        let device = DeviceFacts {
            name: "a device".into(),
            pci_bus_id: "0000:1A:00.0".into(),
            uuid: [0xab; 16],
            total_memory: 1000,
            ..DeviceFacts::default()
        };
        Soft {
            facts: Facts { driver_version: 13000, devices: vec![device], peers: vec![] },
            processes: vec![(42, 300)],
        }
    }

    fn call(name: &str, arguments: &[Argument]) -> (u32, Vec<Vec<u8>>) {
        soft().call(function(opcode(name).unwrap()).unwrap(), arguments)
    }

    #[test]
    fn nvml_reports_memory_and_its_processes() {
        let device = Argument::Device(0);
        let (status, outputs) = call("nvmlDeviceGetMemoryInfo", &[device.clone(), Argument::Out(24, true)]);
        assert_eq!((status, &outputs[0]), (code::SUCCESS, &bytes_of(&[1000, 700, 300])));
        let arguments = [device.clone(), Argument::List(24, 4, true)];
        let (status, outputs) = call("nvmlDeviceGetComputeRunningProcesses_v3", &arguments);
        assert_eq!((status, outputs[0].len(), outputs[0][4]), (code::SUCCESS, 28, 42));
        let (status, outputs) =
            call("nvmlDeviceGetComputeRunningProcesses_v3", &[device, Argument::List(24, 0, false)]);
        assert_eq!((status, outputs), (code::INSUFFICIENT_SIZE, vec![vec![1, 0, 0, 0]]));
        let drawing = |device| call("nvmlDeviceGetGraphicsRunningProcesses_v3", &[device, Argument::List(24, 4, true)]);
        assert_eq!([0, 1].map(|number| drawing(Argument::Device(number)).0), [code::SUCCESS, code::INVALID_ARGUMENT]);
    }

    #[test]
    fn devices_are_found_by_every_name_and_no_other() {
        let by = |name: &str, text: &str| {
            let text = [text.as_bytes(), &[0]].concat();
            call(name, &[Argument::Text(text), Argument::DeviceOut]).0
        };
        assert_eq!(by("nvmlDeviceGetHandleByUUID", &spelled(&[0xab; 16])), code::SUCCESS);
        assert_eq!(by("nvmlDeviceGetHandleByUUID", "GPU-ab"), code::NOT_FOUND);
        assert_eq!(by("nvmlDeviceGetHandleByPciBusId_v2", "00000000:1a:00.0"), code::SUCCESS);
        assert_eq!(by("nvmlDeviceGetHandleByPciBusId_v2", "nonsense"), code::NOT_FOUND);
        assert_eq!(
            call("nvmlDeviceGetName", &[Argument::Device(1), Argument::TextBuffer(64)]).0,
            code::INVALID_ARGUMENT
        );
        assert_eq!(
            call("nvmlDeviceGetPowerUsage", &[Argument::Device(0), Argument::Out(4, true)]).0,
            code::NOT_SUPPORTED
        );
    }

    #[test]
    fn a_device_reaches_itself_and_has_no_links() {
        let status = |other, what| {
            let arguments =
                [Argument::Device(0), Argument::Device(other), Argument::Value(what), Argument::Out(4, true)];
            call("nvmlDeviceGetP2PStatus", &arguments)
        };
        assert_eq!(status(0, 0), (code::SUCCESS, vec![vec![0, 0, 0, 0]]));
        assert_eq!(status(0, 2), (code::SUCCESS, vec![vec![5, 0, 0, 0]]));
        assert_eq!(status(1, 0).0, code::INVALID_ARGUMENT);
        for name in ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"] {
            let size = if name.ends_with("State") { 4 } else { 52 };
            let arguments = [Argument::Device(0), Argument::Value(0), Argument::Out(size, true)];
            assert_eq!(call(name, &arguments).0, code::NOT_SUPPORTED, "{name}");
        }
        let structure = [[36, 0, 0, 2], [7; 4]].concat();
        let of_no_fabric = [vec![36, 0, 0, 2], vec![0; 4]].concat();
        let reply = call("nvmlDeviceGetGpuFabricInfoV", &[Argument::Device(0), Argument::Versioned(structure)]);
        assert_eq!(reply, (code::SUCCESS, vec![of_no_fabric]));
    }

    #[test]
    fn ticks_are_counted_once() {
        assert_eq!(times("cpu  10 0 5 80 5 0 0 0 7 7\ncpu0 1"), Some((100, 85)));
        assert_eq!(times("intr 1"), None);
    }

    #[test]
    fn backward_clock_counts_as_no_usage() {
        assert_eq!([used((100, 85), (200, 110)), used((100, 85), (100, 85))], [75, 0]);
        assert_eq!([used((100, 85), (200, 84)), used((100, 85), (99, 84))], [100, 0]);
    }
}
