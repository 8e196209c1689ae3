//! The encoding of values: little-endian, packed, bounded. Bytes in, values out; no I/O.
//!
//! A request is its fields in the order of its spec line; a last field of bytes is the rest of the frame. In a reply, a length
//! precedes bytes (`u32`).

/// Why a payload was refused. The session ends, because the two sides no longer agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The payload ends inside a field.
    #[error("{message}: payload ends after {length} bytes, inside a field")]
    Short {
        /// Name of the message.
        message: &'static str,
        /// Bytes of the payload.
        length: usize,
    },
    /// The payload continues after the last field.
    #[error("{message}: {extra} bytes follow the last field")]
    Long {
        /// Name of the message.
        message: &'static str,
        /// Bytes behind the last field.
        extra: usize,
    },
}

/// A message from shim to worker.
pub trait Message {
    /// Number of the message: the position of its line in the spec.
    const OPCODE: u16;
    /// Name of the message, for logs and errors.
    const NAME: &'static str;
    /// Whether the message creates, ends or changes an object of the worker. Its sender relies only on the result for that
    /// object.
    const CHANGES_OBJECTS: bool = false;
    /// The worker's answer; `()` if it has none.
    type Reply: Reply;

    /// Appends all fields except a last one of bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the last field, if it is bytes, to be sent without a copy.
    fn tail(&self) -> &[u8] {
        &[]
    }
}

/// A reply of the worker.
pub trait Reply: Sized {
    /// Appends all fields; for a last one of bytes, only its length.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the bytes at the end of the reply, to be sent without a copy.
    fn tail(&self) -> &[u8] {
        &[]
    }

    /// Returns the bytes at the end of the reply, for a caller that reuses their memory.
    fn into_tail(self) -> Vec<u8> {
        Vec::new()
    }

    /// Decodes all fields.
    ///
    /// # Errors
    ///
    /// The payload is too short or too long.
    fn decode(payload: &[u8]) -> Result<Self, CodecError>;
}

impl Reply for () {
    fn encode(&self, _out: &mut Vec<u8>) {}

    fn decode(payload: &[u8]) -> Result<Self, CodecError> {
        Reader::new("empty reply", payload).finish(())
    }
}

/// A value that can be encoded.
pub trait Field: Sized {
    /// Appends the value's encoding to `out`.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes the value from the front of `bytes`; `None` if they do not suffice.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($ty:ident)*) => {$(
        impl Field for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some($ty::from_le_bytes(*number))
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 i32 i64 f32 f64 }

impl Field for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        // A reply is far below 4 GiB: the transport refuses longer ones before they are sent.
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(self);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let length = u32::take(bytes)? as usize;
        let (body, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(body.to_vec())
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_bytes().to_vec().put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Vec::take(bytes)?).ok()
    }
}

/// Reads the fields of one payload.
pub struct Reader<'a> {
    message: &'static str,
    length: usize,
    unread: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `payload`; `message` names it in errors.
    pub fn new(message: &'static str, payload: &'a [u8]) -> Self {
        Self { message, length: payload.len(), unread: payload }
    }

    /// Reads the next field.
    ///
    /// # Errors
    ///
    /// The payload ends first.
    pub fn take<T: Field>(&mut self) -> Result<T, CodecError> {
        T::take(&mut self.unread).ok_or(CodecError::Short { message: self.message, length: self.length })
    }

    /// Takes all remaining bytes.
    pub fn take_remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.unread)
    }

    /// Returns `value`, if no bytes are left.
    ///
    /// # Errors
    ///
    /// Bytes follow the last field.
    pub fn finish<T>(self, value: T) -> Result<T, CodecError> {
        match self.unread.len() {
            0 => Ok(value),
            extra => Err(CodecError::Long { message: self.message, extra }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_order() {
        let mut bytes = Vec::new();
        7u32.put(&mut bytes);
        vec![1u8, 2, 3].put(&mut bytes);
        (-1i32).put(&mut bytes);
        let mut reader = Reader::new("test", &bytes);
        assert_eq!(reader.take::<u32>(), Ok(7));
        assert_eq!(reader.take::<Vec<u8>>(), Ok(vec![1, 2, 3]));
        assert_eq!(reader.take::<i32>(), Ok(-1));
        assert_eq!(reader.finish(()), Ok(()));
    }

    #[test]
    fn short_and_long_payloads_are_refused() {
        let mut reader = Reader::new("test", &[1, 2, 3]);
        assert_eq!(reader.take::<u32>(), Err(CodecError::Short { message: "test", length: 3 }));
        assert_eq!(Reader::new("test", &[0]).finish(()), Err(CodecError::Long { message: "test", extra: 1 }));
    }

    #[test]
    fn a_length_beyond_the_payload_takes_nothing() {
        let mut reader = Reader::new("test", &[255, 255, 255, 255, 1]);
        assert!(reader.take::<Vec<u8>>().is_err());
    }
}
