//! The JIT options of a module load that are plain numbers; log buffers and outputs travel as message fields.
//!
//! ```text
//! count u32 (<= 64), then each: id u32 (CUjit_option), value u64 (what the program stored in the pointer)
//! ```

use super::FactsError;
use super::bytes::{Reader, Writer, repeat};

/// Most options of one load; CUDA 13 has 35.
const MAX_JIT_OPTIONS: u32 = 64;

/// An option of the JIT compiler, and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JitOption {
    /// Number of the option in `CUjit_option`.
    pub id: u32,
    /// What the program stored in the option's pointer.
    pub value: u64,
}

/// Encodes a list of options.
#[must_use]
pub fn encode_options(options: &[JitOption]) -> Vec<u8> {
    let mut out = Writer::default();
    out.count(options.len());
    for option in options {
        out.u32(option.id);
        out.u64(option.value);
    }
    out.bytes
}

/// Decodes the result of [`encode_options`]. No bytes are no options.
///
/// # Errors
///
/// The bytes are too few, too many, or a count is beyond its bound.
pub fn decode_options(bytes: &[u8]) -> Result<Vec<JitOption>, FactsError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut input = Reader::new(bytes);
    let count = input.count("JIT options", MAX_JIT_OPTIONS)?;
    let options = repeat(count, || Ok(JitOption { id: input.u32()?, value: input.u64()? }))?;
    input.end()?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_wire_and_no_cut_does() {
        let options = vec![JitOption { id: 0, value: 32 }, JitOption { id: 9, value: u64::MAX }];
        let bytes = encode_options(&options);
        for cut in 1..bytes.len() {
            assert!(decode_options(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(decode_options(&bytes), Ok(options));
        assert_eq!(decode_options(&[]), Ok(Vec::new()));
    }
}
