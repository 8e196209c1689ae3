//! The worker's devices, as far as they never change: the reply of `kdFacts`.
//!
//! ```text
//! driver_version i32, devices u32 (<= 64), then each device,
//! then devices * devices peers, row by row (from, to)
//!
//! device   name text, pci_bus_id text, uuid 16 bytes, total_memory u64, granularity u64,
//!          attributes u32 (<= 1024), then each: code u32, value i32 (ids from 1)
//! peer     can_access code u32, value i32, then 5 P2P attributes (ids 1..=5), each code u32, value i32
//! ```

use super::bytes::{Reader, Writer, repeat};
use super::{DriverAnswer, FactsError};

/// Most devices: more than a driver ever shows.
const MAX_DEVICE_FACTS: u32 = 64;
/// Most attributes of one device.
const MAX_DEVICE_ATTRIBUTES: u32 = 1024;
/// P2P attributes of a pair, ids 1 to this one.
pub const P2P_ATTRIBUTE_COUNT: usize = 5;

/// The facts about the worker's devices that cannot change in a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// `cuDriverGetVersion` of the worker's library.
    pub driver_version: i32,
    /// The worker's devices in ordinal order, from 0.
    pub devices: Vec<DeviceFacts>,
    /// `devices.len()` squared entries, row by row: from, to.
    pub peers: Vec<PeerFacts>,
}

/// What the driver reports about one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFacts {
    /// Name from `cuDeviceGetName`, such as `NVIDIA H200`.
    pub name: String,
    /// `cuDeviceGetPCIBusId`, such as `0000:19:00.0`.
    pub pci_bus_id: String,
    /// UUID from `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// `cuDeviceTotalMem`, in bytes; at most the session's limit.
    pub total_memory: u64,
    /// Granularity of `cuMemCreate`, in bytes.
    pub granularity: u64,
    /// `cuDeviceGetAttribute` of ids 1, 2, 3 and so on.
    pub attributes: Vec<DriverAnswer<i32>>,
}

impl DeviceFacts {
    /// Returns the driver's answer about attribute `id`; `None` if the worker did not query it.
    pub fn attribute(&self, id: i32) -> Option<DriverAnswer<i32>> {
        let index = usize::try_from(id).ok()?.checked_sub(1)?;
        self.attributes.get(index).copied()
    }
}

/// Peer access of one device to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerFacts {
    /// 1 if peer access is possible, else 0, from `cuDeviceCanAccessPeer`.
    pub can_access: DriverAnswer<i32>,
    /// `cuDeviceGetP2PAttribute` of ids 1 to 5.
    pub attributes: [DriverAnswer<i32>; P2P_ATTRIBUTE_COUNT],
}

impl Facts {
    /// Returns the access of device `from` to device `to`; `None` if either is unknown.
    pub fn peer(&self, from: usize, to: usize) -> Option<&PeerFacts> {
        let count = self.devices.len();
        if from >= count || to >= count { None } else { self.peers.get(from * count + to) }
    }

    /// Encodes the layout at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.i32(self.driver_version);
        out.count(self.devices.len());
        self.devices.iter().for_each(|device| device.encode(&mut out));
        self.peers.iter().for_each(|peer| peer.encode(&mut out));
        out.bytes
    }

    /// Decodes the result of [`Facts::encode`].
    ///
    /// # Errors
    ///
    /// The bytes are too few, too many, or a count is beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut input = Reader::new(bytes);
        let driver_version = input.i32()?;
        let count = input.count("devices", MAX_DEVICE_FACTS)?;
        let devices = repeat(count, || DeviceFacts::decode(&mut input))?;
        let peers = repeat(count * count, || PeerFacts::decode(&mut input))?;
        input.end()?;
        Ok(Self { driver_version, devices, peers })
    }
}

impl DeviceFacts {
    fn encode(&self, out: &mut Writer) {
        out.text(&self.name);
        out.text(&self.pci_bus_id);
        out.bytes.extend_from_slice(&self.uuid);
        out.u64(self.total_memory);
        out.u64(self.granularity);
        out.count(self.attributes.len());
        self.attributes.iter().for_each(|answer| out.answer(*answer));
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, FactsError> {
        Ok(Self {
            name: input.text()?,
            pci_bus_id: input.text()?,
            uuid: input.array()?,
            total_memory: input.u64()?,
            granularity: input.u64()?,
            attributes: {
                let count = input.count("attributes", MAX_DEVICE_ATTRIBUTES)?;
                repeat(count, || input.answer())?
            },
        })
    }
}

impl PeerFacts {
    fn encode(&self, out: &mut Writer) {
        out.answer(self.can_access);
        self.attributes.iter().for_each(|answer| out.answer(*answer));
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, FactsError> {
        let can_access = input.answer()?;
        let mut attributes = [DriverAnswer::default(); P2P_ATTRIBUTE_COUNT];
        for slot in &mut attributes {
            *slot = input.answer()?;
        }
        Ok(Self { can_access, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Facts {
        let device = DeviceFacts {
            name: "Test GPU".into(),
            pci_bus_id: "0000:19:00.0".into(),
            uuid: *b"0123456789abcdef",
            total_memory: 1 << 37,
            granularity: 2 << 20,
            attributes: vec![DriverAnswer { code: 0, value: 1024 }, DriverAnswer { code: 1, value: 0 }],
        };
        let peer = PeerFacts { can_access: DriverAnswer { code: 0, value: 1 }, ..PeerFacts::default() };
        Facts { driver_version: 13000, devices: vec![device.clone(), device], peers: vec![peer; 4] }
    }

    #[test]
    fn facts_survive_the_wire() {
        assert_eq!(Facts::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_cut_is_an_error() {
        let bytes = sample().encode();
        for cut in 0..bytes.len() {
            assert!(matches!(Facts::decode(&bytes[..cut]), Err(FactsError::Truncated { .. })), "cut at {cut}");
        }
    }

    #[test]
    fn a_count_beyond_its_bound_is_named() {
        let mut bytes = sample().encode();
        bytes[4..8].copy_from_slice(&65_u32.to_le_bytes());
        assert_eq!(Facts::decode(&bytes), Err(FactsError::TooMany { what: "devices", count: 65, limit: 64 }));
    }

    #[test]
    fn bytes_after_the_end_are_refused() {
        let mut bytes = sample().encode();
        bytes.push(0);
        assert_eq!(Facts::decode(&bytes), Err(FactsError::Trailing { left: 1 }));
    }

    #[test]
    fn attributes_are_found_by_their_id() {
        let facts = sample();
        assert_eq!(facts.devices[0].attribute(1), Some(DriverAnswer { code: 0, value: 1024 }));
        assert_eq!(facts.devices[0].attribute(0), None);
        assert_eq!(facts.devices[0].attribute(3), None);
        assert_eq!(facts.peer(1, 1).map(|peer| peer.can_access.value), Some(1));
        assert!(facts.peer(0, 2).is_none());
    }
}
