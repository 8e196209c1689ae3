//! JIT options as they come.

use katydid_cuda_sys::CUresult;
use katydid_wire::facts::decode_options;

use crate::calls::fault::{Fault, SessionError};
use crate::code::jit_options::JitOptions;

/// Reads the options of `message`, and requests logs of at most these sizes in bytes; 0 requests none.
///
/// # Errors
///
/// A session error for damaged bytes, `CUDA_ERROR_INVALID_VALUE` for an option that is no number.
pub(crate) fn decode(message: &'static str, bytes: &[u8], info: u32, error: u32) -> Result<JitOptions, Fault> {
    let options = decode_options(bytes).map_err(|error| SessionError::DamagedPart {
        message,
        part: "JIT options",
        reason: error.to_string(),
    })?;
    let options = JitOptions::of_numbers(&options).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(options.with_logs(info, error))
}

#[cfg(test)]
mod tests {
    use katydid_wire::facts::{JitOption, encode_options};

    use super::*;

    #[test]
    fn damaged_options_end_the_session_and_pointers_are_refused() {
        assert!(matches!(decode("test", &[9, 9], 0, 0), Err(Fault::Fatal(_))));
        let pointer = encode_options(&[JitOption { id: 3, value: 0x1000 }]);
        assert!(matches!(decode("test", &pointer, 0, 0), Err(Fault::Cuda(CUresult::ERROR_INVALID_VALUE))));
    }
}
