//! Cache policies that kernels create at run time.

use super::lanes::operations;

/// Returns the bits of a policy for a fraction of the accesses: sixteenths, minus one.
pub(crate) fn fraction(fraction: f32) -> u64 {
    ((fraction * 16.0).ceil().clamp(1.0, 16.0) as u64 - 1) << 52
}

operations! {
    /// `createpolicy.fractional` of a fraction in a register
    Fraction(f32) -> u64 = |a| fraction(a);
}
