//! Repeatable random numbers, from which tests make their input.

/// The generator (xorshift, 64 bits). It starts at any number but 0.
pub(crate) struct Random(pub(crate) u64);

#[allow(dead_code, reason = "each test takes what it needs")]
impl Random {
    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns an index into a list of `length` elements; 0 for an empty one.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length.max(1) as u64) as usize
    }

    /// Returns a random byte.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}
