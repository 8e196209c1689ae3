//! `mov`, `cvta` and `isspacep`.

use crate::alu::lanes::{binary, compare, unary};
use crate::alu::{compare as tests, integer, moves};
use crate::api::LoadError;
use crate::decode::contraction_role::ContractionRole;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, Ref};
use crate::decode::modifiers::Modifiers;
use crate::types::{Ty, Width};
use crate::window;
use katydid_ptx::ast::{Instruction, Operand};

impl<'a> FunctionDecoder<'_, 'a> {
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
        let count = m.one_of(&["v2", "v4"]).map(|word| if word == "v2" { 2 } else { 4 });
        let ty = m.ty().ok_or_else(|| self.invalid("mov without a type"))?;
        let [destination, source] = self.operands(i)?;
        match (destination, source) {
            _ if count.is_some() => self.move_vector(ty, count.unwrap_or_default(), destination, source),
            (_, Operand::Name("%gridid")) if ty.bits() < 64 => {
                let a = self.low_part("%gridid", ty)?;
                let d = self.destination(destination, ty)?;
                self.copy(d, a, ty);
                Ok(())
            }
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

    /// Decodes `mov.v4.u32 {a, b, c, d}, {e, f, g, h}`, and of a special register with components, `mov.v4.u32 {a, b, c, d},
    /// %tid`.
    fn move_vector(
        &mut self,
        ty: Ty,
        count: usize,
        destination: &Operand<'a>,
        source: &Operand<'a>,
    ) -> Result<(), LoadError> {
        let sources = match source {
            Operand::Name(name) => ["x", "y", "z", "w"].map(|component| Operand::Member(name, component)).to_vec(),
            Operand::Vector(parts) => parts.clone(),
            _ => Vec::new(),
        };
        let Operand::Vector(destinations) = destination else {
            return Err(self.invalid("the destination is no vector"));
        };
        if sources.len() != count || destinations.len() != count {
            return Err(self.invalid("vector of the wrong length"));
        }
        // All sources are read before a destination is written, since a destination may be a source, too.
        let width = ty.width().ok_or_else(|| self.invalid("128-bit operand"))?;
        let mut copies = Vec::with_capacity(count);
        for (destination, source) in destinations.iter().zip(&sources) {
            let a = self.source(source, ty)?;
            let between = self.temporary(width);
            self.copy(between, a, ty);
            copies.push((self.destination(destination, ty)?, between));
        }
        for (d, between) in copies {
            self.copy(d, between, ty);
        }
        Ok(())
    }

    /// Returns the low 32 or 16 bits of a 64-bit special register.
    fn low_part(&mut self, name: &str, ty: Ty) -> Result<Ref, LoadError> {
        let (whole, _) = self.special(name, "")?;
        let low = self.temporary(Width::Word);
        self.emit(unary::<moves::Low32>(), low, &[whole]);
        if ty.bits() == 16 {
            self.emit(unary::<moves::Low16>(), low, &[low]);
        }
        Ok(low)
    }

    /// A plain copy of a register.
    fn copy(&mut self, d: Ref, a: Ref, ty: Ty) {
        let exec = if ty.bits() == 64 { unary::<moves::Copy64>() } else { unary::<moves::Copy32>() };
        self.emit(exec, d, &[a]);
        self.set_role(Some(ContractionRole::Copy));
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
            (32, [a, b, c, d]) => {
                let halves = [self.temporary(Width::Word), self.temporary(Width::Word)];
                self.emit(unary::<moves::Low16>(), halves[0], &[whole]);
                self.emit(unary::<moves::High16>(), halves[1], &[whole]);
                self.split(halves[0], 16, [a, b])?;
                self.split(halves[1], 16, [c, d])
            }
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

    /// Splits a value of `bits` bits into both halves, and skips `_`.
    fn split(&mut self, whole: Ref, bits: u32, parts: [&Operand<'a>; 2]) -> Result<(), LoadError> {
        let (part, execs) = match bits {
            64 => (Ty::B(32), [unary::<moves::Low32>(), unary::<moves::High32>()]),
            32 => (Ty::B(16), [unary::<moves::Low16>(), unary::<moves::High16>()]),
            _ => (Ty::B(8), [unary::<moves::Low8>(), unary::<moves::High8>()]),
        };
        // Both halves are read before either is written: a part may be the whole's own register.
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
            (32, [w, x, y, z]) => {
                let halves = [self.temporary(Width::Word), self.temporary(Width::Word)];
                self.emit(binary::<moves::Pack16>(), halves[0], &[*w, *x]);
                self.emit(binary::<moves::Pack16>(), halves[1], &[*y, *z]);
                self.emit(binary::<moves::Pack32>(), d, &halves);
            }
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

    /// Decodes `cvta`: `cvta.shared.u64` adds the window of the space, `cvta.to.shared.u64` subtracts it.
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
            Some("shared" | "shared::cta" | "shared::cluster") => window::SHARED_ADDRESS,
            Some("local") => window::LOCAL_ADDRESS,
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
        let [destination, address] = self.operands(i)?;
        let address = self.wide_address(address)?;
        if matches!(space, Some("shared" | "shared::cta")) && self.shared.ranked {
            let d = self.destination(destination, Ty::Pred)?;
            self.push(Draft::new(crate::control::cluster::is_own).d(d).a(address));
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
        let d = self.destination(destination, Ty::Pred)?;
        self.test_one(exec, d, address);
        Ok(())
    }

    /// Returns an address of 64 bits. Zero-extends one of 32 bits.
    fn wide_address(&mut self, operand: &Operand<'a>) -> Result<Ref, LoadError> {
        let (address, width) = self.any_source(operand, Ty::U(64))?;
        match width {
            Width::Double => Ok(address),
            Width::Word => {
                let (wide, zero) = (self.temporary(Width::Double), self.constant(0, Width::Word));
                self.emit(binary::<moves::Pack64>(), wide, &[address, zero]);
                Ok(wide)
            }
            Width::Pred => Err(self.invalid("an address in a predicate")),
        }
    }
}
