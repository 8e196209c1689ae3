//! The session key: a process that knows it may attach to a session, or request its snapshot.
//!
//! It is 128 random bits that the server makes. The rule: keys are compared in a time that does not depend on where
//! they differ, and never shown whole, so that neither a patient peer nor a log gives one away.

use std::fmt;

use crate::codec::Field;

/// Names one session, and proves that a request comes from its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey(pub [u8; 16]);

impl SessionKey {
    /// No session: the request for a new one.
    pub const NONE: Self = Self([0; 16]);

    /// Whether this is [`SessionKey::NONE`].
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.matches(&Self::NONE)
    }

    /// Returns whether both are equal, by comparing every byte.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        let different = self.0.iter().zip(&other.0).fold(0, |seen, (left, right)| seen | (left ^ right));
        // Keeps the compiler from ending the loop early once the answer is known.
        std::hint::black_box(different) == 0
    }

    /// Returns all 32 digits, for a note that no other process reads.
    #[must_use]
    pub fn spelled(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the result of [`SessionKey::spelled`].
    #[must_use]
    pub fn from_spelled(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

/// Shows only the first digits: enough to tell two sessions apart in a log, too few for access.
impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0;
        write!(out, "SessionKey({a:02x}{b:02x}…)")
    }
}

impl Field for SessionKey {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(Self(*key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_matches() {
        let key = SessionKey(std::array::from_fn(|at| at as u8));
        assert!(key.matches(&key) && !key.is_none() && SessionKey::NONE.is_none());
        for at in 0..16 {
            let mut other = key;
            other.0[at] ^= 0x10;
            assert!(!key.matches(&other), "byte {at}");
        }
    }

    #[test]
    fn a_key_is_never_shown_whole() {
        let key = SessionKey([0xab; 16]);
        assert_eq!(format!("{key:?}"), "SessionKey(abab…)");
    }

    #[test]
    fn a_printed_key_parses_to_itself() {
        let key = SessionKey(std::array::from_fn(|at| (at * 17) as u8));
        assert_eq!(SessionKey::from_spelled(&key.spelled()), Some(key));
        for wrong in ["", "00", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31)), &"ü".repeat(16)] {
            assert_eq!(SessionKey::from_spelled(wrong), None, "{wrong}");
        }
    }
}
