//! Textures and surfaces: the objects that handles in registers stand for, and how an H200 reads them.
//!
//! [`Host::bound`](crate::Host::bound) gives the description of a handle, and the machine caches it. The host checks the memory
//! of an image once for each launch. So the code here only has to stay within the extents of the description: every texel address
//! comes from indices below them.
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

/// Type of one channel of a texel in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Unsigned, 8 bits; also read as 0 to 1.
    U8,
    /// Unsigned, 16 bits; also read as 0 to 1.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 8 bits; also read as -1 to 1.
    S8,
    /// Signed, 16 bits; also read as -1 to 1.
    S16,
    /// Signed, 32 bits.
    S32,
    /// A float of 16 bits (`f16`).
    F16,
    /// A float of 32 bits (`f32`).
    F32,
}

impl Channel {
    /// Returns the size of the channel in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }
}

/// Shape of an image, which gives its indices their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextureShape {
    /// Plain memory: only whole indices reach it, and indices outside read as zero.
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
    /// Returns the number of dimensions of one layer or face.
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
    /// Number of texels in each direction, at least 1.
    pub extent: [u32; 3],
    /// Number of bytes from row to row, a multiple of the texel's size.
    pub pitch: u64,
    /// Number of bytes from slice to slice, or from layer to layer (faces count as layers).
    pub slice: u64,
    /// Number of layers, at least 1.
    pub layers: u32,
}

/// Texels in memory. All levels must stay readable (and writable, for a surface) while the launch runs.
#[derive(Debug, Clone, PartialEq)]
pub struct TextureImage {
    /// Type of a channel.
    pub channel: Channel,
    /// Number of channels in a texel: 1, 2 or 4.
    pub channels: u32,
    /// Number and meaning of the indices, such as 2D or cube.
    pub shape: TextureShape,
    /// Mipmap levels from level 0 on; at least one.
    pub levels: Vec<Level>,
    /// Width, height and depth of the image as it was made, for queries; `levels` may hold other values.
    pub queried: [u32; 3],
}

impl TextureImage {
    /// Returns the number of bytes in a texel.
    pub(crate) fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }
}

/// Treatment of coordinates outside an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressMode {
    /// The image repeats (normalised coordinates only; else it is clamped).
    Wrap,
    /// The nearest texel of the edge is used.
    Clamp,
    /// The image repeats, every other time mirrored (normalised coordinates only; else it is clamped).
    Mirror,
    /// The border colour is used.
    Border,
}

/// Settings for reading a texture.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// Treatment of indices outside of the image, for each direction.
    pub address: [AddressMode; 3],
    /// Whether neighbouring texels are mixed.
    pub linear: bool,
    /// Whether neighbouring mipmap levels are mixed.
    pub mip_linear: bool,
    /// Whether coordinates go from 0 to 1.
    pub normalized: bool,
    /// Whether integers are not converted to floats (`CU_TRSF_READ_AS_INTEGER`).
    pub integers: bool,
    /// Whether 8-bit channels except the last are sRGB.
    pub srgb: bool,
    /// Whether cube faces are filtered across their edges.
    pub seamless: bool,
    /// Bias that is added to each level.
    pub level_bias: f32,
    /// Lowest and highest level.
    pub level_clamp: [f32; 2],
    /// Colour outside of the image, for `AddressMode::Border`.
    pub border: [f32; 4],
}

/// A texture object: an image and how it is sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Texture {
    /// Image that is read.
    pub image: TextureImage,
    /// Settings for reading it.
    pub sampler: Sampler,
}

/// The object that a handle stands for.
#[derive(Debug, Clone)]
pub enum Bound {
    /// A texture: read through a sampler.
    Texture(Arc<Texture>),
    /// A surface: level 0 of an image, read and written by byte.
    Surface(Arc<TextureImage>),
    /// No object, but reading is allowed: every texel is zero. On a GPU, handles of destroyed objects behave like this.
    Nothing,
}
