//! The facts about a kernel or function when its handle is made, and the names in a module.
//!
//! ```text
//! function   attributes u32 (<= 64), then each: code u32, value i32 (ids from 0),
//!            parameters u32 (<= 32768), then each: offset u32, size u32 (bytes)
//! names      count u32 (<= 65536), then each: text
//! ```

use super::bytes::{Reader, Writer, repeat};
use super::{DriverAnswer, FactsError};

/// Most attributes of one function.
const MAX_FUNCTION_ATTRIBUTES: u32 = 64;
/// Most parameters of one function: CUDA allows 32764 bytes of them.
const MAX_PARAMETERS: u32 = 32 * 1024;
/// Most functions of one module.
const MAX_FUNCTION_NAMES: u32 = 64 * 1024;

/// The location of a parameter in the packed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterFacts {
    /// Offset from the start of the block, in bytes.
    pub offset: u32,
    /// Bytes of the parameter.
    pub size: u32,
}

/// The results of `cuFuncGetAttribute` and `cuFuncGetParamInfo`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FunctionFacts {
    /// Attributes of ids 0, 1, 2 and so on.
    pub attributes: Vec<DriverAnswer<i32>>,
    /// Offsets and sizes of the parameters, in their order.
    pub parameters: Vec<ParameterFacts>,
}

impl FunctionFacts {
    /// Returns the driver's answer about attribute `id`; `None` if the worker did not query it.
    #[must_use]
    pub fn attribute(&self, id: i32) -> Option<DriverAnswer<i32>> {
        self.attributes.get(usize::try_from(id).ok()?).copied()
    }

    /// Encodes the layout at the top of this file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.count(self.attributes.len());
        self.attributes.iter().for_each(|answer| out.answer(*answer));
        out.count(self.parameters.len());
        for parameter in &self.parameters {
            out.u32(parameter.offset);
            out.u32(parameter.size);
        }
        out.bytes
    }

    /// Decodes the result of [`FunctionFacts::encode`].
    ///
    /// # Errors
    ///
    /// The bytes are too few, too many, or a count is beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut input = Reader::new(bytes);
        let count = input.count("attributes", MAX_FUNCTION_ATTRIBUTES)?;
        let attributes = repeat(count, || input.answer())?;
        let count = input.count("parameters", MAX_PARAMETERS)?;
        let parameters = repeat(count, || Ok(ParameterFacts { offset: input.u32()?, size: input.u32()? }))?;
        input.end()?;
        Ok(Self { attributes, parameters })
    }
}

/// Encodes a list of names.
#[must_use]
pub fn encode_names(names: &[String]) -> Vec<u8> {
    let mut out = Writer::default();
    out.count(names.len());
    names.iter().for_each(|name| out.text(name));
    out.bytes
}

/// Decodes the result of [`encode_names`].
///
/// # Errors
///
/// The bytes are too few, too many, or a count is beyond its bound.
pub fn decode_names(bytes: &[u8]) -> Result<Vec<String>, FactsError> {
    let mut input = Reader::new(bytes);
    let count = input.count("names", MAX_FUNCTION_NAMES)?;
    let names = repeat(count, || input.text())?;
    input.end()?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_facts_survive_the_wire_and_no_cut_does() {
        let facts = FunctionFacts {
            attributes: vec![DriverAnswer { code: 0, value: 1024 }, DriverAnswer { code: 1, value: 0 }],
            parameters: vec![ParameterFacts { offset: 8, size: 4 }],
        };
        let bytes = facts.encode();
        for cut in 0..bytes.len() {
            assert!(FunctionFacts::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(FunctionFacts::decode(&bytes), Ok(facts));
    }

    #[test]
    fn names_survive_the_wire_and_no_cut_does() {
        let names = vec!["saxpy".to_owned(), String::new(), "_Z6reducePf".to_owned()];
        let bytes = encode_names(&names);
        for cut in 0..bytes.len() {
            assert!(decode_names(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(decode_names(&bytes), Ok(names));
    }
}
