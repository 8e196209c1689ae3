//! Facts of the worker's devices and contexts, sent once and answered from in the program ever after.
//!
//! [`Facts`] travels in the reply of `kdFacts`, [`ContextFacts`] in the reply that activates a context. Both are
//! opaque bytes to the message codec and laid out here, little-endian, without padding. A reader takes lengths only
//! within the bounds named below, so hostile bytes cost an error, never memory.
//!
//! ```text
//! Facts         driver_version i32, devices u32 (<= 64), then each device,
//!               then devices * devices peers, row by row (from, to)
//! device        name text, pci_bus_id text, uuid 16 bytes, total_memory u64, granularity u64,
//!               attributes u32 (<= 1024), then each: code u32, value i32 (ids from 1)
//! peer          can_access code u32, value i32, then 5 P2P attributes (ids 1..=5), each code u32, value i32
//! ContextFacts  id u64, api_version u32, flags u32, least_priority i32, greatest_priority i32,
//!               cache_config u32, shared_config u32, limits u32 (<= 64), then each: code u32, value u64 (ids from 0)
//! text          u32 length (<= 4096), bytes
//! ```

/// More devices than a driver ever shows.
const MAX_DEVICES: u32 = 64;
/// Attributes of one device.
const MAX_ATTRIBUTES: u32 = 1024;
/// Limits of one context.
const MAX_LIMITS: u32 = 64;
/// Bytes of a name.
const MAX_TEXT: u32 = 4096;
/// P2P attributes of a pair, ids 1 to this one.
pub const P2P_ATTRIBUTES: usize = 5;

/// Why a block of facts could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// The bytes end inside a field.
    #[error("facts end {missing} bytes too early")]
    Truncated {
        /// How many more bytes the field needs.
        missing: usize,
    },
    /// A count is beyond its bound.
    #[error("facts name {found} {what}, more than {most}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count found.
        found: u32,
        /// The bound.
        most: u32,
    },
    /// Bytes are left after the last field.
    #[error("facts carry {left} bytes too many")]
    Trailing {
        /// How many.
        left: usize,
    },
}

/// What the driver answered to one question: its code, and the value, which counts only when the code is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer<T> {
    /// `CUresult` of the question.
    pub code: u32,
    /// The answer; 0 when `code` is not.
    pub value: T,
}

/// Everything about the worker's devices that cannot change in a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// `cuDriverGetVersion` of the worker's library.
    pub driver_version: i32,
    /// In ordinal order.
    pub devices: Vec<DeviceFacts>,
    /// `devices.len()` squared entries, row by row: from, to.
    pub peers: Vec<PeerFacts>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFacts {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDeviceGetPCIBusId`, such as `0000:19:00.0`.
    pub pci_bus_id: String,
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// `cuDeviceTotalMem`, in bytes; not above the session's quota.
    pub total_memory: u64,
    /// Granularity of `cuMemCreate`, in bytes.
    pub granularity: u64,
    /// `cuDeviceGetAttribute` of ids 1, 2, 3 and so on.
    pub attributes: Vec<Answer<i32>>,
}

impl DeviceFacts {
    /// The driver's answer about attribute `id`, `None` when the worker did not ask that far.
    pub fn attribute(&self, id: i32) -> Option<Answer<i32>> {
        let index = usize::try_from(id).ok()?.checked_sub(1)?;
        self.attributes.get(index).copied()
    }
}

/// What one device may do with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerFacts {
    /// `cuDeviceCanAccessPeer`.
    pub can_access: Answer<i32>,
    /// `cuDeviceGetP2PAttribute` of ids 1 to 5.
    pub attributes: [Answer<i32>; P2P_ATTRIBUTES],
}

/// What a context answered when it became active.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContextFacts {
    /// `cuCtxGetId`.
    pub id: u64,
    /// `cuCtxGetApiVersion`.
    pub api_version: u32,
    /// `cuCtxGetFlags`.
    pub flags: u32,
    /// `cuCtxGetStreamPriorityRange`, the lowest priority (numerically largest).
    pub least_priority: i32,
    /// The highest priority.
    pub greatest_priority: i32,
    /// `cuCtxGetCacheConfig`.
    pub cache_config: u32,
    /// `cuCtxGetSharedMemConfig`.
    pub shared_config: u32,
    /// `cuCtxGetLimit` of ids 0, 1, 2 and so on.
    pub limits: Vec<Answer<u64>>,
}

impl Facts {
    /// What device `from` may do with device `to`, `None` when either is unknown.
    pub fn peer(&self, from: usize, to: usize) -> Option<&PeerFacts> {
        let count = self.devices.len();
        if from >= count || to >= count { None } else { self.peers.get(from * count + to) }
    }

    /// The bytes described at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.i32(self.driver_version);
        out.count(self.devices.len());
        self.devices.iter().for_each(|device| device.encode(&mut out));
        self.peers.iter().for_each(|peer| peer.encode(&mut out));
        out.bytes
    }

    /// Reads what [`Facts::encode`] wrote.
    ///
    /// # Errors
    ///
    /// When the bytes are too few, too many, or name a count beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut input = Reader { rest: bytes };
        let driver_version = input.i32()?;
        let count = input.count("devices", MAX_DEVICES)?;
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
                let count = input.count("attributes", MAX_ATTRIBUTES)?;
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
        let mut attributes = [Answer::default(); P2P_ATTRIBUTES];
        for slot in &mut attributes {
            *slot = input.answer()?;
        }
        Ok(Self { can_access, attributes })
    }
}

impl ContextFacts {
    /// The bytes described at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.id);
        out.u32(self.api_version);
        out.u32(self.flags);
        out.i32(self.least_priority);
        out.i32(self.greatest_priority);
        out.u32(self.cache_config);
        out.u32(self.shared_config);
        out.count(self.limits.len());
        for limit in &self.limits {
            out.u32(limit.code);
            out.u64(limit.value);
        }
        out.bytes
    }

    /// Reads what [`ContextFacts::encode`] wrote.
    ///
    /// # Errors
    ///
    /// When the bytes are too few, too many, or name a count beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut input = Reader { rest: bytes };
        let facts = Self {
            id: input.u64()?,
            api_version: input.u32()?,
            flags: input.u32()?,
            least_priority: input.i32()?,
            greatest_priority: input.i32()?,
            cache_config: input.u32()?,
            shared_config: input.u32()?,
            limits: {
                let count = input.count("limits", MAX_LIMITS)?;
                repeat(count, || Ok(Answer { code: input.u32()?, value: input.u64()? }))?
            },
        };
        input.end()?;
        Ok(facts)
    }
}

/// Reads `count` items; each costs input, so a false count ends as [`FactsError::Truncated`].
fn repeat<T>(count: usize, mut item: impl FnMut() -> Result<T, FactsError>) -> Result<Vec<T>, FactsError> {
    (0..count).map(|_| item()).collect()
}

/// Appends fields in order.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A length; one that does not fit is written as the largest, which every reader refuses.
    fn count(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn answer(&mut self, answer: Answer<i32>) {
        self.u32(answer.code);
        self.i32(answer.value);
    }
}

/// Takes fields off the front.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], FactsError> {
        let missing = length.saturating_sub(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(FactsError::Truncated { missing })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FactsError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, FactsError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn i32(&mut self) -> Result<i32, FactsError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FactsError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn count(&mut self, what: &'static str, most: u32) -> Result<usize, FactsError> {
        let found = self.u32()?;
        if found > most { Err(FactsError::TooMany { what, found, most }) } else { Ok(found as usize) }
    }

    /// Names come from drivers and are ASCII; other bytes are shown as replacement characters.
    fn text(&mut self) -> Result<String, FactsError> {
        let length = self.count("bytes of text", MAX_TEXT)?;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn answer(&mut self) -> Result<Answer<i32>, FactsError> {
        Ok(Answer { code: self.u32()?, value: self.i32()? })
    }

    fn end(&self) -> Result<(), FactsError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FactsError::Trailing { left: self.rest.len() }) }
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
            attributes: vec![Answer { code: 0, value: 1024 }, Answer { code: 1, value: 0 }],
        };
        let peer = PeerFacts { can_access: Answer { code: 0, value: 1 }, ..PeerFacts::default() };
        Facts { driver_version: 13000, devices: vec![device.clone(), device], peers: vec![peer; 4] }
    }

    fn context() -> ContextFacts {
        ContextFacts { id: 7, greatest_priority: -5, limits: vec![Answer { code: 0, value: 1024 }], ..Default::default() }
    }

    #[test]
    fn facts_survive_the_wire() {
        assert_eq!(Facts::decode(&sample().encode()), Ok(sample()));
        assert_eq!(ContextFacts::decode(&context().encode()), Ok(context()));
    }

    #[test]
    fn every_cut_is_an_error() {
        let (facts, context) = (sample().encode(), context().encode());
        for cut in 0..facts.len() {
            assert!(matches!(Facts::decode(&facts[..cut]), Err(FactsError::Truncated { .. })), "cut at {cut}");
        }
        for cut in 0..context.len() {
            assert!(matches!(ContextFacts::decode(&context[..cut]), Err(FactsError::Truncated { .. })), "cut at {cut}");
        }
    }

    #[test]
    fn a_count_beyond_its_bound_is_named() {
        let mut bytes = sample().encode();
        bytes[4..8].copy_from_slice(&65_u32.to_le_bytes());
        assert_eq!(Facts::decode(&bytes), Err(FactsError::TooMany { what: "devices", found: 65, most: 64 }));
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
        assert_eq!(facts.devices[0].attribute(1), Some(Answer { code: 0, value: 1024 }));
        assert_eq!(facts.devices[0].attribute(0), None);
        assert_eq!(facts.devices[0].attribute(3), None);
        assert_eq!(facts.peer(1, 1).map(|peer| peer.can_access.value), Some(1));
        assert!(facts.peer(0, 2).is_none());
    }
}
