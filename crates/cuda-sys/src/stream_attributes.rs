//! Attributes of streams: the ids, and how much of the 64-byte value each fills.

/// Ids of `CUstreamAttrID` that a stream has.
pub mod stream_attribute {
    /// Which memory the L2 cache is to keep: address, bytes, share, and what hits and misses become.
    pub const ACCESS_POLICY_WINDOW: u32 = 1;
    /// How a thread waits for the stream.
    pub const SYNCHRONIZATION_POLICY: u32 = 3;
    /// Its priority, clamped to the device's range.
    pub const PRIORITY: u32 = 8;
    /// The physical domains that its memory fences order, by logical domain.
    pub const MEM_SYNC_DOMAIN_MAP: u32 = 9;
    /// The logical domain of its launches.
    pub const MEM_SYNC_DOMAIN: u32 = 10;
}

/// Bytes of the value that driver 580 writes for an attribute of a stream; `None` for what is no attribute of streams.
#[must_use]
pub const fn stream_attribute_bytes(id: u32) -> Option<usize> {
    match id {
        stream_attribute::ACCESS_POLICY_WINDOW => Some(32),
        stream_attribute::SYNCHRONIZATION_POLICY | stream_attribute::PRIORITY | stream_attribute::MEM_SYNC_DOMAIN => {
            Some(4)
        }
        stream_attribute::MEM_SYNC_DOMAIN_MAP => Some(2),
        _ => None,
    }
}
