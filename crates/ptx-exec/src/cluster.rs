//! Clusters: blocks that run together and reach each other's shared memory.

use crate::machine::Machine;

impl Machine<'_> {
    /// The address in block `rank` of the cluster that corresponds to `address`, an offset into shared memory.
    pub(crate) fn address_in_block(&self, address: u64, _rank: u32) -> u64 {
        address
    }
}
