//! The part of protocol buffers' encoding that CRIU's files and messages use: fields of numbers and of bytes.
//!
//! The rule: input is untrusted. A length is bounded by the bytes that are there, and parsing ends at the first malformed field.

/// The value of a field.
pub(crate) enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes, which no field here has.
    Fixed,
}

/// The fields of a message, up to the first malformed one.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = self.number()?;
                FieldValue::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Fields<'a> {
    /// The value of the first field with this number that holds a number.
    pub(crate) fn number_in(mut self, field_number: u64) -> Option<u64> {
        self.find_map(|(field, value)| match value {
            FieldValue::Number(number) if field == field_number => Some(number),
            _ => None,
        })
    }

    /// The bytes of the first field with this number that holds bytes, a text or a message.
    pub(crate) fn bytes_in(mut self, field_number: u64) -> Option<&'a [u8]> {
        self.find_map(|(field, value)| match value {
            FieldValue::Bytes(bytes) if field == field_number => Some(bytes),
            _ => None,
        })
    }

    /// Each field with all its bytes, number and length included.
    pub(crate) fn with_bytes(mut self) -> impl Iterator<Item = (u64, FieldValue<'a>, &'a [u8])> {
        std::iter::from_fn(move || {
            let before = self.0;
            let (field, value) = self.next()?;
            Some((field, value, before.get(..before.len().checked_sub(self.0.len())?)?))
        })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a varint: seven bits a byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Appends a field that holds a number.
    pub(crate) fn number(mut self, field: u64, value: u64) -> Self {
        self.raw(field << 3);
        self.raw(value);
        self
    }

    /// Appends a field that holds bytes, a text or a message.
    pub(crate) fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.raw(field << 3 | 2);
        self.raw(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a field that is encoded already.
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// The encoded message.
    pub(crate) fn encoded(self) -> Vec<u8> {
        self.0
    }

    fn raw(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_encoded() {
        let message = Message::default().number(1, u64::MAX).bytes(68, b"/image").number(12, 1).encoded();
        let mut fields = Fields(&message);
        assert!(matches!(fields.next(), Some((1, FieldValue::Number(u64::MAX)))));
        assert!(matches!(fields.next(), Some((68, FieldValue::Bytes(b"/image")))));
        assert!(matches!(fields.next(), Some((12, FieldValue::Number(1)))));
        assert!(fields.next().is_none());
        assert_eq!((Fields(&message).number_in(12), Fields(&message).number_in(68)), (Some(1), None));
        assert_eq!((Fields(&message).bytes_in(68), Fields(&message).bytes_in(12)), (Some(&b"/image"[..]), None));
    }

    #[test]
    fn fields_are_copied_with_all_their_bytes() {
        let message = [Message::default().number(1, 300).bytes(6, b"/name").encoded(), vec![0x5d, 1, 2, 3, 4]].concat();
        let copy = Fields(&message).with_bytes().fold(Message::default(), |copy, (_, _, bytes)| copy.field(bytes));
        assert_eq!(copy.encoded(), message);
    }

    #[test]
    fn a_field_that_is_cut_ends_the_reading() {
        let message = Message::default().bytes(5, b"post-dump").encoded();
        for length in 0..message.len() {
            assert!(Fields(&message[..length]).next().is_none(), "{length}");
        }
    }
}
