//! Bit operations: `and` to `dp2a`.

use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::{bits as ops, integer, moves};
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Code of a template over 32 (or fewer) and 64 bits.
macro_rules! by_width {
    ($ty:expr, $template:ident, $op:ident) => {
        if $ty.bits() == 64 { $template::<ops::$op<u64>>() } else { $template::<ops::$op<u32>>() }
    };
}

/// Code of a shift, whose type determines the fill bits.
macro_rules! shift {
    ($ty:expr, $op:ident) => {
        match $ty {
            Ty::U(16) | Ty::B(16) => Some(binary::<integer::$op<u16>>()),
            Ty::S(16) => Some(binary::<integer::$op<i16>>()),
            Ty::U(32) | Ty::B(32) => Some(binary::<integer::$op<u32>>()),
            Ty::S(32) => Some(binary::<integer::$op<i32>>()),
            Ty::U(64) | Ty::B(64) => Some(binary::<integer::$op<u64>>()),
            Ty::S(64) => Some(binary::<integer::$op<i64>>()),
            _ => None,
        }
    };
}

/// Code for `and or xor not` on predicates.
fn on_predicates(opcode: &str) -> Option<Exec> {
    Some(match opcode {
        "and" => moves::and_predicate,
        "or" => moves::or_predicate,
        "xor" => moves::xor_predicate,
        "not" => moves::not_predicate,
        _ => return None,
    })
}

/// Code for a funnel shift.
fn funnel(direction: Option<&str>, clamp: bool) -> Option<Exec> {
    Some(match (direction?, clamp) {
        ("l", false) => ternary::<ops::ShiftLeftWrap>(),
        ("l", true) => ternary::<ops::ShiftLeftClamp>(),
        ("r", false) => ternary::<ops::ShiftRightWrap>(),
        (_, _) => ternary::<ops::ShiftRightClamp>(),
    })
}

/// Code for `prmt`.
fn permute(mode: Option<&str>) -> Exec {
    match mode {
        Some("f4e") => ternary::<ops::PermuteF4e>(),
        Some("b4e") => ternary::<ops::PermuteB4e>(),
        Some("rc8") => ternary::<ops::PermuteRc8>(),
        Some("ecl") => ternary::<ops::PermuteEcl>(),
        Some("ecr") => ternary::<ops::PermuteEcr>(),
        Some("rc16") => ternary::<ops::PermuteRc16>(),
        _ => ternary::<ops::Permute>(),
    }
}

/// Code for `bfind`.
fn find(ty: Ty, shift: bool) -> Exec {
    match (matches!(ty, Ty::S(_)), shift) {
        (false, false) => by_width!(ty, unary, Bfind),
        (true, false) => by_width!(ty, unary, BfindSigned),
        (false, true) => by_width!(ty, unary, BfindShift),
        (true, true) => by_width!(ty, unary, BfindShiftSigned),
    }
}

/// Code for `szext`.
fn extension(signed: bool, clamp: bool) -> Exec {
    match (signed, clamp) {
        (false, false) => binary::<ops::ZeroExtendWrap>(),
        (false, true) => binary::<ops::ZeroExtendClamp>(),
        (true, false) => binary::<ops::SignExtendWrap>(),
        (true, true) => binary::<ops::SignExtendClamp>(),
    }
}

/// Code for one of the sign combinations of a dot product.
macro_rules! dot {
    ($a:expr, $b:expr, $op:ident) => {
        match ($a, $b) {
            (false, false) => ternary::<ops::$op<false, false>>(),
            (false, true) => ternary::<ops::$op<false, true>>(),
            (true, false) => ternary::<ops::$op<true, false>>(),
            (true, true) => ternary::<ops::$op<true, true>>(),
        }
    };
}

/// Returns whether a `vabsdiff2` or `vabsdiff4` uses whole registers, with sources of one type, and does not clamp.
pub(crate) fn is_plain_distance(i: &Instruction<'_>) -> bool {
    let whole = i.operands.iter().all(|operand| !matches!(operand, Operand::Member(..)));
    whole && i.modifiers.get(1) == i.modifiers.get(2) && !i.modifiers.contains(&"sat")
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Any instruction of this family.
    pub(crate) fn logic(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().ok_or_else(|| self.invalid("bit operation without a type"))?;
        match i.opcode {
            "and" | "or" | "xor" | "not" if ty == Ty::Pred => self.predicate_logic(i),
            "bfi" => self.insert(i, ty),
            "lop3" => self.lop3(i, m),
            "dp4a" | "dp2a" => self.dot(i, m, ty),
            "fns" => self.uniform(i, ternary::<ops::NthSet>(), Ty::U(32), 3),
            "vabsdiff2" | "vabsdiff4" => self.distances(i, m, ty),
            "shl" | "shr" => {
                let exec = if i.opcode == "shl" { shift!(ty, Shl) } else { shift!(ty, Shr) };
                let exec = exec.ok_or_else(|| self.unsupported(i))?;
                self.regular(i, exec, ty, &[ty, Ty::U(32)])
            }
            "shf" | "prmt" | "bmsk" | "szext" => self.on_words(i, m, ty),
            _ => self.plain_logic(i, m, ty),
        }
    }

    /// Operations that exist in both widths.
    fn plain_logic(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, ty: Ty) -> Result<(), LoadError> {
        let word = Ty::U(32);
        match i.opcode {
            "and" => self.uniform(i, by_width!(ty, binary, And), ty, 2),
            "or" => self.uniform(i, by_width!(ty, binary, Or), ty, 2),
            "xor" => self.uniform(i, by_width!(ty, binary, Xor), ty, 2),
            "not" => self.uniform(i, by_width!(ty, unary, Inverse), ty, 1),
            "cnot" if ty.bits() == 16 => self.logical_not_of_half(i, ty),
            "cnot" => self.uniform(i, by_width!(ty, unary, LogicalNot), ty, 1),
            "popc" => self.regular(i, by_width!(ty, unary, Popc), word, &[ty]),
            "clz" => self.regular(i, by_width!(ty, unary, Clz), word, &[ty]),
            "brev" => self.uniform(i, by_width!(ty, unary, Brev), ty, 1),
            "bfind" => self.regular(i, find(ty, m.take("shiftamt")), word, &[ty]),
            "bfe" if matches!(ty, Ty::S(_)) => {
                self.regular(i, by_width!(ty, ternary, BfeSigned), ty, &[ty, word, word])
            }
            "bfe" => self.regular(i, by_width!(ty, ternary, Bfe), ty, &[ty, word, word]),
            _ => Err(self.unsupported(i)),
        }
    }

    /// Operations of 32 bits with a mode: `shf prmt bmsk szext`.
    fn on_words(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, ty: Ty) -> Result<(), LoadError> {
        let word = Ty::U(32);
        if ty.bits() != 32 {
            return Err(self.unsupported(i));
        }
        let mode = m.one_of(&["wrap", "clamp", "l", "r", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
        let second = m.one_of(&["wrap", "clamp"]);
        let clamp = mode == Some("clamp") || second == Some("clamp");
        match i.opcode {
            "shf" => {
                let exec = funnel(mode, clamp).ok_or_else(|| self.unsupported(i))?;
                self.uniform(i, exec, word, 3)
            }
            "prmt" => self.uniform(i, permute(mode), word, 3),
            "bmsk" if clamp => self.uniform(i, binary::<ops::MaskClamp>(), word, 2),
            "bmsk" => self.uniform(i, binary::<ops::MaskWrap>(), word, 2),
            _ => self.uniform(i, extension(ty == Ty::S(32), clamp), word, 2),
        }
    }

    /// Decodes `and.pred` and its relatives. A negated source is inverted first.
    fn predicate_logic(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        let exec = on_predicates(i.opcode).ok_or_else(|| self.unsupported(i))?;
        let [destination, sources @ ..] = i.operands.as_slice() else { return Err(self.invalid("no operands")) };
        let references = sources.iter().map(|source| self.plain_predicate(source)).collect::<Result<Vec<_>, _>>()?;
        let (a, b) = match (i.opcode, references.as_slice()) {
            ("not", [a]) => (a, a),
            ("and" | "or" | "xor", [a, b]) => (a, b),
            _ => return Err(self.invalid("predicate logic with the wrong number of operands")),
        };
        let d = self.destination(destination, Ty::Pred)?;
        self.emit(exec, d, &[*a, *b]);
        Ok(())
    }

    /// Decodes `bfi`, the only operation with four sources: the length goes into `x`.
    fn insert(&mut self, i: &Instruction<'a>, ty: Ty) -> Result<(), LoadError> {
        let [d, bits, base, position, length] = self.operands(i)?;
        let (bits, base) = (self.source(bits, ty)?, self.source(base, ty)?);
        let (position, length) = (self.source(position, Ty::U(32))?, self.source(length, Ty::U(32))?);
        let exec = if ty.width() == Some(Width::Double) { ops::insert::<u64>() } else { ops::insert::<u32>() };
        let d = self.destination(d, ty)?;
        self.push(Draft::new(exec).d(d).a(bits).b(base).c(position).x(length, OperandRole::Use));
        Ok(())
    }

    /// Decodes `cnot.b16`, which must ignore the upper half of the row.
    fn logical_not_of_half(&mut self, i: &Instruction<'a>, ty: Ty) -> Result<(), LoadError> {
        let [destination, a] = self.operands(i)?;
        let (a, half) = (self.source(a, ty)?, self.temporary(Width::Word));
        let d = self.destination(destination, ty)?;
        self.emit(unary::<moves::Low16>(), half, &[a]);
        self.emit(unary::<ops::LogicalNot<u32>>(), d, &[half]);
        Ok(())
    }

    /// Decodes `lop3.b32 d, a, b, c, table` and `lop3.or.b32 d|p, a, b, c, table, q`, where `p` tells whether any bit is set.
    fn lop3(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let join = m.one_of(&["and", "or"]);
        let [destination, a, b, c, Operand::Int(table), rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("lop3 without a constant table"));
        };
        let ty = Ty::B(32);
        let (a, b, c) = (self.source(a, ty)?, self.source(b, ty)?, self.source(c, ty)?);
        let (destination, any) = self.pair(destination);
        let d = self.destination(destination, ty)?;
        self.push(Draft::new(ops::lop3).d(d).a(a).b(b).c(c).imm(*table));
        match (join, any, rest) {
            (None, None, []) => Ok(()),
            (Some(join), Some(any), [other]) => {
                let any = self.destination(any, Ty::Pred)?;
                self.any_bit(d, join, other, any)
            }
            _ => Err(self.invalid("lop3 with the wrong number of operands")),
        }
    }

    /// Decodes `vabsdiff4.u32.u32.u32.add d, a, b, c`, with three types, of which those of the sources must be equal.
    fn distances(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, result: Ty) -> Result<(), LoadError> {
        let (first, second) = (m.ty(), m.ty());
        let sum = m.take("add");
        if first != second || result.bits() != 32 {
            return Err(self.unsupported(i));
        }
        let exec = match (i.opcode, first, sum) {
            ("vabsdiff4", Some(Ty::U(32)), false) => ternary::<ops::Distances<8, false, false>>(),
            ("vabsdiff4", Some(Ty::U(32)), true) => ternary::<ops::Distances<8, false, true>>(),
            ("vabsdiff4", Some(Ty::S(32)), false) => ternary::<ops::Distances<8, true, false>>(),
            ("vabsdiff4", Some(Ty::S(32)), true) => ternary::<ops::Distances<8, true, true>>(),
            ("vabsdiff2", Some(Ty::U(32)), false) => ternary::<ops::Distances<16, false, false>>(),
            ("vabsdiff2", Some(Ty::U(32)), true) => ternary::<ops::Distances<16, false, true>>(),
            ("vabsdiff2", Some(Ty::S(32)), false) => ternary::<ops::Distances<16, true, false>>(),
            ("vabsdiff2", Some(Ty::S(32)), true) => ternary::<ops::Distances<16, true, true>>(),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, Ty::U(32), 3)
    }

    /// `dp4a.s32.u32`, `dp2a.lo.s32.s32`.
    fn dot(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, first: Ty) -> Result<(), LoadError> {
        let second = m.ty().ok_or_else(|| self.invalid("dot product without a second type"))?;
        let (a, b) = (first == Ty::S(32), second == Ty::S(32));
        let half = m.one_of(&["lo", "hi"]);
        let exec = match (i.opcode, half) {
            ("dp4a", None) => dot!(a, b, Dot4),
            ("dp2a", Some("lo")) => dot!(a, b, Dot2Low),
            ("dp2a", Some(_)) => dot!(a, b, Dot2High),
            _ => return Err(self.unsupported(i)),
        };
        self.uniform(i, exec, Ty::U(32), 3)
    }
}
