//! `txq`, `suq` and `istypep`: queries of an image.
//!
//! Textures of the driver have width, height and depth, also for each level. No other property is known at run time, and the
//! texture unit says that no address is a texture reference.

use super::TextureImage;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;

/// Flag in `Inst::imm`: the query is for a surface instead of a texture. The bits below it are the direction.
pub(crate) const SURFACE_FLAG: u64 = 4;

/// Runs `txq.OP d, [a]`, `txq.level.OP d, [a], b` and `suq.OP d, [a]`.
pub(crate) fn extent(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let direction = (inst.imm & 3) as usize;
    for lane in lanes_of(machine.mask) {
        let handle = machine.registers.row::<u64>(inst.a)[lane];
        let level = machine.registers.row::<u32>(inst.b)[lane];
        let answer = if inst.imm & SURFACE_FLAG != 0 {
            machine.surface(handle).map(|image| image.map_or(0, |image| image.queried[direction]))
        } else {
            machine
                .texture(handle)
                .map(|texture| texture.map_or(0, |texture| at_level(&texture.image, direction, level)))
        };
        match answer {
            Ok(answer) => machine.registers.set_lane(inst.d, lane, answer),
            Err(kind) => return machine.fail(kind, lane),
        }
    }
    Flow::Next
}

/// Returns an extent at a level; 0 beyond the last one.
fn at_level(image: &TextureImage, direction: usize, level: u32) -> u32 {
    match image.levels.get(level as usize) {
        Some(_) if level == 0 => image.queried[direction],
        // A direction that the image does not have is also missing from its levels.
        Some(level_image) => level_image.extent[direction].min(image.queried[direction]),
        None => 0,
    }
}
