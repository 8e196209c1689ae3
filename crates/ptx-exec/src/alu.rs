//! Operations on lanes: everything that needs no memory, no other lane and no scheduler.
//!
//! Each operation is a type with one `apply`, written without branches; `lanes` makes the 32-lane code of it. The
//! decoder chooses the operation, `alu` neither knows opcodes nor sees operands.

pub(crate) mod approx;
pub(crate) mod bits;
pub(crate) mod carry;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod convert_slow;
pub(crate) mod element;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod moves;
pub(crate) mod round;

/// Whether the AVX-512 versions of the lane code can run here: what every such CPU but the first has.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether the AVX2 versions of the lane code can run here.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("f16c")
}
