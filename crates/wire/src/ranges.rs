//! Ranges of memory in `kdHostPull`: consecutive records of an address (8 bytes) and a size (4), little-endian.

/// Bytes of a record.
const RANGE_BYTES: usize = 12;

/// Encodes ranges, given by address and size.
pub fn encode(ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut list = Vec::with_capacity(ranges.len() * RANGE_BYTES);
    for (address, size) in ranges {
        list.extend_from_slice(&address.to_le_bytes());
        list.extend_from_slice(&size.to_le_bytes());
    }
    list
}

/// Decodes all ranges of a list. Returns `None` if the bytes are not whole records, or empty, and for a range without a byte.
pub fn decode(list: &[u8]) -> Option<Vec<(u64, u32)>> {
    let (records, rest) = list.as_chunks::<RANGE_BYTES>();
    let ranges: Vec<_> = records.iter().map(range).collect();
    let is_whole = rest.is_empty() && !ranges.is_empty() && ranges.iter().all(|(_, size)| *size > 0);
    is_whole.then_some(ranges)
}

fn range(record: &[u8; RANGE_BYTES]) -> (u64, u32) {
    let (address, size) = record.split_at(8);
    let address = address.as_chunks().0.first().copied().map_or(0, u64::from_le_bytes);
    (address, size.as_chunks().0.first().copied().map_or(0, u32::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back_as_they_were() {
        let ranges = [(0x3000_0000_1000, 4096), (u64::MAX, u32::MAX), (0, 1)];
        assert_eq!(decode(&encode(&ranges)), Some(ranges.to_vec()));
    }

    #[test]
    fn no_ranges_parts_of_one_and_empty_ones_are_refused() {
        let encoded = encode(&[(1, 1)]);
        for length in 0..encoded.len() {
            assert_eq!(decode(&encoded[..length]), None, "{length} bytes");
        }
        assert_eq!(decode(&encode(&[(1, 1), (1, 0)])), None);
    }
}
