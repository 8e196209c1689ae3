//! `tex` and `tld4`, which run lane by lane, as each lane has its own point.
//!
//! Operands are a list, since there are up to thirteen: form, handle, layer, coordinates, level or gradients, offsets. Results go
//! to `d`, `a`, `b` and `c`.

use super::sample::{Detail, SamplePoint};
use super::texel::Texel;
use crate::alu::half_bits::f32_to_f16;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::slot::{CONSTANT_BIT, NO_SLOT};

/// Meaning of the indices of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of coordinates: 1 to 3.
    pub(crate) coordinates: u32,
    /// Whether a layer comes before the coordinates.
    pub(crate) layered: bool,
}

/// Format of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Results {
    /// As 32 bits, whatever their type.
    Words,
    /// In half precision, one in a register.
    Halves,
    /// In half precision, two in a register.
    Pairs,
}

/// Kind of read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// At the first level.
    Base,
    /// At a given level.
    Level,
    /// At the level that follows from gradients.
    Gradients,
    /// One channel of four texels.
    Gather(u32),
}

/// All modifiers of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// Dimensions of the texture, by which it is indexed.
    pub(crate) geometry: Geometry,
    /// Kind of read.
    pub(crate) access: Access,
    /// Whether coordinates are whole texels.
    pub(crate) integers: bool,
    /// Format of the results.
    pub(crate) results: Results,
    /// Whether offsets follow.
    pub(crate) offsets: bool,
}

impl Form {
    /// Encodes the form as an entry of the operand list, which looks like a constant so that it is not taken for a register.
    pub(crate) fn encode(self) -> u32 {
        let (access, channel) = match self.access {
            Access::Base => (0, 0),
            Access::Level => (1, 0),
            Access::Gradients => (2, 0),
            Access::Gather(channel) => (3, channel),
        };
        let results = match self.results {
            Results::Words => 0,
            Results::Halves => 1,
            Results::Pairs => 2,
        };
        let Geometry { coordinates, layered } = self.geometry;
        let flags = u32::from(layered) << 2 | u32::from(self.integers) << 3 | u32::from(self.offsets) << 4;
        CONSTANT_BIT | coordinates | flags | access << 5 | channel << 7 | results << 9
    }

    /// Decodes the result of `encode`.
    fn decode(code: u32) -> Self {
        let access = [Access::Base, Access::Level, Access::Gradients, Access::Gather(code >> 7 & 3)];
        Self {
            geometry: Geometry { coordinates: code & 3, layered: code >> 2 & 1 != 0 },
            access: access[(code >> 5 & 3) as usize],
            integers: code >> 3 & 1 != 0,
            results: [Results::Words, Results::Halves, Results::Pairs, Results::Words][(code >> 9 & 3) as usize],
            offsets: code >> 4 & 1 != 0,
        }
    }
}

/// Operands of one lane, which are taken in order.
struct Operands<'m, 'a> {
    machine: &'m Machine<'a>,
    lane: usize,
    next: u32,
}

impl Operands<'_, '_> {
    fn word(&mut self) -> u32 {
        let slot = self.machine.env.code.list(self.next);
        self.next += 1;
        self.machine.registers.row::<u32>(slot)[self.lane]
    }

    fn up_to_three(&mut self, count: u32) -> [u32; 3] {
        let mut words = [0; 3];
        words.iter_mut().take(count as usize).for_each(|word| *word = self.word());
        words
    }
}

/// Runs `tex` and `tld4`.
pub(crate) fn texture(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let code = machine.env.code;
    let form = Form::decode(code.list(inst.x));
    let handle = code.list(inst.x + 1);
    for lane in lanes_of(machine.mask) {
        let handle = machine.registers.row::<u64>(handle)[lane];
        let texture = match machine.texture(handle) {
            Ok(texture) => texture,
            Err(kind) => return machine.fail(kind, lane),
        };
        let mut operands = Operands { machine, lane, next: inst.x + 2 };
        let count = form.geometry.coordinates;
        let layer = if form.geometry.layered { operands.word() } else { 0 };
        let coordinates = operands.up_to_three(count);
        let detail = match form.access {
            Access::Base | Access::Gather(_) => [[0; 3]; 2],
            Access::Level => [[operands.word(), 0, 0], [0; 3]],
            Access::Gradients => [operands.up_to_three(count), operands.up_to_three(count)],
        };
        // Offsets have four bits.
        let offset = if form.offsets {
            operands.up_to_three(count).map(|word| (word << 28).cast_signed() >> 28)
        } else {
            [0; 3]
        };
        let result = texture.map_or([0; 4], |texture| {
            let point = SamplePoint { layer, at: coordinates.map(f32::from_bits), offset };
            match form.access {
                Access::Gather(channel) => texture.gather(&point, channel as usize),
                _ if form.integers => {
                    let level = (form.access == Access::Level).then(|| detail[0][0].cast_signed());
                    texture.fetch(&point, coordinates.map(u32::cast_signed), level)
                }
                Access::Base => texture.sample(&point, Detail::Base),
                Access::Level => texture.sample(&point, Detail::Level(f32::from_bits(detail[0][0]))),
                Access::Gradients => {
                    texture.sample(&point, Detail::Gradients(detail.map(|one| one.map(f32::from_bits))))
                }
            }
        });
        write(machine, inst, lane, form.results, result);
    }
    Flow::Next
}

/// Writes the results of one lane.
fn write(machine: &mut Machine<'_>, inst: &Inst, lane: usize, results: Results, texel: Texel) {
    let half = |channel: usize| f32_to_f16(f32::from_bits(texel[channel]));
    let words = match results {
        Results::Words => texel,
        Results::Halves => [half(0), half(1), half(2), half(3)],
        Results::Pairs => [half(0) | half(1) << 16, half(2) | half(3) << 16, 0, 0],
    };
    for (slot, word) in [inst.d, inst.a, inst.b, inst.c].into_iter().zip(words) {
        if slot != NO_SLOT {
            machine.registers.set_lane(slot, lane, word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_survives_its_encoding_and_is_no_register() {
        for access in [Access::Base, Access::Level, Access::Gradients, Access::Gather(3)] {
            for (layered, integers, offsets) in [(false, true, false), (true, false, true)] {
                for results in [Results::Words, Results::Halves, Results::Pairs] {
                    let geometry = Geometry { coordinates: 3, layered };
                    let form = Form { geometry, access, integers, results, offsets };
                    assert_eq!(Form::decode(form.encode()), form);
                    assert_ne!(form.encode() & CONSTANT_BIT, 0);
                }
            }
        }
    }
}
