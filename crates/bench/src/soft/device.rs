//! The interface of every device under test.

use super::work::KernelWork;

/// A device under test.
pub(super) trait Device {
    /// Selects the kernel and the buffers of `work`, with their initial contents.
    fn prepare(&mut self, work: &KernelWork) -> Result<(), String>;
    /// Runs one launch to its end.
    fn run(&mut self, work: &KernelWork) -> Result<(), String>;
    /// Returns the buffer with the result.
    fn result(&mut self, work: &KernelWork) -> Result<Vec<u32>, String>;
    /// Returns the warp instructions so far, if the device counts them.
    fn executed(&self) -> Option<u64>;
    /// Returns the name that the device reports.
    fn name(&self) -> String;
}
