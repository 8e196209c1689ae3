//! Texture references: the program's settings, in `kdTextureReferenceSet`, and the driver's facts afterwards.
//!
//! A reference has state: a program sets one property a call. The shim keeps and sends all of it, so the last message is
//! complete. `set` tells which properties the program has ever set, because the others are the module's own.
//!
//! Layout of the arguments: those of a texture object ([`TextureArguments`]) without a view, then `set` as 64 little-endian bits.
//! Layout of the facts: 16 numbers of 32 bits: the sampler, then format and channels.

use crate::descriptors::texture::{TEXTURE_BYTES, TextureArguments};

/// Bits of [`ReferenceArguments::set`], one for each property.
pub mod property {
    /// Format and number of channels (`cuTexRefSetFormat`).
    pub const FORMAT: u32 = 1;
    /// Address mode of the first of three dimensions.
    pub const ADDRESS_MODE: u32 = 2;
    /// Filter between texels (`cuTexRefSetFilterMode`).
    pub const FILTER: u32 = 0x10;
    /// Filter between mipmap levels (`cuTexRefSetMipmapFilterMode`).
    pub const LEVEL_FILTER: u32 = 0x20;
    /// Offset of the mipmap level (`cuTexRefSetMipmapLevelBias`).
    pub const LEVEL_BIAS: u32 = 0x40;
    /// First and last level.
    pub const LEVEL_CLAMP: u32 = 0x80;
    /// Most samples along the longer side of a footprint.
    pub const ANISOTROPY: u32 = 0x100;
    /// Color outside of the image.
    pub const BORDER: u32 = 0x200;
    /// How texels and coordinates are read.
    pub const FLAGS: u32 = 0x400;
    /// The resource: an array, a mipmap or memory.
    pub const RESOURCE: u32 = 0x800;
    /// All properties: no other bit has a meaning.
    pub const ALL: u32 = 0xfff;
}

/// Positions of numbers in a sampler, see [`TextureArguments::sampler`].
pub mod sampler_word {
    /// Address modes of three dimensions, each a `CUaddress_mode`.
    pub const ADDRESS_MODE: usize = 0;
    /// Filter between texels, a `CUfilter_mode`.
    pub const FILTER: usize = 3;
    /// Flags of `cuTexRefSetFlags`, such as `CU_TRSF_READ_AS_INTEGER`.
    pub const FLAGS: usize = 4;
    /// Maximum anisotropy, 1 to 16.
    pub const ANISOTROPY: usize = 5;
    /// Filter between mipmap levels, a `CUfilter_mode`.
    pub const LEVEL_FILTER: usize = 6;
    /// Bias of levels, a float.
    pub const LEVEL_BIAS: usize = 7;
    /// First and last level, floats.
    pub const LEVEL_CLAMP: usize = 8;
    /// Border color: four floats.
    pub const BORDER: usize = 10;
}

/// State of a texture reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReferenceArguments {
    /// The resource and the sampler; `format` and `channels` are the reference's own.
    pub texture: TextureArguments,
    /// Properties that the program has set, a bit of [`property`] each.
    pub set: u32,
}

impl ReferenceArguments {
    /// Encodes the arguments in the layout at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.texture.encode();
        bytes.extend(u64::from(self.set).to_le_bytes());
        bytes
    }

    /// Decodes the arguments; `None` for bytes that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (texture, mask_bytes) = bytes.split_at_checked(TEXTURE_BYTES)?;
        let set = u32::try_from(u64::from_le_bytes(mask_bytes.try_into().ok()?)).ok()?;
        let texture = TextureArguments::decode(texture)?;
        (set & !property::ALL == 0 && texture.view.is_none()).then_some(Self { texture, set })
    }
}

/// Number of fields in the facts.
const FACT_WORDS: usize = 16;

/// The driver's facts about a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReferenceFacts {
    /// Sampler as the driver reports it, in the layout of [`TextureArguments::sampler`].
    pub sampler: [u32; 14],
    /// Code of the format.
    pub format: u32,
    /// Channels of a texel.
    pub channels: u32,
}

impl ReferenceFacts {
    /// Encodes the facts in the layout at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let fields = self.sampler.into_iter().chain([self.format, self.channels]);
        fields.flat_map(u32::to_le_bytes).collect()
    }

    /// Decodes the facts; `None` for bytes that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fields: [[u8; 4]; FACT_WORDS] = bytes.as_chunks::<4>().0.try_into().ok()?;
        let fields = fields.map(u32::from_le_bytes);
        let (sampler, rest) = fields.split_first_chunk::<14>()?;
        let whole = bytes.len() == FACT_WORDS * 4;
        whole.then_some(Self { sampler: *sampler, format: *rest.first()?, channels: *rest.get(1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_arguments_and_facts_round_trip() {
        let texture = TextureArguments { kind: 2, address: 1 << 40, size: 64, ..TextureArguments::default() };
        let whole = ReferenceArguments { texture, set: property::RESOURCE | property::FORMAT };
        assert_eq!(ReferenceArguments::decode(&whole.encode()), Some(whole));
        let facts = ReferenceFacts { sampler: std::array::from_fn(|at| at as u32), format: 0x20, channels: 4 };
        assert_eq!(ReferenceFacts::decode(&facts.encode()), Some(facts));
    }

    #[test]
    fn other_bytes_are_refused() {
        let whole = ReferenceArguments::default().encode();
        assert_eq!(ReferenceArguments::decode(&whole[1..]), None);
        let unknown = ReferenceArguments { set: property::ALL + 1, ..ReferenceArguments::default() };
        assert_eq!(ReferenceArguments::decode(&unknown.encode()), None);
        let texture = TextureArguments { view: Some([0; 8]), ..TextureArguments::default() };
        let viewed = ReferenceArguments { texture, set: 0 };
        assert_eq!(ReferenceArguments::decode(&viewed.encode()), None);
        assert_eq!(ReferenceFacts::decode(&[0; 65]), None);
        assert_eq!(ReferenceFacts::decode(&[0; 60]), None);
    }
}
