//! The machine's own NVML.
//!
//! Functions are found by name and called with at most six words, which is how C passes numbers and pointers here. The table that
//! both sides share has their signatures.

#![expect(unsafe_code, reason = "calls functions of a library by name")]

use katydid_wire::nvml::{Function, code};
use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use super::arguments::Argument;
use super::source::NvmlSource;

/// A symbol that only Katydid's own library of that name exports.
const OWN_LIBRARY_MARKER: &[u8] = b"katydid_nvml_marker";
/// Paths to try, since the loader's search path may lead to Katydid's own library.
const LIBRARY_PATHS: [&str; 5] = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
];

/// Any function, with up to six words.
type NvmlFunction = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;

/// An NVML library that was initialized.
pub(super) struct Library {
    library: Opened,
}

/// Memory that a function reads or writes, aligned for any structure.
struct Buffer {
    storage: Vec<u64>,
    length: usize,
}

impl Buffer {
    fn new(length: usize, contents: &[u8]) -> Self {
        let mut storage = vec![0; length.div_ceil(8).max(1)];
        for (word, bytes) in storage.iter_mut().zip(contents.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        Self { storage, length }
    }

    fn address(&mut self) -> usize {
        self.storage.as_mut_ptr().expose_provenance()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.storage.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.length);
        bytes
    }

    fn word(&self) -> u32 {
        self.storage.first().map_or(0, |word| *word as u32)
    }
}

/// How an argument is used after the call.
enum ArgumentUse {
    /// Input only: nothing goes into the reply.
    Read { _buffer: Buffer },
    /// Output: all of it goes into the reply.
    CallResult(Buffer),
    /// A count, the bytes of an element, and the elements.
    List(Buffer, usize, Option<Buffer>),
    /// A count, and handles, told by their numbers.
    Devices(Buffer, Option<Buffer>),
    /// A handle, told by its number.
    DeviceOut(Buffer),
}

impl Library {
    /// Opens and initializes the library.
    pub(super) fn open() -> Result<Self, String> {
        let mut last = String::new();
        for path in LIBRARY_PATHS {
            // SAFETY: the system's library of management; its constructors run as in any program that uses it.
            match unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
                // SAFETY: the symbol is only looked up.
                Ok(library) if unsafe { library.get::<NvmlFunction>(OWN_LIBRARY_MARKER) }.is_ok() => {
                    last = format!("{path} is Katydid's own")
                }
                Ok(library) => return Self { library }.start(),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    fn start(self) -> Result<Self, String> {
        match self.entry("nvmlInit_v2").map(|entry| {
            // SAFETY: the function takes no arguments.
            unsafe { entry(0, 0, 0, 0, 0, 0) }
        }) {
            Some(code::SUCCESS) => Ok(self),
            Some(other) => Err(format!("the machine's NVML answers {other}")),
            None => Err("the machine's NVML is too old".to_owned()),
        }
    }

    fn entry(&self, name: &str) -> Option<NvmlFunction> {
        // SAFETY: functions of NVML take only numbers and pointers, six at most, and return a number.
        unsafe { self.library.get::<NvmlFunction>(name.as_bytes()) }.ok().map(|found| *found)
    }

    /// Returns the library's handle of a device.
    fn device(&self, number: u32) -> Result<usize, u32> {
        let entry = self.entry("nvmlDeviceGetHandleByIndex_v2").ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut handle = Buffer::new(8, &[]);
        // SAFETY: the output has the size of a handle.
        match unsafe { entry(number as usize, handle.address(), 0, 0, 0, 0) } {
            code::SUCCESS => Ok(handle.storage.first().map_or(0, |word| *word as usize)),
            other => Err(other),
        }
    }

    /// Returns the number of a device.
    fn number(&self, handle: usize) -> Result<u32, u32> {
        let entry = self.entry("nvmlDeviceGetIndex").ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut number = Buffer::new(4, &[]);
        // SAFETY: the output has the size of a number; the handle came from the library.
        match unsafe { entry(handle, number.address(), 0, 0, 0, 0) } {
            code::SUCCESS => Ok(number.word()),
            other => Err(other),
        }
    }

    /// Prepares the words of a call, and the outputs for its reply.
    fn prepare(&self, arguments: &[Argument]) -> Result<(Vec<usize>, Vec<ArgumentUse>), u32> {
        let (mut values, mut after) = (Vec::new(), Vec::new());
        for argument in arguments {
            match argument {
                Argument::Device(number) => values.push(self.device(*number)?),
                Argument::Value(value) => values.push(*value as usize),
                Argument::Text(text) => {
                    let mut buffer = Buffer::new(text.len(), text);
                    values.push(buffer.address());
                    after.push(ArgumentUse::Read { _buffer: buffer });
                }
                Argument::Out(_, false) => values.push(0),
                Argument::Out(size, true) => {
                    let mut buffer = Buffer::new(*size, &[]);
                    values.push(buffer.address());
                    after.push(ArgumentUse::CallResult(buffer));
                }
                Argument::TextBuffer(capacity) => {
                    let mut buffer = Buffer::new(*capacity, &[]);
                    values.extend([if *capacity == 0 { 0 } else { buffer.address() }, *capacity]);
                    after.push(ArgumentUse::CallResult(buffer));
                }
                Argument::Versioned(bytes) => {
                    let mut buffer = Buffer::new(bytes.len(), bytes);
                    values.push(buffer.address());
                    after.push(ArgumentUse::CallResult(buffer));
                }
                Argument::List(size, count, wants_elements) => {
                    let mut number = Buffer::new(4, &count.to_le_bytes());
                    let mut elements = wants_elements.then(|| Buffer::new(*count as usize * size, &[]));
                    values.extend([number.address(), elements.as_mut().map_or(0, Buffer::address)]);
                    after.push(ArgumentUse::List(number, *size, elements));
                }
                Argument::ListThenCount(size, count, wants_elements) => {
                    let mut number = Buffer::new(4, &count.to_le_bytes());
                    let mut elements = wants_elements.then(|| Buffer::new(*count as usize * size, &[]));
                    values.extend([elements.as_mut().map_or(0, Buffer::address), number.address()]);
                    after.push(ArgumentUse::List(number, *size, elements));
                }
                Argument::Devices(count, wants_devices) => {
                    let mut number = Buffer::new(4, &count.to_le_bytes());
                    let mut devices = wants_devices.then(|| Buffer::new(*count as usize * 8, &[]));
                    values.extend([number.address(), devices.as_mut().map_or(0, Buffer::address)]);
                    after.push(ArgumentUse::Devices(number, devices));
                }
                Argument::SizedList(count, bytes) => {
                    let mut buffer = Buffer::new(bytes.len(), bytes);
                    values.extend([*count as usize, buffer.address()]);
                    after.push(ArgumentUse::CallResult(buffer));
                }
                Argument::DeviceOut => {
                    let mut buffer = Buffer::new(8, &[]);
                    values.push(buffer.address());
                    after.push(ArgumentUse::DeviceOut(buffer));
                }
            }
        }
        Ok((values, after))
    }

    fn encode_outputs(&self, status: u32, after: &ArgumentUse) -> Result<Option<Vec<u8>>, u32> {
        Ok(match after {
            ArgumentUse::Read { .. } => None,
            ArgumentUse::CallResult(buffer) => Some(buffer.bytes()),
            ArgumentUse::List(number, size, elements) => {
                let mut bytes = number.bytes();
                if let Some(elements) = elements.as_ref().filter(|_| status == code::SUCCESS) {
                    let filled = (number.word() as usize).saturating_mul(*size);
                    bytes.extend(elements.bytes().into_iter().take(filled));
                }
                Some(bytes)
            }
            ArgumentUse::Devices(number, devices) => {
                let mut bytes = number.bytes();
                if let Some(devices) = devices.as_ref().filter(|_| status == code::SUCCESS) {
                    for handle in devices.storage.iter().take(number.word() as usize) {
                        bytes.extend(self.number(*handle as usize)?.to_le_bytes());
                    }
                }
                Some(bytes)
            }
            ArgumentUse::DeviceOut(_) if status != code::SUCCESS => Some(vec![0; 4]),
            ArgumentUse::DeviceOut(buffer) => {
                let handle = buffer.storage.first().map_or(0, |word| *word as usize);
                Some(self.number(handle)?.to_le_bytes().to_vec())
            }
        })
    }
}

impl NvmlSource for Library {
    fn call(&mut self, function: &'static Function, arguments: &[Argument]) -> (u32, Vec<Vec<u8>>) {
        let Some(entry) = self.entry(function.name) else { return (code::FUNCTION_NOT_FOUND, Vec::new()) };
        let (mut arguments, after) = match self.prepare(arguments) {
            Ok(prepared) => prepared,
            Err(status) => return (status, Vec::new()),
        };
        arguments.resize(6, 0);
        let [a, b, c, d, e, f] = arguments.as_slice() else { return (code::UNKNOWN, Vec::new()) };
        // SAFETY: the words match the function's signature in the table; pointers lead to buffers in `after`, of the sizes given
        // there, which outlive the call.
        let status = unsafe { entry(*a, *b, *c, *d, *e, *f) };
        let outputs = after.iter().map(|after| self.encode_outputs(status, after)).collect::<Result<Vec<_>, u32>>();
        match outputs {
            Ok(outputs) => (status, outputs.into_iter().flatten().collect()),
            Err(other) => (other, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_their_contents_and_no_more() {
        let mut buffer = Buffer::new(5, &[1, 2, 3]);
        assert!(buffer.address().is_multiple_of(8));
        assert_eq!((buffer.bytes(), buffer.word()), (vec![1, 2, 3, 0, 0], 0x0003_0201));
        assert_eq!(Buffer::new(12, &[7; 12]).bytes(), [7; 12]);
    }
}
