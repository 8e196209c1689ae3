//! `vadd` to `vmad`: decodes selectors, masks and joins to the description that the code uses.

use crate::alu::video::operation::{Comparison, Join, Operation, Video};
use crate::alu::video::video;
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, Ref};
use crate::decode::modifiers::Modifiers;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Returns the operation and the bits of its parts: `vadd2` works on 16.
fn split(opcode: &str) -> (&str, u32) {
    match (opcode.strip_suffix('2'), opcode.strip_suffix('4')) {
        (Some(name), _) => (name, 16),
        (_, Some(name)) => (name, 8),
        _ => (opcode, 32),
    }
}

/// Parses a selector of one part: `b0` to `b3`, `h0`, `h1`. Returns the first bit and the number of bits.
fn one_part(selector: &str) -> Option<(u32, u32)> {
    let (kind, number) = selector.split_at_checked(1)?;
    let number: u32 = number.parse().ok()?;
    match (kind, number) {
        ("b", 0..=3) => Some((8 * number, 8)),
        ("h", 0..=1) => Some((16 * number, 16)),
        _ => None,
    }
}

/// Returns the digits of a selector of several parts, lowest part first: `h10`, `b3210`.
fn digits(selector: &str, bits: u32) -> Option<Vec<u32>> {
    let lanes = selector.strip_prefix(if bits == 16 { 'h' } else { 'b' })?;
    lanes.chars().rev().map(|digit| digit.to_digit(8)).collect()
}

/// Returns register and selector of an operand, and whether it is negated.
fn selected<'a>(operand: &Operand<'a>) -> (Operand<'a>, Option<&'a str>, bool) {
    match operand {
        Operand::Member(name, selector) => (Operand::Name(name), Some(selector), false),
        Operand::Negated(inner) => {
            let (register, selector, negated) = selected(inner);
            (register, selector, !negated)
        }
        other => (other.clone(), None, false),
    }
}

/// Returns whether an H200 clamps or shifts the result in an undocumented way that is not understood: into a part of a word,
/// after `vshl`, and sums of `vmad` with an unsigned factor.
fn clamps_oddly(video: &Video) -> bool {
    let part = video.bits == 32 && video.target.0 < 32;
    match video.operation {
        Operation::Left(_) => video.saturate,
        Operation::Multiply(shift) => (video.saturate || shift > 0) && !(video.signed[1] && video.signed[2]),
        _ => video.saturate && part,
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Any instruction of this family.
    pub(crate) fn video(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let (name, bits) = split(i.opcode);
        let operation = self.video_operation(i, m, name)?;
        let compares = matches!(operation, Operation::Compare(_));
        let mut types = Vec::with_capacity(3);
        while let Some(ty) = m.ty() {
            types.push(match ty {
                Ty::U(32) => false,
                Ty::S(32) => true,
                _ => return Err(self.unsupported(i)),
            });
        }
        // The result of a comparison has no signedness.
        let signed = match types.as_slice() {
            [a, b] if compares => [false, *a, *b],
            [result, a, b] if !compares => [*result, *a, *b],
            _ => return Err(self.unsupported(i)),
        };
        let saturate = m.take("sat");
        let join = match m.one_of(&["add", "min", "max"]) {
            Some("add") => Join::Add,
            Some("min") if bits == 32 => Join::Min,
            Some("max") if bits == 32 => Join::Max,
            Some(_) => return Err(self.unsupported(i)),
            None => Join::Merge,
        };
        let plain = Video {
            operation,
            bits,
            signed,
            saturate,
            join,
            mask: u32::MAX >> (32 - 32 / bits),
            target: (32, 0),
            select: [[(0, 32); 4]; 2],
            negate: [false; 2],
            plus_one: matches!(operation, Operation::Multiply(_)) && m.take("po"),
        };
        self.video_operands(i, plain)
    }

    /// Reads the modifiers that the name of an operation leaves open.
    fn video_operation(&self, i: &Instruction<'a>, m: &mut Modifiers<'a>, name: &str) -> Result<Operation, LoadError> {
        Ok(match name {
            "vadd" => Operation::Add,
            "vsub" => Operation::Subtract,
            "vabsdiff" => Operation::Distance,
            "vmin" => Operation::Min,
            "vmax" => Operation::Max,
            "vavrg" => Operation::Average,
            "vset" => Operation::Compare(match m.one_of(&["eq", "ne", "lt", "le", "gt", "ge"]) {
                Some("eq") => Comparison::Equal,
                Some("ne") => Comparison::Different,
                Some("lt") => Comparison::Less,
                Some("le") => Comparison::LessOrEqual,
                Some("gt") => Comparison::Greater,
                Some(_) => Comparison::GreaterOrEqual,
                None => return Err(self.unsupported(i)),
            }),
            "vshl" | "vshr" => {
                let wrap = m.one_of(&["wrap", "clamp"]).ok_or_else(|| self.unsupported(i))? == "wrap";
                if name == "vshl" { Operation::Left(wrap) } else { Operation::Right(wrap) }
            }
            "vmad" => Operation::Multiply(match m.one_of(&["shr7", "shr15"]) {
                Some("shr7") => 7,
                Some(_) => 15,
                None => 0,
            }),
            _ => return Err(self.unsupported(i)),
        })
    }

    /// Decodes `d.dsel, a.asel, b.bsel, c`; all selectors and, for single values, `c` are optional.
    fn video_operands(&mut self, i: &Instruction<'a>, mut plain: Video) -> Result<(), LoadError> {
        let [destination, a, b, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        };
        let multiplies = matches!(plain.operation, Operation::Multiply(_));
        let mut references: Vec<Ref> = Vec::with_capacity(3);
        let mut negated = Vec::with_capacity(3);
        for (source, operand) in [a, b].into_iter().enumerate() {
            let (register, selector, sign) = selected(operand);
            plain.select[source] = self.parts_of(source, selector, plain.bits)?;
            references.push(self.source(&register, Ty::U(32))?);
            negated.push(sign);
        }
        match rest {
            [] => references.push(self.constant(0, Width::Word)),
            [c] => {
                let (register, selector, sign) = selected(c);
                if selector.is_some() {
                    return Err(self.unsupported(i));
                }
                references.push(self.source(&register, Ty::U(32))?);
                negated.push(sign);
            }
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        }
        plain.negate = [negated[0] != negated[1], negated.get(2).copied().unwrap_or(false)];
        if (negated.contains(&true) && !multiplies) || (rest.is_empty() && (plain.bits < 32 || multiplies)) {
            return Err(self.unsupported(i));
        }
        let (register, selector, _) = selected(destination);
        self.video_target(i, &mut plain, selector)?;
        if clamps_oddly(&plain) {
            return Err(self.unsupported(i));
        }
        let d = self.destination(&register, Ty::U(32))?;
        let draft = Draft::new(video).d(d).a(references[0]).b(references[1]).c(references[2]).distinct_slots();
        let draft = draft.imm(self.shared.video(plain));
        self.push(draft);
        Ok(())
    }

    /// Returns the parts of a source that belong to each part of the result.
    fn parts_of(&self, source: usize, selector: Option<&str>, bits: u32) -> Result<[(u32, u32); 4], LoadError> {
        let wrong = || self.invalid(format!("no such part: {}", selector.unwrap_or_default()));
        if bits == 32 {
            return Ok([selector.map_or(Some((0, 32)), one_part).ok_or_else(wrong)?; 4]);
        }
        let count = 32 / bits;
        let first = source as u32 * count;
        let Some(selector) = selector else {
            return Ok(std::array::from_fn(|part| ((first + part as u32 % count) * bits, bits)));
        };
        let digits = digits(selector, bits).filter(|digits| digits.len() == count as usize).ok_or_else(wrong)?;
        if digits.iter().any(|digit| *digit >= 2 * count) {
            return Err(wrong());
        }
        Ok(std::array::from_fn(|part| (digits[part % count as usize] * bits, bits)))
    }

    /// Decodes the part of the result that is computed: the position of a single value, or a mask of parts.
    fn video_target(&self, i: &Instruction<'a>, plain: &mut Video, selector: Option<&str>) -> Result<(), LoadError> {
        let Some(selector) = selector else { return Ok(()) };
        if plain.bits == 32 {
            let (shift, bits) = one_part(selector).ok_or_else(|| self.unsupported(i))?;
            plain.target = (bits, shift);
            return Ok(());
        }
        let digits = digits(selector, plain.bits).ok_or_else(|| self.unsupported(i))?;
        plain.mask = digits.iter().fold(0, |mask, digit| mask | 1 << digit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_selectors_come_apart() {
        assert_eq!((split("vadd"), split("vadd2"), split("vabsdiff4")), (("vadd", 32), ("vadd", 16), ("vabsdiff", 8)));
        assert_eq!(
            (one_part("b3"), one_part("h1"), one_part("h2"), one_part("x")),
            (Some((24, 8)), Some((16, 16)), None, None)
        );
        assert_eq!((digits("h20", 16), digits("b7250", 8)), (Some(vec![0, 2]), Some(vec![0, 5, 2, 7])));
    }
}
