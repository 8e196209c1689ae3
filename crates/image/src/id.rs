//! Identifiers: of chunks (by their contents), of images, of checkpoints.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The BLAKE3 hash of a chunk's bytes, which identifies it: equal chunks are stored once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId([u8; 32]);

/// The random id of an image. Its packs carry it, so that no other image's pack is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId([u8; 16]);

/// The number of a checkpoint in an image; numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointNumber(pub u32);

/// The text is not a valid identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0} hexadecimal digits")]
pub struct NotHex(usize);

impl ChunkId {
    /// Returns the id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Makes the id from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the id's bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl ImageId {
    /// Returns a new random id.
    ///
    /// # Errors
    ///
    /// Fails if the system has no random bytes.
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let drawn = || rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        rustix::io::retry_on_intr(drawn)?;
        Ok(Self(bytes))
    }

    /// Makes the id from its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the id's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Formats two lower-case digits for each byte.
fn hex(bytes: &[u8], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

/// Parses exactly as many digits as the id has, in either case.
fn unhex<const N: usize>(text: &str) -> Result<[u8; N], NotHex> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return Err(NotHex(2 * N));
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(NotHex(2 * N)) };
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

/// Implements hexadecimal text, in JSON too.
macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                hex(&self.0, out)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                hex(&self.0, out)
            }
        }
        impl FromStr for $name {
            type Err = NotHex;
            fn from_str(text: &str) -> Result<Self, NotHex> {
                unhex(text).map(Self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

hexadecimal!(ChunkId);
hexadecimal!(ImageId);

impl fmt::Display for CheckpointNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_text_and_refuse_anything_else() {
        let id = ChunkId::of(b"chunk");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::from_str::<ChunkId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        for text in ["", "zz", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(text.parse::<ChunkId>(), Err(NotHex(64)), "{text}");
        }
    }
}
