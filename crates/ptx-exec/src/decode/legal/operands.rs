//! Whether operands are what a rule says, and whether registers were declared with a type that will do.

use super::rule::{Kind, Rule, Slot, SlotType};
use crate::control::special;
use crate::decode::decoder::FunctionDecoder;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// What is wrong with an operand.
type Fits = Result<(), String>;

/// Words that say that the first coordinate is a layer.
const LAYERED: &[&str] = &["a1d", "a2d", "acube"];

/// What the words of an instruction say about its operands.
#[derive(Clone, Copy)]
struct Words<'m> {
    all: &'m [&'m str],
}

impl Words<'_> {
    /// Elements of a vector, if there is one.
    fn elements(self) -> Option<usize> {
        self.all.iter().find_map(|word| match *word {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        })
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Whether the operands fit into the places of a rule.
    pub(super) fn operands_fit(&mut self, rule: &Rule, types: &[&str], i: &Instruction<'a>) -> Fits {
        let needed = rule.slots.iter().filter(|slot| !slot.is_optional).count();
        let count = i.operands.len();
        if count < needed || count > rule.slots.len() {
            return Err(format!("it takes {needed} operands, not {count}"));
        }
        let words = Words { all: &i.modifiers };
        // What may be absent is left out from the right.
        for (index, (slot, operand)) in rule.slots.iter().zip(&i.operands).enumerate() {
            let name = match slot.ty {
                SlotType::Named(name) => Some(name),
                SlotType::Word(index) => types.get(index).copied(),
                SlotType::Last => types.last().copied(),
            };
            let ty = name.and_then(Ty::parse).unwrap_or(Ty::B(32));
            let fits = constant_fits(*slot, operand).and_then(|()| self.operand_fits(*slot, ty, operand, words));
            fits.map_err(|miss| format!("operand {} {miss}", index + 1))?;
        }
        Ok(())
    }

    fn operand_fits(&mut self, slot: Slot, ty: Ty, operand: &Operand<'a>, words: Words<'_>) -> Fits {
        let kind = slot.kind;
        match (kind, words.elements()) {
            _ if slot.elements > 0 => self.vector_fits(kind, ty, operand, slot.elements),
            (Kind::WideVector, Some(elements)) => self.vector_fits(Kind::Wide, ty, operand, elements),
            (Kind::Vector, _) if *operand == Operand::Discard => Ok(()),
            (Kind::Vector, Some(elements)) => self.vector_fits(Kind::DestinationOrSink, ty, operand, elements),
            (Kind::Vector, None) => self.single_fits(Kind::Destination, ty, operand),
            (Kind::Wide, _) => match operand {
                Operand::Vector(list) if list.len() == 1 => self.single_fits(kind, ty, &list[0]),
                _ => self.single_fits(kind, ty, operand),
            },
            (Kind::Coordinates, _) => {
                let is_layered = words.all.iter().any(|word| LAYERED.contains(word));
                self.coordinates_fit(ty, operand, is_layered)
            }
            (Kind::Address | Kind::LongAddress | Kind::AnyAddress, _) => {
                let number = kind == Kind::AnyAddress || words.all.contains(&"local");
                self.address_fits(operand, number, kind == Kind::LongAddress)
            }
            _ => self.single_fits(kind, ty, operand),
        }
    }

    /// A vector in braces; after it perhaps a predicate.
    fn vector_fits(&mut self, kind: Kind, ty: Ty, operand: &Operand<'a>, elements: usize) -> Fits {
        let element_kind = if kind == Kind::MaybePair { Kind::DestinationOrSink } else { kind };
        match operand {
            Operand::Pair(both) if kind == Kind::MaybePair => {
                self.vector_fits(kind, ty, &both.0, elements)?;
                self.single_fits(Kind::DestinationOrSink, Ty::Pred, &both.1)
            }
            Operand::Vector(list) if list.len() == elements => list.iter().try_for_each(|element| match element {
                Operand::Discard if element_kind == Kind::Wide => Ok(()),
                element => self.single_fits(element_kind, ty, element),
            }),
            _ => Err(format!("is not a vector of {elements}")),
        }
    }

    /// A texture or surface and its coordinates, of which the first may be a layer.
    fn coordinates_fit(&mut self, ty: Ty, operand: &Operand<'a>, is_layered: bool) -> Fits {
        let Operand::Bracket(parts) = operand else { return Ok(()) };
        let Some(Operand::Vector(list)) = parts.last() else { return Ok(()) };
        for (index, part) in list.iter().enumerate() {
            let ty = match (is_layered, index) {
                (true, 0) => Ty::U(32),
                (true, _) => Ty::B(32),
                (false, _) => ty,
            };
            self.single_fits(Kind::Source, ty, part)?;
        }
        Ok(())
    }

    /// An address: of a variable, of an integer register, or a number.
    fn address_fits(&mut self, operand: &Operand<'a>, may_be_number: bool, is_long: bool) -> Fits {
        let Operand::Address { base, .. } = operand else { return Err("is not an address in brackets".to_owned()) };
        let Some(name) = base else {
            return if may_be_number {
                Ok(())
            } else {
                Err("is a number, an address of local memory alone".to_owned())
            };
        };
        let declared = self.register(name).and_then(|(register, _)| self.registers.ty(register));
        match declared {
            Some(ty) if ty.integer().is_none() => Err(format!("is an address in a register of .{}: {name}", ty.name())),
            Some(ty) if is_long && ty.bits() != 64 => Err(format!("is a short address: {name}")),
            _ => Ok(()),
        }
    }

    fn single_fits(&mut self, kind: Kind, ty: Ty, operand: &Operand<'a>) -> Fits {
        match (kind, operand) {
            (Kind::Any, _)
            | (Kind::DestinationOrSink | Kind::MaybePairOrSink | Kind::Sink, Operand::Discard)
            | (Kind::Integer, Operand::Int(_))
            | (Kind::PartOrConstant, Operand::Int(_))
            | (Kind::Braces, Operand::Vector(_)) => Ok(()),
            (Kind::Integer, _) => Err("is not an integer constant".to_owned()),
            (Kind::Sink, _) => Err("is not the sink symbol _".to_owned()),
            (Kind::Braces, _) => Err("is not a vector".to_owned()),
            (Kind::Negatable, Operand::Not(name)) => self.name_fits(name, Ty::Pred, Kind::Register),
            (Kind::Negatable, _) => self.single_fits(Kind::Source, Ty::Pred, operand),
            (Kind::Pair | Kind::MaybePair | Kind::MaybePairOrSink, Operand::Pair(both)) => {
                self.single_fits(Kind::DestinationOrSink, ty, &both.0)?;
                self.single_fits(Kind::DestinationOrSink, Ty::Pred, &both.1)
            }
            (Kind::Pair, _) => Err("has no predicate after a bar".to_owned()),
            (Kind::MaybePair | Kind::MaybePairOrSink, _) => self.single_fits(Kind::Destination, ty, operand),
            (Kind::PartOrConstant, Operand::Negated(inner)) => self.single_fits(Kind::Part, ty, inner),
            (Kind::Part | Kind::PartOrConstant, Operand::Name(name) | Operand::Member(name, _)) => {
                self.name_fits(name, Ty::U(32), Kind::Register)
            }
            (_, Operand::Name(name)) => self.name_fits(name, ty, kind),
            (Kind::Moved | Kind::Converted, Operand::Member(name, member)) => special_fits(name, member, ty),
            (Kind::Moved | Kind::Symbolic, Operand::Offset(..)) => Ok(()),
            (kind, constant) if kind.takes_constants() && constant_is_for(constant, ty) => Ok(()),
            _ => Err(format!("is not one for .{}", ty.name())),
        }
    }

    /// Whether a name is that of something with an address, or a label; others are not declared, as the decoder says.
    fn is_symbol(&self, name: &str) -> bool {
        self.binding(name).is_some() || self.shared.linked.find(self.module, name).is_some()
    }

    /// A register, a special register or a symbol.
    fn name_fits(&mut self, name: &'a str, ty: Ty, kind: Kind) -> Fits {
        if let Some((register, _)) = self.register(name) {
            let declared = self.registers.ty(register);
            let test = if matches!(kind, Kind::Wide | Kind::Converted) { holds } else { is_for };
            let fits = declared.is_none_or(|declared| test(declared, ty));
            return if fits { Ok(()) } else { Err(format!("is a register that is not for .{}: {name}", ty.name())) };
        }
        if self.is_wide_register(name) {
            return if ty == Ty::B(128) { Ok(()) } else { Err(format!("is a register of 128 bits: {name}")) };
        }
        let is_special = name.starts_with('%') && special::exists(name);
        match kind {
            Kind::Moved | Kind::Converted if is_special => special_fits(name, "", ty),
            _ if is_special => Err(format!("is a special register, which only mov and cvt read: {name}")),
            Kind::Moved | Kind::Symbolic => Ok(()),
            kind if kind.takes_constants() && !self.is_symbol(name) => Ok(()),
            _ => Err(format!("is not a register: {name}")),
        }
    }
}

/// Whether a constant is within what its place has.
fn constant_fits(slot: Slot, operand: &Operand<'_>) -> Fits {
    let Operand::Int(value) = operand else { return Ok(()) };
    if let Some(limit) = slot.limit.filter(|limit| value >= limit) {
        return Err(format!("is {value}, not less than {limit}"));
    }
    if let Some(multiple) = slot.multiple.filter(|multiple| value.cast_signed() < 0 || value % multiple != 0) {
        return Err(format!("is {value}, no multiple of {multiple}"));
    }
    Ok(())
}

/// Whether a special register may be moved to a register of a type.
fn special_fits(name: &str, member: &str, ty: Ty) -> Fits {
    let Some((_, width)) = special::lookup(name, member) else { return Ok(()) };
    let fits = match width {
        Width::Pred => ty == Ty::Pred,
        Width::Word => ty.integer().is_some_and(|kind| kind.bits <= 32),
        Width::Double => ty.integer().is_some(),
    };
    if fits { Ok(()) } else { Err(format!("is a register that is not for .{}: {name}", ty.name())) }
}

/// Whether a constant may stand for a value of a type.
fn constant_is_for(constant: &Operand<'_>, ty: Ty) -> bool {
    match constant {
        Operand::Int(_) => ty.integer().is_some() || ty == Ty::Pred,
        Operand::F32(_) => matches!(ty, Ty::F32 | Ty::F64 | Ty::B(32)),
        Operand::F64(_) => matches!(ty, Ty::F32 | Ty::F64 | Ty::B(64)),
        _ => false,
    }
}

/// Whether a register that is declared with a type may be an operand of another one.
fn is_for(declared: Ty, ty: Ty) -> bool {
    let is_half_pair = declared == Ty::F16x2;
    match ty {
        Ty::Pred => declared == Ty::Pred,
        Ty::U(bits) | Ty::S(bits) => {
            matches!(declared, Ty::U(own) | Ty::S(own) | Ty::B(own) if own == bits) || (bits == 32 && is_half_pair)
        }
        Ty::B(bits) => declared.bits() == bits && declared != Ty::Pred,
        other => declared == other || declared == Ty::B(other.bits()) || (other.is_pair() && is_half_pair),
    }
}

/// Whether it holds a value of a type that may be narrower.
fn holds(declared: Ty, ty: Ty) -> bool {
    let is_bits = matches!(declared, Ty::U(_) | Ty::S(_) | Ty::B(_) | Ty::F16x2);
    let is_float = matches!(declared, Ty::F16 | Ty::F32 | Ty::F64);
    let is_large = declared.bits() >= ty.bits();
    match ty {
        Ty::U(_) | Ty::S(_) => is_large && is_bits,
        Ty::B(_) => is_large && declared != Ty::Pred,
        Ty::Bf16 | Ty::E4m3x2 | Ty::E5m2x2 => is_for(declared, ty),
        _ => declared == ty || (is_large && !is_float && declared != Ty::Pred),
    }
}
