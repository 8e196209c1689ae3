//! `txq`, `suq` and `istypep`: what an image is.
//!
//! The driver's textures answer width, height, depth and their values at a level; nothing else is known of them at run
//! time, and the texture unit says that no address is a texture reference.

use super::TextureImage;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;

/// `Inst::imm` flag: ask a surface instead of a texture. Below it is the direction.
pub(crate) const SURFACE_FLAG: u64 = 4;

/// `txq.OP d, [a]`, `txq.level.OP d, [a], b`, `suq.OP d, [a]`.
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

/// An extent at a level; 0 beyond the last one.
fn at_level(image: &TextureImage, direction: usize, level: u32) -> u32 {
    match image.levels.get(level as usize) {
        Some(_) if level == 0 => image.queried[direction],
        // What an image does not have, its levels do not have either.
        Some(level_image) => level_image.extent[direction].min(image.queried[direction]),
        None => 0,
    }
}
