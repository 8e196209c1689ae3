//! Bit operations: logic, counting, fields, permutes, funnel shifts, byte dot products.

use super::element::Element;
use super::lanes::operations;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES};
use std::ops::{BitAnd, BitOr, BitXor, Not};

/// Integers as bits.
pub(crate) trait Bits:
    Element<Lane = Self> + Raw + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
    /// Returns the number of set bits.
    fn ones(self) -> u32;
    /// Zero bits above the highest set one.
    fn leading(self) -> u32;
    /// The bits in reverse order.
    fn reversed(self) -> Self;
    /// Returns `len` bits of `a >> pos`, zero-extended.
    fn field(self, pos: u32, len: u32) -> Self;
    /// Returns `len` bits of `a >> pos`, sign-extended.
    fn signed_field(self, pos: u32, len: u32) -> Self;
    /// Returns `self` with `len` bits at `pos` taken from `bits`.
    fn insert(self, bits: Self, pos: u32, len: u32) -> Self;
    /// Returns the bits that differ from the sign bit, in which `bfind` of a signed number searches.
    fn unsigned_part(self) -> Self;
}

macro_rules! bits {
    ($($ty:ident, $signed:ident, $mask:expr;)*) => {$(
        impl Bits for $ty {
            #[inline(always)]
            fn ones(self) -> u32 {
                self.count_ones()
            }

            #[inline(always)]
            fn leading(self) -> u32 {
                self.leading_zeros()
            }

            #[inline(always)]
            fn reversed(self) -> Self {
                self.reverse_bits()
            }

            #[inline(always)]
            fn field(self, pos: u32, len: u32) -> Self {
                let (pos, len) = (pos & $mask, len & $mask);
                let shifted = if pos < Self::BITS { self.wrapping_shr(pos) } else { 0 };
                shifted & low_mask::<$ty>(len)
            }

            #[inline(always)]
            fn signed_field(self, pos: u32, len: u32) -> Self {
                let (pos, len) = (pos & $mask, len & $mask);
                let pos = if pos < Self::BITS { pos } else { Self::BITS - 1 };
                let shifted = (self as $signed).wrapping_shr(pos);
                let unused = if len < Self::BITS { Self::BITS - len } else { 0 };
                let extended = shifted.wrapping_shl(unused).wrapping_shr(unused) as Self;
                if len == 0 { 0 } else { extended }
            }

            #[inline(always)]
            fn insert(self, bits: Self, pos: u32, len: u32) -> Self {
                let (pos, len) = (pos & $mask, len & $mask);
                let mask = low_mask::<$ty>(len);
                let keep = !mask.wrapping_shl(pos);
                let joined = (self & keep) | (bits & mask).wrapping_shl(pos);
                if pos < Self::BITS { joined } else { self }
            }

            #[inline(always)]
            fn unsigned_part(self) -> Self {
                self ^ ((self as $signed) >> (Self::BITS - 1)) as Self
            }
        }

        impl LowMask for $ty {
            #[inline(always)]
            fn low_mask(len: u32) -> Self {
                let mask = (1 as $ty).wrapping_shl(len).wrapping_sub(1);
                if len < Self::BITS { mask } else { Self::MAX }
            }
        }
    )*};
}

/// Masks of the low bits.
trait LowMask {
    /// `len` ones.
    fn low_mask(len: u32) -> Self;
}

#[inline(always)]
fn low_mask<T: LowMask>(len: u32) -> T {
    T::low_mask(len)
}

bits! {
    u32, i32, 0xff;
    // Here the GPU uses all bits of position and length.
    u64, i64, u32::MAX;
}

/// Position of the highest set bit, or all ones.
#[inline(always)]
fn find<T: Bits>(value: T, width: u32) -> u32 {
    (width - 1).wrapping_sub(value.leading())
}

/// Returns how far left to shift so that the highest set bit becomes the top one, or all ones.
#[inline(always)]
fn find_shift<T: Bits>(value: T, width: u32) -> u32 {
    if value.leading() == width { u32::MAX } else { value.leading() }
}

/// Returns one byte of `prmt`: three bits select it, the fourth replicates its sign.
#[inline(always)]
fn permuted(both: u64, selector: u32) -> u32 {
    let byte = (both >> ((selector & 7) * 8)) as u8;
    let sign = if byte & 0x80 != 0 { 0xff } else { 0 };
    u32::from(if selector & 8 != 0 { sign } else { byte })
}

/// `prmt` in its default mode.
#[inline(always)]
fn permute(a: u32, b: u32, selectors: u32) -> u32 {
    let both = u64::from(a) | u64::from(b) << 32;
    let byte = |index: u32| permuted(both, selectors >> (4 * index)) << (8 * index);
    byte(0) | byte(1) | byte(2) | byte(3)
}

/// Selectors of the special modes of `prmt`, four for each value of `c & 3`.
macro_rules! permute_modes {
    ($($(#[$doc:meta])* $name:ident: $table:expr;)*) => {
        operations! {$(
            $(#[$doc])*
            $name(u32, u32, u32) -> u32 = |a, b, c| permute(a, b, $table[(c & 3) as usize]);
        )*}
    };
}

permute_modes! {
    /// `prmt.f4e`: four bytes forward.
    PermuteF4e: [0x3210_u32, 0x4321, 0x5432, 0x6543];
    /// `prmt.b4e`: four bytes backward.
    PermuteB4e: [0x5670_u32, 0x6701, 0x7012, 0x0123];
    /// `prmt.rc8`: one byte four times.
    PermuteRc8: [0x0000_u32, 0x1111, 0x2222, 0x3333];
    /// `prmt.ecl`: edge clamp left.
    PermuteEcl: [0x3210_u32, 0x3211, 0x3222, 0x3333];
    /// `prmt.ecr`: edge clamp right.
    PermuteEcr: [0x0000_u32, 0x1110, 0x2210, 0x3210];
    /// `prmt.rc16`: one half twice.
    PermuteRc16: [0x1010_u32, 0x3232, 0x1010, 0x3232];
}

/// Returns `width` ones at `position`, cut at the end of the word. With `beyond`, they fill the word up to its end.
#[inline(always)]
fn bit_mask(position: u32, width: u32, beyond: bool) -> u32 {
    let (start, end) = (position & 31, (position & 31) + (width & 31));
    let from = u32::MAX << start;
    let below = if beyond || end >= 32 { 0 } else { u32::MAX << (end & 31) };
    from & !below
}

/// The low `bits` bits, sign-extended.
#[inline(always)]
fn sign_extended(value: u32, bits: u32) -> u32 {
    value.signed_field(0, bits)
}

/// Returns the sum of four products of bytes; `A` and `B` tell whether the bytes are signed.
#[inline(always)]
fn dot4<const A: bool, const B: bool>(a: u32, b: u32, c: u32) -> u32 {
    let byte = |word: u32, index: u32, signed: bool| {
        let byte = (word >> (8 * index)) as u8;
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let product = |index| byte(a, index, A) * byte(b, index, B);
    c.wrapping_add((product(0) + product(1) + product(2) + product(3)).cast_unsigned())
}

/// Sum of two products of the halves of `a` with two bytes of `b`.
#[inline(always)]
fn dot2<const A: bool, const B: bool>(a: u32, b: u32, c: u32) -> u32 {
    let half = |index: u32| {
        let half = (a >> (16 * index)) as u16;
        if A { i64::from(half as i16) } else { i64::from(half) }
    };
    let byte = |index: u32| {
        let byte = (b >> (8 * index)) as u8;
        if B { i64::from(byte as i8) } else { i64::from(byte) }
    };
    c.wrapping_add((half(0) * byte(0) + half(1) * byte(1)) as u32)
}

/// Returns the absolute differences of the parts of two words, `BITS` wide; with `SUM`, their sum with `c`.
#[inline(always)]
fn distances<const BITS: u32, const SIGNED: bool, const SUM: bool>(a: u32, b: u32, c: u32) -> u32 {
    let part = |word: u32, index: u32| {
        let part = (word >> (BITS * index)).field(0, BITS);
        if SIGNED { part.signed_field(0, BITS).cast_signed() } else { part.cast_signed() }
    };
    let (mut joined, mut sum) = (0, c);
    for index in 0..32 / BITS {
        let distance = part(a, index).abs_diff(part(b, index));
        joined |= distance.field(0, BITS) << (BITS * index);
        sum = sum.wrapping_add(distance);
    }
    if SUM { sum } else { joined }
}

/// Position of the `offset`-th set bit of `mask` from `base` on (downwards when negative), or all ones.
#[inline(always)]
fn nth_set(mask: u32, base: u32, offset: u32) -> u32 {
    let offset = offset.cast_signed();
    let is_set = |position: &u32| mask >> (position & 31) & 1 != 0;
    let skip = offset.unsigned_abs().saturating_sub(1) as usize;
    let bit = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(skip),
        _ => (0..=base).rev().filter(is_set).nth(skip),
    };
    bit.unwrap_or(u32::MAX)
}

operations! {
    /// `vabsdiff2`, `vabsdiff4`
    Distances [const BITS: u32, const SIGNED: bool, const SUM: bool] (u32, u32, u32) -> u32 = |a, b, c| {
        distances::<BITS, SIGNED, SUM>(a, b, c)
    };
    /// `fns`
    NthSet(u32, u32, u32) -> u32 = |a, b, c| nth_set(a, b, c);
    /// `and`
    And<T: Bits>(T, T) -> T = |a, b| a & b;
    /// `or`
    Or<T: Bits>(T, T) -> T = |a, b| a | b;
    /// `xor`
    Xor<T: Bits>(T, T) -> T = |a, b| a ^ b;
    /// `not`
    Inverse<T: Bits>(T) -> T = |a| !a;
    /// `cnot`
    LogicalNot<T: Bits>(T) -> T = |a| if a == T::ZERO { T::narrow(1) } else { T::ZERO };
    /// `popc`
    Popc<T: Bits>(T) -> u32 = |a| a.ones();
    /// `clz`
    Clz<T: Bits>(T) -> u32 = |a| a.leading();
    /// `brev`
    Brev<T: Bits>(T) -> T = |a| a.reversed();
    /// `bfind.u32`, `bfind.u64`
    Bfind<T: Bits>(T) -> u32 = |a| find(a, size_of::<T>() as u32 * 8);
    /// `bfind.s32`, `bfind.s64`
    BfindSigned<T: Bits>(T) -> u32 = |a| find(a.unsigned_part(), size_of::<T>() as u32 * 8);
    /// `bfind.shiftamt.u32`
    BfindShift<T: Bits>(T) -> u32 = |a| find_shift(a, size_of::<T>() as u32 * 8);
    /// `bfind.shiftamt.s32`
    BfindShiftSigned<T: Bits>(T) -> u32 = |a| find_shift(a.unsigned_part(), size_of::<T>() as u32 * 8);
    /// `bfe.u32`, `bfe.u64`
    Bfe<T: Bits>(T, u32, u32) -> T = |a, b, c| a.field(b, c);
    /// `bfe.s32`, `bfe.s64`
    BfeSigned<T: Bits>(T, u32, u32) -> T = |a, b, c| a.signed_field(b, c);
    /// `prmt`
    Permute(u32, u32, u32) -> u32 = |a, b, c| permute(a, b, c);
    /// `shf.l.wrap`
    ShiftLeftWrap(u32, u32, u32) -> u32 = |a, b, c| (((u64::from(b) << 32 | u64::from(a)) << (c & 31)) >> 32) as u32;
    /// `shf.l.clamp`
    ShiftLeftClamp(u32, u32, u32) -> u32 = |a, b, c| {
        (((u64::from(b) << 32 | u64::from(a)) << (if c < 32 { c } else { 32 })) >> 32) as u32
    };
    /// `shf.r.wrap`
    ShiftRightWrap(u32, u32, u32) -> u32 = |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32;
    /// `shf.r.clamp`
    ShiftRightClamp(u32, u32, u32) -> u32 = |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) >> (if c < 32 { c } else { 32 })) as u32
    };
    /// `bmsk.wrap`
    MaskWrap(u32, u32) -> u32 = |a, b| bit_mask(a, b, false);
    /// `bmsk.clamp`
    MaskClamp(u32, u32) -> u32 = |a, b| if a > 31 { 0 } else { bit_mask(a, b, b > 31) };
    /// `szext.wrap.u32`
    ZeroExtendWrap(u32, u32) -> u32 = |a, b| a.field(0, b & 31);
    /// `szext.clamp.u32`
    ZeroExtendClamp(u32, u32) -> u32 = |a, b| a.field(0, if b < 32 { b } else { 32 });
    /// `szext.wrap.s32`
    SignExtendWrap(u32, u32) -> u32 = |a, b| sign_extended(a, b & 31);
    /// `szext.clamp.s32`
    SignExtendClamp(u32, u32) -> u32 = |a, b| sign_extended(a, if b < 32 { b } else { 32 });
    /// `dp4a`
    Dot4 [const A: bool, const B: bool] (u32, u32, u32) -> u32 = |a, b, c| dot4::<A, B>(a, b, c);
    /// `dp2a.lo`
    Dot2Low [const A: bool, const B: bool] (u32, u32, u32) -> u32 = |a, b, c| dot2::<A, B>(a, b, c);
    /// `dp2a.hi`
    Dot2High [const A: bool, const B: bool] (u32, u32, u32) -> u32 = |a, b, c| dot2::<A, B>(a, b >> 16, c);
}

/// `bfi`: `a` into `b` at `c`, `x` bits.
fn insert_body<T: Bits>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let registers = &machine.registers;
    let (bits, base) = (registers.row::<T>(inst.a), registers.row::<T>(inst.b));
    let (pos, len) = (registers.row::<u32>(inst.c), registers.row::<u32>(inst.x));
    let out: [T; WARP_LANES] = std::array::from_fn(|lane| base[lane].insert(bits[lane], pos[lane], len[lane]));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// Code for `bfi`.
pub(crate) fn insert<T: Bits>() -> Exec {
    insert_body::<T>
}

/// `lop3`: any function of three bits, with its truth table in `imm`.
pub(crate) fn lop3(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let registers = &machine.registers;
    let (a, b, c) = (registers.row::<u32>(inst.a), registers.row::<u32>(inst.b), registers.row::<u32>(inst.c));
    let table: [u32; 8] = std::array::from_fn(|index| ((inst.imm >> index) as u32 & 1).wrapping_neg());
    let mut out = [0_u32; WARP_LANES];
    for lane in 0..WARP_LANES {
        let (a, b, c) = (a[lane], b[lane], c[lane]);
        let pick = |clear: u32, set: u32| (c & set) | (!c & clear);
        let (low, high) = (pick(table[0], table[1]), pick(table[2], table[3]));
        let (low_a, high_a) = (pick(table[4], table[5]), pick(table[6], table[7]));
        out[lane] = (!a & ((b & high) | (!b & low))) | (a & ((b & high_a) | (!b & low_a)));
    }
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::lanes::{Binary, Ternary, Unary};

    #[test]
    fn counting_and_finding() {
        assert_eq!((Popc::<u64>::apply(u64::MAX), Clz::<u32>::apply(0), Clz::<u64>::apply(1)), (64, 32, 63));
        assert_eq!(
            (Bfind::<u32>::apply(0), Bfind::<u32>::apply(0x10), Bfind::<u64>::apply(1 << 40)),
            (u32::MAX, 4, 40)
        );
        assert_eq!((BfindSigned::<u32>::apply(u32::MAX), BfindSigned::<u32>::apply(0xffff_ff00)), (u32::MAX, 7));
        assert_eq!((BfindShift::<u32>::apply(1), BfindShift::<u32>::apply(0)), (31, u32::MAX));
        assert_eq!(LogicalNot::<u32>::apply(0), 1);
    }

    #[test]
    fn fields_are_cut_and_filled_at_the_top() {
        assert_eq!(Bfe::<u32>::apply(0xdead_beef, 8, 8), 0xbe);
        assert_eq!(Bfe::<u32>::apply(0xdead_beef, 28, 8), 0xd);
        assert_eq!(Bfe::<u32>::apply(0xdead_beef, 40, 8), 0);
        assert_eq!(BfeSigned::<u32>::apply(0xdead_beef, 28, 8), 0xffff_fffd);
        assert_eq!(BfeSigned::<u32>::apply(0x80, 4, 4), 0xffff_fff8);
        assert_eq!((BfeSigned::<u32>::apply(u32::MAX, 3, 0), BfeSigned::<u64>::apply(1 << 63, 99, 1)), (0, u64::MAX));
        assert_eq!(0_u32.insert(0xff, 4, 4), 0xf0);
        assert_eq!((u32::MAX.insert(0, 28, 32), 7_u32.insert(0, 32, 4)), (0x0fff_ffff, 7));
    }

    #[test]
    fn permutes_choose_bytes_and_replicate_signs() {
        assert_eq!(Permute::apply(0x3322_1100, 0x7766_5544, 0x7250), 0x7722_5500);
        assert_eq!(Permute::apply(0x0000_0080, 0, 0x4448), 0x0000_00ff);
        assert_eq!(PermuteRc16::apply(0x3322_1100, 0, 1), 0x3322_3322);
        assert_eq!(PermuteF4e::apply(0x3322_1100, 0x7766_5544, 2), 0x5544_3322);
    }

    #[test]
    fn funnel_shifts_wrap_or_clamp() {
        assert_eq!(ShiftLeftWrap::apply(0x8000_0000, 1, 1), 3);
        assert_eq!((ShiftLeftWrap::apply(5, 7, 32), ShiftLeftClamp::apply(5, 7, 40)), (7, 5));
        assert_eq!((ShiftRightWrap::apply(5, 7, 0), ShiftRightClamp::apply(5, 7, 32)), (5, 7));
    }

    #[test]
    fn masks_and_extensions() {
        assert_eq!((MaskClamp::apply(4, 8), MaskClamp::apply(28, 8), MaskClamp::apply(32, 1)), (0xff0, 0xf000_0000, 0));
        assert_eq!((MaskClamp::apply(4, 40), MaskWrap::apply(36, 8)), (0xffff_fff0, 0xff0));
        assert_eq!((SignExtendClamp::apply(0x80, 8), SignExtendWrap::apply(0x80, 32)), (0xffff_ff80, 0));
        assert_eq!((ZeroExtendClamp::apply(0x1ff, 8), ZeroExtendClamp::apply(0x1ff, 77)), (0xff, 0x1ff));
    }

    #[test]
    fn distances_of_parts_are_joined_or_added() {
        assert_eq!(Distances::<8, false, false>::apply(0x05ff_0001, 0x0100_0002, 9), 0x04ff_0001);
        assert_eq!(Distances::<8, true, true>::apply(0x05ff_0001, 0x0100_0002, 9), 4 + 1 + 1 + 9);
        assert_eq!(Distances::<16, false, true>::apply(0x0005_0000, 0x0000_0001, 0), 6);
    }

    #[test]
    fn set_bits_are_counted_in_both_directions() {
        assert_eq!(
            [1, 2, 0xffff_ffff, 0, 5].map(|offset| NthSet::apply(0b1101_0010, 4, offset)),
            [4, 6, 4, 4, u32::MAX]
        );
        assert_eq!(
            (NthSet::apply(1, 0, 0), NthSet::apply(1, 40, 1), NthSet::apply(1, 31, 0xffff_ffff)),
            (0, u32::MAX, 0)
        );
    }

    #[test]
    fn dot_products_mind_their_signs() {
        assert_eq!(Dot4::<true, true>::apply(0xff01_ff01, 0x0101_0101, 10), 10);
        assert_eq!(Dot4::<false, false>::apply(0xff01_ff01, 0x0101_0101, 0), 512);
        assert_eq!(Dot2Low::<true, false>::apply(0xffff_0002, 0x0000_0503, 0), 1);
        assert_eq!(Dot2High::<true, false>::apply(0xffff_0002, 0x0503_0000, 0), 1);
    }
}
