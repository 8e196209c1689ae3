//! From coordinates to texels, in the fixed-point numbers of the texture unit.
//!
//! Positions for linear filtering have 8 bits behind the point. A normalised coordinate is cut to 21 bits behind the point before
//! it is multiplied by the extent. So the boundary between two texels lies a little higher than in exact arithmetic. NaN is 0;
//! infinite coordinates are clamped to the edges.

use super::AddressMode;

/// Number of bits behind the point of a normalised coordinate.
const NORMALIZED_BITS: u32 = 21;

/// Number of bits behind the point of a position.
pub(crate) const FRACTION_BITS: u32 = 8;

/// Distance between two neighbouring texels.
pub(crate) const ONE_TEXEL: i64 = 1 << FRACTION_BITS;

/// Limit of positions; those beyond it are outside every image, in every mode that checks for it.
const FAR_POSITION: f64 = (1_u64 << 30) as f64;

/// A texel index in one direction; `None` is the border.
pub(crate) type Index = Option<u32>;

/// Two neighbours in one direction, and the weight of the second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The lower neighbour.
    pub(crate) low: Index,
    /// The higher neighbour.
    pub(crate) high: Index,
    /// Weight of the higher neighbour in 256ths, below 256.
    pub(crate) weight: u32,
}

impl Pair {
    /// Returns a pair in which only one texel counts.
    pub(crate) fn single(index: Index) -> Self {
        Self { low: index, high: index, weight: 0 }
    }
}

/// One direction of a sampler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    /// Number of texels in this direction.
    pub(crate) extent: u32,
    /// Treatment of coordinates outside the image.
    pub(crate) address: AddressMode,
    /// Whether coordinates go from 0 to 1.
    pub(crate) normalized: bool,
}

impl Axis {
    /// Returns the effective mode: images repeat for normalised coordinates only.
    fn mode(self) -> AddressMode {
        match self.address {
            AddressMode::Wrap | AddressMode::Mirror if !self.normalized => AddressMode::Clamp,
            mode => mode,
        }
    }

    /// Returns the position of a coordinate with `NORMALIZED_BITS` bits behind the point.
    fn scaled(self, coordinate: f32) -> i64 {
        // The texture unit has no denormal numbers.
        let coordinate = if coordinate.is_subnormal() || coordinate.is_nan() { 0.0 } else { f64::from(coordinate) };
        if !self.normalized {
            return (coordinate.clamp(-FAR_POSITION, FAR_POSITION) * f64::from(1_u32 << NORMALIZED_BITS)).floor()
                as i64;
        }
        let near = match self.mode() {
            // A shift by two periods leads to the same place, even in a mirrored image.
            AddressMode::Wrap | AddressMode::Mirror => coordinate % 2.0,
            _ => coordinate.clamp(-4096.0, 4096.0),
        };
        let near = if near.is_nan() { 0.0 } else { near };
        (near * f64::from(1_u32 << NORMALIZED_BITS)).floor() as i64 * i64::from(self.extent)
    }

    /// Returns the texel at a whole index.
    pub(crate) fn index(self, index: i64) -> Index {
        let extent = i64::from(self.extent);
        let inside = (0..extent).contains(&index);
        let wrapped = match self.mode() {
            AddressMode::Wrap => index.rem_euclid(extent),
            AddressMode::Clamp => index.clamp(0, extent - 1),
            AddressMode::Mirror => {
                let folded = index.rem_euclid(2 * extent);
                folded.min(2 * extent - 1 - folded)
            }
            AddressMode::Border if inside => index,
            AddressMode::Border => return None,
        };
        u32::try_from(wrapped).ok()
    }

    /// Returns the index of the texel that holds a coordinate, which may lie outside the image.
    pub(crate) fn whole(self, coordinate: f32) -> i64 {
        self.scaled(coordinate) >> NORMALIZED_BITS
    }

    /// Returns the texel that holds a coordinate.
    pub(crate) fn nearest(self, coordinate: f32) -> Index {
        self.index(self.whole(coordinate))
    }

    /// Converts a coordinate to a distance from the centre of the first texel, in 256ths of a texel.
    pub(crate) fn position(self, coordinate: f32) -> i64 {
        const DROPPED: u32 = NORMALIZED_BITS - FRACTION_BITS;
        let centred = self.scaled(coordinate) - (1 << (NORMALIZED_BITS - 1));
        (centred + (1 << (DROPPED - 1))) >> DROPPED
    }

    /// Returns the two texels around a position for `tld4`: beyond an edge, both are the same texel.
    pub(crate) fn both(self, position: i64) -> Pair {
        let low = position >> FRACTION_BITS;
        Pair { low: self.index(low), high: self.index(low + 1), weight: (position & (ONE_TEXEL - 1)) as u32 }
    }

    /// Returns the two texels around a position for mixing.
    pub(crate) fn around(self, position: i64) -> Pair {
        let position = match self.mode() {
            // Beyond the edge there is only one texel, so nothing is mixed.
            AddressMode::Clamp => position.clamp(0, (i64::from(self.extent) - 1) * ONE_TEXEL),
            _ => position,
        };
        self.both(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(extent: u32, address: AddressMode, normalized: bool) -> Axis {
        Axis { extent, address, normalized }
    }

    #[test]
    fn positions_are_rounded_to_eight_bits() {
        let plain = axis(4, AddressMode::Clamp, false);
        let weight = |x: f32| plain.around(plain.position(x)).weight;
        assert_eq!([4111.0, 4112.0, 4143.0, 4144.0].map(|step| weight(step / 8192.0)), [0, 1, 1, 2]);
        assert_eq!(plain.around(plain.position(0.999_999_94)), Pair { low: Some(0), high: Some(1), weight: 128 });
    }

    #[test]
    fn normalized_coordinates_are_cut_to_21_bits() {
        let three = axis(3, AddressMode::Wrap, true);
        assert_eq!(three.around(three.position(0.168_619_8)).weight, 1, "exact arithmetic would give 2");
        assert_eq!(axis(3, AddressMode::Wrap, true).nearest(-1e-20), Some(2));
        assert_eq!(three.nearest(-f32::from_bits(1)), Some(0), "denormal coordinates are zero");
    }

    #[test]
    fn images_repeat_for_normalized_coordinates_only() {
        assert_eq!(axis(4, AddressMode::Wrap, true).nearest(1.3), Some(1));
        assert_eq!(axis(4, AddressMode::Mirror, true).nearest(1.3), Some(2));
        assert_eq!(axis(4, AddressMode::Wrap, false).nearest(5.2), Some(3));
        assert_eq!(axis(4, AddressMode::Border, false).nearest(5.2), None);
    }

    #[test]
    fn non_finite_coordinates_are_addressed() {
        let clamped = axis(4, AddressMode::Clamp, true);
        assert_eq!(
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|x| clamped.nearest(x)),
            [Some(3), Some(0), Some(0)]
        );
        assert_eq!(axis(4, AddressMode::Border, true).nearest(f32::INFINITY), None);
        assert_eq!(axis(4, AddressMode::Border, false).nearest(f32::INFINITY), None);
        assert_eq!(axis(4, AddressMode::Mirror, true).nearest(3e38), Some(0));
    }
}
