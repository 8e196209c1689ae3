//! Attributes of launches, streams and kernel nodes, which share one enumeration: one row each.

macro_rules! launch_attributes {
    ($($(#[$meta:meta])* $name:ident = $id:literal, stream $bytes:expr, node $default:expr;)*) => {
        /// Ids of `CUlaunchAttributeID`, of which `CUstreamAttrID` and `CUkernelNodeAttrID` are other names.
        pub mod launch_attribute {
            $($(#[$meta])* pub const $name: u32 = $id;)*
        }

        /// Bytes of the value that driver 580 writes for an attribute of a stream; `None` for what is no attribute of streams.
        #[must_use]
        pub const fn stream_attribute_bytes(id: u32) -> Option<usize> {
            match id {
                $($id => $bytes,)*
                _ => None,
            }
        }

        /// The value that a kernel node has from the start; `None` for what is no attribute of kernel nodes.
        #[must_use]
        pub const fn node_attribute_default(id: u32) -> Option<[u64; 8]> {
            match id {
                $($id => $default,)*
                _ => None,
            }
        }
    };
}

launch_attributes! {
    /// Which memory the L2 cache is to keep: address, bytes, share, and what hits and misses become.
    ACCESS_POLICY_WINDOW = 1, stream Some(32), node Some([0; 8]);
    /// All blocks of the kernel run at once.
    COOPERATIVE = 2, stream None, node Some([0; 8]);
    /// How a thread waits for the stream.
    SYNCHRONIZATION_POLICY = 3, stream Some(4), node None;
    /// Blocks of a cluster, by direction.
    CLUSTER_DIMENSION = 4, stream None, node Some([0; 8]);
    /// How clusters are spread over multiprocessors.
    CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5, stream None, node Some([0; 8]);
    /// The kernel may begin before the one in front of it has ended.
    PROGRAMMATIC_STREAM_SERIALIZATION = 6, stream None, node None;
    /// An event that blocks of the kernel trigger.
    PROGRAMMATIC_EVENT = 7, stream None, node None;
    /// Its priority, clamped to the device's range.
    PRIORITY = 8, stream Some(4), node Some([0; 8]);
    /// The physical domains that its memory fences order, by logical domain: 0 and 1 from the start.
    MEM_SYNC_DOMAIN_MAP = 9, stream Some(2), node Some([0x100, 0, 0, 0, 0, 0, 0, 0]);
    /// The logical domain of its launches.
    MEM_SYNC_DOMAIN = 10, stream Some(4), node Some([0; 8]);
    /// Blocks of a cluster, where that many fit.
    PREFERRED_CLUSTER_DIMENSION = 11, stream None, node None;
    /// An event that comes to pass when all blocks have begun.
    LAUNCH_COMPLETION_EVENT = 12, stream None, node None;
    /// The node may be changed from the device.
    DEVICE_UPDATABLE_KERNEL_NODE = 13, stream None, node Some([0; 8]);
    /// How much of the L1 cache is to be shared memory.
    PREFERRED_SHARED_MEMORY_CARVEOUT = 14, stream None, node Some([0; 8]);
}

pub use launch_attribute as stream_attribute;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_domains_is_the_only_attribute_that_is_not_0_from_the_start() {
        let others = (1..=14).filter(|id| node_attribute_default(*id).is_some_and(|value| value != [0; 8]));
        assert_eq!(others.collect::<Vec<_>>(), [launch_attribute::MEM_SYNC_DOMAIN_MAP]);
        assert_eq!([0, 15].map(node_attribute_default), [None; 2]);
    }

    #[test]
    fn values_of_streams_have_the_lengths_that_the_driver_writes() {
        let bytes = (0..16).filter_map(|id| Some((id, stream_attribute_bytes(id)?))).collect::<Vec<_>>();
        assert_eq!(bytes, [(1, 32), (3, 4), (8, 4), (9, 2), (10, 4)]);
    }
}
