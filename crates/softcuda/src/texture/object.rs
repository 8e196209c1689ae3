//! Texture and surface objects: small numbers that device code holds, and the textures and surfaces that they name.
//!
//! As on an H200, a new object gets the lowest free number from 1 on. Device code may hold any number: one that never existed
//! faults, and one whose object is gone reads as zero. Each launch looks up the memory of objects, so an object may outlive its
//! memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use katydid_cuda_sys::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray, CUmipmappedArray, CUresult,
};
use katydid_driver_rules::texture::resource_kind as kind;
use katydid_ptx_exec::texture::{AddressMode, Bound, Channel, Level, Sampler, Texture, TextureImage, TextureShape};

use crate::ffi::{Outcome, unsupported};
use crate::memory::space;
use crate::texture::array::{self, Array};
use crate::texture::format::{channel, check_channels};

/// Flags of a texture.
mod flag {
    pub(super) const INTEGERS: u32 = 1;
    pub(super) const NORMALIZED: u32 = 2;
    pub(super) const SRGB: u32 = 0x10;
    pub(super) const SEAMLESS: u32 = 0x40;
    /// All known bits.
    pub(super) const ALL: u32 = 0x7f;
}

/// Alignment of pitched and linear memory.
pub(super) const TEXTURE_ALIGN_BYTES: u64 = 512;
/// Divisor and largest value of a pitch.
const PITCH_BOUNDS_BYTES: (u64, u64) = (32, 2_097_120);
/// Largest width and height of a pitched texture, in texels.
const MAX_PITCHED_TEXELS: (u64, u64) = (131_072, 65_000);

/// The source of an object's texels, as known at its creation.
#[derive(Clone)]
enum TextureSource {
    /// Arrays: one, or the levels of a mipmap.
    Arrays(Vec<Arc<Array>>),
    /// Memory: address, bytes.
    Linear(u64, u64),
    /// Memory: address, texels in a row, rows, pitch.
    Pitched(u64, [u32; 2], u64),
}

/// A texture or surface, checked.
pub(crate) struct Object {
    resource: CUDA_RESOURCE_DESC,
    texture: Option<(CUDA_TEXTURE_DESC, Sampler)>,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
    source: TextureSource,
    channel: Channel,
    channels: u32,
}

/// Objects of the texture and surface references, by address.
pub(crate) type Bindings = Arc<HashMap<u64, Arc<Object>>>;

/// Objects by number, from 1.
static TEXTURE_OBJECTS: RwLock<Vec<Option<Arc<Object>>>> = RwLock::new(Vec::new());

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Returns the source that a resource descriptor names.
fn source(it: &CUDA_RESOURCE_DESC) -> Outcome<(TextureSource, Channel, u32)> {
    if it.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let [first, format, third, ..] = it.res;
    let handle = std::ptr::with_exposed_provenance_mut(first as usize);
    let (code, channels) = (format as u32, (format >> 32) as u32);
    match it.resType {
        kind::ARRAY => {
            let array = array::resolve(CUarray(handle)).map_err(|_| INVALID_VALUE)?;
            Ok((TextureSource::Arrays(vec![Arc::clone(&array)]), array.format.channel, array.format.channels))
        }
        kind::MIPMAP => {
            let mipmap = array::resolve_mipmap(CUmipmappedArray(handle)).map_err(|_| INVALID_VALUE)?;
            let format = mipmap.levels.first().ok_or(INVALID_VALUE)?.format;
            Ok((TextureSource::Arrays(mipmap.levels.clone()), format.channel, format.channels))
        }
        kind::LINEAR | kind::PITCHED => {
            check_channels(channels)?;
            let channel = channel(code)?;
            if first == 0 || !first.is_multiple_of(TEXTURE_ALIGN_BYTES) {
                return Err(INVALID_VALUE);
            }
            if it.resType == kind::LINEAR {
                return Ok((TextureSource::Linear(first, third), channel, channels));
            }
            let (width, height, pitch) = (third, it.res[3], it.res[4]);
            if !pitch.is_multiple_of(PITCH_BOUNDS_BYTES.0)
                || pitch > PITCH_BOUNDS_BYTES.1
                || width > MAX_PITCHED_TEXELS.0
                || height > MAX_PITCHED_TEXELS.1
            {
                return Err(INVALID_VALUE);
            }
            Ok((TextureSource::Pitched(first, [width as u32, height as u32], pitch), channel, channels))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Converts a texture descriptor to a sampler.
fn sampler(it: &CUDA_TEXTURE_DESC, dimensions: usize, cube: bool) -> Outcome<Sampler> {
    let seamless = it.flags & flag::SEAMLESS != 0;
    let modes = it.addressMode.iter().take(dimensions).all(|mode| *mode <= 3);
    if !modes || it.filterMode > 1 || it.mipmapFilterMode > 1 || it.flags & !flag::ALL != 0 || (seamless && !cube) {
        return Err(INVALID_VALUE);
    }
    let address = it.addressMode.map(|mode| match mode {
        0 => AddressMode::Wrap,
        2 => AddressMode::Mirror,
        3 => AddressMode::Border,
        _ => AddressMode::Clamp,
    });
    Ok(Sampler {
        address,
        linear: it.filterMode == 1,
        mip_linear: it.mipmapFilterMode == 1,
        normalized: it.flags & flag::NORMALIZED != 0,
        integers: it.flags & flag::INTEGERS != 0,
        srgb: it.flags & flag::SRGB != 0,
        seamless,
        level_bias: it.mipmapLevelBias,
        level_clamp: [it.minMipmapLevelClamp, it.maxMipmapLevelClamp],
        border: it.borderColor,
    })
}

/// Returns the channel and the number of channels of a view's format. Block compression is refused by name.
fn view_format(format: u32) -> Outcome<(Channel, u32)> {
    let channels = |first: u32| 1 << (format - first);
    Ok(match format {
        0x01..=0x03 => (Channel::U8, channels(0x01)),
        0x04..=0x06 => (Channel::S8, channels(0x04)),
        0x07..=0x09 => (Channel::U16, channels(0x07)),
        0x0a..=0x0c => (Channel::S16, channels(0x0a)),
        0x0d..=0x0f => (Channel::U32, channels(0x0d)),
        0x10..=0x12 => (Channel::S32, channels(0x10)),
        0x13..=0x15 => (Channel::F16, channels(0x13)),
        0x16..=0x18 => (Channel::F32, channels(0x16)),
        0x19..=0x22 => return Err(unsupported("a view of block-compressed texels")),
        _ => return Err(INVALID_VALUE),
    })
}

/// Applies a view to arrays; other resources ignore theirs.
fn apply_view(
    view: &CUDA_RESOURCE_VIEW_DESC,
    source: &mut TextureSource,
    channel: &mut Channel,
    channels: u32,
) -> Outcome {
    let TextureSource::Arrays(levels) = source else { return Ok(()) };
    let base = levels.first().ok_or(INVALID_VALUE)?.format;
    let (viewed, count) = view_format(view.format)?;
    let depth_fits = base.extent[2] == view.depth || (view.depth == 0 && base.extent[2] == 0);
    if viewed.bytes() != channel.bytes()
        || count != channels
        || [view.width, view.height] != [base.extent[0], base.extent[1]]
        || !depth_fits
        || view.firstMipmapLevel > view.lastMipmapLevel
    {
        return Err(INVALID_VALUE);
    }
    *channel = viewed;
    let last = levels.len().saturating_sub(1);
    let chosen = (view.firstMipmapLevel as usize).min(last)..=(view.lastMipmapLevel as usize).min(last);
    *levels = levels.get(chosen).ok_or(INVALID_VALUE)?.to_vec();
    Ok(())
}

/// Gives an object the lowest free number.
fn register(object: Object) -> u64 {
    let mut objects = TEXTURE_OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    let free = objects.iter().position(Option::is_none).unwrap_or(objects.len());
    if free == objects.len() {
        objects.push(None);
    }
    objects[free] = Some(Arc::new(object));
    free as u64 + 1
}

/// The object with a number; `INVALID_VALUE` if there is none.
fn find(number: u64) -> Outcome<Arc<Object>> {
    let objects = TEXTURE_OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index.and_then(|index| objects.get(index)?.clone()).ok_or(INVALID_VALUE)
}

impl Object {
    /// Checks a texture. With a format (code and channels), an array's texels are read in that format.
    pub(crate) fn texture(
        resource: CUDA_RESOURCE_DESC,
        texture: CUDA_TEXTURE_DESC,
        view: Option<CUDA_RESOURCE_VIEW_DESC>,
        format: Option<(u32, u32)>,
    ) -> Outcome<Self> {
        let (mut source, mut channel, mut channels) = source(&resource)?;
        if let Some((code, count)) = format {
            let format_channel = self::channel(code)?;
            if format_channel.bytes() * count != channel.bytes() * channels {
                return Err(INVALID_VALUE);
            }
            (channel, channels) = (format_channel, count);
        }
        let shape = shape_of(&source);
        let dimensions = match shape {
            TextureShape::Plain(dimensions) | TextureShape::Layered(dimensions) => dimensions as usize,
            TextureShape::Linear => 1,
            TextureShape::Cube | TextureShape::CubeLayers => 2,
        };
        let sampler = sampler(&texture, dimensions, matches!(shape, TextureShape::Cube | TextureShape::CubeLayers))?;
        if let Some(view) = &view {
            apply_view(view, &mut source, &mut channel, channels)?;
        }
        Ok(Self { resource, texture: Some((texture, sampler)), view, source, channel, channels })
    }

    /// Checks a surface, which must be an array.
    pub(crate) fn surface(resource: CUDA_RESOURCE_DESC) -> Outcome<Self> {
        if resource.resType != kind::ARRAY {
            return Err(INVALID_VALUE);
        }
        let (source, channel, channels) = source(&resource)?;
        Ok(Self { resource, texture: None, view: None, source, channel, channels })
    }
}

/// `cuTexObjectCreate`.
pub(crate) fn create(
    resource: CUDA_RESOURCE_DESC,
    texture: CUDA_TEXTURE_DESC,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
) -> Outcome<u64> {
    Object::texture(resource, texture, view, None).map(register)
}

/// `cuSurfObjectCreate`.
pub(crate) fn create_surface(resource: CUDA_RESOURCE_DESC) -> Outcome<u64> {
    Object::surface(resource).map(register)
}

/// `cuTexObjectDestroy` and `cuSurfObjectDestroy`. As on a GPU, a number without an object is no error.
pub(crate) fn destroy(number: u64) {
    let mut objects = TEXTURE_OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    if let Some(slot) = index.and_then(|index| objects.get_mut(index)) {
        *slot = None;
    }
}

/// Returns the resource that a texture or surface was made with.
pub(crate) fn resource(number: u64) -> Outcome<CUDA_RESOURCE_DESC> {
    Ok(find(number)?.resource)
}

/// Returns the description that a texture was made with.
pub(crate) fn description(number: u64) -> Outcome<CUDA_TEXTURE_DESC> {
    find(number)?.texture.as_ref().map(|(description, _)| *description).ok_or(INVALID_VALUE)
}

/// Returns the view that a texture was made with; zeroes without one.
pub(crate) fn view(number: u64) -> Outcome<CUDA_RESOURCE_VIEW_DESC> {
    Ok(find(number)?.view.unwrap_or_default())
}

/// Returns the meaning of a source's indices.
fn shape_of(source: &TextureSource) -> TextureShape {
    match source {
        TextureSource::Arrays(levels) => levels.first().map_or(TextureShape::Plain(1), |array| array.format.shape()),
        TextureSource::Linear(..) => TextureShape::Linear,
        TextureSource::Pitched(..) => TextureShape::Plain(2),
    }
}

impl Object {
    /// Returns the form that device code uses.
    fn bound(&self, device: i32, peers: u32) -> Option<Bound> {
        let image = self.image(device, peers)?;
        Some(match &self.texture {
            Some((_, sampler)) => Bound::Texture(Arc::new(Texture { image, sampler: sampler.clone() })),
            None => Bound::Surface(Arc::new(image)),
        })
    }

    /// Returns its texels, if all their memory still exists for `device`.
    fn image(&self, device: i32, peers: u32) -> Option<TextureImage> {
        let (levels, queried) = self.levels(device, peers)?;
        let (channel, channels) = (self.channel, self.channels);
        Some(TextureImage { channel, channels, shape: shape_of(&self.source), levels, queried })
    }

    fn levels(&self, device: i32, peers: u32) -> Option<(Vec<Level>, [u32; 3])> {
        let texel = u64::from(self.channel.bytes() * self.channels);
        match &self.source {
            TextureSource::Arrays(arrays) => {
                let first = arrays.first()?;
                let living = arrays.iter().all(|array| array::resolve(array.handle()).is_ok());
                let queried =
                    if self.texture.is_some() { first.format.queried() } else { first.format.queried_surface() };
                living.then(|| (arrays.iter().map(|array| array.level).collect(), queried))
            }
            TextureSource::Linear(address, bytes) => {
                let count =
                    u32::try_from(space::read().readable(*address, *bytes, device, peers) / texel).unwrap_or(u32::MAX);
                let requested_texels = u32::try_from(bytes / texel).unwrap_or(u32::MAX);
                let level = Level {
                    address: *address,
                    extent: [count, 1, 1],
                    pitch: 0,
                    slice: 0,
                    layers: u32::from(count > 0),
                };
                Some((vec![level], [requested_texels, 0, 0]))
            }
            TextureSource::Pitched(address, [width, height], pitch) => {
                if *width == 0 || *height == 0 {
                    return None;
                }
                let bytes = u64::from(height - 1) * pitch + u64::from(*width) * texel;
                let is_mapped =
                    space::read().readable(*address, bytes, device, peers) == bytes && pitch.is_multiple_of(texel);
                let extent = [*width, *height, 1];
                let level = Level { address: *address, extent, pitch: *pitch, slice: 0, layers: 1 };
                is_mapped.then(|| (vec![level], [*width, *height, 0]))
            }
        }
    }
}

/// Resolves what device code names: the number of an object, or the address of a reference. `None` for a number that never
/// existed, an unbound reference, and gone memory.
pub(crate) fn bound(number: u64, device: i32, peers: u32, references: &Bindings) -> Option<Bound> {
    if let Some(object) = references.get(&number) {
        return object.bound(device, peers);
    }
    let count = TEXTURE_OBJECTS.read().unwrap_or_else(PoisonError::into_inner).len() as u64;
    if number > count {
        return None;
    }
    let Ok(object) = find(number) else { return Some(Bound::Nothing) };
    object.bound(device, peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_refused_as_an_h200_refuses_them() {
        let reads = |change: fn(&mut CUDA_TEXTURE_DESC)| {
            let mut description = CUDA_TEXTURE_DESC::default();
            change(&mut description);
            sampler(&description, 2, false).is_ok()
        };
        assert!(
            reads(|it| it.addressMode = [3, 2, 9]) && reads(|it| it.maxAnisotropy = 17) && reads(|it| it.flags = 0x3f)
        );
        assert!(
            !reads(|it| it.addressMode[1] = 4)
                && !reads(|it| it.filterMode = 2)
                && !reads(|it| it.mipmapFilterMode = 2)
        );
        assert!(!reads(|it| it.flags = 0x40) && !reads(|it| it.flags = 0x80));
    }

    #[test]
    fn memory_must_be_aligned_and_pitches_too() {
        let linear = |address: u64| CUDA_RESOURCE_DESC {
            resType: kind::LINEAR,
            res: std::array::from_fn(|at| [address, 1 << 32 | 0x20, 400].get(at).copied().unwrap_or(0)),
            ..CUDA_RESOURCE_DESC::default()
        };
        assert!(source(&linear(0x1000)).is_ok() && source(&linear(0)).is_err() && source(&linear(0x1010)).is_err());
        let pitched = |pitch: u64| CUDA_RESOURCE_DESC {
            resType: kind::PITCHED,
            res: std::array::from_fn(|at| [0x1000, 1 << 32 | 0x20, 16, 8, pitch].get(at).copied().unwrap_or(0)),
            ..CUDA_RESOURCE_DESC::default()
        };
        assert!(source(&pitched(64)).is_ok() && source(&pitched(80)).is_err() && source(&pitched(2_097_152)).is_err());
    }
}
