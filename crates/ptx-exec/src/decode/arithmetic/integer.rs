//! `add` to `sad`: integer arithmetic, and dispatch to the float families for shared opcodes.
//!
//! | written | chosen by |
//! |---|---|
//! | `add sub div rem min max neg abs sad` | type |
//! | `mul mad mul24 mad24` with `.lo .hi .wide` | type and half |
//! | any of these with `.sat` | half; only `.s32` has it |
//! | `add addc sub subc mad madc` with `.cc` | width; the flag is one predicate of the function |
//! | `addc subc madc` on 16 bits | 32 bits of the sum, cut off |

use crate::alu::carry::{self, Chain};
use crate::alu::integer as ops;
use crate::alu::lanes::{binary, ternary, unary};
use crate::alu::moves;
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::types::{Ty, Width};
use katydid_ptx::ast::Instruction;

/// Code of a template over an operation on each integer type.
macro_rules! by_type {
    ($ty:expr, $template:ident, $op:ident) => {
        match $ty {
            Ty::U(16) | Ty::B(16) => Some($template::<ops::$op<u16>>()),
            Ty::S(16) => Some($template::<ops::$op<i16>>()),
            Ty::U(32) | Ty::B(32) => Some($template::<ops::$op<u32>>()),
            Ty::S(32) => Some($template::<ops::$op<i32>>()),
            Ty::U(64) | Ty::B(64) => Some($template::<ops::$op<u64>>()),
            Ty::S(64) => Some($template::<ops::$op<i64>>()),
            _ => None,
        }
    };
}

/// Code of a template over an operation on 16- and 32-bit types.
macro_rules! by_narrow_type {
    ($ty:expr, $template:ident, $op:ident) => {
        match $ty {
            Ty::U(16) => Some($template::<ops::$op<u16>>()),
            Ty::S(16) => Some($template::<ops::$op<i16>>()),
            Ty::U(32) => Some($template::<ops::$op<u32>>()),
            Ty::S(32) => Some($template::<ops::$op<i32>>()),
            _ => None,
        }
    };
}

/// Code of a template over an operation on 32-bit types.
macro_rules! by_word_type {
    ($ty:expr, $template:ident, $op:ident) => {
        match $ty {
            Ty::U(32) => Some($template::<ops::$op<u32>>()),
            Ty::S(32) => Some($template::<ops::$op<i32>>()),
            _ => None,
        }
    };
}

/// Code of a template over an operation on pairs of 16-bit integers.
macro_rules! by_pair_type {
    ($ty:expr, $op:ident) => {
        match $ty {
            Ty::U16x2 => Some(binary::<ops::$op<u16>>()),
            Ty::S16x2 => Some(binary::<ops::$op<i16>>()),
            _ => None,
        }
    };
}

/// The type of twice the width.
fn doubled(ty: Ty) -> Ty {
    match ty {
        Ty::U(bits) => Ty::U(bits * 2),
        Ty::S(bits) => Ty::S(bits * 2),
        other => other,
    }
}

/// Code for operations whose operands all have the same type.
fn plain(opcode: &str, ty: Ty) -> Option<Exec> {
    match opcode {
        "add" => by_type!(ty, binary, Add).or_else(|| by_pair_type!(ty, Add2)),
        "sub" => by_type!(ty, binary, Sub),
        "div" => by_type!(ty, binary, Div),
        "rem" => by_type!(ty, binary, Rem),
        "min" => by_type!(ty, binary, Min).or_else(|| by_pair_type!(ty, Min2)),
        "max" => by_type!(ty, binary, Max).or_else(|| by_pair_type!(ty, Max2)),
        "neg" => by_type!(ty, unary, Neg),
        "abs" => by_type!(ty, unary, Abs),
        "sad" => by_type!(ty, ternary, Sad),
        _ => None,
    }
}

/// Returns code for products, whose modifier selects a half.
fn product(opcode: &str, half: &str, ty: Ty) -> Option<Exec> {
    match (opcode, half) {
        ("mul", "lo") => by_type!(ty, binary, MulLo),
        ("mul", "hi") => by_type!(ty, binary, MulHi),
        ("mul", "wide") => by_narrow_type!(ty, binary, MulWide),
        ("mad", "lo") => by_type!(ty, ternary, MadLo),
        ("mad", "hi") => by_type!(ty, ternary, MadHi),
        ("mad", "wide") => by_narrow_type!(ty, ternary, MadWide),
        ("mul24", "lo") => by_word_type!(ty, binary, Mul24Lo),
        ("mul24", "hi") => by_word_type!(ty, binary, Mul24Hi),
        ("mad24", "lo") => by_word_type!(ty, ternary, Mad24Lo),
        ("mad24", "hi") => by_word_type!(ty, ternary, Mad24Hi),
        _ => None,
    }
}

/// Code for saturating operations, all on `.s32`.
fn saturating(opcode: &str, half: Option<&str>) -> Option<Exec> {
    Some(match (opcode, half) {
        ("add", None) => binary::<ops::AddSat>(),
        ("sub", None) => binary::<ops::SubSat>(),
        ("mad", Some("hi")) => ternary::<ops::MadHiSat>(),
        ("mad24", Some("hi")) => ternary::<ops::Mad24HiSat>(),
        _ => return None,
    })
}

/// Code for `min.relu` and `max.relu`.
fn positive(opcode: &str, ty: Ty) -> Option<Exec> {
    Some(match (opcode, ty) {
        ("min", Ty::S(32)) => binary::<ops::MinRelu>(),
        ("max", Ty::S(32)) => binary::<ops::MaxRelu>(),
        ("min", Ty::S16x2) => binary::<ops::MinRelu2>(),
        ("max", Ty::S16x2) => binary::<ops::MaxRelu2>(),
        _ => return None,
    })
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Arithmetic of any type.
    pub(crate) fn arithmetic(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().ok_or_else(|| self.invalid("arithmetic without a type"))?;
        match ty {
            Ty::F32 => self.arithmetic_f32(i, m),
            Ty::F64 => self.arithmetic_f64(i, m),
            Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => self.arithmetic_half(i, m, ty),
            _ if m.has("cc") || matches!(i.opcode, "addc" | "subc" | "madc") => self.carry_chain(i, m, ty),
            _ => self.arithmetic_integer(i, m, ty),
        }
    }

    /// Decodes everything but carry chains. The half of a product determines the type of its result.
    fn arithmetic_integer(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, ty: Ty) -> Result<(), LoadError> {
        let half = m.one_of(&["lo", "hi", "wide"]);
        let exec = if m.take("relu") {
            positive(i.opcode, ty)
        } else if m.take("sat") {
            saturating(i.opcode, half).filter(|_| ty == Ty::S(32))
        } else {
            half.map_or_else(|| plain(i.opcode, ty), |half| product(i.opcode, half, ty))
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        let result = if half == Some("wide") { doubled(ty) } else { ty };
        // Of the sources of a product, only the addend has the type of the result.
        let sources: &[Ty] = match i.opcode {
            "neg" | "abs" => &[ty],
            "mad" | "mad24" | "sad" => &[ty, ty, result],
            _ => &[ty, ty],
        };
        self.regular(i, exec, result, sources)
    }

    /// An instruction `d = exec(a, b, c)` with a type for each operand.
    pub(crate) fn regular(
        &mut self,
        i: &Instruction<'a>,
        exec: Exec,
        result: Ty,
        sources: &[Ty],
    ) -> Result<(), LoadError> {
        let Some((destination, operands)) = i.operands.split_first() else {
            return Err(self.invalid(format!("{} without operands", i.full_name())));
        };
        if operands.len() != sources.len() || sources.len() > 3 {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        let mut references: Vec<Ref> = Vec::with_capacity(3);
        for (operand, ty) in operands.iter().zip(sources) {
            references.push(self.source(operand, *ty)?);
        }
        let d = self.destination(destination, result)?;
        self.emit(exec, d, &references);
        Ok(())
    }

    /// An instruction whose operands all have type `ty`, with `arity` sources.
    pub(crate) fn uniform(&mut self, i: &Instruction<'a>, exec: Exec, ty: Ty, arity: usize) -> Result<(), LoadError> {
        self.regular(i, exec, ty, &[ty; 3][..arity.min(3)])
    }

    /// `add.cc` to `madc.hi.cc`, and `madc.hi.sat.s32`, which has no flag of its own.
    fn carry_chain(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, ty: Ty) -> Result<(), LoadError> {
        let half = m.one_of(&["lo", "hi"]);
        if ty.bits() == 16 {
            return self.narrow_carry_chain(i, half, ty);
        }
        let saturates = (i.opcode, half, ty) == ("madc", Some("hi"), Ty::S(32)) && !m.has("cc") && m.take("sat");
        let chain = match (i.opcode, half) {
            ("add" | "addc", None) => Chain::Add,
            ("sub" | "subc", None) => Chain::Sub,
            ("mad" | "madc", Some("lo")) => Chain::MadLo,
            ("mad" | "madc", Some("hi")) if saturates => Chain::MadHiSat,
            ("mad" | "madc", Some("hi")) => Chain::MadHi,
            _ => return Err(self.unsupported(i)),
        };
        let carry_in = if i.opcode.ends_with('c') { carry::CARRY_IN } else { 0 };
        let carry_out = if m.take("cc") { carry::CARRY_OUT } else { 0 };
        let signed = matches!(ty, Ty::S(_));
        let exec = match ty.width() {
            Some(Width::Word) if ty.bits() == 32 => carry::chain::<u32>(chain, signed),
            Some(Width::Double) => carry::chain::<u64>(chain, signed),
            _ => return Err(self.unsupported(i)),
        };
        let sources = i.operands.get(1..).unwrap_or_default();
        let references = sources.iter().map(|operand| self.source(operand, ty)).collect::<Result<Vec<_>, _>>()?;
        let (a, b, c) = match (chain, references.as_slice()) {
            (Chain::Add | Chain::Sub, [a, b]) => (a, b, a),
            (Chain::MadLo | Chain::MadHi | Chain::MadHiSat, [a, b, c]) => (a, b, c),
            _ => return Err(self.invalid("carry chain with the wrong number of operands")),
        };
        let destination = i.operands.first().ok_or_else(|| self.invalid("no destination"))?;
        let d = self.destination(destination, ty)?;
        self.push_carry_step(exec, d, [*a, *b, *c], carry_in | carry_out);
        Ok(())
    }

    /// Adds one step of a chain. One field both reads and writes the flag: it defines the flag without ending its earlier value.
    fn push_carry_step(&mut self, exec: Exec, d: Ref, [a, b, c]: [Ref; 3], carries: u64) {
        let flag = *self.carry.get_or_insert_with(|| self.registers.fresh(Width::Pred));
        let draft = Draft::new(exec).d(d).a(a).b(b).c(c).x(flag, OperandRole::Use).imm(carries).distinct_slots();
        let draft = if carries & carry::CARRY_OUT != 0 { self.with_extra_destinations(draft, &[flag]) } else { draft };
        self.push(draft);
    }

    /// Decodes `addc`, `subc` and `madc` on 16 bits, which read the flag but do not write it: the low half of the sum of words.
    fn narrow_carry_chain(&mut self, i: &Instruction<'a>, half: Option<&str>, ty: Ty) -> Result<(), LoadError> {
        let [destination, sources @ ..] = i.operands.as_slice() else { return Err(self.invalid("no destination")) };
        let references = sources.iter().map(|operand| self.source(operand, ty)).collect::<Result<Vec<_>, _>>()?;
        let (chain, [a, b, c]) = match (i.opcode, half, references.as_slice()) {
            ("addc", None, [a, b]) => (Chain::Add, [*a, *b, *a]),
            ("subc", None, [a, b]) => (Chain::Sub, [*a, *b, *a]),
            ("madc", Some("lo"), [a, b, c]) => (Chain::MadLo, [*a, *b, *c]),
            ("madc", Some("hi"), [a, b, c]) => {
                let upper = self.temporary(Width::Word);
                let exec = by_type!(ty, binary, MulHi).ok_or_else(|| self.unsupported(i))?;
                self.emit(exec, upper, &[*a, *b]);
                (Chain::Add, [upper, *c, upper])
            }
            _ => return Err(self.unsupported(i)),
        };
        let sum = self.temporary(Width::Word);
        self.push_carry_step(carry::chain::<u32>(chain, false), sum, [a, b, c], carry::CARRY_IN);
        let d = self.destination(destination, ty)?;
        self.emit(unary::<moves::Low16>(), d, &[sum]);
        Ok(())
    }

    /// Marks registers as written, besides those in the operand fields.
    fn with_extra_destinations(&mut self, mut draft: Draft, registers: &[Ref]) -> Draft {
        draft.list = self.list(registers);
        draft.list_role = OperandRole::Def;
        draft
    }
}
