//! Reading a texture at a point: levels, texels around the point, their weights, and the sum.
//!
//! Up to 16 texels count: a cell of 2, 4 or 8 in each of two mipmap levels. The share of a level is split over its cell first, so
//! that the weights of all 16 add up to 256.

use super::coordinate::{Axis, FRACTION_BITS, Index, ONE_TEXEL, Pair};
use super::texel::{ChannelKind, MAX_SUM_TEXELS, Spot, Texel};
use super::{Level, Texture, TextureShape, cube, filter};

/// Point at which a texture is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplePoint {
    /// The layer; a number beyond the last layer means the last one.
    pub(crate) layer: u32,
    /// The coordinates, or the direction for a cube.
    pub(crate) at: [f32; 3],
    /// Offset that is added to the indices, in texels.
    pub(crate) offset: [i32; 3],
}

/// Selection of mipmap levels.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Detail {
    /// The first level.
    Base,
    /// A given level, which need not be whole.
    Level(f32),
    /// Changes of the coordinates to the right and downwards.
    Gradients([[f32; 3]; 2]),
}

/// The texels that count, with their levels; `None` is the border.
#[derive(Debug)]
struct Cell {
    spots: [(u32, Option<Spot>); MAX_SUM_TEXELS],
    weights: [u32; MAX_SUM_TEXELS],
    count: usize,
}

impl Cell {
    /// Makes an empty cell.
    fn new() -> Self {
        Self { spots: [(0, None); MAX_SUM_TEXELS], weights: [0; MAX_SUM_TEXELS], count: 0 }
    }

    /// Adds a texel; there is room for all texels of one result.
    fn add(&mut self, level: usize, spot: Option<Spot>, weight: u32) {
        if let (Some(spot_slot), Some(share)) = (self.spots.get_mut(self.count), self.weights.get_mut(self.count)) {
            *spot_slot = (level as u32, spot);
            *share = weight;
            self.count += 1;
        }
    }

    /// Starts a new plane, which is summed apart from the texels before.
    fn next_plane(&mut self) {
        self.count = self.count.next_multiple_of(filter::PLANE_TEXELS);
    }

    /// Returns the texels so far, with their levels.
    fn spots(&self) -> &[(u32, Option<Spot>)] {
        &self.spots[..self.count]
    }
}

impl Texture {
    /// Returns the result of `tex` with float coordinates.
    pub(crate) fn sample(&self, point: &SamplePoint, detail: Detail) -> Texel {
        if self.image.shape == TextureShape::Linear {
            return [0; 4];
        }
        let linear = self.sampler.linear;
        let mut cell = Cell::new();
        let (low, high, share) = self.levels(detail);
        for (level, weight) in [(low, ONE_TEXEL as u32 - share), (high, share)] {
            if weight == 0 {
                continue;
            }
            cell.next_plane();
            if linear {
                self.gather_cell(&mut cell, point, level, weight, Axis::around)
            } else {
                self.nearest(&mut cell, point, level, weight)
            }
        }
        self.resolve(&cell)
    }

    /// Returns the result of `tex` with integer coordinates. At a level that the instruction names, indices outside follow the
    /// sampler; without one, they read as zero.
    pub(crate) fn fetch(&self, point: &SamplePoint, index: [i32; 3], level: Option<i32>) -> Texel {
        // The one-dimensional instruction reads linear memory; an array has none.
        if self.image.shape == TextureShape::Plain(1) && level.is_none() {
            return [0; 4];
        }
        let number = usize::try_from(level.unwrap_or(0)).unwrap_or(usize::MAX);
        let Some(level_image) = self.image.levels.get(number) else { return [0; 4] };
        let along = |at: usize| -> Index {
            if at >= self.image.shape.dimensions() as usize {
                return Some(0);
            }
            let index = i64::from(index[at]) + i64::from(point.offset[at]);
            let inside = (0..i64::from(level_image.extent[at])).contains(&index);
            if inside || level.is_some() { self.axis(level_image, at).index(index) } else { None }
        };
        let spot = match (along(0), along(1), along(2)) {
            (Some(x), Some(y), Some(z)) => Some([x, y, z, self.layer(point, 0)]),
            _ => None,
        };
        let layer_is_there = !matches!(self.image.shape, TextureShape::Layered(_)) || point.layer < level_image.layers;
        if level.is_none() && (spot.is_none() || !layer_is_there) {
            return [0; 4];
        }
        std::array::from_fn(|channel| self.alone(number as u32, spot, channel))
    }

    /// Returns the result of `tld4`: one channel of the four texels that linear filtering would mix, counter-clockwise from the
    /// lower left.
    pub(crate) fn gather(&self, point: &SamplePoint, channel: usize) -> Texel {
        let mut cell = Cell::new();
        self.gather_cell(&mut cell, point, 0, ONE_TEXEL as u32, Axis::both);
        [2, 3, 1, 0].map(|corner: usize| {
            let spot = cell.spots().get(corner).and_then(|(_, spot)| *spot);
            self.alone(0, spot, channel)
        })
    }

    /// Returns the kind of channel `index`.
    fn kind(&self, index: usize) -> ChannelKind {
        ChannelKind::of(self.image.channel, &self.sampler, index)
    }

    /// Returns the two levels that count, and the share of the second one in 256ths.
    fn levels(&self, detail: Detail) -> (usize, usize, u32) {
        let top = self.image.levels.len().saturating_sub(1);
        if top == 0 {
            return (0, 0, 0);
        }
        let sampler = &self.sampler;
        let detail_level = match detail {
            Detail::Base => 0.0,
            Detail::Level(level) => level,
            Detail::Gradients(gradients) => self.level_of(gradients),
        };
        // All levels have 8 bits behind the point; lower bits are cut off, towards zero.
        let fixed = |level: f32| (level * ONE_TEXEL as f32) as i32;
        let [lowest, highest] = sampler.level_clamp.map(fixed);
        let biased_level = fixed(detail_level).saturating_add(fixed(sampler.level_bias));
        let level = biased_level.min(highest).max(lowest).clamp(0, (top as i32) << FRACTION_BITS).cast_unsigned();
        if sampler.mip_linear {
            let low = (level >> FRACTION_BITS) as usize;
            (low, (low + 1).min(top), level & 0xff)
        } else {
            let nearest = ((level + 128) >> FRACTION_BITS) as usize;
            (nearest, nearest, 0)
        }
    }

    /// Returns the level at which neighbouring points are about one texel apart, by the longer of the two gradients.
    fn level_of(&self, gradients: [[f32; 3]; 2]) -> f32 {
        let Some(base) = self.image.levels.first() else { return 0.0 };
        let texels = |gradient: [f32; 3]| {
            let dimensions = self.image.shape.dimensions() as usize;
            let steps = (0..dimensions).map(|at| {
                let scale = if self.sampler.normalized { base.extent[at] as f32 } else { 1.0 };
                gradient[at] * scale
            });
            steps.map(|step| step * step).sum::<f32>().sqrt()
        };
        texels(gradients[0]).max(texels(gradients[1])).log2()
    }

    /// Returns the layer of a point, or that of a cube's face.
    fn layer(&self, point: &SamplePoint, face: u32) -> u32 {
        let layers = self.image.levels.first().map_or(1, |level| level.layers);
        match self.image.shape {
            TextureShape::Layered(_) => point.layer.min(layers - 1),
            TextureShape::Cube => face,
            TextureShape::CubeLayers => {
                point.layer.min((layers / cube::CUBE_FACES).saturating_sub(1)) * cube::CUBE_FACES + face
            }
            TextureShape::Linear | TextureShape::Plain(_) => 0,
        }
    }

    /// Returns one direction of the sampler at a level.
    fn axis(&self, level: &Level, at: usize) -> Axis {
        let cube = matches!(self.image.shape, TextureShape::Cube | TextureShape::CubeLayers);
        let address = if cube { super::AddressMode::Clamp } else { self.sampler.address[at] };
        Axis { extent: level.extent[at], address, normalized: self.sampler.normalized || cube }
    }

    /// Returns the coordinates in the plane of a face, and the face; without a cube, the coordinates themselves.
    fn on_face(&self, point: &SamplePoint) -> ([f32; 3], u32) {
        match self.image.shape {
            TextureShape::Cube | TextureShape::CubeLayers => {
                let face = cube::face_point(point.at);
                ([face.s, face.t, 0.0], face.face)
            }
            _ => (point.at, 0),
        }
    }

    /// Adds the texel that holds the point.
    fn nearest(&self, cell: &mut Cell, point: &SamplePoint, level: usize, weight: u32) {
        let Some(level_image) = self.image.levels.get(level) else { return };
        let (at, face) = self.on_face(point);
        let index = |direction: usize| {
            if direction >= self.image.shape.dimensions() as usize {
                return Some(0);
            }
            let axis = self.axis(level_image, direction);
            axis.index(axis.whole(at[direction]) + i64::from(point.offset[direction]))
        };
        let spot = match (index(0), index(1), index(2)) {
            (Some(x), Some(y), Some(z)) => Some([x, y, z, self.layer(point, face)]),
            _ => None,
        };
        cell.add(level, spot, weight);
    }

    /// Adds the texels around the point.
    fn gather_cell(
        &self,
        cell: &mut Cell,
        point: &SamplePoint,
        level: usize,
        weight: u32,
        pairs: fn(Axis, i64) -> Pair,
    ) {
        let Some(level_image) = self.image.levels.get(level) else { return };
        let (at, face) = self.on_face(point);
        let dimensions = self.image.shape.dimensions() as usize;
        let position = |direction: usize| {
            let axis = self.axis(level_image, direction);
            axis.position(at[direction]) + i64::from(point.offset[direction]) * ONE_TEXEL
        };
        let is_cube = matches!(self.image.shape, TextureShape::Cube | TextureShape::CubeLayers);
        if is_cube && self.sampler.seamless {
            self.gather_across(cell, (level, level_image), point, (face, [position(0), position(1)]), weight);
            return;
        }
        // One-dimensional images are planes of one row, read at its edge: a border beyond it counts.
        let deep = dimensions.max(2);
        let pair = |direction: usize| {
            if direction < deep {
                pairs(self.axis(level_image, direction), position(direction))
            } else {
                Pair::single(Some(0))
            }
        };
        let (x, y, z) = (pair(0), pair(1), pair(2));
        let layer = self.layer(point, face);
        let weights = filter::weights(x, y, z, weight);
        for (corner, weight) in weights.into_iter().enumerate().take(1 << deep) {
            let pick = |pair: Pair, bit: usize| if corner >> bit & 1 == 0 { pair.low } else { pair.high };
            let spot = match (pick(x, 0), pick(y, 1), pick(z, 2)) {
                (Some(x), Some(y), Some(z)) => Some([x, y, z, layer]),
                _ => None,
            };
            cell.add(level, spot, weight);
        }
    }

    /// Adds the texels around a point of a cube, some of which may lie on a neighbouring face.
    fn gather_across(
        &self,
        cell: &mut Cell,
        (level, found): (usize, &Level),
        point: &SamplePoint,
        (face, [x, y]): (u32, [i64; 2]),
        weight: u32,
    ) {
        let pair = |position: i64| Pair { low: None, high: None, weight: (position & (ONE_TEXEL - 1)) as u32 };
        let weights = filter::weights(pair(x), pair(y), Pair::single(Some(0)), weight);
        let corners: [_; 4] = std::array::from_fn(|corner| {
            let (column, row) = (x >> FRACTION_BITS, y >> FRACTION_BITS);
            cube::texel(face, column + (corner & 1) as i64, row + (corner >> 1) as i64, found)
        });
        // Where three faces meet, the weight of the fourth texel goes to the others: a third to each neighbour, and the rest to
        // the opposite one.
        let lost = corners.iter().position(Option::is_none);
        let share = lost.map_or(0, |lost| (2 * weights[lost] + 3) / 6);
        let first = self.layer(point, 0);
        for (corner, texel) in corners.into_iter().enumerate() {
            let gained = match lost {
                Some(lost) if corner == 3 - lost => weights[lost] - 2 * share,
                Some(_) => share,
                None => 0,
            };
            if let Some([face, x, y]) = texel {
                cell.add(level, Some([x, y, 0, first + face]), weights[corner] + gained);
            }
        }
    }

    /// Returns one channel of a texel or of the border, without filtering.
    fn alone(&self, level: u32, spot: Option<Spot>, channel: usize) -> u32 {
        if channel >= self.image.channels as usize {
            return 0;
        }
        let kind = self.kind(channel);
        match (self.image.levels.get(level as usize), spot) {
            (Some(level), Some(spot)) => kind.value(self.image.channel(level, spot, channel as u32)),
            _ => kind.value(kind.border(self.sampler.border[channel])),
        }
    }

    /// Returns the sum over a cell, channel by channel.
    fn resolve(&self, cell: &Cell) -> Texel {
        if let [(level, spot)] = cell.spots() {
            return std::array::from_fn(|channel| self.alone(*level, *spot, channel));
        }
        let mut raw = [0; MAX_SUM_TEXELS];
        std::array::from_fn(|channel| {
            if channel >= self.image.channels as usize {
                return 0;
            }
            let kind = self.kind(channel);
            for (target, (level, spot)) in raw.iter_mut().zip(cell.spots()) {
                let level = self.image.levels.get(*level as usize);
                *target = match level.zip(*spot) {
                    Some((level, spot)) => self.image.channel(level, spot, channel as u32),
                    None => kind.border(self.sampler.border[channel]),
                };
            }
            kind.sum(&raw[..cell.count], &cell.weights[..cell.count])
        })
    }
}
