//! What every device under test does.

use super::work::KernelWork;

/// A device under test.
pub(super) trait Device {
    /// Makes the kernel and the buffers of `work` the current ones, with their first content.
    fn prepare(&mut self, work: &KernelWork) -> Result<(), String>;
    /// One launch, to its end.
    fn run(&mut self, work: &KernelWork) -> Result<(), String>;
    /// The buffer with the result.
    fn result(&mut self, work: &KernelWork) -> Result<Vec<u32>, String>;
    /// Warp instructions so far, if it counts them.
    fn executed(&self) -> Option<u64>;
    /// Name of the device, as it calls itself.
    fn name(&self) -> String;
}
