//! `cp.async.bulk.tensor`, its reduction and prefetch, over tiles and pixels, and `tensormap.replace`.
//!
//! Gathers of rows (`.tile::gather4`) or columns (`.im2col::w`) exist on later devices only, and are refused by name.

use crate::api::LoadError;
use crate::control::flow;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole};
use crate::decode::modifiers::Modifiers;
use crate::memory::atom::NARROW_POINTER;
use crate::memory::tensor_copy as code;
use crate::memory::tensor_copy::how;
use crate::tensor::Field;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Returns the rank of `1d` to `5d`.
fn rank(word: &str) -> Option<u64> {
    let rank = word.strip_suffix('d')?.parse().ok()?;
    (1..=5).contains(&rank).then_some(rank)
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [to], [map, {x, y}], [barrier]` and
    /// `cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {x, y}], [from]`, the latter with an operation too.
    pub(crate) fn copy_tensor(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        reduces: bool,
    ) -> Result<(), LoadError> {
        let prefetches = !reduces && m.take("prefetch");
        let rank = m.take_if(|word| rank(word).is_some()).and_then(rank).filter(|_| m.take("tensor"));
        let rank = rank.ok_or_else(|| self.unsupported(i))?;
        // Copies to shared memory have pixel offsets, copies from it have none.
        let offsets = m.take("im2col");
        let pixels = offsets || m.take("im2col_no_offs");
        if pixels && rank < 3 {
            return Err(self.invalid("pixels of a tensor without three dimensions"));
        }
        m.take_if(|word| !pixels && word == "tile");
        let policy = self.cache_policy(m);
        let operands = i.operands.get(..i.operands.len().saturating_sub(usize::from(policy))).unwrap_or_default();
        if prefetches {
            return self.prefetch_tensor((i, m), operands, rank, (offsets, pixels));
        }
        let operation = if reduces { m.one_of(&how::OPERATIONS) } else { None };
        let spaces = (self.space(m), self.space(m));
        let multicast = m.take("multicast::cluster");
        let load = match spaces {
            (Some("shared::cluster" | "shared::cta"), Some("global")) => m.take("mbarrier::complete_tx::bytes"),
            (Some("global"), Some("shared::cta")) if m.take("bulk_group") && !multicast => false,
            _ => return Err(self.unsupported(i)),
        };
        let is_load = spaces.1 == Some("global");
        if pixels && offsets != is_load {
            return Err(self.unsupported(i));
        }
        if load != is_load || reduces != operation.is_some() || (reduces && load) {
            return Err(self.unsupported(i));
        }
        if multicast && spaces.0 != Some("shared::cluster") {
            return Err(self.unsupported(i));
        }
        if !m.all_consumed() {
            return Err(self.unsupported(i));
        }
        let number = how::OPERATIONS.iter().position(|name| Some(*name) == operation).unwrap_or(0) as u64;
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = rank
            | flag(load, how::LOAD)
            | flag(multicast, how::MULTICAST)
            | flag(reduces, how::REDUCE)
            | flag(pixels, how::PIXELS);
        let mut references = Vec::new();
        let (shared, corner_operand) = match operands {
            [to, corner_operand, ..] if load => (to, corner_operand),
            [corner_operand, from] if !load => (from, corner_operand),
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        };
        references.push(self.whole_address(shared, Some("shared"))?);
        let (map, corner) = self.tensor_coordinates(corner_operand, rank)?;
        references.push(map);
        let mut later_operands: Vec<&Operand<'a>> = operands.iter().skip(2).collect();
        let added = match offsets && later_operands.len() > 1 {
            true => self.pixel_offsets(later_operands.remove(1), rank)?,
            false if offsets => return Err(self.invalid(format!("{} without offsets", i.full_name()))),
            false => Vec::new(),
        };
        match *later_operands.as_slice() {
            [] if !load => {}
            [barrier] if load && !multicast => references.push(self.whole_address(barrier, Some("shared"))?),
            [barrier, blocks] if load && multicast => {
                references.push(self.whole_address(barrier, Some("shared"))?);
                references.push(self.source(blocks, Ty::U(16))?);
            }
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        }
        references.extend(corner);
        references.extend(added);
        let draft = Draft::new(code::copy).imm(flags | number << how::OPERATION_SHIFT);
        let draft = self.with_list(draft, &references, OperandRole::Use);
        self.push(draft);
        Ok(())
    }

    /// Checks `cp.async.bulk.prefetch.tensor.2d.L2.global.tile [map, {x, y}]`, which has no effect.
    fn prefetch_tensor(
        &mut self,
        (i, m): (&Instruction<'a>, &mut Modifiers<'a>),
        operands: &[Operand<'a>],
        rank: u64,
        (offsets, pixels): (bool, bool),
    ) -> Result<(), LoadError> {
        if !(m.take("L2") && m.take("global") && m.all_consumed()) {
            return Err(self.unsupported(i));
        }
        match operands {
            [corner_operand] if !pixels => self.tensor_coordinates(corner_operand, rank)?,
            [corner_operand, added] if offsets => {
                self.pixel_offsets(added, rank)?;
                self.tensor_coordinates(corner_operand, rank)?
            }
            _ => return Err(self.invalid("prefetch with the wrong operands")),
        };
        self.push(Draft::new(flow::nothing));
        Ok(())
    }

    /// Decodes `{x, y}`, the offsets of pixel coordinates.
    fn pixel_offsets(&mut self, operand: &Operand<'a>, rank: u64) -> Result<Vec<u32>, LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if parts.len() as u64 + 2 != rank {
            return Err(self.invalid("wrong number of offsets"));
        }
        parts.iter().map(|part| self.source(part, Ty::U(16))).collect()
    }

    /// Decodes `[map, {x, y}]`: the address of the map, and the coordinates.
    fn tensor_coordinates(&mut self, operand: &Operand<'a>, rank: u64) -> Result<(u32, Vec<u32>), LoadError> {
        let Operand::Bracket(list) = operand else { return Err(self.invalid("expected a tensor and coordinates")) };
        let [map, coordinates] = list.as_slice() else {
            return Err(self.invalid("a tensor copy takes a map and coordinates"));
        };
        let parts = match coordinates {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if parts.len() as u64 != rank {
            return Err(self.invalid("wrong number of coordinates"));
        }
        let map = self.source(map, Ty::U(64))?;
        let corner = parts.iter().map(|part| self.source(part, Ty::S(32))).collect::<Result<_, _>>()?;
        Ok((map, corner))
    }

    /// `tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [a], 1, b`
    pub(crate) fn replace_in_tensor_map(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
    ) -> Result<(), LoadError> {
        let field = m.take_if(|word| Field::parse(word).is_some()).and_then(Field::parse);
        let space = m.one_of(&["global", "shared::cta"]);
        let is_known_form = m.take("replace") && m.take("tile") && m.take("b1024") && self.is_specific;
        let field = field.filter(|_| is_known_form).ok_or_else(|| self.unsupported(i))?;
        let ty = if field.is_wide() { Ty::B(64) } else { Ty::B(32) };
        if m.ty() != Some(ty) {
            return Err(self.unsupported(i));
        }
        let (address, dimension, value) = match (field.dimensions(), i.operands.as_slice()) {
            (Some(most), [address, Operand::Int(dimension), value]) if *dimension < most => {
                (address, *dimension, value)
            }
            (None, [address, value]) => (address, 0, value),
            _ => return Err(self.invalid(format!("{} with other operands than it takes", i.full_name()))),
        };
        let immediate = match value {
            Operand::Int(value) => Some(*value),
            _ => None,
        };
        if field.largest().is_some_and(|largest| immediate.is_none_or(|value| value > largest)) {
            return Err(self.invalid(format!("{} without one of its values", i.full_name())));
        }
        let value = self.source(value, ty)?;
        let address = self.plain_address(address, space)?;
        let narrow = if address.width == Width::Word { NARROW_POINTER } else { 0 };
        let corner_operand = (field.encode() as u32) << code::FIELD_SHIFT | (dimension as u32) << code::DIMENSION_SHIFT;
        let draft = Draft::new(code::replace).a(address.base).b(value).imm(address.offset);
        self.push(draft.number(address.space.encode() | narrow | corner_operand).distinct_slots());
        Ok(())
    }
}
