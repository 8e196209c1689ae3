//! The comparisons `setp set testp selp slct`.
//!
//! Pairs of 16-bit floats are compared half by half, so code exists only for single values.

use crate::alu::element::{Bf16, F16};
use crate::alu::lanes::{binary, compare, ternary, unary};
use crate::alu::{compare as tests, integer, moves, predicate};
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Code of a comparison on every type that has it.
macro_rules! ordered {
    ($op:ident, $ty:expr, $flush:expr) => {
        match ($ty, $flush) {
            (Ty::U(16) | Ty::B(16), false) => Some(compare::<tests::$op<u16>>()),
            (Ty::S(16), false) => Some(compare::<tests::$op<i16>>()),
            (Ty::U(32) | Ty::B(32), false) => Some(compare::<tests::$op<u32>>()),
            (Ty::S(32), false) => Some(compare::<tests::$op<i32>>()),
            (Ty::U(64) | Ty::B(64), false) => Some(compare::<tests::$op<u64>>()),
            (Ty::S(64), false) => Some(compare::<tests::$op<i64>>()),
            _ => floating!($op, $ty, $flush),
        }
    };
}

/// Code of a comparison on floats.
macro_rules! floating {
    ($op:ident, $ty:expr, $flush:expr) => {
        match ($ty, $flush) {
            (Ty::F32, false) => Some(compare::<tests::$op<f32>>()),
            (Ty::F32, true) => Some(compare::<tests::$op<tests::FlushedF32>>()),
            (Ty::F64, false) => Some(compare::<tests::$op<f64>>()),
            (Ty::F16, false) => Some(compare::<tests::$op<F16>>()),
            (Ty::F16, true) => Some(compare::<tests::$op<tests::FlushedHalf>>()),
            (Ty::Bf16, false) => Some(compare::<tests::$op<Bf16>>()),
            _ => None,
        }
    };
}

/// Names of comparisons.
const COMPARISON_NAMES: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// Returns the code of a comparison.
fn comparison(name: &str, ty: Ty, flush: bool) -> Option<Exec> {
    match name {
        "eq" => ordered!(Eq, ty, flush),
        // Integers are never unordered, so the cheaper test suffices.
        "ne" if ty.integer().is_some() => ordered!(Neu, ty, flush),
        "ne" => floating!(Ne, ty, flush),
        "lt" | "lo" => ordered!(Lt, ty, flush),
        "le" | "ls" => ordered!(Le, ty, flush),
        "gt" | "hi" => ordered!(Gt, ty, flush),
        "ge" | "hs" => ordered!(Ge, ty, flush),
        "equ" => floating!(Equ, ty, flush),
        "neu" => floating!(Neu, ty, flush),
        "ltu" => floating!(Ltu, ty, flush),
        "leu" => floating!(Leu, ty, flush),
        "gtu" => floating!(Gtu, ty, flush),
        "geu" => floating!(Geu, ty, flush),
        "num" => floating!(Num, ty, flush),
        _ => floating!(Nan, ty, flush),
    }
}

/// Returns the code of `testp`.
fn property(name: &str, ty: Ty) -> Option<Exec> {
    Some(match (name, ty) {
        ("finite", Ty::F32) => compare::<tests::Finite32>(),
        ("infinite", Ty::F32) => compare::<tests::Infinite32>(),
        ("number", Ty::F32) => compare::<tests::Number32>(),
        ("notanumber", Ty::F32) => compare::<tests::NotANumber32>(),
        ("normal", Ty::F32) => compare::<tests::Normal32>(),
        ("subnormal", Ty::F32) => compare::<tests::Subnormal32>(),
        ("finite", Ty::F64) => compare::<tests::Finite64>(),
        ("infinite", Ty::F64) => compare::<tests::Infinite64>(),
        ("number", Ty::F64) => compare::<tests::Number64>(),
        ("notanumber", Ty::F64) => compare::<tests::NotANumber64>(),
        ("normal", Ty::F64) => compare::<tests::Normal64>(),
        ("subnormal", Ty::F64) => compare::<tests::Subnormal64>(),
        _ => return None,
    })
}

/// Returns the values of `set` for true and false.
fn set_results(ty: Ty) -> Option<(u64, u64)> {
    Some(match ty {
        Ty::U(32) | Ty::S(32) => (0xffff_ffff, 0),
        Ty::F32 => (u64::from(1.0_f32.to_bits()), 0),
        Ty::U(16) | Ty::S(16) => (0xffff, 0),
        Ty::F16 => (0x3c00, 0),
        Ty::Bf16 => (0x3f80, 0),
        _ => return None,
    })
}

/// A comparison, as its modifiers define it.
#[derive(Clone, Copy)]
struct Comparison {
    /// The operation on one value.
    exec: Exec,
    /// Its combination with a predicate.
    join: Option<u64>,
    /// Type of the compared values.
    ty: Ty,
    /// Type of the result of `set`.
    result: Ty,
}

/// Returns the type of a half of a pair; other types stay.
fn part_of(ty: Ty) -> Ty {
    match ty {
        Ty::F16x2 => Ty::F16,
        Ty::Bf16x2 => Ty::Bf16,
        other => other,
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `setp` to `slct`.
    pub(crate) fn comparison(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        match i.opcode {
            "setp" => self.set_predicate(i, m),
            "set" => self.set(i, m),
            "testp" => self.test(i, m),
            "selp" => self.select(i, m),
            _ => self.select_by_sign(i, m),
        }
    }

    /// Reads the modifiers: the comparison, the flush, the combining word, and `types` types, the last of which is compared.
    fn compared(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, types: usize) -> Result<Comparison, LoadError> {
        let name = m.one_of(COMPARISON_NAMES);
        let join = m.one_of(&["and", "or", "xor"]).map(|word| match word {
            "and" => predicate::COMPARE_AND,
            "or" => predicate::COMPARE_OR,
            _ => predicate::COMPARE_XOR,
        });
        let flush = m.take("ftz");
        let types: Vec<Ty> = std::iter::from_fn(|| m.ty()).take(types).collect();
        let (Some(name), [result, ..], Some(ty)) = (name, types.as_slice(), types.last()) else {
            return Err(self.unsupported(i));
        };
        let exec = comparison(name, part_of(*ty), flush).ok_or_else(|| self.unsupported(i))?;
        Ok(Comparison { exec, join, ty: *ty, result: *result })
    }

    /// Adds a comparison of two sources into `d`, combined with a predicate, and its opposite into `opposite`.
    fn compare(
        &mut self,
        how: Comparison,
        (a, b): (Ref, Ref),
        other: Option<&Operand<'a>>,
        (d, opposite): (Ref, Option<Ref>),
    ) -> Result<(), LoadError> {
        let mut draft = Draft::new(how.exec).d(d).a(a).b(b);
        let mut code = if opposite.is_some() { predicate::COMPARE_WRITES_BOTH } else { predicate::COMPARE_ONLY };
        match (how.join, other) {
            (Some(join), Some(operand)) => {
                let (other, negated) = self.predicate(operand)?;
                code = join | if negated { predicate::NEGATE_C } else { 0 };
                draft = draft.c(other).distinct_slots();
            }
            (None, None) => {}
            _ => return Err(self.invalid("comparison with the wrong number of operands")),
        }
        if let Some(opposite) = opposite {
            draft = draft.x(opposite, OperandRole::Def);
        }
        self.push(draft.imm(code));
        Ok(())
    }

    /// Splits the operands of a comparison: destination, sources, and the predicate to combine with.
    fn comparands<'o>(
        &self,
        i: &'o Instruction<'a>,
    ) -> Result<(&'o Operand<'a>, &'o Operand<'a>, &'o Operand<'a>, Option<&'o Operand<'a>>), LoadError> {
        match i.operands.as_slice() {
            [destination, a, b] => Ok((destination, a, b, None)),
            [destination, a, b, other] => Ok((destination, a, b, Some(other))),
            _ => Err(self.invalid("comparison with the wrong number of operands")),
        }
    }

    /// `setp.lt.s32 p|q, a, b` and `setp.lt.and.s32 p|q, a, b, c`.
    fn set_predicate(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let how = self.compared(i, m, 1)?;
        let (destination, a, b, other) = self.comparands(i)?;
        let (first, second) = self.pair(destination);
        let (a, b) = (self.source(a, how.ty)?, self.source(b, how.ty)?);
        let first = self.destination(first, Ty::Pred)?;
        let second = second.map(|second| self.destination(second, Ty::Pred)).transpose()?;
        match (how.ty, second) {
            (Ty::F16x2 | Ty::Bf16x2, Some(second)) => {
                // Sources are read before the first result is written, which may be the predicate to combine with.
                let parts = [self.halves(a, b), self.upper_halves(a, b)];
                let bits = [self.temporary(Width::Pred), self.temporary(Width::Pred)];
                for (part, bit) in parts.into_iter().zip(bits) {
                    self.compare(how, part, other, (bit, None))?;
                }
                self.emit(moves::copy_predicate, first, &[bits[0], bits[0]]);
                self.emit(moves::copy_predicate, second, &[bits[1], bits[1]]);
                Ok(())
            }
            // A comparison of pairs with one result returns that of the low halves.
            (Ty::F16x2 | Ty::Bf16x2, None) => {
                let low = self.halves(a, b);
                self.compare(how, low, other, (first, None))
            }
            (Ty::F16 | Ty::Bf16, Some(_)) => Err(self.invalid("a comparison of 16-bit floats has one result")),
            _ => self.compare(how, (a, b), other, (first, second)),
        }
    }

    /// Adds a test whether `word` is not zero, combined with a predicate by `and` or `or`.
    pub(super) fn any_bit(&mut self, word: Ref, join: &str, other: &Operand<'a>, d: Ref) -> Result<(), LoadError> {
        let ty = Ty::B(32);
        let join = Some(if join == "and" { predicate::COMPARE_AND } else { predicate::COMPARE_OR });
        let how = Comparison { exec: compare::<tests::Neu<u32>>(), join, ty, result: ty };
        let zero = self.constant(0, Width::Word);
        self.compare(how, (word, zero), Some(other), (d, None))
    }

    /// Adds code for the low halves of two words.
    fn halves(&mut self, a: Ref, b: Ref) -> (Ref, Ref) {
        let (low_a, low_b) = (self.temporary(Width::Word), self.temporary(Width::Word));
        self.emit(unary::<moves::Low16>(), low_a, &[a]);
        self.emit(unary::<moves::Low16>(), low_b, &[b]);
        (low_a, low_b)
    }

    /// Adds code for the high halves of two words.
    fn upper_halves(&mut self, a: Ref, b: Ref) -> (Ref, Ref) {
        let (high_a, high_b) = (self.temporary(Width::Word), self.temporary(Width::Word));
        self.emit(unary::<moves::High16>(), high_a, &[a]);
        self.emit(unary::<moves::High16>(), high_b, &[b]);
        (high_a, high_b)
    }

    /// `set.lt.f32.s32 d, a, b`: a comparison, then a choice of constants; of pairs, twice.
    fn set(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let how = self.compared(i, m, 2)?;
        let pair = part_of(how.ty) != how.ty;
        // For pairs, an integer result has the masks of both halves.
        let part = if pair && matches!(how.result, Ty::U(32) | Ty::S(32)) { Ty::U(16) } else { part_of(how.result) };
        let (yes, no) = set_results(part).ok_or_else(|| self.unsupported(i))?;
        let (destination, a, b, other) = self.comparands(i)?;
        let (a, b) = (self.source(a, how.ty)?, self.source(b, how.ty)?);
        let d = self.destination(destination, how.result)?;
        let constants = [self.constant(yes, Width::Word), self.constant(no, Width::Word)];
        let parts = if pair { vec![self.halves(a, b), self.upper_halves(a, b)] } else { vec![(a, b)] };
        let mut chosen = Vec::with_capacity(2);
        for part in parts {
            let bits = self.temporary(Width::Pred);
            let value = if pair { self.temporary(Width::Word) } else { d };
            self.compare(how, part, other, (bits, None))?;
            self.emit(moves::select::<u32>(), value, &[constants[0], constants[1], bits]);
            chosen.push(value);
        }
        match chosen.as_slice() {
            [low, high] if how.result.bits() == 32 && how.result != Ty::F32 => {
                self.emit(binary::<moves::Pack32>(), d, &[*low, *high]);
            }
            [_] if !pair => {}
            _ => return Err(self.unsupported(i)),
        }
        Ok(())
    }

    /// `testp.finite.f32 p, a`
    fn test(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let name = m.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
        let ty = m.ty();
        let exec = name.zip(ty).and_then(|(name, ty)| Some((property(name, ty)?, ty)));
        let (exec, ty) = exec.ok_or_else(|| self.unsupported(i))?;
        let [destination, a] = self.operands(i)?;
        let a = self.source(a, ty)?;
        let d = self.destination(destination, Ty::Pred)?;
        self.test_one(exec, d, a);
        Ok(())
    }

    /// Adds a comparison of one operand, which the code gets twice.
    pub(super) fn test_one(&mut self, exec: Exec, d: Ref, a: Ref) {
        self.push(Draft::new(exec).d(d).a(a).b(a).imm(predicate::COMPARE_ONLY));
    }

    /// `selp.b32 d, a, b, p`
    fn select(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().ok_or_else(|| self.invalid("selp without a type"))?;
        let [destination, a, b, condition] = self.operands(i)?;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let condition = self.plain_predicate(condition)?;
        let d = self.destination(destination, ty)?;
        let exec = if ty.bits() == 64 { moves::select::<u64>() } else { moves::select::<u32>() };
        self.emit(exec, d, &[a, b, condition]);
        Ok(())
    }

    /// `slct.b32.s32 d, a, b, c`
    fn select_by_sign(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let flush = m.take("ftz");
        let (Some(ty), Some(sign)) = (m.ty(), m.ty()) else { return Err(self.unsupported(i)) };
        let exec = match (ty.bits(), sign) {
            (64, Ty::F32) if flush => ternary::<integer::SelectFlushed<u64>>(),
            (_, Ty::F32) if flush => ternary::<integer::SelectFlushed<u32>>(),
            _ if flush => return Err(self.unsupported(i)),
            (64, Ty::S(32)) => ternary::<integer::SelectSigned<u64>>(),
            (64, Ty::F32) => ternary::<integer::SelectFloat<u64>>(),
            (_, Ty::S(32)) => ternary::<integer::SelectSigned<u32>>(),
            (_, Ty::F32) => ternary::<integer::SelectFloat<u32>>(),
            _ => return Err(self.unsupported(i)),
        };
        self.regular(i, exec, ty, &[ty, ty, sign])
    }
}
