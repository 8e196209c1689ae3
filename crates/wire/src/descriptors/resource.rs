//! Parts of a device's resources, as `CUdevResource` shows them.

/// Most groups of one resource.
pub const MAX_RESOURCE_GROUPS: u32 = 1024;
/// Offset of a resource's bytes that programs may read. Its kind is in the first four bytes.
pub const VISIBLE_OFFSET: usize = 96;
/// Bytes of a resource in messages: its kind and what programs may read.
pub const VISIBLE_BYTES: usize = 4 + 48;

/// The part of a split that a resource is: the number of a group, or one of the constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourcePart(pub u32);

impl ResourcePart {
    /// The whole resource, which no call has split.
    pub const WHOLE: Self = Self(u32::MAX);
    /// What no group has received.
    pub const REST: Self = Self(u32::MAX - 1);
}
