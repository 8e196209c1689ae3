//! The bits of 16-bit floats, and conversions to and from `f32`.

/// The `f32` of the `f16` in the low half of `lane`.
#[inline(always)]
pub(crate) fn f16_to_f32(lane: u32) -> f32 {
    let sign = (lane & 0x8000) << 16;
    let magnitude = lane & 0x7fff;
    // Exponent and mantissa moved into place, then 112 added to the exponent by a multiplication, which also
    // normalises subnormals.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(0x7f80_0000 | (magnitude << 13));
    let value = if magnitude >= 0x7c00 { special } else { scaled };
    f32::from_bits(value.to_bits() | sign)
}

/// The nearest `f16`, ties to even; NaN becomes `0x7fff`.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias, add half an ulp less one plus the last kept bit, drop 13 bits.
    let rebiased = magnitude.wrapping_sub(112 << 23);
    let normal = rebiased.wrapping_add(0x0fff).wrapping_add((rebiased >> 13) & 1) >> 13;
    // Subnormal results: adding 0.5 aligns their last bit with that of the sum, which rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let finite = if magnitude < (113 << 23) { subnormal } else { normal };
    let rounded = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if magnitude > 0x7f80_0000 { 0x7fff } else { rounded | sign }
}

/// The `f32` of the `bf16` in the low half of `lane`.
#[inline(always)]
pub(crate) fn bf16_to_f32(lane: u32) -> f32 {
    f32::from_bits(lane << 16)
}

/// The nearest `bf16`, ties to even; NaN becomes `0x7fff`.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}
