//! `mov`, `cvta`, `isspacep`, and the comparisons `setp set testp selp slct`.

use super::draft::{Draft, Ref, Role};
use super::function::FunctionDecoder;
use super::modifiers::Modifiers;
use crate::alu::element::{Bf16, F16};
use crate::alu::lanes::{binary, compare, ternary, unary};
use crate::alu::{compare as tests, integer, moves};
use crate::api::LoadError;
use crate::inst::Exec;
use crate::types::{Ty, Width};
use crate::window;
use katydid_ptx::ast::{Instruction, Operand};

/// Code of a comparison on every type that has it.
macro_rules! ordered {
    ($op:ident, $ty:expr, $flush:expr) => {
        match ($ty, $flush) {
            (Ty::U(16) | Ty::B(16), _) => Some(compare::<tests::$op<u16>>()),
            (Ty::S(16), _) => Some(compare::<tests::$op<i16>>()),
            (Ty::U(32) | Ty::B(32), _) => Some(compare::<tests::$op<u32>>()),
            (Ty::S(32), _) => Some(compare::<tests::$op<i32>>()),
            (Ty::U(64) | Ty::B(64), _) => Some(compare::<tests::$op<u64>>()),
            (Ty::S(64), _) => Some(compare::<tests::$op<i64>>()),
            _ => floating!($op, $ty, $flush),
        }
    };
}

/// Code of a comparison on floats.
macro_rules! floating {
    ($op:ident, $ty:expr, $flush:expr) => {
        match ($ty, $flush) {
            (Ty::F32, false) => Some(compare::<tests::$op<f32>>()),
            (Ty::F32, true) => Some(compare::<tests::$op<tests::Flushed>>()),
            (Ty::F64, _) => Some(compare::<tests::$op<f64>>()),
            (Ty::F16, _) => Some(compare::<tests::$op<F16>>()),
            (Ty::Bf16, _) => Some(compare::<tests::$op<Bf16>>()),
            _ => None,
        }
    };
}

/// Names of comparisons.
const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// Code for a comparison.
fn comparison(name: &str, ty: Ty, flush: bool) -> Option<Exec> {
    match name {
        "eq" => ordered!(Eq, ty, flush),
        // Integers are never unordered, so the cheaper test serves them.
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

/// Code for `testp`.
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

/// The two results of `set`: true and false.
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

    /// Takes the comparison, the flush and the type.
    fn compared(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(Exec, Ty), LoadError> {
        let name = m.one_of(COMPARISONS);
        let flush = m.take("ftz");
        let ty = m.ty();
        let exec = name.zip(ty).and_then(|(name, ty)| Some((comparison(name, ty, flush)?, ty)));
        exec.ok_or_else(|| self.unsupported(i))
    }

    /// `setp.lt.s32 p|q, a, b` and `setp.lt.and.s32 p|q, a, b, c`.
    fn set_predicate(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let (exec, ty) = self.compared(i, m)?;
        let join = m.one_of(&["and", "or", "xor"]);
        let [destination, a, b, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("too few operands"));
        };
        let (first, second) = self.pair(destination);
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let d = self.destination(first, Ty::Pred)?;
        let mut draft = Draft::new(exec).d(d).a(a).b(b);
        let mut how = if second.is_some() { tests::BOTH } else { tests::PLAIN };
        if let (Some(join), [operand]) = (join, rest) {
            let (other, negated) = self.predicate(operand)?;
            how = match join {
                "and" => tests::AND,
                "or" => tests::OR,
                _ => tests::XOR,
            } | if negated { tests::NEGATE_C } else { 0 };
            draft = draft.c(other).apart();
        } else if join.is_some() || !rest.is_empty() {
            return Err(self.invalid("setp with the wrong number of operands"));
        }
        if let Some(second) = second {
            let register = self.destination(second, Ty::Pred)?;
            draft = draft.x(register, Role::Def);
        }
        self.push(draft.imm(how));
        Ok(())
    }

    /// `set.lt.f32.s32 d, a, b`: a comparison, then a choice of constants.
    fn set(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let name = m.one_of(COMPARISONS).ok_or_else(|| self.unsupported(i))?;
        let flush = m.take("ftz");
        let (Some(result), Some(ty)) = (m.ty(), m.ty()) else { return Err(self.unsupported(i)) };
        let exec = comparison(name, ty, flush).ok_or_else(|| self.unsupported(i))?;
        let (yes, no) = set_results(result).ok_or_else(|| self.unsupported(i))?;
        let [destination, a, b] = self.operands(i)?;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let d = self.destination(destination, result)?;
        let bits = self.temporary(Width::Pred);
        self.push(Draft::new(exec).d(bits).a(a).b(b).imm(tests::PLAIN));
        let (yes, no) = (self.constant(yes, Width::Word), self.constant(no, Width::Word));
        self.emit(moves::select::<u32>(), d, &[yes, no, bits]);
        Ok(())
    }

    /// `testp.finite.f32 p, a`
    fn test(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let name = m.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
        let ty = m.ty();
        let exec = name.zip(ty).and_then(|(name, ty)| Some((property(name, ty)?, ty)));
        let (exec, ty) = exec.ok_or_else(|| self.unsupported(i))?;
        self.test_one(i, exec, ty)
    }

    /// A comparison of one operand, which the code takes twice.
    fn test_one(&mut self, i: &Instruction<'a>, exec: Exec, ty: Ty) -> Result<(), LoadError> {
        let [destination, a] = self.operands(i)?;
        let a = self.source(a, ty)?;
        let d = self.destination(destination, Ty::Pred)?;
        self.push(Draft::new(exec).d(d).a(a).b(a).imm(tests::PLAIN));
        Ok(())
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
        m.take("ftz");
        let (Some(ty), Some(sign)) = (m.ty(), m.ty()) else { return Err(self.unsupported(i)) };
        let exec = match (ty.bits(), sign) {
            (64, Ty::S(32)) => ternary::<integer::SelectSigned<u64>>(),
            (64, Ty::F32) => ternary::<integer::SelectFloat<u64>>(),
            (_, Ty::S(32)) => ternary::<integer::SelectSigned<u32>>(),
            (_, Ty::F32) => ternary::<integer::SelectFloat<u32>>(),
            _ => return Err(self.unsupported(i)),
        };
        self.regular(i, exec, ty, &[ty, ty, sign])
    }

    /// `mov cvta isspacep`.
    pub(crate) fn movement(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        match i.opcode {
            "mov" => self.mov(i, m),
            "cvta" => self.convert_address(i, m),
            _ => self.is_space(i, m),
        }
    }

    /// `mov` in all its forms: copies, addresses, packing, unpacking, predicates.
    fn mov(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().ok_or_else(|| self.invalid("mov without a type"))?;
        let [destination, source] = self.operands(i)?;
        match (destination, source) {
            (Operand::Vector(parts), whole) => self.unpack(i, ty, parts, whole),
            (whole, Operand::Vector(parts)) => self.pack(i, ty, whole, parts),
            _ if ty == Ty::Pred => {
                let a = self.plain_predicate(source)?;
                let d = self.destination(destination, ty)?;
                self.emit(moves::copy_predicate, d, &[a, a]);
                Ok(())
            }
            _ => {
                let a = self.source(source, ty)?;
                let d = self.destination(destination, ty)?;
                self.copy(d, a, ty);
                Ok(())
            }
        }
    }

    /// A plain copy of a register.
    fn copy(&mut self, d: Ref, a: Ref, ty: Ty) {
        let exec = if ty.bits() == 64 { unary::<moves::Copy64>() } else { unary::<moves::Copy32>() };
        self.emit(exec, d, &[a]);
    }

    /// `mov.b64 {a, b}, d`
    fn unpack(
        &mut self,
        i: &Instruction<'a>,
        ty: Ty,
        parts: &[Operand<'a>],
        whole: &Operand<'a>,
    ) -> Result<(), LoadError> {
        let whole = self.source(whole, ty)?;
        match (ty.bits(), parts) {
            (64, [low, high]) => self.split(whole, 64, [low, high]),
            (32, [low, high]) => self.split(whole, 32, [low, high]),
            (16, [low, high]) => self.split(whole, 16, [low, high]),
            (64, [a, b, c, d]) => {
                let halves = [self.temporary(Width::Word), self.temporary(Width::Word)];
                self.emit(unary::<moves::Low32>(), halves[0], &[whole]);
                self.emit(unary::<moves::High32>(), halves[1], &[whole]);
                self.split(halves[0], 32, [a, b])?;
                self.split(halves[1], 32, [c, d])
            }
            _ => Err(self.unsupported(i)),
        }
    }

    /// Both halves of a value of `bits` bits; `_` is left out.
    fn split(&mut self, whole: Ref, bits: u32, parts: [&Operand<'a>; 2]) -> Result<(), LoadError> {
        let (part, execs) = match bits {
            64 => (Ty::B(32), [unary::<moves::Low32>(), unary::<moves::High32>()]),
            32 => (Ty::B(16), [unary::<moves::Low16>(), unary::<moves::High16>()]),
            _ => (Ty::B(8), [unary::<moves::Low8>(), unary::<moves::High8>()]),
        };
        // Both are read before either is written: a part may be the whole's own register.
        let mut copies = Vec::with_capacity(2);
        for (operand, exec) in parts.into_iter().zip(execs) {
            if *operand != Operand::Discard {
                let half = self.temporary(Width::Word);
                self.emit(exec, half, &[whole]);
                copies.push((self.destination(operand, part)?, half));
            }
        }
        for (d, half) in copies {
            self.copy(d, half, part);
        }
        Ok(())
    }

    /// `mov.b64 d, {a, b}`
    fn pack(
        &mut self,
        i: &Instruction<'a>,
        ty: Ty,
        whole: &Operand<'a>,
        parts: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let part = Ty::B(ty.bits() / parts.len().max(1) as u32);
        let references = parts.iter().map(|part_of| self.source(part_of, part)).collect::<Result<Vec<_>, _>>()?;
        let d = self.destination(whole, ty)?;
        match (ty.bits(), references.as_slice()) {
            (64, [_, _]) => self.emit(binary::<moves::Pack64>(), d, &references),
            (32, [_, _]) => self.emit(binary::<moves::Pack32>(), d, &references),
            (16, [_, _]) => self.emit(binary::<moves::Pack16>(), d, &references),
            (64, [w, x, y, z]) => {
                let halves = [self.temporary(Width::Word), self.temporary(Width::Word)];
                self.emit(binary::<moves::Pack32>(), halves[0], &[*w, *x]);
                self.emit(binary::<moves::Pack32>(), halves[1], &[*y, *z]);
                self.emit(binary::<moves::Pack64>(), d, &halves);
            }
            _ => return Err(self.unsupported(i)),
        }
        Ok(())
    }

    /// `cvta.shared.u64` adds the window of the space, `cvta.to.shared.u64` takes it off.
    fn convert_address(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let to = m.take("to");
        let space = m.take_if(|word| {
            matches!(
                word,
                "global"
                    | "const"
                    | "shared"
                    | "shared::cta"
                    | "shared::cluster"
                    | "local"
                    | "param"
                    | "param::entry"
                    | "param::func"
            )
        });
        if m.ty() != Some(Ty::U(64)) {
            return Err(self.unsupported(i));
        }
        let base = match space {
            Some("shared" | "shared::cta" | "shared::cluster") => window::SHARED,
            Some("local") => window::LOCAL,
            Some(_) => 0,
            None => return Err(self.unsupported(i)),
        };
        let [destination, source] = self.operands(i)?;
        let a = self.source(source, Ty::U(64))?;
        let d = self.destination(destination, Ty::U(64))?;
        if base == 0 {
            self.copy(d, a, Ty::U(64));
            return Ok(());
        }
        let base = self.constant(base, Width::Double);
        let exec = if to { binary::<integer::Sub<u64>>() } else { binary::<integer::Add<u64>>() };
        self.emit(exec, d, &[a, base]);
        Ok(())
    }

    /// `isspacep.shared p, a`
    fn is_space(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let space = m.take_if(|word| !word.is_empty());
        if matches!(space, Some("shared" | "shared::cta")) && self.shared.ranked {
            let [destination, address] = self.operands(i)?;
            let address = self.source(address, Ty::U(64))?;
            let d = self.destination(destination, Ty::Pred)?;
            self.push(Draft::new(crate::cluster::is_own).d(d).a(address));
            return Ok(());
        }
        let exec = match space {
            Some("shared" | "shared::cta" | "shared::cluster") => compare::<tests::InShared>(),
            Some("local") => compare::<tests::InLocal>(),
            Some("param" | "param::entry") => compare::<tests::InParam>(),
            Some("global") => compare::<tests::InGlobal>(),
            Some("const") => compare::<tests::Never>(),
            _ => return Err(self.unsupported(i)),
        };
        self.test_one(i, exec, Ty::U(64))
    }
}
