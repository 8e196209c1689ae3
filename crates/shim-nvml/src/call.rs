//! Encodes C's arguments into a call, and writes its answer to C's outputs.

#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::ffi::{CStr, c_char};

use katydid_wire::nvml::{ArgumentKind, ByteReader, Function, MAX_NVML_TEXT_BYTES, code};

use crate::link;

/// Most devices that handles can name.
const MAX_NVML_DEVICES: usize = 256;
/// Largest structure that tells its own size, in bytes.
const MAX_STRUCT_BYTES: usize = 1 << 16;

/// A handle is the address of an entry, so that anything else is recognized.
static HANDLE_TARGETS: [u64; MAX_NVML_DEVICES] = [0; MAX_NVML_DEVICES];

pub(crate) fn handle(number: u32) -> Option<usize> {
    HANDLE_TARGETS.get(number as usize).map(|entry| std::ptr::from_ref(entry).addr())
}

pub(crate) fn number(handle: usize) -> Option<u32> {
    let offset = handle.wrapping_sub(HANDLE_TARGETS.as_ptr().addr());
    let size = size_of::<u64>();
    (offset.is_multiple_of(size) && offset / size < MAX_NVML_DEVICES).then_some((offset / size) as u32)
}

/// The target of a part of the answer.
enum AnswerTarget {
    /// So many bytes.
    Bytes(*mut u8, usize),
    /// Addresses of a count and of elements, the bytes of an element, and the capacity in elements.
    List(*mut u32, *mut u8, usize, u32),
    /// Addresses of a count and of handles, and the capacity in handles.
    Devices(*mut u32, *mut usize, u32),
    /// One handle, written to the program's pointer.
    Handle(*mut usize),
}

/// A call of a function with its arguments.
struct NvmlCall {
    request: Vec<u8>,
    targets: Vec<AnswerTarget>,
}

fn pointer<T>(word: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(word)
}

impl NvmlCall {
    fn put(&mut self, bytes: &[u8]) {
        self.request.extend_from_slice(bytes);
    }

    /// Adds an argument of a kind, for which `next` returns C's words.
    ///
    /// # Safety
    ///
    /// The words are C's for this kind.
    unsafe fn add(&mut self, kind: ArgumentKind, next: &mut impl FnMut() -> usize) -> Result<(), u32> {
        let wrong = code::INVALID_ARGUMENT;
        match kind {
            ArgumentKind::Device => {
                let number = number(next()).ok_or(wrong)?;
                self.put(&number.to_le_bytes());
            }
            // Only the lower half of the register is the number.
            ArgumentKind::Value => self.put(&u64::from(next() as u32).to_le_bytes()),
            ArgumentKind::Wide => self.put(&(next() as u64).to_le_bytes()),
            ArgumentKind::Text => {
                let text = pointer::<c_char>(next());
                if text.is_null() {
                    return Err(wrong);
                }
                // SAFETY: not null, so a string of the caller.
                let text = unsafe { CStr::from_ptr(text) }.to_bytes();
                let text = text.get(..text.len().min(MAX_NVML_TEXT_BYTES)).unwrap_or_default();
                self.put(&(text.len() as u32).to_le_bytes());
                self.put(text);
            }
            ArgumentKind::Out(size) => {
                let target = pointer::<u8>(next());
                self.put(&[u8::from(!target.is_null())]);
                if !target.is_null() {
                    self.targets.push(AnswerTarget::Bytes(target, size));
                }
            }
            ArgumentKind::TextBuffer => {
                let (target, capacity) = (pointer::<u8>(next()), next() as u32 as usize);
                if target.is_null() {
                    return Err(wrong);
                }
                let capacity = capacity.min(MAX_NVML_TEXT_BYTES);
                self.put(&(capacity as u32).to_le_bytes());
                self.targets.push(AnswerTarget::Bytes(target, capacity));
            }
            // SAFETY: handed on.
            ArgumentKind::Versioned => unsafe { self.add_structure(pointer(next())) }?,
            // SAFETY: handed on.
            ArgumentKind::List(size) => unsafe { self.add_list(pointer(next()), pointer(next()), size) }?,
            ArgumentKind::ListThenCount(size) => {
                let elements = pointer(next());
                // SAFETY: handed on.
                unsafe { self.add_list(pointer(next()), elements, size) }?;
            }
            ArgumentKind::Devices => {
                let (count, devices) = (pointer(next()), pointer::<usize>(next()));
                // SAFETY: handed on.
                unsafe { self.add_list(count, devices.cast(), size_of::<u32>()) }?;
                if let Some(AnswerTarget::List(count, _, _, capacity)) = self.targets.pop() {
                    self.targets.push(AnswerTarget::Devices(count, devices, capacity));
                }
            }
            // SAFETY: handed on.
            ArgumentKind::SizedList(size) => unsafe { self.add_words(next() as u32, pointer(next()), size) }?,
            ArgumentKind::DeviceOut => {
                let target = pointer::<usize>(next());
                if target.is_null() {
                    return Err(wrong);
                }
                self.targets.push(AnswerTarget::Handle(target));
            }
        }
        Ok(())
    }

    /// Adds a structure that begins with its size and version.
    ///
    /// # Safety
    ///
    /// `target` is null or such a structure.
    unsafe fn add_structure(&mut self, target: *mut u8) -> Result<(), u32> {
        if target.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so it begins with its size and version.
        let size = unsafe { target.cast::<u32>().read_unaligned() } as usize & 0x00ff_ffff;
        if !(4..=MAX_STRUCT_BYTES).contains(&size) {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        self.put(&(size as u32).to_le_bytes());
        // SAFETY: the structure has as many bytes as it says.
        self.put(unsafe { std::slice::from_raw_parts(target, size) });
        self.targets.push(AnswerTarget::Bytes(target, size));
        Ok(())
    }

    /// Adds a list whose length the library determines.
    ///
    /// # Safety
    ///
    /// `count` is null or readable.
    unsafe fn add_list(&mut self, count: *mut u32, elements: *mut u8, size: usize) -> Result<(), u32> {
        if count.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller's count.
        let capacity = unsafe { count.read_unaligned() }.min((MAX_NVML_TEXT_BYTES / size) as u32);
        self.put(&capacity.to_le_bytes());
        self.put(&[u8::from(!elements.is_null())]);
        self.targets.push(AnswerTarget::List(count, elements, size, capacity));
        Ok(())
    }

    /// Adds a list whose length the caller determines.
    ///
    /// # Safety
    ///
    /// `elements` is null or has `count` elements.
    unsafe fn add_words(&mut self, count: u32, elements: *mut u8, size: usize) -> Result<(), u32> {
        let wrong = code::INVALID_ARGUMENT;
        let length = (count as usize).checked_mul(size).filter(|length| *length <= MAX_NVML_TEXT_BYTES).ok_or(wrong)?;
        if elements.is_null() {
            return Err(wrong);
        }
        self.put(&count.to_le_bytes());
        // SAFETY: the caller's array has `count` elements.
        self.put(unsafe { std::slice::from_raw_parts(elements, length) });
        self.targets.push(AnswerTarget::Bytes(elements, length));
        Ok(())
    }

    /// Writes the answer; of a failed call only the counts.
    ///
    /// # Safety
    ///
    /// The targets are C's outputs.
    unsafe fn take(&self, status: u32, answer: &[u8]) -> Option<()> {
        let (mut parts, good) = (ByteReader(answer), status == code::SUCCESS);
        for target in &self.targets {
            match *target {
                AnswerTarget::Bytes(target, size) => {
                    let bytes = parts.bytes(size)?;
                    if good {
                        // SAFETY: the caller's memory has `size` bytes.
                        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), size) };
                    }
                }
                AnswerTarget::List(count, elements, size, capacity) => {
                    let length = parts.word()?;
                    // SAFETY: the caller's count.
                    unsafe { count.write_unaligned(length) };
                    if good && !elements.is_null() {
                        let bytes = parts.bytes(length.min(capacity) as usize * size)?;
                        // SAFETY: the caller's list has `capacity` elements.
                        unsafe { elements.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                    }
                }
                AnswerTarget::Devices(count, devices, capacity) => {
                    let length = parts.word()?;
                    // SAFETY: the caller's count.
                    unsafe { count.write_unaligned(length) };
                    for at in 0..if good && !devices.is_null() { length.min(capacity) } else { 0 } {
                        let device = handle(parts.word()?)?;
                        // SAFETY: the caller's list has `capacity` handles.
                        unsafe { devices.add(at as usize).write_unaligned(device) };
                    }
                }
                AnswerTarget::Handle(target) => {
                    let number = parts.word()?;
                    if good {
                        // SAFETY: the caller's output for a handle.
                        unsafe { target.write_unaligned(handle(number)?) };
                    }
                }
            }
        }
        Some(())
    }
}

/// Sends a call to the server and writes its answer.
///
/// # Safety
///
/// The words are C's arguments of the function.
pub(crate) unsafe fn pass_on(opcode: u16, function: &Function, arguments: [usize; 6]) -> u32 {
    let mut call = NvmlCall { request: Vec::new(), targets: Vec::new() };
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().unwrap_or(0);
    for kind in function.arguments {
        // SAFETY: handed on.
        if let Err(code) = unsafe { call.add(*kind, &mut next) } {
            return code;
        }
    }
    let mut answer = Vec::new();
    let status = link::ask(opcode, &call.request, &mut answer);
    // After a code that the server itself returns, the answer may be empty.
    // SAFETY: handed on.
    let result = unsafe { call.take(status, &answer) };
    if status == code::SUCCESS && result.is_none() { code::UNKNOWN } else { status }
}

#[cfg(test)]
mod tests {
    use katydid_wire::nvml;

    use super::*;

    #[test]
    fn handles_lead_back_to_their_numbers_and_nothing_else_does() {
        let first = handle(0).unwrap();
        assert_eq!((number(first), number(handle(255).unwrap())), (Some(0), Some(255)));
        assert_eq!((handle(256), number(first + 1), number(first - 8), number(0)), (None, None, None, None));
    }

    #[test]
    fn answers_go_where_the_arguments_point() {
        let (mut count, mut elements, mut needed) = (2_u32, [0_u8; 8], 0_usize);
        let targets = vec![
            AnswerTarget::List(&raw mut count, elements.as_mut_ptr(), 4, 2),
            AnswerTarget::Handle(&raw mut needed),
        ];
        let call = NvmlCall { request: Vec::new(), targets };
        let answer = [1, 0, 0, 0, 9, 9, 9, 9, 3, 0, 0, 0];
        // SAFETY: the targets are locals.
        unsafe {
            assert!(call.take(code::SUCCESS, &answer).is_some());
            assert_eq!((count, elements, number(needed)), (1, [9, 9, 9, 9, 0, 0, 0, 0], Some(3)));
            assert!(call.take(code::SUCCESS, &answer[..9]).is_none());
            assert!(call.take(code::INSUFFICIENT_SIZE, &[7, 0, 0, 0]).is_none());
        }
        assert_eq!(count, 7);
        let mut devices = [0_usize; 2];
        let targets = vec![AnswerTarget::Devices(&raw mut count, devices.as_mut_ptr(), 2)];
        // SAFETY: as above.
        let result =
            unsafe { NvmlCall { request: Vec::new(), targets }.take(code::SUCCESS, &[1, 0, 0, 0, 5, 0, 0, 0]) };
        assert_eq!((result, count, number(devices[0]), devices[1]), (Some(()), 1, Some(5), 0));
    }

    #[test]
    fn wrong_arguments_are_refused_before_a_process_is_asked() {
        let ask = |name: &str, arguments: [usize; 6]| {
            let opcode = nvml::opcode(name).unwrap();
            // SAFETY: null, or refused before it is read.
            unsafe { pass_on(opcode, nvml::function(opcode).unwrap(), arguments) }
        };
        assert_eq!(ask("nvmlDeviceGetName", [1, 0, 0, 0, 0, 0]), code::INVALID_ARGUMENT);
        assert_eq!(ask("nvmlDeviceGetHandleByUUID", [0; 6]), code::INVALID_ARGUMENT);
        assert_eq!(ask("nvmlDeviceGetCount_v2", [0; 6]), code::UNINITIALIZED);
    }
}
