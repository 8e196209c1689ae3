//! Cube maps: the face that a direction meets, and the texel beyond the edge of a face.

use super::coordinate::Axis;
use super::{AddressMode, Level};

/// Number of faces of a cube.
pub(crate) const CUBE_FACES: u32 = 6;

/// A point of a face: its number, and two coordinates from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FacePoint {
    /// Number of the face, in the order +x, -x, +y, -y, +z, -z.
    pub(crate) face: u32,
    /// The coordinate that grows to the right.
    pub(crate) s: f32,
    /// The coordinate that grows downwards.
    pub(crate) t: f32,
}

/// Returns the point where a direction meets the cube. Among equally long components, z goes before y, and y before x.
pub(crate) fn face_point([x, y, z]: [f32; 3]) -> FacePoint {
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, s, t, major) = if az >= ax && az >= ay {
        if z >= 0.0 { (4, x, -y, az) } else { (5, -x, -y, az) }
    } else if ay >= ax {
        if y >= 0.0 { (2, x, z, ay) } else { (3, x, -z, ay) }
    } else if x >= 0.0 {
        (0, -z, -y, ax)
    } else {
        (1, z, -y, ax)
    };
    // A zero direction leads to the middle of a face.
    let unit = |component: f32| if major > 0.0 { (component / major + 1.0) / 2.0 } else { 0.5 };
    FacePoint { face, s: unit(s), t: unit(t) }
}

/// Returns the direction of a point of a face, whose coordinates may lie beyond its edges.
fn direction(face: u32, s: f32, t: f32) -> [f32; 3] {
    let (s, t) = (2.0 * s - 1.0, 2.0 * t - 1.0);
    match face {
        0 => [1.0, -t, -s],
        1 => [-1.0, -t, s],
        2 => [s, 1.0, t],
        3 => [s, -1.0, -t],
        4 => [s, -t, 1.0],
        _ => [-s, -t, -1.0],
    }
}

/// Returns the texel at `x`, `y` of a face; one step beyond an edge it belongs to the adjacent face. `None` beyond a corner,
/// where three faces meet and there is no fourth texel.
pub(crate) fn texel(face: u32, x: i64, y: i64, level: &Level) -> Option<[u32; 3]> {
    let size = i64::from(level.extent[0]);
    let (right, below) = ((0..size).contains(&x), (0..size).contains(&y));
    match (right, below) {
        (true, true) => Some([face, x as u32, y as u32]),
        (false, false) => None,
        _ => {
            // Seen from the middle of the cube, a texel beyond the edge covers the middle of its neighbour on the adjacent face.
            let centre = |index: i64| (index as f32 + 0.5) / size as f32;
            let point = face_point(direction(face, centre(x), centre(y)));
            let axis = Axis { extent: level.extent[0], address: AddressMode::Clamp, normalized: true };
            Some([point.face, axis.nearest(point.s)?, axis.nearest(point.t)?])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: Level = Level { address: 0, extent: [4, 4, 1], pitch: 0, slice: 0, layers: 6 };

    #[test]
    fn of_equal_components_the_last_one_counts() {
        let face = |direction: [f32; 3]| face_point(direction).face;
        assert_eq!([[-1.0, -1.0, -1.0], [-1.0, -1.0, 0.0], [-1.0, 0.0, 0.5]].map(face), [5, 3, 1]);
        assert_eq!(face_point([0.0; 3]), FacePoint { face: 4, s: 0.5, t: 0.5 });
    }

    #[test]
    fn a_direction_leads_back_to_its_place() {
        for face in 0..CUBE_FACES {
            assert_eq!(face_point(direction(face, 0.25, 0.75)), FacePoint { face, s: 0.25, t: 0.75 });
        }
    }

    #[test]
    fn beyond_an_edge_is_the_next_face_and_beyond_a_corner_nothing() {
        assert_eq!(texel(4, -1, 2, &LEVEL), Some([1, 3, 2]));
        assert_eq!(texel(4, 1, -1, &LEVEL), Some([2, 1, 3]));
        assert_eq!(texel(4, -1, 4, &LEVEL), None);
        for face in 0..CUBE_FACES {
            for index in 0..4 {
                let [across, x, y] = texel(face, -1, index, &LEVEL).unwrap();
                let back = [(-1, i64::from(y)), (4, i64::from(y)), (i64::from(x), -1), (i64::from(x), 4)];
                let meets = |(x, y): (i64, i64)| texel(across, x, y, &LEVEL) == Some([face, 0, index as u32]);
                assert!(back.into_iter().any(meets), "face {face} row {index}");
            }
        }
    }
}
