//! Attributes of streams: checked as a GPU's driver does, and stored. They have no effect: all are hints about caches, waiting,
//! and order that softcuda always keeps.

use katydid_cuda_sys::{CUresult, stream_attribute as id, stream_attribute_bytes};
use katydid_driver_rules::stream::priority;

use crate::ffi::Outcome;
use crate::process::attributes::{MAX_ACCESS_WINDOW_BYTES, SYNC_DOMAINS};

/// Best priority; 0 is the lowest. All have the same effect.
pub(crate) const GREATEST_PRIORITY: i32 = -5;
/// Longest value, in bytes.
pub(crate) const MAX_ATTRIBUTE_BYTES: usize = 32;
/// `CU_SYNC_POLICY_BLOCKING_SYNC`, the last synchronisation policy.
const LAST_SYNC_POLICY: u32 = 4;
/// `CU_ACCESS_PROPERTY_STREAMING`: the largest property for misses.
const ACCESS_PROPERTY_STREAMING: u32 = 1;

/// The attributes of one stream, each as the bytes that a program sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamAttributes {
    window: [u8; MAX_ATTRIBUTE_BYTES],
    policy: [u8; 4],
    priority: [u8; 4],
    map: [u8; 2],
    domain: [u8; 4],
}

/// A little-endian word of a value.
fn word(value: &[u8], at: usize) -> u32 {
    value.as_chunks().0.get(at).copied().map_or(0, u32::from_le_bytes)
}

impl StreamAttributes {
    /// Returns the attributes of a new stream.
    pub(crate) fn new(priority: i32) -> Self {
        Self {
            window: [0; MAX_ATTRIBUTE_BYTES],
            policy: u32::MAX.to_le_bytes(),
            priority: priority.to_le_bytes(),
            map: [0, 1],
            domain: [0; 4],
        }
    }

    /// Returns the bytes of an attribute. An attribute that streams do not have fails with `INVALID_VALUE`.
    pub(crate) fn get(&self, attribute: u32) -> Outcome<&[u8]> {
        Ok(match attribute {
            id::ACCESS_POLICY_WINDOW => &self.window,
            id::SYNCHRONIZATION_POLICY => &self.policy,
            id::PRIORITY => &self.priority,
            id::MEM_SYNC_DOMAIN_MAP => &self.map,
            id::MEM_SYNC_DOMAIN => &self.domain,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        })
    }

    /// Replaces an attribute by the first bytes of `value`.
    pub(crate) fn set(&mut self, attribute: u32, value: &[u8; MAX_ATTRIBUTE_BYTES]) -> Outcome {
        let bytes = stream_attribute_bytes(attribute).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let first = word(value, 0);
        let fits = match attribute {
            id::ACCESS_POLICY_WINDOW => window_fits(value),
            id::SYNCHRONIZATION_POLICY => (1..=LAST_SYNC_POLICY).contains(&first),
            id::MEM_SYNC_DOMAIN_MAP => value[..2].iter().all(|domain| *domain < SYNC_DOMAINS),
            id::MEM_SYNC_DOMAIN => first <= 1,
            _ => true,
        };
        if !fits {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        match attribute {
            id::ACCESS_POLICY_WINDOW => self.window = *value,
            id::SYNCHRONIZATION_POLICY => self.policy.copy_from_slice(&value[..bytes]),
            id::PRIORITY => self.priority = priority(first.cast_signed(), 0, GREATEST_PRIORITY).to_le_bytes(),
            id::MEM_SYNC_DOMAIN_MAP => self.map.copy_from_slice(&value[..bytes]),
            _ => self.domain.copy_from_slice(&value[..bytes]),
        }
        Ok(())
    }
}

/// Returns whether a window is small enough, its hit ratio at most 1, and its misses not persistent.
fn window_fits(value: &[u8; MAX_ATTRIBUTE_BYTES]) -> bool {
    let bytes = u64::from(word(value, 2)) | u64::from(word(value, 3)) << 32;
    let share = f32::from_bits(word(value, 4));
    bytes <= MAX_ACCESS_WINDOW_BYTES && (0.0..=1.0).contains(&share) && word(value, 6) <= ACCESS_PROPERTY_STREAMING
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> [u8; MAX_ATTRIBUTE_BYTES] {
        let mut value = [0; MAX_ATTRIBUTE_BYTES];
        value[..bytes.len()].copy_from_slice(bytes);
        value
    }

    #[test]
    fn values_outside_what_the_driver_takes_are_refused_and_change_nothing() {
        let mut attributes = StreamAttributes::new(-2);
        for (attribute, bytes) in [
            (id::SYNCHRONIZATION_POLICY, [0, 0]),
            (id::SYNCHRONIZATION_POLICY, [5, 0]),
            (id::MEM_SYNC_DOMAIN_MAP, [0, 4]),
            (id::MEM_SYNC_DOMAIN, [2, 0]),
            (2, [1, 0]),
        ] {
            let refused = attributes.set(attribute, &value(&bytes));
            assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE), "{attribute}");
        }
        assert_eq!(attributes.get(id::SYNCHRONIZATION_POLICY), Ok(&[0xff; 4][..]));
        assert_eq!(attributes.get(id::MEM_SYNC_DOMAIN_MAP), Ok(&[0, 1][..]));
        assert_eq!(attributes.get(id::PRIORITY), Ok(&(-2_i32).to_le_bytes()[..]));
    }

    #[test]
    fn a_priority_is_clamped() {
        let mut attributes = StreamAttributes::new(0);
        attributes.set(id::PRIORITY, &value(&(-9_i32).to_le_bytes())).unwrap();
        assert_eq!(attributes.get(id::PRIORITY), Ok(&GREATEST_PRIORITY.to_le_bytes()[..]));
        attributes.set(id::PRIORITY, &value(&[3])).unwrap();
        assert_eq!(attributes.get(id::PRIORITY), Ok(&[0; 4][..]));
    }

    #[test]
    fn a_window_has_a_size_and_a_share() {
        let window = |bytes: u64, share: f32, miss: u32| {
            let mut value = [0; MAX_ATTRIBUTE_BYTES];
            value[8..16].copy_from_slice(&bytes.to_le_bytes());
            value[16..20].copy_from_slice(&share.to_le_bytes());
            value[24..28].copy_from_slice(&miss.to_le_bytes());
            StreamAttributes::new(0).set(id::ACCESS_POLICY_WINDOW, &value)
        };
        assert_eq!(window(4096, 0.5, 1), Ok(()));
        for wrong in [window(1 << 30, 0.5, 1), window(4096, 1.5, 1), window(4096, f32::NAN, 1), window(4096, 0.5, 2)] {
            assert_eq!(wrong, Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
