//! Reads the parts inside a message's bytes. A part that is damaged ends the session: no honest program sends one.

use katydid_wire::codec::Field;
use katydid_wire::opencl::list;

use crate::calls::fault::{Fault, SessionError};

/// The bytes of one message, read from the front.
pub(crate) struct Arguments<'a> {
    message: &'static str,
    remaining: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(message: &'static str, remaining: &'a [u8]) -> Self {
        Self { message, remaining }
    }

    fn damaged(&self, part: &'static str) -> Fault {
        SessionError::BadPart { message: self.message, part }.into()
    }

    /// Takes the next value; `part` names it in the error.
    pub(crate) fn take<T: Field>(&mut self, part: &'static str) -> Result<T, Fault> {
        T::take(&mut self.remaining).ok_or_else(|| self.damaged(part))
    }

    /// Takes the next list; `part` names it in the error.
    pub(crate) fn list<T: Field>(&mut self, part: &'static str) -> Result<Vec<T>, Fault> {
        list::take(&mut self.remaining).ok_or_else(|| self.damaged(part))
    }

    /// Takes the next list, which must hold pairs: a driver reads past half a pair.
    pub(crate) fn pairs<T: Field>(&mut self, part: &'static str) -> Result<Vec<T>, Fault> {
        let list = self.list(part)?;
        if list.len().is_multiple_of(2) { Ok(list) } else { Err(self.damaged(part)) }
    }

    /// Takes `N` numbers and converts them to `usize`, as the driver takes them.
    pub(crate) fn sizes<const N: usize>(&mut self, part: &'static str) -> Result<[usize; N], Fault> {
        let mut sizes = [0; N];
        for size in &mut sizes {
            *size = self.take::<u64>(part)? as usize;
        }
        Ok(sizes)
    }

    /// Returns all bytes that are left.
    pub(crate) fn remaining(self) -> &'a [u8] {
        self.remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_parts_are_named() {
        let mut arguments = Arguments::new("kdclX", &[1, 0, 0, 0, 5, 0, 0, 0, 9]);
        assert_eq!(arguments.list::<u32>("ids").unwrap(), [5]);
        let error = arguments.take::<u64>("flags").unwrap_err().to_string();
        assert_eq!(error, "the program sent kdclX with damaged flags");
        assert_eq!(arguments.remaining(), [9]);
    }

    #[test]
    fn half_a_pair_is_damage() {
        let list = [2, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0];
        assert_eq!(Arguments::new("kdclX", &list).pairs::<u32>("properties").unwrap(), [5, 9]);
        let half = Arguments::new("kdclX", &[1, 0, 0, 0, 5, 0, 0, 0]).pairs::<u32>("properties");
        assert!(half.unwrap_err().to_string().ends_with("with damaged properties"));
        assert!(Arguments::new("kdclX", &[0; 4]).pairs::<u32>("properties").unwrap().is_empty());
    }
}
