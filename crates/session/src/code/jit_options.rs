//! JIT options: numbers pass, pointers never do; log buffers are the worker's own. What the driver answers in them goes
//! back: logs, their lengths as it counts them, and the number of threads.

use std::ffi::{CStr, c_void};

use katydid_cuda_sys::jit_option;
use katydid_wire::facts::JitOption;

/// Largest log of each kind in bytes: two of them fit one reply.
const MAX_LOG_BYTES: usize = 256 << 10;

/// Options whose value is a number. The others hold pointers into the program, or are outputs.
fn is_number(id: u32) -> bool {
    matches!(id, 0 | 1 | 7..=16 | 20..=24 | 29..=34)
}

/// The two arrays that a load takes, and the log buffers they point to.
#[derive(Debug, Default)]
pub(crate) struct JitOptions {
    ids: Vec<u32>,
    /// Numbers and addresses of the buffers, as wide as the pointers that the driver takes.
    values: Vec<usize>,
    info: Vec<u8>,
    error: Vec<u8>,
}

/// What the driver wrote into the values and log buffers.
pub(crate) struct JitAnswers {
    /// Logs with the final NUL that C expects; empty where nothing was written.
    pub(crate) info: Vec<u8>,
    pub(crate) error: Vec<u8>,
    /// Lengths of both logs in bytes, as the driver counts them; 0 for one that was not asked for.
    pub(crate) info_length: u32,
    pub(crate) error_length: u32,
    /// Threads of a block that the code is made for; 0 if the option was not given.
    pub(crate) threads: u32,
}

impl JitOptions {
    /// Options that are numbers, without logs; none if one of them is no number.
    pub(crate) fn of_numbers(options: &[JitOption]) -> Option<Self> {
        if !options.iter().all(|option| is_number(option.id)) {
            return None;
        }
        let mut these = Self::default();
        options.iter().for_each(|option| these.add(option));
        Some(these)
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
            self.values.extend([buffer.as_mut_ptr().expose_provenance(), buffer.len()]);
        }
        self
    }

    fn add(&mut self, option: &JitOption) {
        self.ids.push(option.id);
        self.values.push(option.value as usize);
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
        self.values.as_mut_ptr().cast()
    }

    /// The low half of an option's value; 0 if it was not given.
    fn value(&self, id: u32) -> u32 {
        self.ids.iter().position(|other| *other == id).map_or(0, |at| self.values[at] as u32)
    }

    /// What the driver has written so far.
    pub(crate) fn answers(&self) -> JitAnswers {
        JitAnswers {
            info: text(&self.info),
            error: text(&self.error),
            info_length: self.value(jit_option::INFO_LOG_BUFFER_SIZE_BYTES),
            error_length: self.value(jit_option::ERROR_LOG_BUFFER_SIZE_BYTES),
            threads: self.value(jit_option::THREADS_PER_BLOCK),
        }
    }
}

/// The buffer up to its first NUL, inclusive; nothing when nothing was written.
fn text(buffer: &[u8]) -> Vec<u8> {
    let length = CStr::from_bytes_until_nul(buffer).map_or(buffer.len(), |text| text.count_bytes() + 1);
    buffer[..if length == 1 { 0 } else { length }].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_pass_and_logs_follow_them() {
        let options = JitOptions::of_numbers(&[JitOption { id: jit_option::MAX_REGISTERS, value: 32 }])
            .unwrap()
            .with_logs(100, 0);
        assert_eq!(options.ids, [0, 3, 4]);
        assert_eq!((options.values[0], options.values[2]), (32, 100));
        assert_eq!(options.count(), 3);
    }

    #[test]
    fn answers_are_what_the_driver_wrote() {
        let threads = JitOption { id: jit_option::THREADS_PER_BLOCK, value: 33 };
        let mut options = JitOptions::of_numbers(&[threads]).unwrap().with_logs(0, 8);
        options.error[..5].copy_from_slice(b"wrong");
        options.values[0] = 64;
        options.values[2] = 6;
        let answers = options.answers();
        assert_eq!((&answers.info[..], &answers.error[..]), (&b""[..], &b"wrong\0"[..]));
        assert_eq!((answers.info_length, answers.error_length, answers.threads), (0, 6, 64));
    }

    #[test]
    fn a_pointer_in_the_place_of_a_number_is_refused() {
        for id in [2, 3, 4, 5, 6, 17, 18, 25, 99, u32::MAX] {
            assert!(JitOptions::of_numbers(&[JitOption { id, value: 0x1000 }]).is_none(), "{id}");
        }
    }

    #[test]
    fn logs_end_where_the_driver_ended_them() {
        assert_eq!(text(b"warning\0\0\0"), b"warning\0");
        assert_eq!(text(&[0; 8]), b"");
        assert_eq!(text(b"full"), b"full");
        assert!(JitOptions::default().with_logs(u32::MAX, 1).info.len() == MAX_LOG_BYTES);
    }
}
