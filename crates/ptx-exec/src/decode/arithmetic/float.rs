//! `f32` and `f64` arithmetic and functions: selects one instance of an operation by modifiers.

use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::{approx, float as ops};
use crate::api::LoadError;
use crate::decode::contraction_role::{ContractionKind, role_of};
use crate::decode::decoder::FunctionDecoder;
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// Rounding of an `f32` operation, and its handling of subnormals and of values outside 0..1.
#[derive(Debug, Clone, Copy)]
struct Style {
    rounding: u8,
    flush: bool,
    saturate: bool,
}

/// Code for one of the 16 styles of an `f32` operation.
macro_rules! by_style {
    ($style:expr, $template:ident, $op:ident) => {{
        let Style { rounding, flush, saturate } = $style;
        match (rounding, flush, saturate) {
            (ops::NEAREST, false, false) => $template::<ops::$op<{ ops::NEAREST }, false, false>>(),
            (ops::NEAREST, false, true) => $template::<ops::$op<{ ops::NEAREST }, false, true>>(),
            (ops::NEAREST, true, false) => $template::<ops::$op<{ ops::NEAREST }, true, false>>(),
            (ops::NEAREST, true, true) => $template::<ops::$op<{ ops::NEAREST }, true, true>>(),
            (ops::ZERO, false, false) => $template::<ops::$op<{ ops::ZERO }, false, false>>(),
            (ops::ZERO, false, true) => $template::<ops::$op<{ ops::ZERO }, false, true>>(),
            (ops::ZERO, true, false) => $template::<ops::$op<{ ops::ZERO }, true, false>>(),
            (ops::ZERO, true, true) => $template::<ops::$op<{ ops::ZERO }, true, true>>(),
            (ops::DOWN, false, false) => $template::<ops::$op<{ ops::DOWN }, false, false>>(),
            (ops::DOWN, false, true) => $template::<ops::$op<{ ops::DOWN }, false, true>>(),
            (ops::DOWN, true, false) => $template::<ops::$op<{ ops::DOWN }, true, false>>(),
            (ops::DOWN, true, true) => $template::<ops::$op<{ ops::DOWN }, true, true>>(),
            (_, false, false) => $template::<ops::$op<{ ops::UP }, false, false>>(),
            (_, false, true) => $template::<ops::$op<{ ops::UP }, false, true>>(),
            (_, true, false) => $template::<ops::$op<{ ops::UP }, true, false>>(),
            (_, true, true) => $template::<ops::$op<{ ops::UP }, true, true>>(),
        }
    }};
}

/// Code for one of the four roundings of an `f64` operation.
macro_rules! by_rounding {
    ($rounding:expr, $template:ident, $op:ident) => {
        match $rounding {
            ops::NEAREST => $template::<ops::$op<{ ops::NEAREST }>>(),
            ops::ZERO => $template::<ops::$op<{ ops::ZERO }>>(),
            ops::DOWN => $template::<ops::$op<{ ops::DOWN }>>(),
            _ => $template::<ops::$op<{ ops::UP }>>(),
        }
    };
}

/// Code with or without flushing of subnormals.
macro_rules! by_flush {
    ($flush:expr, $template:ident, $($op:tt)::*) => {
        if $flush { $template::<$($op)::*<true>>() } else { $template::<$($op)::*<false>>() }
    };
}

/// `min` and `max` of `f32`.
fn extreme_f32(opcode: &str, flush: bool, nan_wins: bool) -> Exec {
    match (opcode, flush, nan_wins) {
        ("min", false, false) => binary::<ops::MinF32<false, false>>(),
        ("min", false, true) => binary::<ops::MinF32<false, true>>(),
        ("min", true, false) => binary::<ops::MinF32<true, false>>(),
        ("min", true, true) => binary::<ops::MinF32<true, true>>(),
        (_, false, false) => binary::<ops::MaxF32<false, false>>(),
        (_, false, true) => binary::<ops::MaxF32<false, true>>(),
        (_, true, false) => binary::<ops::MaxF32<true, false>>(),
        (_, true, true) => binary::<ops::MaxF32<true, true>>(),
    }
}

/// `min` and `max` of magnitudes of `f32`, with the signs joined.
fn extreme_magnitude_f32(opcode: &str, flush: bool, nan_wins: bool) -> Exec {
    match (opcode, flush, nan_wins) {
        ("min", false, false) => binary::<ops::MinXorsignF32<false, false>>(),
        ("min", false, true) => binary::<ops::MinXorsignF32<false, true>>(),
        ("min", true, false) => binary::<ops::MinXorsignF32<true, false>>(),
        ("min", true, true) => binary::<ops::MinXorsignF32<true, true>>(),
        (_, false, false) => binary::<ops::MaxXorsignF32<false, false>>(),
        (_, false, true) => binary::<ops::MaxXorsignF32<false, true>>(),
        (_, true, false) => binary::<ops::MaxXorsignF32<true, false>>(),
        (_, true, true) => binary::<ops::MaxXorsignF32<true, true>>(),
    }
}

/// Returns the code of an approximate function of `f32`, if it exists.
fn approximate(opcode: &str, flush: bool) -> Option<Exec> {
    Some(match opcode {
        "ex2" => by_flush!(flush, unary, approx::Ex2),
        "lg2" => by_flush!(flush, unary, approx::Lg2),
        "sin" => by_flush!(flush, unary, approx::Sin),
        "cos" => by_flush!(flush, unary, approx::Cos),
        "rsqrt" => by_flush!(flush, unary, approx::Rsqrt),
        "tanh" => by_flush!(flush, unary, approx::Tanh),
        _ => return None,
    })
}

/// Code for one choice of the two signs of a fused multiply-add.
macro_rules! by_signs {
    ($signs:expr, $op:ident $(, $flag:literal)*) => {
        match $signs {
            [false, false] => ternary::<ops::$op<$($flag,)* false, false>>(),
            [false, true] => ternary::<ops::$op<$($flag,)* false, true>>(),
            [true, false] => ternary::<ops::$op<$($flag,)* true, false>>(),
            [true, true] => ternary::<ops::$op<$($flag,)* true, true>>(),
        }
    };
}

/// Returns the code of a contracted sum of `f32` or `f64`; `signs` tells whether the product and the addend are negated.
pub(crate) fn fused_float(kind: ContractionKind, saturates: bool, signs: [bool; 2]) -> Option<Exec> {
    Some(match (kind.ty, kind.flushes, saturates) {
        (Ty::F32, false, false) => by_signs!(signs, ContractedF32, false, false),
        (Ty::F32, false, true) => by_signs!(signs, ContractedF32, false, true),
        (Ty::F32, true, false) => by_signs!(signs, ContractedF32, true, false),
        (Ty::F32, true, true) => by_signs!(signs, ContractedF32, true, true),
        (Ty::F64, ..) => by_signs!(signs, ContractedF64),
        _ => return None,
    })
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `add` to `abs` on `f32`.
    pub(crate) fn arithmetic_f32(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let approximate = m.take("approx");
        let full = m.take("full");
        let (flush, saturate, nan_wins) = (m.take("ftz"), m.take("sat"), m.take("NaN"));
        let style = Style { rounding: m.rounding(), flush, saturate };
        let (exec, arity) = match i.opcode {
            "add" => (by_style!(style, binary, AddF32), 2),
            "sub" => (by_style!(style, binary, SubF32), 2),
            "mul" => (by_style!(style, binary, MulF32), 2),
            "fma" | "mad" => (by_style!(style, ternary, FmaF32), 3),
            "div" if approximate => (by_flush!(flush, binary, ops::DivApproxF32), 2),
            "div" => (by_style!(style, binary, DivF32), 2),
            "min" | "max" if m.take("xorsign") && m.take("abs") => {
                (extreme_magnitude_f32(i.opcode, flush, nan_wins), 2)
            }
            "min" | "max" => (extreme_f32(i.opcode, flush, nan_wins), 2),
            "neg" => (by_flush!(flush, unary, ops::NegF32), 1),
            "abs" => (by_flush!(flush, unary, ops::AbsF32), 1),
            _ => return Err(self.unsupported(i)),
        };
        let odd = (nan_wins && !matches!(i.opcode, "min" | "max")) || ((approximate || full) && i.opcode != "div");
        if odd {
            return Err(self.unsupported(i));
        }
        self.uniform(i, exec, Ty::F32, arity)?;
        self.set_role(role_of(i, Ty::F32));
        Ok(())
    }

    /// `add` to `abs` on `f64`.
    pub(crate) fn arithmetic_f64(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let rounding = m.rounding();
        let (exec, arity) = match i.opcode {
            "add" => (by_rounding!(rounding, binary, AddF64), 2),
            "sub" => (by_rounding!(rounding, binary, SubF64), 2),
            "mul" => (by_rounding!(rounding, binary, MulF64), 2),
            "fma" | "mad" => (by_rounding!(rounding, ternary, FmaF64), 3),
            "div" => (by_rounding!(rounding, binary, DivF64), 2),
            "min" => (binary::<ops::MinF64>(), 2),
            "max" => (binary::<ops::MaxF64>(), 2),
            "neg" => (unary::<ops::NegF64>(), 1),
            "abs" => (unary::<ops::AbsF64>(), 1),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, Ty::F64, arity)?;
        self.set_role(role_of(i, Ty::F64));
        Ok(())
    }

    /// `sqrt` to `copysign`.
    pub(crate) fn float_function(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().ok_or_else(|| self.invalid("float function without a type"))?;
        let (approx, flush) = (m.take("approx"), m.take("ftz"));
        match ty {
            Ty::F32 => self.function_f32(i, m, approx, flush),
            Ty::F64 => self.function_f64(i, m, approx, flush),
            _ => self.function_half(i, ty),
        }
    }

    /// `sqrt rcp` in every rounding and the approximate functions.
    fn function_f32(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        approx: bool,
        flush: bool,
    ) -> Result<(), LoadError> {
        if i.opcode == "copysign" {
            return self.uniform(i, binary::<ops::CopysignF32>(), Ty::F32, 2);
        }
        // Here, the approximate square root and reciprocal are the exact ones.
        let style = Style { rounding: m.rounding(), flush, saturate: false };
        let exec = match i.opcode {
            "sqrt" => Some(by_style!(style, unary, SqrtF32)),
            "rcp" => Some(by_style!(style, unary, RcpF32)),
            _ if approx => approximate(i.opcode, flush),
            _ => None,
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        self.uniform(i, exec, Ty::F32, 1)
    }

    /// `sqrt rcp` in every rounding; the approximate ones exist for two functions, with and without flush.
    fn function_f64(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        approx: bool,
        flush: bool,
    ) -> Result<(), LoadError> {
        let rounding = m.rounding();
        let (exec, arity) = match (i.opcode, approx, flush) {
            ("copysign", false, false) => (binary::<ops::CopysignF64>(), 2),
            ("sqrt", false, false) => (by_rounding!(rounding, unary, SqrtF64), 1),
            // Flushing is for smaller floats: ptxas makes the same code with and without it.
            ("rcp", false, _) => (by_rounding!(rounding, unary, RcpF64), 1),
            ("rcp", true, true) => (unary::<ops::RcpApproxF64>(), 1),
            ("rsqrt", true, true) => (unary::<ops::RsqrtApproxFtzF64>(), 1),
            ("rsqrt", true, false) => (unary::<ops::RsqrtApproxF64>(), 1),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, Ty::F64, arity)
    }
}
