//! The envelope of the two protocols beside the frames, [`job`](crate::job) and [`companion`](crate::companion).
//!
//! | offset | bytes | field                                                      |
//! |-------:|------:|------------------------------------------------------------|
//! |      0 |     4 | `length` of the whole message, 8 to the protocol's maximum |
//! |      4 |     2 | `kind`: which message                                      |
//! |      6 |     2 | zero                                                       |
//! |      8 |       | the message's fields, as in frames (`codec`)               |
//!
//! The rule: a length is bounded before it sizes anything, nothing is read past it, and extra bytes are refused.

use crate::codec::CodecError;

/// Bytes before the fields.
pub const HEAD_BYTES: usize = 8;

/// Why a message was refused. The connection ends, because the two sides no longer agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The announced length is out of bounds.
    #[error("a message of {length} bytes was announced; messages have {HEAD_BYTES} to {limit} bytes")]
    Length {
        /// Length that the message's head announces, in bytes.
        length: u32,
        /// Most bytes that a message of the protocol has, its head included.
        limit: usize,
    },
    /// The number of bytes is not the announced length.
    #[error("a message of {announced} bytes has {received}")]
    Cut {
        /// Length that the message's head announces, in bytes.
        announced: usize,
        /// Bytes of the message that the caller passed.
        received: usize,
    },
    /// A reserved field is in use.
    #[error("a message's reserved bits {bits:#x} have no meaning")]
    Reserved {
        /// Value of the reserved field, which must be 0.
        bits: u16,
    },
    /// The message is not part of this protocol.
    #[error("message {kind} is not known here; are both sides of the same release?")]
    Unknown {
        /// Number of the message in its head.
        kind: u16,
    },
    /// The fields of the message are too short or too long.
    #[error(transparent)]
    Fields(#[from] CodecError),
    /// The caller's own message fits no envelope.
    #[error("a message of {length} bytes does not fit; messages have at most {limit} bytes")]
    TooLarge {
        /// Length that the message would have, in bytes.
        length: usize,
        /// Most bytes that a message of the protocol has, its head included.
        limit: usize,
    },
}

/// Returns the length of the message that starts with `head`, at most `limit` bytes.
///
/// # Errors
///
/// [`EnvelopeError::Length`].
pub fn length(head: &[u8; HEAD_BYTES], limit: usize) -> Result<usize, EnvelopeError> {
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let fits = (HEAD_BYTES..=limit).contains(&(length as usize));
    if fits { Ok(length as usize) } else { Err(EnvelopeError::Length { length, limit }) }
}

/// Begins a message with room for its head. The fields follow, then [`seal`].
#[must_use]
pub(crate) fn begin() -> Vec<u8> {
    vec![0; HEAD_BYTES]
}

/// Writes the head of an otherwise complete message.
pub(crate) fn seal(mut message: Vec<u8>, kind: u16, limit: usize) -> Result<Vec<u8>, EnvelopeError> {
    let length = message.len();
    let announced = u32::try_from(length).ok().filter(|_| length <= limit);
    let announced = announced.ok_or(EnvelopeError::TooLarge { length, limit })?;
    message[..4].copy_from_slice(&announced.to_le_bytes());
    message[4..6].copy_from_slice(&kind.to_le_bytes());
    Ok(message)
}

/// Returns kind and fields of a whole message.
pub(crate) fn open(message: &[u8], limit: usize) -> Result<(u16, &[u8]), EnvelopeError> {
    let cut = |announced| EnvelopeError::Cut { announced, received: message.len() };
    let (head, fields) = message.split_first_chunk().ok_or_else(|| cut(HEAD_BYTES))?;
    let announced = length(head, limit)?;
    if announced != message.len() {
        return Err(cut(announced));
    }
    match u16::from_le_bytes([head[6], head[7]]) {
        0 => Ok((u16::from_le_bytes([head[4], head[5]]), fields)),
        bits => Err(EnvelopeError::Reserved { bits }),
    }
}

/// Declares the messages of one direction: an enumeration that encodes and decodes itself. Each line is the message's number, its
/// name and its fields.
macro_rules! messages {
    (
        $(#[$doc:meta])* $name:ident at most $limit:expr;
        $($(#[$variant_doc:meta])* $number:literal $variant:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant { $($(#[$field_doc])* $field: $ty,)* },)*
        }

        impl $name {
            /// Encodes the whole message.
            ///
            /// # Errors
            ///
            /// [`EnvelopeError::TooLarge`].
            pub fn encode(&self) -> Result<Vec<u8>, EnvelopeError> {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        #[allow(unused_mut, reason = "not every message has fields")]
                        let mut message = envelope::begin();
                        $($field.put(&mut message);)*
                        envelope::seal(message, $number, $limit)
                    })*
                }
            }

            /// Decodes a whole message.
            ///
            /// # Errors
            ///
            /// [`EnvelopeError`]: the bytes are invalid.
            pub fn decode(message: &[u8]) -> Result<Self, EnvelopeError> {
                let (kind, fields) = envelope::open(message, $limit)?;
                match kind {
                    $($number => {
                        #[allow(unused_mut, reason = "not every message has fields")]
                        let mut reader = Reader::new(stringify!($variant), fields);
                        let message = Self::$variant { $($field: reader.take()?,)* };
                        Ok(reader.finish(message)?)
                    })*
                    kind => Err(EnvelopeError::Unknown { kind }),
                }
            }
        }
    };
}

pub(crate) use messages;

#[cfg(test)]
pub(crate) mod mutations {
    //! Tests for every protocol of this envelope.

    use super::*;

    /// A small random generator, so that a failure repeats.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Checks that no damage of `messages` makes `decode` panic, that accepted messages survive a round trip, and that every cut
    /// is refused.
    pub(crate) fn survive<M: PartialEq + std::fmt::Debug>(
        messages: &[M],
        encode: impl Fn(&M) -> Result<Vec<u8>, EnvelopeError>,
        decode: impl Fn(&[u8]) -> Result<M, EnvelopeError>,
    ) {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut decoded_count = 0;
        for message in messages {
            let bytes = encode(message).unwrap();
            assert_eq!(decode(&bytes).as_ref(), Ok(message));
            for end in 0..bytes.len() {
                assert!(decode(&bytes[..end]).is_err(), "{message:?} cut to {end} bytes");
            }
            for _ in 0..20_000 {
                let mut copy = bytes.clone();
                for _ in 0..1 + random(&mut state) % 3 {
                    let at = random(&mut state) as usize % copy.len();
                    copy[at] = random(&mut state) as u8;
                }
                if random(&mut state).is_multiple_of(4) {
                    copy.truncate(random(&mut state) as usize % copy.len());
                    // Half of the cuts adjust the length, so that they reach the fields.
                    if copy.len() >= HEAD_BYTES && copy.len().is_multiple_of(2) {
                        let length = (copy.len() as u32).to_le_bytes();
                        copy[..4].copy_from_slice(&length);
                    }
                }
                if let Ok(message) = decode(&copy) {
                    decoded_count += 1;
                    assert_eq!(encode(&message).unwrap(), copy);
                }
            }
        }
        assert!(decoded_count > 0, "no mutation was ever taken, so nothing was tried beyond the head");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_bounded_before_it_sizes_anything() {
        for length in [0, 7, 101, u32::MAX] {
            let head = u64::from(length).to_le_bytes();
            assert_eq!(super::length(&head, 100), Err(EnvelopeError::Length { length, limit: 100 }));
        }
        assert_eq!(super::length(&100u64.to_le_bytes(), 100), Ok(100));
    }

    #[test]
    fn a_message_beyond_the_maximum_is_not_written() {
        let message = vec![0; 101];
        assert_eq!(seal(message, 1, 100), Err(EnvelopeError::TooLarge { length: 101, limit: 100 }));
    }

    #[test]
    fn reserved_bits_are_refused() {
        let mut message = seal(begin(), 3, 100).unwrap();
        assert_eq!(open(&message, 100), Ok((3, &[][..])));
        message[7] = 1;
        assert_eq!(open(&message, 100), Err(EnvelopeError::Reserved { bits: 0x100 }));
    }
}
