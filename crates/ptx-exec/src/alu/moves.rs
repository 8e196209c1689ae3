//! Moves without arithmetic: `mov`, packing and unpacking, `selp`, logic on predicates.

use super::element::Element;
use super::lanes::{dispatched, operations};
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES};

operations! {
    /// `mov.b32` and narrower
    Copy32(u32) -> u32 = |a| a;
    /// `mov.b64`
    Copy64(u64) -> u64 = |a| a;
    /// `mov.b64 d, {a, b}`
    Pack64(u32, u32) -> u64 = |a, b| u64::from(a) | u64::from(b) << 32;
    /// The first half of `mov.b64 {a, b}, d`
    Low32(u64) -> u32 = |a| a as u32;
    /// The second half of `mov.b64 {a, b}, d`
    High32(u64) -> u32 = |a| (a >> 32) as u32;
    /// `mov.b32 d, {a, b}`
    Pack32(u32, u32) -> u32 = |a, b| (a & 0xffff) | b << 16;
    /// The first half of `mov.b32 {a, b}, d`
    Low16(u32) -> u32 = |a| a & 0xffff;
    /// The second half of `mov.b32 {a, b}, d`
    High16(u32) -> u32 = |a| a >> 16;
    /// `mov.b16 d, {a, b}`
    Pack16(u32, u32) -> u32 = |a, b| (a & 0xff) | (b & 0xff) << 8;
    /// The first half of `mov.b16 {a, b}, d`
    Low8(u32) -> u32 = |a| a & 0xff;
    /// The second half of `mov.b16 {a, b}, d`
    High8(u32) -> u32 = |a| (a >> 8) & 0xff;
}

/// Selects the lanes of `a` where `bits` is set, else those of `b`.
#[inline(always)]
fn choose<T: Raw>(out: &mut [T; WARP_LANES], a: &[T; WARP_LANES], b: &[T; WARP_LANES], bits: u32) {
    for lane in 0..WARP_LANES {
        out[lane] = T::select((bits >> lane) & 1 != 0, a[lane], b[lane]);
    }
}

/// `selp`: `a` where predicate `c` is true, else `b`.
#[inline(always)]
fn select_body<T: Plain>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let registers = &machine.registers;
    let mut out = [T::ZERO; WARP_LANES];
    choose(&mut out, registers.row(inst.a), registers.row(inst.b), registers.bits(inst.c));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// Types that rows hold unchanged.
pub(crate) trait Plain: Element<Lane = Self> + Raw {}

impl Plain for u32 {}
impl Plain for u64 {}

dispatched!(
    /// Code for `selp`.
    select, select_avx2, select_body, Plain
);

/// Logic on predicates, with lanes as bits.
macro_rules! predicates {
    ($($(#[$doc:meta])* $name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
            let ($a, $b) = (machine.registers.bits(inst.a), machine.registers.bits(inst.b));
            machine.registers.set_bits(inst.d, machine.mask, $body);
            Flow::Next
        }
    )*};
}

predicates! {
    /// `mov.pred`; the second operand repeats the first.
    copy_predicate = |a, _b| a;
    /// `not.pred`
    not_predicate = |a, _b| !a;
    /// `and.pred`
    and_predicate = |a, b| a & b;
    /// `or.pred`
    or_predicate = |a, b| a | b;
    /// `xor.pred`
    xor_predicate = |a, b| a ^ b;
}
