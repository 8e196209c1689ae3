//! `tex`, `tld4`, `txq`, `istypep`, `suld`, `sust`, `sured`, `suq`.
//!
//! Their operands go into a list (see `texture::run`). A name in brackets that is no register is a reference declared in the
//! text. Its address stands for it, and the host knows the bound object. Separate samplers (`.texmode_independent`), depth
//! comparison and multi-sampled images are refused by name.

use crate::alu::moves;
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::slot::NO_SLOT;
use crate::texture::run::{self, Access, Form, Geometry, Results};
use crate::texture::{query, surface};
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Most result registers of an instruction: the texel's components.
const TEXEL_RESULTS: usize = 4;

/// Operands in brackets, and those after them.
struct TextureOperands<'i, 'a> {
    /// The texture or surface.
    object: &'i Operand<'a>,
    /// Layer and coordinates.
    indices: Vec<&'i Operand<'a>>,
}

/// Returns the geometry of a modifier, and whether it is a cube.
fn geometry(word: &str) -> Option<Geometry> {
    Some(match word {
        "1d" => Geometry { coordinates: 1, layered: false },
        "2d" => Geometry { coordinates: 2, layered: false },
        "3d" | "cube" => Geometry { coordinates: 3, layered: false },
        "a1d" => Geometry { coordinates: 1, layered: true },
        "a2d" => Geometry { coordinates: 2, layered: true },
        "acube" => Geometry { coordinates: 3, layered: true },
        _ => return None,
    })
}

/// Returns the elements of a vector, or the one operand.
fn elements<'i, 'a>(operand: &'i Operand<'a>) -> Vec<&'i Operand<'a>> {
    match operand {
        Operand::Vector(list) => list.iter().collect(),
        other => vec![other],
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes any instruction of this family.
    pub(crate) fn texture(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        match i.opcode {
            "tex" | "tld4" => self.sampled(i, m),
            "txq" | "suq" => self.query(i, m),
            "istypep" => self.is_type(i, m),
            "suld" => self.surface_load(i, m),
            "sust" => self.surface_store(i, m),
            _ => self.surface_reduction(i, m),
        }
    }

    /// Takes the geometry. Refuses samples and unknown ones.
    fn geometry(&self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(Geometry, bool), LoadError> {
        let word = m.take_if(|word| geometry(word).is_some()).ok_or_else(|| self.unsupported(i))?;
        Ok((geometry(word).ok_or_else(|| self.unsupported(i))?, word.ends_with("cube")))
    }

    /// Decodes `[object, indices]`.
    fn brackets<'i>(&self, operand: &'i Operand<'a>, geometry: Geometry) -> Result<TextureOperands<'i, 'a>, LoadError> {
        let Operand::Bracket(list) = operand else { return Err(self.invalid("expected a texture and coordinates")) };
        let [object, indices] = list.as_slice() else {
            return Err(self.unsupported_name("a texture with a sampler of its own", self.line));
        };
        let indices = elements(indices);
        let needed = (geometry.coordinates + u32::from(geometry.layered)) as usize;
        // Three indices are written as four, with an unused last one.
        if indices.len() < needed || indices.len() > needed.next_power_of_two() {
            return Err(self.invalid("wrong number of coordinates"));
        }
        Ok(TextureOperands { object, indices: indices.into_iter().take(needed).collect() })
    }

    /// Returns the texture or surface: a handle in a register, or a named reference.
    fn object(&mut self, operand: &Operand<'a>) -> Result<Ref, LoadError> {
        match operand {
            Operand::Name(name) if self.register(name).is_none() => self.address(name, 0, Width::Double),
            other => self.source(other, Ty::B(64)),
        }
    }

    /// Returns 32-bit sources for the list: `count` of the elements of a vector.
    fn vector_sources(&mut self, operand: &Operand<'a>, count: u32, ty: Ty) -> Result<Vec<Ref>, LoadError> {
        let parts = elements(operand);
        if parts.len() < count as usize {
            return Err(self.invalid("vector of the wrong length"));
        }
        parts.into_iter().take(count as usize).map(|part| self.source(part, ty)).collect()
    }

    /// Returns destinations of equal width, at most four.
    fn results(&mut self, operand: &Operand<'a>, default: Width) -> Result<(Vec<Ref>, Width), LoadError> {
        let mut registers = Vec::new();
        let mut common = None;
        for part in elements(operand) {
            if *part == Operand::Discard {
                registers.push(NO_SLOT);
                continue;
            }
            let (register, width) = self.any_destination(part, default)?;
            if common.is_some_and(|common| common != width) || width == Width::Pred || registers.len() >= TEXEL_RESULTS
            {
                return Err(self.invalid("vector of unlike registers"));
            }
            common = Some(width);
            registers.push(register);
        }
        Ok((registers, common.unwrap_or(default)))
    }

    /// Returns a draft whose sources are a list, and whose results use the fields in order.
    pub(crate) fn listed(&mut self, exec: Exec, sources: &[Ref], results: &[Ref]) -> Draft {
        let mut draft = self.with_list(Draft::new(exec), sources, OperandRole::Use).distinct_slots();
        draft.inst.c = NO_SLOT;
        let fields = [&mut draft.inst.d, &mut draft.inst.a, &mut draft.inst.b, &mut draft.inst.c];
        for (index, (field, result)) in fields.into_iter().zip(results).enumerate() {
            *field = *result;
            if *result != NO_SLOT {
                draft.roles[index] = OperandRole::Def;
            }
        }
        draft
    }

    /// Decodes `tex` and `tld4`: `d{|p}, [a, c]{, level | gradients}{, offsets}`.
    fn sampled(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let gather = i.opcode == "tld4";
        let access = match m.one_of(&["base", "level", "grad", "r", "g", "b", "a"]) {
            Some("level") if !gather => Access::Level,
            Some("grad") if !gather => Access::Gradients,
            None | Some("base") if !gather => Access::Base,
            Some(channel) if gather => Access::Gather("rgba".find(channel).ok_or_else(|| self.unsupported(i))? as u32),
            _ => return Err(self.unsupported(i)),
        };
        let (geometry, cube) = self.geometry(i, m)?;
        let size = m.one_of(&["v2", "v4"]).ok_or_else(|| self.unsupported(i))?;
        let results = match m.one_of(&["u32", "s32", "f32", "f16", "f16x2"]) {
            Some("f16") if size == "v4" => Results::Halves,
            Some("f16x2") if size == "v2" => Results::Pairs,
            Some("u32" | "s32" | "f32") if size == "v4" => Results::Words,
            _ => return Err(self.unsupported(i)),
        };
        let integers = match m.one_of(&["f32", "s32"]) {
            Some("s32") if !gather && !cube && access != Access::Gradients => true,
            Some("f32") => false,
            _ => return Err(self.unsupported(i)),
        };
        let [destination, bracket, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("tex takes a destination and a texture"));
        };
        let parts = self.brackets(bracket, geometry)?;
        let coordinate = if integers { Ty::S(32) } else { Ty::F32 };
        let mut sources = vec![0, self.object(parts.object)?];
        for (index, part) in parts.indices.iter().enumerate() {
            let ty = if geometry.layered && index == 0 { Ty::U(32) } else { coordinate };
            sources.push(self.source(part, ty)?);
        }
        let rest = match (access, rest) {
            (Access::Level, [level, rest @ ..]) => {
                sources.push(self.source(level, coordinate)?);
                rest
            }
            (Access::Gradients, [right, down, rest @ ..]) => {
                sources.extend(self.vector_sources(right, geometry.coordinates, Ty::F32)?);
                sources.extend(self.vector_sources(down, geometry.coordinates, Ty::F32)?);
                rest
            }
            (Access::Base | Access::Gather(_), rest) => rest,
            _ => return Err(self.invalid("a level or gradients are missing")),
        };
        let offsets = match rest {
            [] => false,
            [offset] if !cube && self.is_offset(offset, geometry) => {
                sources.extend(self.vector_sources(offset, geometry.coordinates, Ty::S(32))?);
                true
            }
            _ => return Err(self.unsupported_name(&format!("{} with depth comparison", i.full_name()), i.line)),
        };
        sources[0] = Form { geometry, access, integers, results, offsets }.encode();
        let (destination, resident) = self.pair(destination);
        let (registers, width) = self.results(destination, Width::Word)?;
        let expected = if results == Results::Pairs { 2 } else { TEXEL_RESULTS };
        if registers.len() != expected || width != Width::Word {
            return Err(self.invalid("wrong number or width of results"));
        }
        let draft = self.listed(run::texture, &sources, &registers);
        self.push(draft);
        resident.map_or(Ok(()), |resident| self.set_resident(resident))
    }

    /// Returns whether an operand after the coordinates is an offset: a depth comparison value is a float.
    fn is_offset(&mut self, operand: &Operand<'a>, geometry: Geometry) -> bool {
        match operand {
            Operand::Vector(list) => list.len() >= geometry.coordinates as usize,
            Operand::Int(_) => geometry.coordinates == 1,
            _ => false,
        }
    }

    /// Sets the predicate of `d|p`: every texel is resident.
    fn set_resident(&mut self, operand: &Operand<'a>) -> Result<(), LoadError> {
        let predicate = self.destination(operand, Ty::Pred)?;
        let never = self.constant(0, Width::Pred);
        self.emit(moves::not_predicate, predicate, &[never, never]);
        Ok(())
    }

    /// Decodes `txq{.level}.WHAT.b32 d, [a]{, level}` and `suq.WHAT.b32 d, [a]`.
    fn query(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let surface = i.opcode == "suq";
        let by_level = !surface && m.take("level");
        let direction = match m.one_of(&["width", "height", "depth"]) {
            Some("width") => 0,
            Some("height") => 1,
            Some(_) => 2,
            None => return Err(self.unsupported(i)),
        };
        if m.ty() != Some(Ty::B(32)) {
            return Err(self.unsupported(i));
        }
        let [destination, bracket, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("a query takes a destination and an object"));
        };
        let destination = self.destination(destination, Ty::B(32))?;
        let object = match bracket {
            Operand::Address { base: Some(name), offset: 0 } => self.object(&Operand::Name(name))?,
            _ => return Err(self.invalid("expected a texture or surface")),
        };
        let level = match (by_level, rest) {
            (true, [level]) => self.source(level, Ty::U(32))?,
            (false, []) => self.constant(0, Width::Word),
            _ => return Err(self.invalid("wrong number of operands")),
        };
        let kind = if surface { query::SURFACE_FLAG } else { 0 };
        self.push(Draft::new(query::extent).d(destination).a(object).b(level).imm(direction | kind));
        Ok(())
    }

    /// Decodes `istypep.TYPE p, a`: a handle is never an address of such a reference.
    fn is_type(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if m.one_of(&["texref", "samplerref", "surfref"]).is_none() {
            return Err(self.unsupported(i));
        }
        let [destination, object] = self.operands(i)?;
        self.object(object)?;
        let predicate = self.destination(destination, Ty::Pred)?;
        let always = self.constant(u64::MAX, Width::Pred);
        self.emit(moves::not_predicate, predicate, &[always, always]);
        Ok(())
    }

    /// Decodes the common start of surface instructions: form and sources up to the indices.
    fn surface_operands(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        bracket: &Operand<'a>,
    ) -> Result<(surface::Form, Vec<Ref>), LoadError> {
        let (geometry, cube) = self.geometry(i, m)?;
        if cube {
            return Err(self.unsupported(i));
        }
        // Cache hints have no effect here.
        m.one_of(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let count = match m.one_of(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        };
        let ty = m.ty().ok_or_else(|| self.unsupported(i))?;
        let outside = match m.one_of(&["trap", "clamp", "zero"]) {
            Some("clamp") => surface::Outside::Clamp,
            Some("zero") => surface::Outside::Zero,
            _ => surface::Outside::Trap,
        };
        let parts = self.brackets(bracket, geometry)?;
        let mut sources = vec![0, self.object(parts.object)?];
        for part in parts.indices {
            sources.push(self.source(part, Ty::S(32))?);
        }
        Ok((surface::Form { geometry, outside, count, bytes: ty.bytes(), formatted: false }, sources))
    }

    /// `suld.b`: `d, [a, indices]`.
    fn surface_load(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let [destination, bracket] = self.operands(i)?;
        if !m.take("b") {
            return Err(self.unsupported(i));
        }
        let (form, mut sources) = self.surface_operands(i, m, bracket)?;
        sources[0] = form.encode();
        let (registers, width) =
            self.results(destination, if form.bytes == 8 { Width::Double } else { Width::Word })?;
        if registers.len() != form.count as usize {
            return Err(self.invalid("vector of the wrong length"));
        }
        let exec = if width == Width::Double { surface::load_bytes::<u64> } else { surface::load_bytes::<u32> };
        let draft = self.listed(exec, &sources, &registers);
        self.push(draft);
        Ok(())
    }

    /// `sust.b` and `sust.p`: `[a, indices], c`.
    fn surface_store(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let [bracket, value] = self.operands(i)?;
        let formatted = match m.one_of(&["b", "p"]) {
            Some(word) => word == "p",
            None => return Err(self.unsupported(i)),
        };
        let (mut form, mut sources) = self.surface_operands(i, m, bracket)?;
        form.formatted = formatted;
        if formatted && form.bytes != 4 {
            return Err(self.unsupported(i));
        }
        sources[0] = form.encode();
        let parts = elements(value);
        if parts.len() != form.count as usize {
            return Err(self.invalid("vector of the wrong length"));
        }
        let ty = Ty::B(form.bytes * 8);
        let found = parts.into_iter().map(|part| self.any_source(part, ty)).collect::<Result<Vec<_>, _>>()?;
        let width = if form.bytes == 8 { Width::Double } else { Width::Word };
        if found.iter().any(|(_, one)| *one != width) {
            return Err(self.invalid("vector of unlike registers"));
        }
        sources.extend(found.into_iter().map(|(reference, _)| reference));
        let exec = if width == Width::Double { surface::store_bytes::<u64> } else { surface::store_bytes::<u32> };
        let draft = self.listed(exec, &sources, &[]);
        self.push(draft);
        Ok(())
    }

    /// `sured.b` and `sured.p`: `[a, indices], c`.
    fn surface_reduction(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let [bracket, value] = self.operands(i)?;
        let formatted = match m.one_of(&["b", "p"]) {
            Some(word) => word == "p",
            None => return Err(self.unsupported(i)),
        };
        let operation = m.one_of(&["add", "min", "max", "and", "or"]).ok_or_else(|| self.unsupported(i))?;
        let ty = i.modifiers.iter().rev().find_map(|word| Ty::parse(word)).ok_or_else(|| self.unsupported(i))?;
        let exec = reduction(operation, ty).ok_or_else(|| self.unsupported(i))?;
        let (mut form, mut sources) = self.surface_operands(i, m, bracket)?;
        form.formatted = formatted;
        if form.count != 1 {
            return Err(self.unsupported(i));
        }
        sources[0] = form.encode();
        sources.push(self.source(value, ty)?);
        let draft = self.listed(exec, &sources, &[]);
        self.push(draft);
        Ok(())
    }
}

/// Returns the code of a reduction; `None` for combinations that do not exist.
fn reduction(operation: &str, ty: Ty) -> Option<Exec> {
    Some(match (operation, ty) {
        ("add", Ty::U(32) | Ty::S(32) | Ty::B(32)) => surface::reduce::<surface::Add32>,
        ("add", Ty::U(64) | Ty::S(64)) => surface::reduce::<surface::Add64>,
        ("min", Ty::U(32) | Ty::B(32)) => surface::reduce::<surface::MinU32>,
        ("max", Ty::U(32) | Ty::B(32)) => surface::reduce::<surface::MaxU32>,
        ("min", Ty::S(32)) => surface::reduce::<surface::MinS32>,
        ("max", Ty::S(32)) => surface::reduce::<surface::MaxS32>,
        ("min", Ty::U(64)) => surface::reduce::<surface::MinU64>,
        ("max", Ty::U(64)) => surface::reduce::<surface::MaxU64>,
        ("min", Ty::S(64)) => surface::reduce::<surface::MinS64>,
        ("max", Ty::S(64)) => surface::reduce::<surface::MaxS64>,
        ("and", Ty::B(32)) => surface::reduce::<surface::And32>,
        ("or", Ty::B(32)) => surface::reduce::<surface::Or32>,
        _ => return None,
    })
}
