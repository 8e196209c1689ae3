//! Cache policies that are made while a kernel runs.

use super::lanes::operations;

/// The bits of a policy that say which fraction of the accesses it is for: sixteenths, less one.
pub(crate) fn fraction(fraction: f32) -> u64 {
    ((fraction * 16.0).ceil().clamp(1.0, 16.0) as u64 - 1) << 52
}

operations! {
    /// `createpolicy.fractional` of a fraction in a register
    Fraction(f32) -> u64 = |a| fraction(a);
}
