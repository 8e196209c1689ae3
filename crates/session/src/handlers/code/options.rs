//! JIT options: numbers are passed on, pointers never; log buffers belong to the worker.

use std::ffi::{CStr, c_void};

use katydid_cuda_sys::{CUresult, jit_option};
use katydid_wire::facts::{JitOption, decode_options};

use crate::calls::fault::{Fault, SessionError};

/// Largest log of each kind, in bytes: two of them fit one reply.
const MAX_LOG_BYTES: usize = 256 << 10;

/// Returns whether an option's value is a number. The others hold pointers into the program, or are outputs.
fn is_number(id: u32) -> bool {
    matches!(id, 0 | 1 | 7..=16 | 20..=24 | 29..=34)
}

/// The two arrays for a load, and the log buffers that they point to.
#[derive(Debug, Default)]
pub(crate) struct JitOptions {
    ids: Vec<u32>,
    values: Vec<*mut c_void>,
    info: Vec<u8>,
    error: Vec<u8>,
}

impl JitOptions {
    /// Reads the options of `message`.
    ///
    /// # Errors
    ///
    /// A session error for damaged bytes, `CUDA_ERROR_INVALID_VALUE` for an option whose value is no number.
    pub(crate) fn decode(message: &'static str, bytes: &[u8]) -> Result<Self, Fault> {
        let options = decode_options(bytes).map_err(|error| SessionError::DamagedPart {
            message,
            part: "JIT options",
            reason: error.to_string(),
        })?;
        if !options.iter().all(|option| is_number(option.id)) {
            return Err(CUresult::ERROR_INVALID_VALUE.into());
        }
        let mut these = Self::default();
        options.iter().for_each(|option| these.add(option));
        Ok(these)
    }

    /// Requests logs of at most these sizes in bytes; 0 requests none.
    pub(crate) fn with_logs(mut self, info: u32, error: u32) -> Self {
        self.info = vec![0; (info as usize).min(MAX_LOG_BYTES)];
        self.error = vec![0; (error as usize).min(MAX_LOG_BYTES)];
        let buffers = [
            (jit_option::INFO_LOG_BUFFER_SIZE_BYTES, jit_option::INFO_LOG_BUFFER, &mut self.info),
            (jit_option::ERROR_LOG_BUFFER_SIZE_BYTES, jit_option::ERROR_LOG_BUFFER, &mut self.error),
        ];
        for (size_id, buffer_id, buffer) in buffers.into_iter().filter(|entry| !entry.2.is_empty()) {
            self.ids.extend([buffer_id, size_id]);
            self.values.extend([buffer.as_mut_ptr().cast(), number(buffer.len() as u64)]);
        }
        self
    }

    fn add(&mut self, option: &JitOption) {
        self.ids.push(option.id);
        self.values.push(number(option.value));
    }

    pub(crate) fn count(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The array of ids, for the driver.
    pub(crate) fn ids(&mut self) -> *mut u32 {
        self.ids.as_mut_ptr()
    }

    /// The array of values, for the driver, which writes to it and to the log buffers.
    pub(crate) fn values(&mut self) -> *mut *mut c_void {
        self.values.as_mut_ptr()
    }

    /// Returns the driver's logs, with the final NUL that C expects: information, errors.
    pub(crate) fn into_logs(self) -> (Vec<u8>, Vec<u8>) {
        (text(self.info), text(self.error))
    }
}

/// Returns a number for the driver in place of a pointer.
fn number(value: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(value as usize)
}

/// Returns the buffer up to its first NUL, inclusive; empty if nothing was written.
fn text(mut buffer: Vec<u8>) -> Vec<u8> {
    let length = CStr::from_bytes_until_nul(&buffer).map_or(buffer.len(), |text| text.count_bytes() + 1);
    buffer.truncate(if length == 1 { 0 } else { length });
    buffer
}

#[cfg(test)]
mod tests {
    use katydid_wire::facts::encode_options;

    use super::*;

    fn decode(options: &[JitOption]) -> Result<JitOptions, Fault> {
        JitOptions::decode("test", &encode_options(options))
    }

    #[test]
    fn numbers_pass_and_logs_follow_them() {
        let options = decode(&[JitOption { id: jit_option::MAX_REGISTERS, value: 32 }]).unwrap().with_logs(100, 0);
        assert_eq!(options.ids, [0, 3, 4]);
        assert_eq!(options.values[0], number(32));
        assert_eq!(options.values[2], number(100));
        assert_eq!(options.count(), 3);
    }

    #[test]
    fn a_pointer_in_the_place_of_a_number_is_refused() {
        for id in [2, 3, 4, 5, 6, 17, 18, 25, 99, u32::MAX] {
            let refused = decode(&[JitOption { id, value: 0x1000 }]);
            assert!(matches!(refused, Err(Fault::Cuda(CUresult::ERROR_INVALID_VALUE))), "{id}");
        }
    }

    #[test]
    fn damaged_options_end_the_session() {
        assert!(matches!(JitOptions::decode("test", &[9, 9]), Err(Fault::Fatal(_))));
    }

    #[test]
    fn logs_end_where_the_driver_ended_them() {
        assert_eq!(text(b"warning\0\0\0".into()), b"warning\0");
        assert_eq!(text(vec![0; 8]), b"");
        assert_eq!(text(b"full".into()), b"full");
        assert!(decode(&[]).unwrap().with_logs(u32::MAX, 1).info.len() == MAX_LOG_BYTES);
    }
}
