//! The addresses of the arenas in this session.

use std::ops::Range;

use katydid_wire::handshake::{ArenaKind, ArenaRange};

/// Bytes of address space for each GPU: GPU `g` starts at the device arena's base plus `g` times this.
pub const DEVICE_SPAN_BYTES: u64 = 1 << 40;
/// NVIDIA's driver reserves only whole pieces of this size, at multiples of it, when a particular address is requested (measured:
/// driver 580).
pub const RESERVATION_UNIT: u64 = 32 << 20;
/// Most GPUs of a session, as many as fit between two bases.
pub const MAX_SESSION_DEVICES: u32 = 16;

/// The ranges on which both sides agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressMap {
    device: Range<u64>,
    pinned: Option<Range<u64>>,
}

impl AddressMap {
    /// Returns the map in a worker's answer; `None` without a device arena.
    #[must_use]
    pub fn from_arenas(arenas: &[ArenaRange]) -> Option<Self> {
        let find =
            |kind| arenas.iter().find(|arena| arena.kind == kind).map(|arena| arena.base..arena.base + arena.length);
        Some(Self { device: find(ArenaKind::DEVICE)?, pinned: find(ArenaKind::PINNED) })
    }

    /// Returns the ranges from which [`AddressMap::from_arenas`] makes this map.
    #[must_use]
    pub fn arenas(&self) -> Vec<ArenaRange> {
        let arena = |kind, range: &Range<u64>| ArenaRange { kind, base: range.start, length: range.end - range.start };
        let pinned = self.pinned.as_ref().map(|range| arena(ArenaKind::PINNED, range));
        std::iter::once(arena(ArenaKind::DEVICE, &self.device)).chain(pinned).collect()
    }

    /// Returns the addresses of GPU `device`'s memory; `None` past the end of the arena.
    #[must_use]
    pub fn device(&self, device: u32) -> Option<Range<u64>> {
        let start = self.device.start + u64::from(device) * DEVICE_SPAN_BYTES;
        let end = start + DEVICE_SPAN_BYTES;
        (end <= self.device.end).then_some(start..end)
    }

    /// Returns the GPU whose range contains `address`.
    #[must_use]
    pub fn device_of(&self, address: u64) -> Option<u32> {
        let index = self.device.contains(&address).then(|| (address - self.device.start) / DEVICE_SPAN_BYTES)?;
        u32::try_from(index).ok()
    }

    /// Returns the addresses of pinned host memory; `None` if the sides agreed on none.
    #[must_use]
    pub fn pinned(&self) -> Option<Range<u64>> {
        self.pinned.clone()
    }

    /// Returns whether `address` lies in the pinned arena.
    #[must_use]
    pub fn is_pinned(&self, address: u64) -> bool {
        self.pinned.as_ref().is_some_and(|range| range.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> AddressMap {
        let device = ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: 2 * DEVICE_SPAN_BYTES };
        let pinned = ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: 1 << 38 };
        AddressMap::from_arenas(&[pinned, device]).unwrap()
    }

    #[test]
    fn a_map_says_what_it_was_made_of() {
        assert_eq!(AddressMap::from_arenas(&map().arenas()), Some(map()));
    }

    #[test]
    fn each_gpu_has_its_own_tebibyte() {
        assert_eq!(map().device(1), Some(0x2100_0000_0000..0x2200_0000_0000));
        assert_eq!(map().device(2), None);
        assert_eq!(map().device_of(0x20ff_ffff_ffff), Some(0));
        assert_eq!(map().device_of(0x2100_0000_0000), Some(1));
        assert_eq!(map().device_of(0x2200_0000_0000), None);
        assert_eq!(map().device_of(0x1fff_ffff_ffff), None);
    }

    #[test]
    fn pinned_addresses_are_told_apart() {
        assert!(map().is_pinned(0x3000_0000_0000) && !map().is_pinned(0x2000_0000_0000));
        assert!(!map().is_pinned(0x3040_0000_0000));
        assert_eq!(AddressMap::from_arenas(&[]), None);
    }
}
