//! `suld`, `sust` and `sured`: access to the bytes of an image at whole indices.
//!
//! The first index counts bytes, the others rows, slices and layers. An access outside is a fault (`.trap`), goes to the nearest
//! place inside (`.clamp`), or has no effect (`.zero`: loads return zeroes, stores are dropped). An access must be aligned to its
//! size in any mode.

use super::{Channel, Level, TextureImage, TextureShape, cube};
use crate::alu::half_bits::f32_to_f16;
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{Raw, lanes_of};
use crate::memory::raw::{self, Atomic};
use crate::slot::CONSTANT_BIT;
use crate::texture::run::Geometry;
use std::sync::Arc;

/// Treatment of an access outside the surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// The launch faults.
    Trap,
    /// The access goes to the nearest place inside.
    Clamp,
    /// Loads return zeroes, and stores are dropped.
    Zero,
}

/// All modifiers of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// Dimensions of the surface, by which it is indexed.
    pub(crate) geometry: Geometry,
    /// Treatment of an access outside the surface.
    pub(crate) outside: Outside,
    /// Number of elements: 1, 2 or 4.
    pub(crate) count: u32,
    /// Size of an element in bytes.
    pub(crate) bytes: u32,
    /// Whether values are converted to the format of the image, and the first index counts texels.
    pub(crate) formatted: bool,
}

impl Form {
    /// Encodes the form as an entry of the operand list, which is not taken for a register.
    pub(crate) fn encode(self) -> u32 {
        let outside = match self.outside {
            Outside::Trap => 0,
            Outside::Clamp => 1,
            Outside::Zero => 2,
        };
        let Geometry { coordinates, layered } = self.geometry;
        let flags = u32::from(layered) << 2 | u32::from(self.formatted) << 3;
        CONSTANT_BIT | coordinates | flags | outside << 4 | self.count << 6 | self.bytes << 9
    }

    /// Decodes the result of `encode`.
    fn decode(code: u32) -> Self {
        Self {
            geometry: Geometry { coordinates: code & 3, layered: code >> 2 & 1 != 0 },
            outside: [Outside::Trap, Outside::Clamp, Outside::Zero, Outside::Trap][(code >> 4 & 3) as usize],
            count: code >> 6 & 7,
            bytes: code >> 9 & 15,
            formatted: code >> 3 & 1 != 0,
        }
    }
}

/// A resolved access of one lane.
struct ResolvedAccess {
    image: Arc<TextureImage>,
    address: u64,
}

/// Returns the number of layers of a surface: each face of a cube is a layer.
fn layers(image: &TextureImage, level: &Level) -> u32 {
    match image.shape {
        TextureShape::Layered(_) | TextureShape::CubeLayers => level.layers,
        TextureShape::Cube => cube::CUBE_FACES,
        TextureShape::Linear | TextureShape::Plain(_) => 1,
    }
}

/// Returns `index` if it is below `end`, or the index that takes its place; `Ok(None)` if the access has no effect.
fn within(index: i64, end: u64, outside: Outside) -> Result<Option<u64>, FaultKind> {
    let last = end.cast_signed() - 1;
    match outside {
        _ if (0..=last).contains(&index) => Ok(Some(index.cast_unsigned())),
        Outside::Clamp => Ok(Some(index.clamp(0, last).cast_unsigned())),
        Outside::Zero => Ok(None),
        Outside::Trap => Err(FaultKind::IllegalAddress(index.cast_unsigned())),
    }
}

/// Finds the `bytes` bytes that one lane accesses.
fn find(
    image: &Arc<TextureImage>,
    form: Form,
    bytes: u64,
    layer: u32,
    indices: [u32; 3],
) -> Result<Option<ResolvedAccess>, FaultKind> {
    let Some(level) = image.levels.first() else { return Ok(None) };
    let x = i64::from(indices[0].cast_signed()) * if form.formatted { image.texel_bytes().cast_signed() } else { 1 };
    if x.rem_euclid(bytes.cast_signed()) != 0 {
        return Err(FaultKind::MisalignedAddress(x.cast_unsigned()));
    }
    let row = u64::from(level.extent[0]) * image.texel_bytes();
    if row < bytes {
        return within(-1, 1, form.outside).map(|_| None);
    }
    let first = within(x, row - bytes + 1, form.outside)?;
    let deeper = |at: usize| {
        let used = at < form.geometry.coordinates as usize;
        let index = if used { i64::from(indices[at].cast_signed()) } else { 0 };
        within(index, u64::from(level.extent[at]), form.outside)
    };
    // Layers have 16 bits.
    let layer = within(i64::from(layer & 0xffff), u64::from(layers(image, level)), form.outside)?;
    let (Some(x), Some(y), Some(z), Some(layer)) = (first, deeper(1)?, deeper(2)?, layer) else { return Ok(None) };
    let address = level.address + (z + layer) * level.slice + y * level.pitch + x;
    Ok(Some(ResolvedAccess { image: Arc::clone(image), address }))
}

impl Machine<'_> {
    /// Returns the place that `lane` accesses, with the entry of the operand list that comes after the indices.
    fn surface_address(
        &mut self,
        inst: &Inst,
        form: Form,
        lane: usize,
    ) -> Result<(Option<ResolvedAccess>, u32), FaultKind> {
        let code = self.env.code;
        let handle = self.registers.row::<u64>(code.list(inst.x + 1))[lane];
        let mut next = inst.x + 2;
        let mut word = || {
            next += 1;
            self.registers.row::<u32>(code.list(next - 1))[lane]
        };
        let layer = if form.geometry.layered { word() } else { 0 };
        let mut indices = [0; 3];
        indices.iter_mut().take(form.geometry.coordinates as usize).for_each(|index| *index = word());
        let Some(image) = self.surface(handle)? else { return Ok((None, next)) };
        let bytes = if form.formatted { image.texel_bytes() } else { u64::from(form.bytes * form.count) };
        Ok((find(&image, form, bytes, layer, indices)?, next))
    }
}

/// Reads the integer of `bytes` bytes at an address.
#[expect(unsafe_code, reason = "texels are in device memory")]
fn load(address: u64, bytes: u32) -> u64 {
    // SAFETY: `find` placed the access inside a level that the host found readable for this launch, at a multiple of the
    // whole access from the start of a row; rows start at multiples of a texel, and the bytes here are at most one.
    unsafe {
        match bytes {
            1 => u64::from(raw::load::<u8>(address)),
            2 => u64::from(raw::load::<u16>(address)),
            4 => u64::from(raw::load::<u32>(address)),
            _ => raw::load::<u64>(address),
        }
    }
}

/// Writes the integer of `bytes` bytes to an address.
#[expect(unsafe_code, reason = "texels are in device memory")]
fn store(address: u64, bytes: u32, value: u64) {
    // SAFETY: as in `load`; the host found surfaces writable too.
    unsafe {
        match bytes {
            1 => raw::store(address, value as u8),
            2 => raw::store(address, value as u16),
            4 => raw::store(address, value as u32),
            _ => raw::store(address, value),
        }
    }
}

/// Runs `suld.b`; results go to `d`, `a`, `b` and `c`.
pub(crate) fn load_bytes<L: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let form = Form::decode(machine.env.code.list(inst.x));
    for lane in lanes_of(machine.mask) {
        let address = match machine.surface_address(inst, form, lane) {
            Ok((address, _)) => address,
            Err(kind) => return machine.fail(kind, lane),
        };
        for (element, slot) in (0..form.count).zip([inst.d, inst.a, inst.b, inst.c]) {
            let at = u64::from(element * form.bytes);
            let value = address.as_ref().map_or(0, |address| load(address.address + at, form.bytes));
            machine.registers.set_lane(slot, lane, L::narrow(value));
        }
    }
    Flow::Next
}

/// Runs `sust.b` and `sust.p`; sources come after the indices.
pub(crate) fn store_bytes<L: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let code = machine.env.code;
    let form = Form::decode(code.list(inst.x));
    for lane in lanes_of(machine.mask) {
        let (texel_address, values) = match machine.surface_address(inst, form, lane) {
            Ok(found) => found,
            Err(kind) => return machine.fail(kind, lane),
        };
        let Some(ResolvedAccess { image, address }) = texel_address else { continue };
        let (count, bytes) = if form.formatted {
            (image.channels.min(form.count), image.channel.bytes())
        } else {
            (form.count, form.bytes)
        };
        for element in 0..count {
            let value = machine.registers.row::<L>(code.list(values + element))[lane].wide();
            let value = if form.formatted { u64::from(formatted(image.channel, value as u32)) } else { value };
            store(address + u64::from(element * bytes), bytes, value);
        }
    }
    Flow::Next
}

/// Converts a 32-bit value for `sust.p`: integers saturate, floats are rounded.
fn formatted(channel: Channel, value: u32) -> u32 {
    match channel {
        Channel::U8 => value.min(0xff),
        Channel::U16 => value.min(0xffff),
        Channel::S8 => value.cast_signed().clamp(-128, 127).cast_unsigned(),
        Channel::S16 => value.cast_signed().clamp(-32768, 32767).cast_unsigned(),
        // The upper bits of a NaN are kept.
        Channel::F16 if f32::from_bits(value).is_nan() => value >> 16 & 0x8000 | 0x7c00 | value >> 13 & 0x3ff,
        Channel::F16 => f32_to_f16(f32::from_bits(value)),
        Channel::U32 | Channel::S32 | Channel::F32 => value,
    }
}

/// An operation of `sured`.
pub(crate) trait Reduction {
    /// Type of the value in the image.
    type Word: Raw + Atomic;
    /// Returns the new value.
    fn apply(old: Self::Word, value: Self::Word) -> Self::Word;
}

macro_rules! reductions {
    ($($name:ident: $word:ty = |$old:ident, $value:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;

        impl Reduction for $name {
            type Word = $word;

            fn apply($old: $word, $value: $word) -> $word {
                $body
            }
        }
    )*};
}

reductions! {
    Add32: u32 = |old, value| old.wrapping_add(value);
    Add64: u64 = |old, value| old.wrapping_add(value);
    MinU32: u32 = |old, value| old.min(value);
    MaxU32: u32 = |old, value| old.max(value);
    MinS32: u32 = |old, value| old.cast_signed().min(value.cast_signed()).cast_unsigned();
    MaxS32: u32 = |old, value| old.cast_signed().max(value.cast_signed()).cast_unsigned();
    MinU64: u64 = |old, value| old.min(value);
    MaxU64: u64 = |old, value| old.max(value);
    MinS64: u64 = |old, value| old.cast_signed().min(value.cast_signed()).cast_unsigned();
    MaxS64: u64 = |old, value| old.cast_signed().max(value.cast_signed()).cast_unsigned();
    And32: u32 = |old, value| old & value;
    Or32: u32 = |old, value| old | value;
}

/// Runs `sured`; the value comes after the indices.
#[expect(unsafe_code, reason = "texels are in device memory")]
pub(crate) fn reduce<R: Reduction>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let code = machine.env.code;
    let form = Form::decode(code.list(inst.x));
    for lane in lanes_of(machine.mask) {
        let (texel_address, values) = match machine.surface_address(inst, form, lane) {
            Ok(found) => found,
            Err(kind) => return machine.fail(kind, lane),
        };
        let value = machine.registers.row::<R::Word>(code.list(values))[lane];
        let Some(ResolvedAccess { address, .. }) = texel_address else { continue };
        if address % size_of::<R::Word>() as u64 != 0 {
            return machine.fail(FaultKind::MisalignedAddress(address), lane);
        }
        // SAFETY: as in `store`, and the address was found aligned.
        let _ = unsafe { R::Word::update(address, |old| R::apply(old, value)) };
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_survives_its_encoding() {
        for outside in [Outside::Trap, Outside::Clamp, Outside::Zero] {
            let geometry = Geometry { coordinates: 2, layered: true };
            let form = Form { geometry, outside, count: 4, bytes: 8, formatted: true };
            assert_eq!(Form::decode(form.encode()), form);
        }
    }

    fn image() -> Arc<TextureImage> {
        let level = Level { address: 0x1000, extent: [8, 4, 1], pitch: 32, slice: 128, layers: 1 };
        let shape = TextureShape::Plain(2);
        Arc::new(TextureImage { channel: Channel::U32, channels: 1, shape, levels: vec![level], queried: [8, 4, 0] })
    }

    fn at(outside: Outside, x: i32, y: i32, bytes: u32) -> Result<Option<u64>, FaultKind> {
        let geometry = Geometry { coordinates: 2, layered: false };
        let form = Form { geometry, outside, count: 1, bytes, formatted: false };
        let indices = [x.cast_unsigned(), y.cast_unsigned(), 0];
        Ok(find(&image(), form, u64::from(bytes), 0, indices)?.map(|access| access.address))
    }

    #[test]
    fn accesses_outside_a_surface_follow_its_mode() {
        assert_eq!(at(Outside::Trap, 28, 3, 4), Ok(Some(0x1000 + 96 + 28)));
        assert_eq!(at(Outside::Trap, 32, 0, 4), Err(FaultKind::IllegalAddress(32)));
        assert_eq!(at(Outside::Clamp, 64, -1, 16), Ok(Some(0x1010)));
        assert_eq!(at(Outside::Zero, -4, 0, 4), Ok(None));
        assert_eq!(at(Outside::Clamp, 2, 0, 4), Err(FaultKind::MisalignedAddress(2)));
    }

    #[test]
    fn formatted_values_saturate_and_round() {
        let stored = |channel: Channel| [0x100, u32::MAX, 0x4049_0fdb].map(|value| formatted(channel, value));
        assert_eq!(stored(Channel::U8), [255, 255, 255]);
        assert_eq!(stored(Channel::S8), [127, u32::MAX, 127]);
        assert_eq!(stored(Channel::F16), [0, 0xffff, 0x4248]);
    }
}
