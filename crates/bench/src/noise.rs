//! Incompressible contents, in memory that has been written before.
//!
//! Reads of fresh memory all hit one page of zeros, which every core has in its cache. The first write to a page costs more
//! than the copy into it.

/// Bytes after which the noise repeats.
const PERIOD_BYTES: usize = 64 << 20;

/// Returns `bytes` bytes of noise, the same in every call.
pub(super) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let once = bytes.min(PERIOD_BYTES).next_multiple_of(8);
    let mut noise = Vec::with_capacity(bytes.next_multiple_of(8));
    noise.extend((0..once / 8).flat_map(|_| next().to_le_bytes()));
    while noise.len() < bytes {
        noise.extend_from_within(..(bytes - noise.len()).min(once));
    }
    noise.truncate(bytes);
    noise
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_its_length_and_repeats_only_after_its_period() {
        for bytes in [0, 1, 8, 1001] {
            assert_eq!(noise(bytes).len(), bytes);
        }
        let long = noise(PERIOD_BYTES + 5);
        assert!(long[..1 << 20] != long[1 << 20..2 << 20] && long[PERIOD_BYTES..] == long[..5]);
    }
}
