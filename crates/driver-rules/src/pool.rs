//! Memory pools: their attributes, the meaning of a location and an allocation type, and grants of access.
#![expect(unsafe_code, reason = "reads and writes values of C callers")]

use std::ffi::c_void;

use katydid_cuda_sys::{
    CUmemAccessDesc, CUmemLocation, CUresult, access_flags, allocation_type, location_type, pool_attribute as id,
};

use crate::caller;
use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Drivers allocate memory for pools in pieces of this many bytes, as on an H200.
pub const POOL_BLOCK_BYTES: u64 = 32 << 20;
/// Most grants of one call: there are fewer locations.
const MAX_GRANTS: usize = 64;

/// A valid attribute of pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolAttribute(u32);

impl PoolAttribute {
    /// Refuses an id that no pool has.
    pub const fn new(attribute: u32) -> Outcome<Self> {
        let is_known = attribute >= id::REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= id::USED_MEM_HIGH;
        if is_known { Ok(Self(attribute)) } else { Err(INVALID_VALUE) }
    }

    /// Returns whether its value is an `int`; the others have 8 bytes.
    const fn is_flag(self) -> bool {
        self.0 <= id::REUSE_ALLOW_INTERNAL_DEPENDENCIES
    }

    /// Writes a value of as many bytes as the attribute has.
    /// Refuses null.
    ///
    /// # Safety
    ///
    /// `target` is null or has room for the attribute.
    pub unsafe fn write(self, target: *mut c_void, value: u64) -> Outcome {
        check(!target.is_null())?;
        match self.is_flag() {
            // SAFETY: not null, so writable for 4 bytes by the contract.
            true => unsafe { target.cast::<u32>().write_unaligned(value as u32) },
            // SAFETY: not null, so writable for 8 bytes by the contract.
            false => unsafe { target.cast::<u64>().write_unaligned(value) },
        }
        Ok(())
    }

    /// Reads a value of as many bytes as the attribute has.
    /// Refuses null.
    ///
    /// # Safety
    ///
    /// `value` is null or readable for the attribute's bytes.
    pub unsafe fn read(self, value: *const c_void) -> Outcome<u64> {
        match self.is_flag() {
            // SAFETY: null or readable for 4 bytes, by the contract.
            true => unsafe { caller::read(value.cast::<u32>()) }.map(u64::from),
            // SAFETY: null or readable for 8 bytes, by the contract.
            false => unsafe { caller::read(value.cast::<u64>()) },
        }
    }
}

/// A pool's counters and settings.
#[derive(Debug, Clone, Copy)]
pub struct PoolCounts {
    /// Whether memory is reused along events, when it happens to be free, and by waiting.
    pub reuse: [bool; 3],
    /// Bytes that stay reserved over synchronizations.
    pub threshold: u64,
    /// Most bytes reserved since the last reset.
    pub reserved_high: u64,
    /// Allocated bytes, as requested.
    pub used: u64,
    /// Most allocated bytes since the last reset.
    pub used_high: u64,
}

impl Default for PoolCounts {
    fn default() -> Self {
        Self { reuse: [true; 3], threshold: 0, reserved_high: 0, used: 0, used_high: 0 }
    }
}

impl PoolCounts {
    /// Counts `size` more bytes as used.
    #[inline]
    pub fn take(&mut self, size: u64) {
        self.used = self.used.saturating_add(size);
        self.used_high = self.used_high.max(self.used);
    }

    /// Counts bytes as no longer used.
    #[inline]
    pub fn give_back(&mut self, size: u64) {
        self.used = self.used.saturating_sub(size);
    }

    /// Updates the bytes that are reserved now.
    #[inline]
    pub fn note_reserved(&mut self, reserved: u64) {
        self.reserved_high = self.reserved_high.max(reserved);
    }

    /// Returns the value of an attribute, for a pool with `reserved` bytes reserved.
    pub fn attribute(&self, attribute: PoolAttribute, reserved: u64) -> u64 {
        match attribute.0 {
            id::RELEASE_THRESHOLD => self.threshold,
            id::RESERVED_MEM_CURRENT => reserved,
            id::RESERVED_MEM_HIGH => self.reserved_high,
            id::USED_MEM_CURRENT => self.used,
            id::USED_MEM_HIGH => self.used_high,
            flag => u64::from(self.reuse[flag as usize - 1]),
        }
    }

    /// Sets an attribute. High marks can only be set to 0, which resets them; current values cannot be set.
    pub fn set_attribute(&mut self, attribute: PoolAttribute, value: u64, reserved: u64) -> Outcome {
        match attribute.0 {
            id::RELEASE_THRESHOLD => self.threshold = value,
            id::RESERVED_MEM_HIGH if value == 0 => self.reserved_high = reserved,
            id::USED_MEM_HIGH if value == 0 => self.used_high = self.used,
            flag if attribute.is_flag() => self.reuse[flag as usize - 1] = value != 0,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

/// The location of a pool's memory; devices by their ordinals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolLocation {
    /// In the memory of the device with this ordinal.
    Device(u32),
    /// In the memory of the host.
    Host,
    /// At its last user; the device is the preferred one, and none is the host.
    Managed(Option<u32>),
}

impl PoolLocation {
    /// Returns the pool location of a location and an allocation type, on a host with `nodes` nodes, which count as one.
    pub fn named(
        location: &CUmemLocation,
        kind: u32,
        nodes: i32,
        is_device: impl FnOnce(i32) -> bool,
    ) -> Outcome<Self> {
        let is_managed = match kind {
            allocation_type::PINNED => false,
            allocation_type::MANAGED => true,
            _ => return Err(INVALID_VALUE),
        };
        match location.type_ {
            location_type::DEVICE => {
                check(is_device(location.id))?;
                let ordinal = location.id.unsigned_abs();
                Ok(if is_managed { Self::Managed(Some(ordinal)) } else { Self::Device(ordinal) })
            }
            // Managed memory may have no preferred location.
            location_type::NONE if is_managed => Ok(Self::Managed(None)),
            location_type::HOST_NUMA if !(0..nodes).contains(&location.id) => Err(INVALID_VALUE),
            location_type::HOST | location_type::HOST_NUMA => {
                Ok(if is_managed { Self::Managed(None) } else { Self::Host })
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// Returns the device of all of the memory.
    pub const fn device(self) -> Option<u32> {
        match self {
            Self::Device(ordinal) => Some(ordinal),
            Self::Host | Self::Managed(_) => None,
        }
    }

    /// Returns whether a pool of this location can be the current one of another: any pool of managed memory suits every
    /// managed location.
    pub fn suits(self, other: Self) -> bool {
        matches!((self, other), (Self::Managed(_), Self::Managed(_))) || self == other
    }
}

/// Returns the grants of a call. Refuses an empty list, and more grants than there are locations.
///
/// # Safety
///
/// `grants` is null or has `count` entries.
pub unsafe fn grants(grants: *const CUmemAccessDesc, count: usize) -> Outcome<Vec<CUmemAccessDesc>> {
    // SAFETY: handed on.
    unsafe { caller::array(grants, count, MAX_GRANTS) }
}

/// Returns whether a grant gives a device access to a pool: it must be full access, and the pool's own device keeps its
/// access.
///
/// # Errors
///
/// `ERROR_NOT_SUPPORTED` for read-only access, `ERROR_INVALID_DEVICE` if the pool's own device would lose its access,
/// `ERROR_INVALID_VALUE` for invalid flags.
pub const fn device_grant(flags: u32, is_own: bool) -> Outcome<bool> {
    match flags {
        access_flags::READ_WRITE => Ok(true),
        access_flags::READ => Err(CUresult::ERROR_NOT_SUPPORTED),
        access_flags::NONE if is_own => Err(CUresult::ERROR_INVALID_DEVICE),
        access_flags::NONE => Ok(false),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns the answer for granted access, or for none.
pub const fn access(is_granted: bool) -> u32 {
    if is_granted { access_flags::READ_WRITE } else { access_flags::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(number: u32) -> PoolAttribute {
        PoolAttribute::new(number).unwrap()
    }

    #[test]
    fn marks_can_be_reset_and_counts_cannot_be_set() {
        let mut counts = PoolCounts::default();
        counts.take(7);
        let mut set = |number, value| counts.set_attribute(attribute(number), value, POOL_BLOCK_BYTES);
        assert_eq!([(5, 0), (6, 7), (7, 0)].map(|(number, value)| set(number, value)), [Err(INVALID_VALUE); 3]);
        assert_eq!([(1, 0), (4, 99), (6, 0), (8, 0)].map(|(number, value)| set(number, value)), [Ok(()); 4]);
        let values = [1, 2, 4, 5, 6, 7, 8].map(|number| counts.attribute(attribute(number), POOL_BLOCK_BYTES));
        assert_eq!(values, [0, 1, 99, POOL_BLOCK_BYTES, POOL_BLOCK_BYTES, 7, 7]);
        assert_eq!([0, 9].map(PoolAttribute::new), [Err(INVALID_VALUE); 2]);
    }

    #[test]
    fn flags_have_4_bytes_and_sizes_8() {
        let mut value = [u32::MAX; 2];
        let target = value.as_mut_ptr().cast();
        // SAFETY: room for 8 bytes, and null.
        unsafe {
            assert_eq!((attribute(1).write(target, 1), attribute(1).read(target)), (Ok(()), Ok(1)));
            assert_eq!(attribute(4).read(target), Ok(u64::from(u32::MAX) << 32 | 1));
            assert_eq!(attribute(4).write(target, 5), Ok(()));
            assert_eq!(attribute(4).read(std::ptr::null()), Err(INVALID_VALUE));
        }
        assert_eq!(value, [5, 0]);
    }

    #[test]
    fn places_and_kinds_go_together() {
        let named = |type_, id, kind| PoolLocation::named(&CUmemLocation { type_, id }, kind, 1, |id| id == 0);
        assert_eq!((named(1, 0, 1), named(1, 0, 2)), (Ok(PoolLocation::Device(0)), Ok(PoolLocation::Managed(Some(0)))));
        assert_eq!((named(2, 5, 1), named(3, 0, 2)), (Ok(PoolLocation::Host), Ok(PoolLocation::Managed(None))));
        assert_eq!(named(0, 0, 2), Ok(PoolLocation::Managed(None)));
        for wrong in [named(1, 1, 1), named(0, 0, 1), named(3, 1, 1), named(4, 0, 1), named(2, 0, 3)] {
            assert_eq!(wrong, Err(INVALID_VALUE));
        }
        let (on_device, managed) = (PoolLocation::Device(0), PoolLocation::Managed(Some(1)));
        assert!(
            managed.suits(PoolLocation::Managed(None))
                && on_device.suits(on_device)
                && !on_device.suits(PoolLocation::Host)
        );
    }

    #[test]
    fn grants_are_for_whole_access() {
        let unsupported = Err(CUresult::ERROR_NOT_SUPPORTED);
        assert_eq!(
            [3, 1, 0, 2].map(|flags| device_grant(flags, false)),
            [Ok(true), unsupported, Ok(false), Err(INVALID_VALUE)]
        );
        assert_eq!(device_grant(0, true), Err(CUresult::ERROR_INVALID_DEVICE));
        assert_eq!((access(true), access(false)), (3, 0));
    }
}
