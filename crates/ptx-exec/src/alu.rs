//! Operations on lanes that need no memory, no other lane and no scheduler.
//!
//! Each operation is a type with one branch-free `apply`; `lanes` makes 32-lane code of it. The decoder selects the operation.
//! `alu` neither knows opcodes nor sees operands.

pub(crate) mod approx;
pub(crate) mod bits;
pub(crate) mod cache_policy;
pub(crate) mod carry;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod convert_half;
pub(crate) mod convert_slow;
pub(crate) mod element;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod half_bits;
pub(crate) mod half_slow;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod moves;
pub(crate) mod predicate;
pub(crate) mod round;
pub(crate) mod small;
pub(crate) mod video;

use std::sync::atomic::{AtomicU8, Ordering};

/// Versions of the lane code, by the vector registers that they need.
pub(crate) mod level {
    /// The instruction set that every CPU of the architecture has.
    pub(crate) const BASELINE: u8 = 1;
    /// AVX2 with its usual companions: 32-byte registers.
    pub(crate) const AVX2: u8 = 2;
    /// AVX-512 as every CPU but the first one has it: 64-byte registers.
    pub(crate) const AVX512: u8 = 3;
}

/// Returns the best version for this CPU. Called once per instruction while decoding, and on slow paths.
pub(crate) fn level() -> u8 {
    static LEVEL: AtomicU8 = AtomicU8::new(0);
    match LEVEL.load(Ordering::Relaxed) {
        0 => {
            let level = detect();
            LEVEL.store(level, Ordering::Relaxed);
            level
        }
        level => level,
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> u8 {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => level::AVX512,
        (true, false) => level::AVX2,
        _ => level::BASELINE,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> u8 {
    level::BASELINE
}
