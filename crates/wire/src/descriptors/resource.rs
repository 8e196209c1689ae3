//! Parts of a device's resources, as `CUdevResource` shows them.

/// Most groups of one resource.
pub const MAX_RESOURCE_GROUPS: u32 = 1024;
/// Where the bytes begin that programs may read of a resource; its kind is in its first four.
pub const VISIBLE_OFFSET: usize = 96;
/// Bytes that travel of a resource: its kind and what programs may read.
pub const VISIBLE_BYTES: usize = 4 + 48;

/// Which part of a split a resource is: the number of a group, or one of those below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourcePart(pub u32);

impl ResourcePart {
    /// The whole resource, which no call has split.
    pub const WHOLE: Self = Self(u32::MAX);
    /// What no group has got.
    pub const REST: Self = Self(u32::MAX - 1);
}
