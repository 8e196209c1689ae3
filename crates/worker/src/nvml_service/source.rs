//! What a source of answers is, and what the server tells it.

use katydid_wire::nvml::Function;

use super::arguments::Argument;

/// An implementation of NVML's functions: the machine's library, or softcuda's figures.
pub(super) trait NvmlSource {
    /// Calls a function with what was given: NVML's code, and the bytes of each thing that it wrote, in order.
    fn call(&mut self, function: &'static Function, arguments: &[Argument]) -> (u32, Vec<Vec<u8>>);
}

/// A process that uses the device as far as the server knows, and the bytes that it holds.
pub(super) type Processes = Vec<(u32, u64)>;
