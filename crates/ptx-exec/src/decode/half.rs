//! Arithmetic on `f16`, `bf16` and pairs of them.

use super::function::FunctionDecoder;
use super::modifiers::Modifiers;
use crate::alu::element::{Bf16, F16};
use crate::alu::half as ops;
use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::round::mode;
use crate::api::LoadError;
use crate::inst::Exec;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// Code of an operation on one value, or of its twin on pairs.
macro_rules! by_type {
    ($ty:expr, $template:ident, $one:ident, $two:ident) => {
        match $ty {
            Ty::F16 => $template::<ops::$one<F16>>(),
            Ty::Bf16 => $template::<ops::$one<Bf16>>(),
            Ty::F16x2 => $template::<ops::$two<F16>>(),
            _ => $template::<ops::$two<Bf16>>(),
        }
    };
}

/// Code of an operation on one value; pairs have none.
macro_rules! by_single_type {
    ($ty:expr, $template:ident, $one:ident) => {
        match $ty {
            Ty::F16 => Some($template::<ops::$one<F16>>()),
            Ty::Bf16 => Some($template::<ops::$one<Bf16>>()),
            _ => None,
        }
    };
}

/// Code for arithmetic that clamps to 0..1.
fn saturating(opcode: &str, ty: Ty) -> Option<Exec> {
    match opcode {
        "add" => by_single_type!(ty, binary, AddSat),
        "sub" => by_single_type!(ty, binary, SubSat),
        "mul" => by_single_type!(ty, binary, MulSat),
        "fma" => by_single_type!(ty, ternary, FmaSat),
        _ => None,
    }
}

/// Code for sign operations.
fn sign(opcode: &str, ty: Ty) -> Exec {
    if opcode == "neg" { by_type!(ty, unary, Neg, Neg2) } else { by_type!(ty, unary, Abs, Abs2) }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `add` to `abs` on 16-bit floats. `.ftz` is refused: nothing emits it here.
    pub(crate) fn arithmetic_half(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        ty: Ty,
    ) -> Result<(), LoadError> {
        let (saturate, relu, nan_wins) = (m.take("sat"), m.take("relu"), m.take("NaN"));
        if m.has("ftz") || m.rounding() != mode::NEAREST {
            return Err(self.unsupported(i));
        }
        let (exec, arity) = match (i.opcode, saturate, relu, nan_wins) {
            (_, true, false, false) => {
                let arity = if i.opcode == "fma" { 3 } else { 2 };
                (saturating(i.opcode, ty).ok_or_else(|| self.unsupported(i))?, arity)
            }
            ("add", false, false, false) => (by_type!(ty, binary, Add, Add2), 2),
            ("sub", false, false, false) => (by_type!(ty, binary, Sub, Sub2), 2),
            ("mul", false, false, false) => (by_type!(ty, binary, Mul, Mul2), 2),
            ("fma", false, false, false) => (by_type!(ty, ternary, Fma, Fma2), 3),
            ("fma", false, true, false) => (by_type!(ty, ternary, FmaRelu, FmaRelu2), 3),
            ("min", false, false, false) => (by_type!(ty, binary, Min, Min2), 2),
            ("max", false, false, false) => (by_type!(ty, binary, Max, Max2), 2),
            ("min", false, false, true) => (by_type!(ty, binary, MinNan, MinNan2), 2),
            ("max", false, false, true) => (by_type!(ty, binary, MaxNan, MaxNan2), 2),
            ("neg" | "abs", false, false, false) => (sign(i.opcode, ty), 1),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, ty, arity)
    }

    /// `ex2.approx` and `tanh.approx` on one value.
    pub(crate) fn function_half(&mut self, i: &Instruction<'a>, ty: Ty) -> Result<(), LoadError> {
        let exec = match i.opcode {
            "ex2" => by_single_type!(ty, unary, Ex2),
            "tanh" => by_single_type!(ty, unary, Tanh),
            _ => None,
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        self.uniform(i, exec, ty, 1)
    }
}
