//! The trait of sources of answers, and the facts that the server provides.

use katydid_wire::nvml::Function;

use super::arguments::Argument;

/// An implementation of NVML's functions: the machine's library, or softcuda's figures.
pub(super) trait NvmlSource {
    /// Calls a function with these arguments. Returns NVML's code, and the bytes of each output, in order.
    fn call(&mut self, function: &'static Function, arguments: &[Argument]) -> (u32, Vec<Vec<u8>>);
}

/// Processes that use the device as far as the server knows, and the bytes that each holds.
pub(super) type Processes = Vec<(u32, u64)>;
