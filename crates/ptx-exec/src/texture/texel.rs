//! Texels in memory: their addresses, and the meaning of their channels to a sampler.
//!
//! A point read turns a channel into its value. For filtering, 8- and 16-bit channels become integers of 16 bits, all others
//! floats. `ChannelKind` tells which, and how the sum becomes a value.

use super::{Channel, Level, Sampler, TextureImage};
use crate::alu::half_bits::{f16_to_f32, f32_to_f16};
use crate::memory::raw;
use crate::texture::{filter, srgb};

/// Channels of a texel as an instruction returns them; those that an image lacks are zero.
pub(crate) type Texel = [u32; 4];

/// Largest number of texels in one sum.
pub(crate) const MAX_SUM_TEXELS: usize = 2 * filter::MAX_FILTER_TEXELS;

/// Largest finite value of half precision.
const LARGEST_HALF: f32 = 65504.0;

/// Position of a texel in a level: x, y, z, and layer or face.
pub(crate) type Spot = [u32; 4];

/// How a sampler interprets a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    /// An integer of this many bits, unsigned or signed.
    Integer(u32, bool),
    /// 0 to 1, of this many bits.
    Unsigned(u32),
    /// -1 to 1, of this many bits.
    Signed(u32),
    /// Floats of 16 bits.
    Half,
    /// Floats of 32 bits.
    Single,
    /// 8 bits through the sRGB curve.
    Curve,
}

impl ChannelKind {
    /// Returns how `sampler` interprets channel `index` of a texel.
    pub(crate) fn of(channel: Channel, sampler: &Sampler, index: usize) -> Self {
        let bits = channel.bytes() * 8;
        match channel {
            Channel::F32 => Self::Single,
            Channel::F16 => Self::Half,
            Channel::U32 => Self::Integer(bits, false),
            Channel::S32 => Self::Integer(bits, true),
            Channel::U8 | Channel::U16 if sampler.integers => Self::Integer(bits, false),
            Channel::S8 | Channel::S16 if sampler.integers => Self::Integer(bits, true),
            Channel::U8 if sampler.srgb && index < 3 => Self::Curve,
            Channel::U8 | Channel::U16 => Self::Unsigned(bits),
            Channel::S8 | Channel::S16 => Self::Signed(bits),
        }
    }

    /// Returns the value of a channel that is read without filtering.
    pub(crate) fn value(self, raw: u32) -> u32 {
        match self {
            Self::Integer(..) | Self::Single => raw,
            Self::Unsigned(bits) => (raw as f32 / ((1_u32 << bits) - 1) as f32).to_bits(),
            Self::Signed(bits) => (raw.cast_signed() as f32 / ((1_u32 << (bits - 1)) - 1) as f32).max(-1.0).to_bits(),
            Self::Half => f16_to_f32(raw).to_bits(),
            Self::Curve => srgb::linear(raw),
        }
    }

    /// Returns the channel of a border: the sampler's colour as a texel in memory would have it.
    pub(crate) fn border(self, color: f32) -> u32 {
        // Half way between two values, the lower one is taken.
        let nearest = |most: u32, lowest: f32| (color.clamp(lowest, 1.0) * most as f32 - 0.5).ceil() as i32;
        match self {
            Self::Integer(bits @ (8 | 16), signed) => {
                let above = 32 - bits;
                let cut = color.to_bits() << above;
                if signed { (cut.cast_signed() >> above).cast_unsigned() } else { cut >> above }
            }
            Self::Integer(..) | Self::Single => color.to_bits(),
            Self::Unsigned(bits) => nearest((1 << bits) - 1, 0.0).cast_unsigned(),
            Self::Curve => nearest(255, 0.0).cast_unsigned(),
            Self::Signed(bits) => nearest((1 << (bits - 1)) - 1, -1.0).cast_unsigned(),
            Self::Half => f32_to_f16(color.clamp(-LARGEST_HALF, LARGEST_HALF)),
        }
    }

    /// Returns the weighted sum of the channels of texels.
    pub(crate) fn sum(self, raw: &[u32], weights: &[u32]) -> u32 {
        match self {
            Self::Integer(32, signed) => {
                let wide = |raw: u32| if signed { i64::from(raw.cast_signed()) } else { i64::from(raw) };
                filter::cut(raw.iter().copied().map(wide), weights) as u32
            }
            Self::Integer(..) => filter::integers(raw.iter().map(|raw| raw.cast_signed()), weights).cast_unsigned(),
            Self::Unsigned(bits) => {
                let unit = if bits == 8 { 257 } else { 1 };
                let sum = filter::integers(raw.iter().map(|raw| raw.cast_signed() * unit), weights);
                (sum as f32 / 65535.0).to_bits()
            }
            Self::Signed(bits) => {
                let values = raw.iter().map(|raw| raw.cast_signed());
                let sum = if bits == 8 { filter::spread(values, weights) } else { filter::integers(values, weights) };
                (sum as f32 / 32767.0).max(-1.0).to_bits()
            }
            Self::Half | Self::Single | Self::Curve => {
                let mut texels = [0; MAX_SUM_TEXELS];
                for (texel, raw) in texels.iter_mut().zip(raw) {
                    *texel = self.value(*raw);
                }
                let precision =
                    if self == Self::Single { filter::SINGLE_MANTISSA_BITS } else { filter::HALF_MANTISSA_BITS };
                filter::floats(&texels[..raw.len().min(MAX_SUM_TEXELS)], weights, precision)
            }
        }
    }
}

impl TextureImage {
    /// Returns the address of a texel, whose indices are below the extents of the level.
    fn address(&self, level: &Level, [x, y, z, layer]: Spot) -> u64 {
        // An image has either slices or layers, never both.
        let slice = u64::from(z) + u64::from(layer);
        level.address + slice * level.slice + u64::from(y) * level.pitch + u64::from(x) * self.texel_bytes()
    }

    /// Returns one channel of a texel, extended to 32 bits by its sign.
    ///
    /// Indices beyond the extents of the level read as zero.
    #[expect(unsafe_code, reason = "texels are in device memory")]
    pub(crate) fn channel(&self, level: &Level, spot: Spot, index: u32) -> u32 {
        let [width, height, depth] = level.extent;
        let inside = spot[0] < width && spot[1] < height && spot[2] < depth && spot[3] < level.layers;
        if !inside || index >= self.channels {
            return 0;
        }
        let address = self.address(level, spot) + u64::from(index * self.channel.bytes());
        // SAFETY: the texel lies in the level, all of which the host found readable for this launch; addresses and
        // distances are multiples of a texel's size (`Level`), so the channel is aligned.
        unsafe {
            match self.channel {
                Channel::U8 => u32::from(raw::load::<u8>(address)),
                Channel::S8 => i32::from(raw::load::<i8>(address)).cast_unsigned(),
                Channel::U16 | Channel::F16 => u32::from(raw::load::<u16>(address)),
                Channel::S16 => i32::from(raw::load::<i16>(address)).cast_unsigned(),
                Channel::U32 | Channel::S32 | Channel::F32 => raw::load::<u32>(address),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_eight_bits_are_spread_over_sixteen() {
        let alone = |kind: ChannelKind, value: i32| f32::from_bits(kind.sum(&[value.cast_unsigned()], &[256]));
        assert_eq!([-128, -127, 0, 127].map(|value| alone(ChannelKind::Signed(8), value)), [-1.0, -1.0, 0.0, 1.0]);
        assert_eq!([0, 51, 255].map(|value| alone(ChannelKind::Unsigned(8), value)), [0.0, 0.2, 1.0]);
    }

    #[test]
    fn values_are_fractions_of_the_largest() {
        let value = |kind: ChannelKind, raw: i32| f32::from_bits(kind.value(raw.cast_unsigned()));
        assert_eq!((value(ChannelKind::Unsigned(8), 51), value(ChannelKind::Signed(16), -32768)), (0.2, -1.0));
        assert_eq!(value(ChannelKind::Half, 0x3c00), 1.0);
    }

    #[test]
    fn integers_are_mixed_too() {
        let mixed = |bits: u32| ChannelKind::Integer(bits, false).sum(&[10, 20], &[192, 64]);
        assert_eq!((mixed(8), mixed(32)), (13, 12), "only narrow ones are rounded");
        assert_eq!(ChannelKind::Integer(32, true).sum(&[u32::MAX, 0], &[128, 128]), u32::MAX);
    }

    #[test]
    fn a_border_is_what_memory_could_hold() {
        assert_eq!([0.25, 0.5, -3.0, 2.0].map(|color| ChannelKind::Unsigned(8).border(color)), [64, 127, 0, 255]);
        assert_eq!(ChannelKind::Signed(8).border(-0.75).cast_signed(), -95);
        assert_eq!(
            (ChannelKind::Integer(8, false).border(1e9), ChannelKind::Integer(32, false).border(0.25)),
            (0x28, 0x3e80_0000)
        );
        assert_eq!(ChannelKind::Half.border(1e9), 0x7bff);
    }
}
