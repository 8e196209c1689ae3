//! Changes of the memory mapped to arrays, in `kdArrayMap`: consecutive records.
//!
//! Layout of a record, [`Change::BYTES`] long, little-endian: the fields of [`Change`] in order. They are those of the header's
//! `CUarrayMapInfo`, with ids in place of handles.

/// One change. Fields have the header's names unless they are ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// `resourceType`, a `CUresourcetype`: array or mipmapped array.
    pub kind: u32,
    /// Id of the array or mipmap.
    pub array: u32,
    /// `subresourceType`, a `CUarraySparseSubresourceType`: sparse level or mip tail.
    pub part: u32,
    /// `memOperationType`, a `CUmemOperationType`: map or unmap.
    pub operation: u32,
    /// `memHandleType`, a `CUmemHandleType`.
    pub handle_kind: u32,
    /// Id of the block; 0 for none.
    pub memory: u32,
    /// `deviceBitMask`, in the worker's order.
    pub devices: u32,
    /// `flags` and `reserved`, which the driver requires to be 0.
    pub unused: [u32; 3],
    /// `subresource`, word by word.
    pub subresource: [u64; 4],
    /// `offset` in the block, in bytes.
    pub offset: u64,
}

impl Change {
    /// Bytes of a record.
    pub const BYTES: usize = 10 * 4 + 5 * 8;

    /// Encodes the record in [`Change::BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { kind, array, part, operation, handle_kind, memory, devices, unused, subresource, offset } = *self;
        let small = [kind, array, part, operation, handle_kind, memory, devices].into_iter().chain(unused);
        let mut bytes: Vec<u8> = small.flat_map(u32::to_le_bytes).collect();
        bytes.extend(subresource.into_iter().chain([offset]).flat_map(u64::to_le_bytes));
        bytes
    }

    /// Decodes all records. Returns `None` if the bytes are not whole records, or empty.
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let (records, rest) = bytes.as_chunks::<{ Self::BYTES }>();
        (rest.is_empty() && !records.is_empty()).then(|| records.iter().map(Self::decode).collect())
    }

    fn decode(record: &[u8; Self::BYTES]) -> Self {
        let (small, wide) = record.split_at(40);
        let small = |at: usize| small.as_chunks().0.get(at).copied().map_or(0, u32::from_le_bytes);
        let wide = |at: usize| wide.as_chunks().0.get(at).copied().map_or(0, u64::from_le_bytes);
        Self {
            kind: small(0),
            array: small(1),
            part: small(2),
            operation: small(3),
            handle_kind: small(4),
            memory: small(5),
            devices: small(6),
            unused: [small(7), small(8), small(9)],
            subresource: [wide(0), wide(1), wide(2), wide(3)],
            offset: wide(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let change = Change {
            kind: 1,
            array: 2,
            part: 3,
            operation: 4,
            handle_kind: 5,
            memory: 6,
            devices: 7,
            unused: [8, 9, 10],
            subresource: [11, 12, 13, u64::MAX],
            offset: 15,
        };
        let bytes = change.encode();
        assert_eq!(bytes.len(), Change::BYTES);
        let twice = [bytes.clone(), bytes.clone()].concat();
        assert_eq!(Change::decode_all(&twice), Some(vec![change; 2]));
        assert!(Change::decode_all(&[]).is_none() && Change::decode_all(&bytes[1..]).is_none());
    }
}
