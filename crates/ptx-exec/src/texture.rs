//! Textures and surfaces: what a handle in a register stands for, and how it is read, as an H200 does it.
//!
//! [`Host::bound`](crate::Host::bound) gives the description behind a handle; the machine keeps those that it met.
//! Memory of an image is checked by the host once for each launch, so the code here only has to stay inside the extents
//! that the description names: every texel address comes from indices below them.
//!
//! The arithmetic was measured on an H200 (driver 580) and agrees bit for bit where this table says so:
//!
//! | what | how | exact |
//! |---|---|---|
//! | normalised coordinates | cut to 21 bits behind the point, then times the extent | yes |
//! | position for linear filtering | rounded to 8 bits behind the point | yes |
//! | weights of 2, 4 or 8 texels | 8 bits, their sum is always 256 | yes |
//! | sums of 8- and 16-bit texels | integers of 16 bits, rounded half up | yes |
//! | sums of floats | aligned to the largest with 4 bits to spare, rounded half away from zero | yes |
//! | mipmap levels for an explicit level | 8 bits behind the point | yes |
//! | mipmap level from gradients | length of the longer gradient | within 0.6 of a level |
//! | anisotropic filtering | not done: one footprint | no |

pub(crate) mod coordinate;
pub(crate) mod cube;
pub(crate) mod filter;
pub(crate) mod handle_cache;
pub(crate) mod lookup;
pub(crate) mod query;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod srgb;
pub(crate) mod surface;
pub(crate) mod texel;

use std::sync::Arc;

/// Type of a channel of a texel in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// 8 bits without sign; also 0 to 1.
    U8,
    /// 16 bits without sign; also 0 to 1.
    U16,
    /// 32 bits without sign.
    U32,
    /// 8 bits with sign; also -1 to 1.
    S8,
    /// 16 bits with sign; also -1 to 1.
    S16,
    /// 32 bits with sign.
    S32,
    /// A float of 16 bits (`f16`).
    F16,
    /// A float of 32 bits (`f32`).
    F32,
}

impl Channel {
    /// Size of the channel in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }
}

/// What the indices of an image mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextureShape {
    /// Plain memory: only whole indices reach it, and what is outside reads as zero.
    Linear,
    /// An array of 1 to 3 dimensions, or pitched memory.
    Plain(u32),
    /// Layers of 1 or 2 dimensions.
    Layered(u32),
    /// The six faces of a cube.
    Cube,
    /// Layers of six faces.
    CubeLayers,
}

impl TextureShape {
    /// Dimensions of one layer or face.
    pub(crate) fn dimensions(self) -> u32 {
        match self {
            Self::Linear => 1,
            Self::Plain(dimensions) | Self::Layered(dimensions) => dimensions,
            Self::Cube | Self::CubeLayers => 2,
        }
    }
}

/// One mipmap level of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Address of the first texel, a multiple of the texel's size.
    pub address: u64,
    /// Texels in each direction, at least 1.
    pub extent: [u32; 3],
    /// Bytes from row to row, a multiple of the texel's size.
    pub pitch: u64,
    /// Bytes from slice to slice, or from layer to layer (faces count as layers).
    pub slice: u64,
    /// Layers, at least 1.
    pub layers: u32,
}

/// Texels in memory. All of every level must stay readable (and writable, for a surface) while the launch runs.
#[derive(Debug, Clone, PartialEq)]
pub struct TextureImage {
    /// What a channel is.
    pub channel: Channel,
    /// Channels of a texel: 1, 2 or 4.
    pub channels: u32,
    /// Number and meaning of the indices, such as 2D or cube.
    pub shape: TextureShape,
    /// Level 0 first; at least one.
    pub levels: Vec<Level>,
    /// What queries say, where that is not what `levels` hold: width, height and depth as the image was made.
    pub queried: [u32; 3],
}

impl TextureImage {
    /// Bytes of a texel.
    pub(crate) fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }
}

/// What happens to coordinates outside an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressMode {
    /// The image repeats (normalised coordinates only; else it is clamped).
    Wrap,
    /// The nearest texel of the edge counts.
    Clamp,
    /// The image repeats, every other time turned around (normalised coordinates only; else it is clamped).
    Mirror,
    /// The border colour counts.
    Border,
}

/// How a texture is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// How indices outside of the image are treated, for each direction.
    pub address: [AddressMode; 3],
    /// Whether neighbouring texels are mixed.
    pub linear: bool,
    /// Whether neighbouring mipmap levels are mixed.
    pub mip_linear: bool,
    /// Coordinates go from 0 to 1.
    pub normalized: bool,
    /// Integers are not converted to floats (`CU_TRSF_READ_AS_INTEGER`).
    pub integers: bool,
    /// 8-bit channels but the last are sRGB.
    pub srgb: bool,
    /// Cube faces are filtered across their edges.
    pub seamless: bool,
    /// Added to each level.
    pub level_bias: f32,
    /// The lowest and the highest level.
    pub level_clamp: [f32; 2],
    /// Colour outside of the image, for `AddressMode::Border`.
    pub border: [f32; 4],
}

/// A texture object: an image and how it is sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Texture {
    /// The texels that are read.
    pub image: TextureImage,
    /// How they are read.
    pub sampler: Sampler,
}

/// What a handle stands for.
#[derive(Debug, Clone)]
pub enum Bound {
    /// A texture: read through a sampler.
    Texture(Arc<Texture>),
    /// A surface: level 0 of an image, read and written by byte.
    Surface(Arc<TextureImage>),
    /// Nothing, but reading it is allowed: every texel is zero. On a GPU, the handles of destroyed objects are such.
    Nothing,
}
