//! `atom` and `red`: one lane after the other, lowest first.
//!
//! Both device and shared memory are changed by compare-and-exchange on the host address. So blocks on other threads and the
//! program's own threads see each change whole. Every operation is sequentially consistent, which is at least as strong as any
//! ordering that PTX can ask for. Scopes make no difference on a CPU.

use crate::alu::convert::IntoFloat;
use crate::alu::element::{Bf16, Element, F16, Two};
use crate::alu::float::{canonical, flush, max_f32, min_f32};
use crate::alu::half::Small;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Raw, lanes_of};
use crate::memory::raw::Atomic;
use crate::memory::word::Word;
use crate::slot::NO_SLOT;
use crate::types::Space;
use crate::window;

/// Flag in `Inst::x`: the address register has 32 bits. The bits below it are `Space::encode`.
pub(crate) const NARROW_POINTER: u32 = 4;

/// An operation, which computes the new value in memory.
pub(crate) trait Operation {
    /// Type of the value in memory.
    type Word: Word + Atomic;
    /// Type of the value in registers.
    type Lane: Raw;
    /// Returns the new value.
    fn apply(old: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word;
    /// Returns the new value in device memory, where the GPU computes it in other units.
    fn apply_far(old: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word {
        Self::apply(old, b, c)
    }
}

/// Declares operations on integers: `Name: word in lane = |old, b, c| new;`
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $word:ty, $lane:ty = |$old:ident, $b:ident, $c:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Operation for $name {
            type Word = $word;
            type Lane = $lane;

            fn apply($old: $word, $b: $word, $c: $word) -> $word {
                $body
            }
        }
    )*};
}

/// Returns the sum of two small floats.
fn add_small<T: Small>(a: u32, b: u32) -> u32 {
    T::from_wide(T::read(a).wide() + T::read(b).wide()).write()
}

/// Returns the sums of two pairs of small floats.
fn add_pair<T: Small>(a: u32, b: u32) -> u32 {
    let (a, b) = (Two::<T>::read(a), Two::<T>::read(b));
    Two(T::from_wide(a.0.wide() + b.0.wide()), T::from_wide(a.1.wide() + b.1.wide())).write()
}

/// Returns the smaller or larger of two small floats; a number is preferred to NaN.
fn extreme_small<T: Small>(a: u32, b: u32, pick: fn(f32, f32) -> f32) -> u32 {
    T::from_wide(pick(T::read(a).wide(), T::read(b).wide())).write()
}

/// Returns the smaller or larger of two pairs of small floats, for both halves; a number is preferred to NaN.
fn extreme_pair<T: Small>(a: u32, b: u32, pick: fn(f32, f32) -> f32) -> u32 {
    extreme_small::<T>(a & 0xffff, b & 0xffff, pick) | extreme_small::<T>(a >> 16, b >> 16, pick) << 16
}

/// Returns the number that `bits` encode.
fn float(bits: u32) -> f32 {
    f32::from_bits(bits)
}

operations! {
    /// `add.u32`, `add.s32`
    Add32: u32, u32 = |old, b, _c| old.wrapping_add(b);
    /// `add.u64`
    Add64: u64, u64 = |old, b, _c| old.wrapping_add(b);
    /// `add.noftz.f16`
    AddF16: u16, u32 = |old, b, _c| add_small::<F16>(u32::from(old), u32::from(b)) as u16;
    /// `add.noftz.bf16`
    AddBf16: u16, u32 = |old, b, _c| add_small::<Bf16>(u32::from(old), u32::from(b)) as u16;
    /// `add.noftz.f16x2`
    AddF16x2: u32, u32 = |old, b, _c| add_pair::<F16>(old, b);
    /// `add.noftz.bf16x2`
    AddBf16x2: u32, u32 = |old, b, _c| add_pair::<Bf16>(old, b);
    /// `min.noftz.f16`, of vectors
    MinF16: u16, u32 = |old, b, _c| extreme_small::<F16>(u32::from(old), u32::from(b), min_f32) as u16;
    /// `min.noftz.f16x2`, of vectors
    MinF16x2: u32, u32 = |old, b, _c| extreme_pair::<F16>(old, b, min_f32);
    /// `min.noftz.bf16`, of vectors
    MinBf16: u16, u32 = |old, b, _c| extreme_small::<Bf16>(u32::from(old), u32::from(b), min_f32) as u16;
    /// `min.noftz.bf16x2`, of vectors
    MinBf16x2: u32, u32 = |old, b, _c| extreme_pair::<Bf16>(old, b, min_f32);
    /// `max.noftz.f16`, of vectors
    MaxF16: u16, u32 = |old, b, _c| extreme_small::<F16>(u32::from(old), u32::from(b), max_f32) as u16;
    /// `max.noftz.f16x2`, of vectors
    MaxF16x2: u32, u32 = |old, b, _c| extreme_pair::<F16>(old, b, max_f32);
    /// `max.noftz.bf16`, of vectors
    MaxBf16: u16, u32 = |old, b, _c| extreme_small::<Bf16>(u32::from(old), u32::from(b), max_f32) as u16;
    /// `max.noftz.bf16x2`, of vectors
    MaxBf16x2: u32, u32 = |old, b, _c| extreme_pair::<Bf16>(old, b, max_f32);
    /// `min.u32`
    MinU32: u32, u32 = |old, b, _c| old.min(b);
    /// `max.u32`
    MaxU32: u32, u32 = |old, b, _c| old.max(b);
    /// `min.s32`
    MinS32: u32, u32 = |old, b, _c| old.cast_signed().min(b.cast_signed()).cast_unsigned();
    /// `max.s32`
    MaxS32: u32, u32 = |old, b, _c| old.cast_signed().max(b.cast_signed()).cast_unsigned();
    /// `min.u64`
    MinU64: u64, u64 = |old, b, _c| old.min(b);
    /// `max.u64`
    MaxU64: u64, u64 = |old, b, _c| old.max(b);
    /// `min.s64`
    MinS64: u64, u64 = |old, b, _c| old.cast_signed().min(b.cast_signed()).cast_unsigned();
    /// `max.s64`
    MaxS64: u64, u64 = |old, b, _c| old.cast_signed().max(b.cast_signed()).cast_unsigned();
    /// `and.b32`
    And32: u32, u32 = |old, b, _c| old & b;
    /// `or.b32`
    Or32: u32, u32 = |old, b, _c| old | b;
    /// `xor.b32`
    Xor32: u32, u32 = |old, b, _c| old ^ b;
    /// `and.b64`
    And64: u64, u64 = |old, b, _c| old & b;
    /// `or.b64`
    Or64: u64, u64 = |old, b, _c| old | b;
    /// `xor.b64`
    Xor64: u64, u64 = |old, b, _c| old ^ b;
    /// `exch.b32`
    Exchange32: u32, u32 = |_old, b, _c| b;
    /// `exch.b64`
    Exchange64: u64, u64 = |_old, b, _c| b;
    /// `cas.b16`
    Swap16: u16, u32 = |old, b, c| if old == b { c } else { old };
    /// `cas.b32`
    Swap32: u32, u32 = |old, b, c| if old == b { c } else { old };
    /// `cas.b64`
    Swap64: u64, u64 = |old, b, c| if old == b { c } else { old };
    /// `inc.u32`: counts up to `b`, then from 0.
    Increment: u32, u32 = |old, b, _c| if old >= b { 0 } else { old + 1 };
    /// `dec.u32`: counts down to 0, then from `b`.
    Decrement: u32, u32 = |old, b, _c| if old == 0 || old > b { b } else { old - 1 };
}

/// `add.f32`: in device memory, subnormals are flushed.
pub(crate) struct AddF32;

impl Operation for AddF32 {
    type Word = u32;
    type Lane = u32;

    fn apply(old: u32, b: u32, _: u32) -> u32 {
        canonical(float(old) + float(b)).to_bits()
    }

    fn apply_far(old: u32, b: u32, c: u32) -> u32 {
        let flushed = |bits| flush::<true>(float(bits)).to_bits();
        flushed(Self::apply(flushed(old), flushed(b), c))
    }
}

/// `add.f64`: in device memory, the result keeps all bits of a NaN, which elsewhere becomes quiet.
pub(crate) struct AddF64;

impl Operation for AddF64 {
    type Word = u64;
    type Lane = u64;

    /// Returns the sum; a NaN in memory goes before a NaN operand, and the result is a quiet NaN.
    fn apply(old: u64, b: u64, _: u64) -> u64 {
        let nan = [old, b].into_iter().find(|bits| f64::from_bits(*bits).is_nan());
        nan.map_or_else(|| (f64::from_bits(old) + f64::from_bits(b)).to_bits(), |nan| nan | 1 << 51)
    }

    fn apply_far(old: u64, b: u64, c: u64) -> u64 {
        let nan = [b, old].into_iter().find(|bits| f64::from_bits(*bits).is_nan());
        nan.unwrap_or_else(|| Self::apply(old, b, c))
    }
}

/// Runs `atom.OP d, [a + imm], b, c` or `red.OP [a + imm], b`.
fn body<O: Operation>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    machine.spinning = true;
    let space = Space::decode(inst.x & 3);
    for lane in lanes_of(machine.mask) {
        let registers = &machine.registers;
        let address = if inst.x & NARROW_POINTER != 0 {
            u64::from(registers.row::<u32>(inst.a)[lane].wrapping_add(inst.imm as u32))
        } else {
            registers.row::<u64>(inst.a)[lane].wrapping_add(inst.imm)
        };
        let operand = |slot| {
            if slot == NO_SLOT { O::Word::cut(0) } else { O::Word::cut(registers.row::<O::Lane>(slot)[lane].wide()) }
        };
        let (b, c) = (operand(inst.b), operand(inst.c));
        let far = space != Space::Shared && address < window::SHARED_ADDRESS;
        let operation = |old| if far { O::apply_far(old, b, c) } else { O::apply(old, b, c) };
        match machine.update::<O::Word>(space, lane, address, operation) {
            Ok(old) if inst.d != NO_SLOT => machine.registers.set_lane(inst.d, lane, O::Lane::narrow(old.extended())),
            Ok(_) => {}
            Err(kind) => return machine.fail(kind, lane),
        }
    }
    Flow::Next
}

/// Makes code that works with an operation.
pub(crate) trait Visitor: Sized {
    /// Type of the code.
    type Code;
    /// Returns the code for `O`.
    fn visit<O: Operation>(self) -> Self::Code;
}

/// Makes code for `atom` and `red` themselves.
struct Plain;

impl Visitor for Plain {
    type Code = Exec;

    fn visit<O: Operation>(self) -> Exec {
        body::<O>
    }
}

/// Returns the code for operation `name` on `ty`, as PTX writes them; `None` for combinations that do not exist.
pub(crate) fn lookup(name: &str, ty: &str) -> Option<Exec> {
    visit(name, ty, Plain)
}

/// Returns the code that `visitor` makes for operation `name` on `ty`.
pub(crate) fn visit<V: Visitor>(name: &str, ty: &str, visitor: V) -> Option<V::Code> {
    Some(match (name, ty) {
        ("add", "u32" | "s32") => visitor.visit::<Add32>(),
        ("add", "u64" | "s64") => visitor.visit::<Add64>(),
        ("add", "f32") => visitor.visit::<AddF32>(),
        ("add", "f64") => visitor.visit::<AddF64>(),
        ("add", "f16") => visitor.visit::<AddF16>(),
        ("add", "bf16") => visitor.visit::<AddBf16>(),
        ("add", "f16x2") => visitor.visit::<AddF16x2>(),
        ("add", "bf16x2") => visitor.visit::<AddBf16x2>(),
        ("min", _) | ("max", _) => return extreme(name, ty, visitor),
        ("and", "b32") => visitor.visit::<And32>(),
        ("or", "b32") => visitor.visit::<Or32>(),
        ("xor", "b32") => visitor.visit::<Xor32>(),
        ("and", "b64") => visitor.visit::<And64>(),
        ("or", "b64") => visitor.visit::<Or64>(),
        ("xor", "b64") => visitor.visit::<Xor64>(),
        ("exch", "b32" | "u32" | "s32" | "f32") => visitor.visit::<Exchange32>(),
        ("exch", "b64" | "u64" | "s64" | "f64") => visitor.visit::<Exchange64>(),
        ("cas", "b16" | "u16" | "s16") => visitor.visit::<Swap16>(),
        ("cas", "b32" | "u32" | "s32" | "f32") => visitor.visit::<Swap32>(),
        ("cas", "b64" | "u64" | "s64" | "f64") => visitor.visit::<Swap64>(),
        ("inc", "u32") => visitor.visit::<Increment>(),
        ("dec", "u32") => visitor.visit::<Decrement>(),
        _ => return None,
    })
}

/// Returns the code for `min` and `max`, signed and unsigned.
fn extreme<V: Visitor>(name: &str, ty: &str, visitor: V) -> Option<V::Code> {
    Some(match (name, ty) {
        ("min", "u32") => visitor.visit::<MinU32>(),
        ("max", "u32") => visitor.visit::<MaxU32>(),
        ("min", "s32") => visitor.visit::<MinS32>(),
        ("max", "s32") => visitor.visit::<MaxS32>(),
        ("min", "u64") => visitor.visit::<MinU64>(),
        ("max", "u64") => visitor.visit::<MaxU64>(),
        ("min", "s64") => visitor.visit::<MinS64>(),
        ("max", "s64") => visitor.visit::<MaxS64>(),
        ("min", "f16") => visitor.visit::<MinF16>(),
        ("min", "f16x2") => visitor.visit::<MinF16x2>(),
        ("min", "bf16") => visitor.visit::<MinBf16>(),
        ("min", "bf16x2") => visitor.visit::<MinBf16x2>(),
        ("max", "f16") => visitor.visit::<MaxF16>(),
        ("max", "f16x2") => visitor.visit::<MaxF16x2>(),
        ("max", "bf16") => visitor.visit::<MaxBf16>(),
        ("max", "bf16x2") => visitor.visit::<MaxBf16x2>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_at_their_limit() {
        assert_eq!((Increment::apply(4, 5, 0), Increment::apply(5, 5, 0), Increment::apply(9, 5, 0)), (5, 0, 0));
        assert_eq!((Decrement::apply(3, 5, 0), Decrement::apply(0, 5, 0), Decrement::apply(9, 5, 0)), (2, 5, 5));
    }

    #[test]
    fn compare_and_swap_keeps_what_differs() {
        assert_eq!((Swap32::apply(1, 1, 7), Swap32::apply(2, 1, 7), Swap16::apply(3, 3, 4)), (7, 2, 4));
    }

    #[test]
    fn floats_add_in_every_width() {
        let tiny = 0x0040_0000;
        assert_eq!((AddF32::apply(tiny, tiny, 0), AddF32::apply_far(tiny, tiny, 0)), (2 * tiny, 0));
        let nan = [0xfff0_0000_0000_0001, 0x7ff8_0000_0000_0005];
        assert_eq!((AddF64::apply_far(nan[0], 0, 0), AddF64::apply_far(nan[0], nan[1], 0)), (nan[0], nan[1]));
        assert_eq!(AddF32::apply(1.5_f32.to_bits(), 2.0_f32.to_bits(), 0), 3.5_f32.to_bits());
        assert_eq!(AddF16x2::apply(0x3c00_4000, 0x3c00_3c00, 0), 0x4000_4200);
        assert!(lookup("min", "f64").is_none() && lookup("cas", "b64").is_some());
    }
}
