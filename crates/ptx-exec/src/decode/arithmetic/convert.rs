//! `cvt`: from a pair of types and modifiers to one or two conversions.
//!
//! | from \ to | integer | `f32` `f64` | `f16` `bf16` |
//! |---|---|---|---|
//! | integer | keep the narrower, extend | one rounding | by way of `f64` |
//! | `f32` `f64` | round, saturate | one rounding | one rounding |
//! | `f16` `bf16` | by way of `f32` | exact | by way of `f32` |
//!
//! Pairs without a direct conversion use a lossless register in between: 16-bit floats use `f32`, 8-bit results the extension to
//! the register.

use crate::alu::convert_half::{self, From, Narrowing};
use crate::alu::convert_slow::{self, Conversion};
use crate::alu::element::{Bf16, F16};
use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::round::mode;
use crate::alu::{convert as ops, half, moves};
use crate::api::LoadError;
use crate::decode::arithmetic::{conversion_rules, small};
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// The modifiers of a `cvt`.
#[derive(Debug, Clone, Copy)]
struct Style {
    /// Rounding of a float result.
    rounding: u8,
    /// Rounding to an integral value.
    integral: Option<u8>,
    flush: bool,
    saturate: bool,
    relu: bool,
    /// Whether results that are too large become the largest number.
    finite: bool,
    /// Whether ties round away from zero.
    away: bool,
}

/// One of the four roundings of an operation `Op<T, MODE>`.
macro_rules! rounded {
    ($mode:expr, $op:ident<$t:ty>) => {
        match $mode {
            mode::ZERO => unary::<ops::$op<$t, { mode::ZERO }>>(),
            mode::DOWN => unary::<ops::$op<$t, { mode::DOWN }>>(),
            mode::UP => unary::<ops::$op<$t, { mode::UP }>>(),
            _ => unary::<ops::$op<$t, { mode::NEAREST }>>(),
        }
    };
}

/// An operation for each integer type.
macro_rules! by_integer {
    ($ty:expr, $mode:expr, $op:ident) => {
        match $ty {
            Ty::U(8) | Ty::B(8) => Some(rounded!($mode, $op<u8>)),
            Ty::S(8) => Some(rounded!($mode, $op<i8>)),
            Ty::U(16) | Ty::B(16) => Some(rounded!($mode, $op<u16>)),
            Ty::S(16) => Some(rounded!($mode, $op<i16>)),
            Ty::U(32) | Ty::B(32) => Some(rounded!($mode, $op<u32>)),
            Ty::S(32) => Some(rounded!($mode, $op<i32>)),
            Ty::U(64) | Ty::B(64) => Some(rounded!($mode, $op<u64>)),
            Ty::S(64) => Some(rounded!($mode, $op<i64>)),
            _ => None,
        }
    };
}

/// An operation with rounding, flush and saturation.
macro_rules! styled {
    ($style:expr, $mode:expr, $op:ident) => {
        match $mode {
            mode::ZERO => styled!(@ $style, $op, { mode::ZERO }),
            mode::DOWN => styled!(@ $style, $op, { mode::DOWN }),
            mode::UP => styled!(@ $style, $op, { mode::UP }),
            _ => styled!(@ $style, $op, { mode::NEAREST }),
        }
    };
    (@ $style:expr, $op:ident, $mode:block) => {
        match ($style.flush, $style.saturate) {
            (false, false) => unary::<ops::$op<$mode, false, false>>(),
            (false, true) => unary::<ops::$op<$mode, false, true>>(),
            (true, false) => unary::<ops::$op<$mode, true, false>>(),
            (true, true) => unary::<ops::$op<$mode, true, true>>(),
        }
    };
}

/// Extends `ty` to a register of width `to`.
fn extension(ty: Ty, to: Width) -> Option<Exec> {
    let wide = to == Width::Double;
    Some(match (ty, wide) {
        (Ty::U(8) | Ty::B(8), false) => unary::<ops::Extend<u8, u32>>(),
        (Ty::U(8) | Ty::B(8), true) => unary::<ops::Extend<u8, u64>>(),
        (Ty::S(8), false) => unary::<ops::Extend<i8, u32>>(),
        (Ty::S(8), true) => unary::<ops::Extend<i8, u64>>(),
        (Ty::U(16) | Ty::B(16), false) => unary::<ops::Extend<u16, u32>>(),
        (Ty::U(16) | Ty::B(16), true) => unary::<ops::Extend<u16, u64>>(),
        (Ty::S(16), false) => unary::<ops::Extend<i16, u32>>(),
        (Ty::S(16), true) => unary::<ops::Extend<i16, u64>>(),
        (Ty::U(32) | Ty::B(32), true) => unary::<ops::Extend<u32, u64>>(),
        (Ty::S(32), true) => unary::<ops::Extend<i32, u64>>(),
        (Ty::U(32) | Ty::S(32) | Ty::B(32), false) => unary::<moves::Copy32>(),
        (Ty::U(64) | Ty::S(64) | Ty::B(64), true) => unary::<moves::Copy64>(),
        _ => return None,
    })
}

/// Returns whether a type is one of the 16-bit floats.
fn is_half(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::Bf16)
}

/// Code that widens a 16-bit float.
fn widen(ty: Ty) -> Exec {
    if ty == Ty::F16 { unary::<half::Widen<F16>>() } else { unary::<half::Widen<Bf16>>() }
}

/// Code from `f32` to a 16-bit float.
fn to_half(ty: Ty, rounding: u8, relu: bool) -> Option<Exec> {
    Some(match (ty, rounding, relu) {
        (Ty::F16, mode::NEAREST, false) => unary::<half::Round<F16>>(),
        (Ty::F16, mode::NEAREST, true) => unary::<half::RoundRelu<F16>>(),
        (Ty::F16, mode::ZERO, false) => unary::<half::RoundZero<F16>>(),
        (Ty::Bf16, mode::NEAREST, false) => unary::<half::Round<Bf16>>(),
        (Ty::Bf16, mode::NEAREST, true) => unary::<half::RoundRelu<Bf16>>(),
        (Ty::Bf16, mode::ZERO, false) => unary::<half::RoundZero<Bf16>>(),
        _ => return None,
    })
}

/// Returns code from `f32` to `tf32`. On this device, rounding to nearest even or to zero cannot saturate.
fn tf32(style: Style) -> Option<Exec> {
    Some(match (style.away, style.rounding, style.relu, style.finite) {
        (true, _, false, false) => unary::<ops::ToTf32Away<false>>(),
        (true, _, false, true) => unary::<ops::ToTf32Away<true>>(),
        (false, mode::NEAREST, false, false) => unary::<ops::ToTf32<false>>(),
        (false, mode::NEAREST, true, false) => unary::<ops::ToTf32<true>>(),
        (false, mode::ZERO, false, false) => unary::<ops::ToTf32Zero<false>>(),
        (false, mode::ZERO, true, false) => unary::<ops::ToTf32Zero<true>>(),
        _ => return None,
    })
}

impl Style {
    /// The rare conversion to a 16-bit float.
    fn narrowing(self, to: Ty, from: From) -> Narrowing {
        Narrowing {
            from,
            brain: to == Ty::Bf16,
            rounding: self.rounding,
            saturate: self.saturate,
            relu: self.relu,
            finite: self.finite,
        }
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `cvt.rzi.ftz.sat.s32.f32 d, a`
    pub(crate) fn convert(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if m.take("pack") {
            return self.convert_and_pack(i, m);
        }
        if !conversion_rules::exists(i) {
            return Err(self.unsupported(i));
        }
        if let Some(conversion) = small::conversion(i) {
            return self.convert_small(i, m, conversion);
        }
        let integral = m.integral_rounding();
        let style = Style {
            integral,
            away: m.take("rna"),
            rounding: m.rounding(),
            flush: m.take("ftz"),
            saturate: m.take("sat"),
            relu: m.take("relu"),
            finite: m.take("satfinite"),
        };
        let (Some(to), Some(from)) = (m.ty(), m.ty()) else { return Err(self.unsupported(i)) };
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            return self.convert_pair(i, style, to, from);
        }
        let [destination, source] = self.operands(i)?;
        match (to.integer().is_some(), from.integer().is_some()) {
            (true, true) => self.integer_to_integer(i, style, to, from),
            (false, true) => self.integer_to_float(i, style, to, from),
            (true, false) => self.float_to_integer(i, style, to, from),
            (false, false) => {
                let a = self.source(source, from)?;
                let d = self.destination(destination, to)?;
                self.float_to_float(i, style, (to, d), (from, a))
            }
        }
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: the first source becomes the upper half.
    fn convert_pair(&mut self, i: &Instruction<'a>, style: Style, to: Ty, from: Ty) -> Result<(), LoadError> {
        let exec = match (to, style.relu) {
            (Ty::F16x2, false) => binary::<half::Pack<F16>>(),
            (Ty::F16x2, true) => binary::<half::PackRelu<F16>>(),
            (_, false) => binary::<half::Pack<Bf16>>(),
            (_, true) => binary::<half::PackRelu<Bf16>>(),
        };
        if from != Ty::F32 || style.saturate || style.flush || style.integral.is_some() || style.away {
            return Err(self.unsupported(i));
        }
        if style.rounding == mode::NEAREST && !style.finite {
            return self.regular(i, exec, to, &[from, from]);
        }
        let [destination, high, low] = self.operands(i)?;
        let sources = [self.source(low, from)?, self.source(high, from)?];
        let d = self.destination(destination, to)?;
        let parts = [self.temporary(Width::Word), self.temporary(Width::Word)];
        let narrowing = style.narrowing(if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 }, From::Single);
        for (part, source) in parts.into_iter().zip(sources) {
            self.push(Draft::new(convert_half::narrow).d(part).a(source).imm(narrowing.encode()));
        }
        self.emit(binary::<moves::Pack32>(), d, &parts);
        Ok(())
    }

    /// `cvt.pack.sat.u16.s32 d, a, b` and `cvt.pack.sat.u8.s32.b32 d, a, b, c`: `c` is shifted up to make room.
    fn convert_and_pack(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let to = m.one_of(&["s16", "u16", "s8", "u8", "s4", "u4", "s2", "u2"]).filter(|_| m.take("sat"));
        let exec = match to {
            Some("s16") => ternary::<ops::PackSat<16, true>>(),
            Some("u16") => ternary::<ops::PackSat<16, false>>(),
            Some("s8") => ternary::<ops::PackSat<8, true>>(),
            Some("u8") => ternary::<ops::PackSat<8, false>>(),
            Some("s4") => ternary::<ops::PackSat<4, true>>(),
            Some("u4") => ternary::<ops::PackSat<4, false>>(),
            Some("s2") => ternary::<ops::PackSat<2, true>>(),
            Some(_) => ternary::<ops::PackSat<2, false>>(),
            None => return Err(self.unsupported(i)),
        };
        let whole = matches!(to, Some("s16" | "u16"));
        if m.ty() != Some(Ty::S(32)) || m.ty().is_some() == whole {
            return Err(self.unsupported(i));
        }
        let (word, signed) = (Ty::B(32), Ty::S(32));
        if !whole {
            return self.regular(i, exec, word, &[signed, signed, word]);
        }
        let [destination, a, b] = self.operands(i)?;
        let (a, b) = (self.source(a, signed)?, self.source(b, signed)?);
        let zero = self.constant(0, Width::Word);
        let d = self.destination(destination, word)?;
        self.emit(exec, d, &[a, b, zero]);
        Ok(())
    }

    /// Returns a source that may be in a wider register, truncated to its type.
    fn cut_source(&mut self, operand: &Operand<'a>, ty: Ty) -> Result<(Ref, Width), LoadError> {
        let (a, width) = self.any_source(operand, ty)?;
        if width == Width::Double && ty.bits() < 64 {
            let low = self.temporary(Width::Word);
            self.emit(unary::<moves::Low32>(), low, &[a]);
            return Ok((low, Width::Word));
        }
        Ok((a, width))
    }

    /// Converts between integers: truncates the source to the narrower type, and extends it to the register.
    ///
    /// The slow conversion accepts any pair. It serves saturation, and sign extension to less than a 64-bit register.
    fn integer_to_integer(&mut self, i: &Instruction<'a>, style: Style, to: Ty, from: Ty) -> Result<(), LoadError> {
        let [destination, source] = self.operands(i)?;
        let (d, to_width) = self.any_destination(destination, to.width().unwrap_or(Width::Word))?;
        let (Some(to_kind), Some(from_kind)) = (to.integer(), from.integer()) else { return Err(self.unsupported(i)) };
        // The truncated type, and its extension.
        let narrower = if to.bits() <= from.bits() { to } else { from };
        let odd = to.bits() > from.bits()
            && from_kind.signed
            && !to_kind.signed
            && to_width == Width::Double
            && to.bits() < 64;
        if style.saturate || odd {
            let (a, width) = self.any_source(source, from)?;
            let conversion = Conversion {
                from: from_kind,
                to: to_kind,
                saturate: style.saturate,
                wide_source: width == Width::Double,
                wide_target: to_width == Width::Double,
            };
            self.push(Draft::new(convert_slow::convert).d(d).a(a).imm(conversion.encode()).distinct_slots());
            return Ok(());
        }
        if narrower.bits() == 64 {
            let a = self.source(source, from)?;
            self.emit(unary::<moves::Copy64>(), d, &[a]);
            return Ok(());
        }
        let (a, width) = self.any_source(source, from)?;
        if width == Width::Double && narrower.bits() == 32 && to_width == Width::Word {
            self.emit(unary::<moves::Low32>(), d, &[a]);
            return Ok(());
        }
        let (a, _) = self.cut_source(source, narrower)?;
        let exec = extension(narrower, to_width).ok_or_else(|| self.unsupported(i))?;
        self.emit(exec, d, &[a]);
        Ok(())
    }

    /// Converts an integer of any size to a float, with a single rounding.
    fn integer_to_float(&mut self, i: &Instruction<'a>, style: Style, to: Ty, from: Ty) -> Result<(), LoadError> {
        let [destination, source] = self.operands(i)?;
        let (a, width) = self.cut_source(source, from)?;
        if (width == Width::Double) != (from.bits() == 64) {
            return Err(self.invalid("cvt source has the wrong width"));
        }
        let d = self.destination(destination, to)?;
        let exec = match to {
            Ty::F32 if style.saturate => by_integer!(from, style.rounding, ToF32Sat),
            Ty::F32 => by_integer!(from, style.rounding, ToF32),
            Ty::F64 => by_integer!(from, style.rounding, ToF64),
            _ if is_half(to) => return self.integer_to_half(i, style, (to, d), (from, a)),
            _ => None,
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        self.emit(exec, d, &[a]);
        Ok(())
    }

    /// From an integer to a float of 16 bits.
    fn integer_to_half(
        &mut self,
        i: &Instruction<'a>,
        style: Style,
        (to, d): (Ty, Ref),
        (from, a): (Ty, Ref),
    ) -> Result<(), LoadError> {
        let kind = from.integer().ok_or_else(|| self.unsupported(i))?;
        self.check_byte(a, from, to)?;
        let narrowing = style.narrowing(to, From::Integer(kind));
        self.push(Draft::new(convert_half::narrow).d(d).a(a).imm(narrowing.encode()));
        Ok(())
    }

    /// Checks that an 8-bit integer that is converted to or from `bf16` is in an 8-bit register.
    fn check_byte(&self, register: Ref, integer: Ty, float: Ty) -> Result<(), LoadError> {
        if integer.bits() == 8 && float == Ty::Bf16 && !self.registers.is_byte(register) {
            return Err(self.invalid("conversion between bf16 and 8 bits without a register of 8 bits"));
        }
        Ok(())
    }

    /// Converts a float to an integer of any size. Results of 8 and 16 bits are extended to their register.
    fn float_to_integer(&mut self, i: &Instruction<'a>, style: Style, to: Ty, from: Ty) -> Result<(), LoadError> {
        let [destination, source] = self.operands(i)?;
        let mut a = self.source(source, from)?;
        let mut from = from;
        let (d, width) = self.any_destination(destination, to.width().unwrap_or(Width::Word))?;
        self.check_byte(d, to, from)?;
        if is_half(from) {
            let wide = self.temporary(Width::Word);
            self.emit(widen(from), wide, &[a]);
            (a, from) = (wide, Ty::F32);
        }
        let rounding = style.integral.unwrap_or(mode::ZERO);
        let exec = match from {
            Ty::F32 if style.flush => by_integer!(to, rounding, FromF32Ftz),
            Ty::F32 => by_integer!(to, rounding, FromF32),
            Ty::F64 => by_integer!(to, rounding, FromF64),
            _ => None,
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        if to.bits() == 64 && width != Width::Double {
            return Err(self.invalid("cvt destination has the wrong width"));
        }
        if to.bits() >= 32 && Some(width) == to.width() {
            self.emit(exec, d, &[a]);
            return Ok(());
        }
        let narrow = self.temporary(Width::Word);
        self.emit(exec, narrow, &[a]);
        let extend = extension(to, width).ok_or_else(|| self.unsupported(i))?;
        self.emit(extend, d, &[narrow]);
        Ok(())
    }

    /// Converts between floats of 32 and 64 bits, or rounds to an integral value.
    fn float_to_float(
        &mut self,
        i: &Instruction<'a>,
        style: Style,
        (to, d): (Ty, Ref),
        (from, a): (Ty, Ref),
    ) -> Result<(), LoadError> {
        let rounding = style.integral.unwrap_or(style.rounding);
        let exec = match (to, from) {
            (Ty::F32, Ty::F32) if style.integral.is_some() => styled!(style, rounding, IntegralF32),
            (Ty::F32, Ty::F32) => match (style.flush, style.saturate) {
                (false, false) => unary::<ops::SameF32<false, false>>(),
                (false, true) => unary::<ops::SameF32<false, true>>(),
                (true, false) => unary::<ops::SameF32<true, false>>(),
                (true, true) => unary::<ops::SameF32<true, true>>(),
            },
            (Ty::F64, Ty::F64 | Ty::F32 | Ty::F16 | Ty::Bf16) if style.saturate => {
                let wide = self.temporary(Width::Double);
                self.float_to_float(i, Style { saturate: false, ..style }, (to, wide), (from, a))?;
                self.emit(unary::<ops::SatF64>(), d, &[wide]);
                return Ok(());
            }
            (Ty::F64, Ty::F16) => unary::<ops::WidenHalf<F16>>(),
            (Ty::F64, Ty::F64) => match rounding {
                _ if style.integral.is_none() => unary::<moves::Copy64>(),
                mode::ZERO => unary::<ops::IntegralF64<{ mode::ZERO }>>(),
                mode::DOWN => unary::<ops::IntegralF64<{ mode::DOWN }>>(),
                mode::UP => unary::<ops::IntegralF64<{ mode::UP }>>(),
                _ => unary::<ops::IntegralF64<{ mode::NEAREST }>>(),
            },
            (Ty::F64, Ty::F32) if style.flush => unary::<ops::Widen<true>>(),
            (Ty::F64, Ty::F32) => unary::<ops::Widen<false>>(),
            (Ty::F32, Ty::F64) => styled!(style, rounding, Narrow),
            (Ty::Tf32, Ty::F32) => tf32(style).ok_or_else(|| self.unsupported(i))?,
            _ if style.away => return Err(self.unsupported(i)),
            _ => return self.small_float(i, style, (to, d), (from, a)),
        };
        self.emit(exec, d, &[a]);
        Ok(())
    }

    /// Converts from or to a 16-bit float.
    fn small_float(
        &mut self,
        i: &Instruction<'a>,
        style: Style,
        (to, d): (Ty, Ref),
        (from, a): (Ty, Ref),
    ) -> Result<(), LoadError> {
        if is_half(from) {
            let last = to == Ty::F32 && style.integral.is_none() && !style.saturate && !style.flush;
            let wide = if last { d } else { self.temporary(Width::Word) };
            self.emit(widen(from), wide, &[a]);
            return if last { Ok(()) } else { self.float_to_float(i, style, (to, d), (Ty::F32, wide)) };
        }
        if !is_half(to) {
            return Err(self.unsupported(i));
        }
        if let (Some(rounding), Ty::F32) = (style.integral, from) {
            let whole = self.temporary(Width::Word);
            self.emit(styled!(style, rounding, IntegralF32), whole, &[a]);
            let exec = to_half(to, mode::NEAREST, style.relu).ok_or_else(|| self.unsupported(i))?;
            self.emit(exec, d, &[whole]);
            return Ok(());
        }
        let mut a = a;
        // On an H200, only conversions to `bf16` flush their source.
        if style.flush && from == Ty::F32 && to == Ty::Bf16 {
            let flushed = self.temporary(Width::Word);
            self.emit(unary::<ops::SameF32<true, false>>(), flushed, &[a]);
            a = flushed;
        }
        let source = if from == Ty::F32 { From::Single } else { From::Double };
        let plain = !(style.saturate || style.finite);
        match to_half(to, style.rounding, style.relu).filter(|_| plain && source == From::Single) {
            Some(exec) => self.emit(exec, d, &[a]),
            None => {
                let narrowing = style.narrowing(to, source);
                self.push(Draft::new(convert_half::narrow).d(d).a(a).imm(narrowing.encode()));
            }
        }
        Ok(())
    }
}
