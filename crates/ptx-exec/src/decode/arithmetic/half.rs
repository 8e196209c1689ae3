//! Arithmetic on `f16`, `bf16` and pairs of them.

use crate::alu::element::{Bf16, F16};
use crate::alu::half as ops;
use crate::alu::half_slow::{self, Operation, Style};
use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::round::mode;
use crate::api::LoadError;
use crate::decode::contraction_role::{ContractionKind, role_of};
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::Draft;
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// Code of an operation on one value, or of the same operation on pairs.
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

/// The operation of an opcode, and the number of its sources.
fn operation(opcode: &str) -> Option<(Operation, usize)> {
    Some(match opcode {
        "add" => (Operation::Add, 2),
        "sub" => (Operation::Sub, 2),
        "mul" => (Operation::Mul, 2),
        "fma" => (Operation::Fma, 3),
        "min" => (Operation::Min, 2),
        "max" => (Operation::Max, 2),
        "neg" => (Operation::Neg, 1),
        "abs" => (Operation::Abs, 1),
        _ => return None,
    })
}

/// Returns whether PTX has that combination. `bf16` has neither `.ftz` nor `.sat`, and each of the others belongs to a few
/// opcodes.
fn exists(style: &Style) -> bool {
    let extreme = matches!(style.operation, Operation::Min | Operation::Max);
    let sum = matches!(style.operation, Operation::Add | Operation::Sub | Operation::Mul | Operation::Fma);
    let fused = style.operation == Operation::Fma;
    (!style.bfloat || !(style.flush || style.saturate))
        && (!style.saturate || (sum && !style.relu))
        && (!style.relu || fused)
        && (!style.bounded || (fused && !style.flush && !style.saturate))
        && (extreme || !(style.nan_wins || style.sign_product))
}

/// Returns code for the styles that loops use.
fn fast(opcode: &str, ty: Ty, style: &Style) -> Option<Exec> {
    if style.flush || style.sign_product || style.bounded {
        return None;
    }
    if style.saturate {
        return saturating(opcode, ty);
    }
    Some(match (opcode, style.relu, style.nan_wins) {
        ("add", ..) => by_type!(ty, binary, Add, Add2),
        ("sub", ..) => by_type!(ty, binary, Sub, Sub2),
        ("mul", ..) => by_type!(ty, binary, Mul, Mul2),
        ("fma", false, _) => by_type!(ty, ternary, Fma, Fma2),
        ("fma", true, _) => by_type!(ty, ternary, FmaRelu, FmaRelu2),
        ("min", _, false) => by_type!(ty, binary, Min, Min2),
        ("max", _, false) => by_type!(ty, binary, Max, Max2),
        ("min", _, true) => by_type!(ty, binary, MinNan, MinNan2),
        ("max", _, true) => by_type!(ty, binary, MaxNan, MaxNan2),
        _ => sign(opcode, ty),
    })
}

/// Returns a contracted sum of 16-bit floats, without its operands; `None` for other types.
pub(crate) fn fused_half(kind: ContractionKind, saturates: bool) -> Option<Draft> {
    let ContractionKind { ty, flushes } = kind;
    if !matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2) {
        return None;
    }
    let style = Style {
        operation: Operation::Fma,
        bfloat: matches!(ty, Ty::Bf16 | Ty::Bf16x2),
        pair: matches!(ty, Ty::F16x2 | Ty::Bf16x2),
        flush: flushes,
        saturate: saturates,
        relu: false,
        nan_wins: false,
        sign_product: false,
        bounded: false,
    };
    let slow = || Draft::new(half_slow::arithmetic).imm(style.encode()).distinct_slots();
    Some(fast("fma", ty, &style).map_or_else(slow, Draft::new))
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `add` to `abs` on 16-bit floats, in every style.
    pub(crate) fn arithmetic_half(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        ty: Ty,
    ) -> Result<(), LoadError> {
        let (operation, arity) = operation(i.opcode).ok_or_else(|| self.unsupported(i))?;
        let style = Style {
            operation,
            bfloat: matches!(ty, Ty::Bf16 | Ty::Bf16x2),
            pair: matches!(ty, Ty::F16x2 | Ty::Bf16x2),
            flush: m.take("ftz"),
            saturate: m.take("sat"),
            relu: m.take("relu"),
            nan_wins: m.take("NaN"),
            sign_product: m.take("xorsign"),
            bounded: m.take("oob"),
        };
        let magnitudes = m.take("abs");
        if !exists(&style) || magnitudes != style.sign_product || m.rounding() != mode::NEAREST {
            return Err(self.unsupported(i));
        }
        if let Some(exec) = fast(i.opcode, ty, &style) {
            self.uniform(i, exec, ty, arity)?;
            self.set_role(role_of(i, ty));
            return Ok(());
        }
        let [destination, sources @ ..] = i.operands.as_slice() else { return Err(self.invalid("no operands")) };
        if sources.len() != arity {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        let mut references = sources.iter().map(|source| self.source(source, ty)).collect::<Result<Vec<_>, _>>()?;
        references.resize(3, references[0]);
        let d = self.destination(destination, ty)?;
        let draft = Draft::new(half_slow::arithmetic).d(d).a(references[0]).b(references[1]).c(references[2]);
        self.push(draft.imm(style.encode()).distinct_slots());
        self.set_role(role_of(i, ty));
        Ok(())
    }

    /// `ex2.approx` and `tanh.approx`.
    pub(crate) fn function_half(&mut self, i: &Instruction<'a>, ty: Ty) -> Result<(), LoadError> {
        let exec = match (i.opcode, ty) {
            ("ex2", Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2) => by_type!(ty, unary, Ex2, Ex2Pair),
            ("tanh", Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2) => by_type!(ty, unary, Tanh, TanhPair),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, ty, 1)
    }
}
