//! Which lane and register holds which element of a matrix.
//!
//! Lanes come in groups of four. A register of a group holds elements of one line: a row of A or a column of B. Larger matrices
//! repeat an 8-line pattern, and the functions here know the order of the repetitions.
//!
//! | fragment | order of registers, fastest first |
//! |---|---|
//! | left operand | 8 lines on, steps along K, 16 lines on |
//! | right operand | steps along K, 8 lines on |
//! | accumulator | two neighbours in a row, 8 rows on, 8 columns on |
//!
//! `m8n32k16` is held as the transposed product: its B like a left operand of 32 lines, its A like a right one.

/// Number of lanes in a warp, which hold a fragment together.
const FRAGMENT_LANES: u32 = 32;

/// Role of an operand in a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// The left operand, each of whose lines is multiplied by every line of the right one.
    Left {
        /// Rows of A.
        lines: u32,
        /// Elements of a line.
        depth: u32,
    },
    /// The right operand, whose lines are columns of B.
    Right {
        /// Columns of B.
        lines: u32,
        /// Elements of a line.
        depth: u32,
    },
    /// The sum, or the addend.
    Accumulator {
        /// Rows of the product.
        rows: u32,
        /// Columns of the product.
        columns: u32,
    },
    /// An operand of `mma.m8n8k4` on `f16`: four 8x8 products, each held by two groups of four lanes.
    Quad {
        /// Whether a lane holds consecutive elements along K.
        along: bool,
    },
    /// The accumulator of `mma.m8n8k4` on `f16`.
    QuadAccumulator {
        /// Whether registers hold single values (`f32`), not pairs.
        single: bool,
    },
}

/// Number of lines in the smallest pattern.
const PATTERN_LINES: u32 = 8;

impl Fragment {
    /// Returns the number of 32-bit registers (64-bit for `f64`) that hold distinct elements of `bits` bits.
    pub(crate) fn registers(self, bits: u32) -> u32 {
        let elements = match self {
            Self::Left { lines, depth } | Self::Right { lines, depth } => lines * depth,
            Self::Accumulator { rows, columns } => rows * columns,
            Self::Quad { .. } => 4 * FRAGMENT_LANES,
            Self::QuadAccumulator { .. } => 8 * FRAGMENT_LANES,
        };
        (elements / (FRAGMENT_LANES * per_register(bits))).max(1)
    }

    /// Returns the line of element `index` in a lane's register, and its position in that line.
    pub(crate) fn position(self, bits: u32, register: u32, lane: u32, index: u32) -> (u32, u32) {
        let (group, thread) = (lane / 4, lane % 4);
        let per = per_register(bits);
        let along = |steps: u32| per * thread + index + 4 * per * steps;
        match self {
            Self::Left { lines, depth } => {
                let blocks = (lines / PATTERN_LINES).min(2);
                let steps = (depth / (4 * per)).max(1);
                let outer = register / blocks;
                (
                    group + PATTERN_LINES * (register % blocks) + 2 * PATTERN_LINES * (outer / steps),
                    along(outer % steps),
                )
            }
            Self::Right { depth, .. } => {
                let steps = (depth / (4 * per)).max(1);
                (group + PATTERN_LINES * (register / steps), along(register % steps))
            }
            Self::Accumulator { rows, .. } => {
                let pair = if per == 2 { register } else { register / 2 };
                let low = if per == 2 { index } else { register % 2 };
                let blocks = rows / PATTERN_LINES;
                (group + PATTERN_LINES * (pair % blocks), 2 * thread + low + PATTERN_LINES * (pair / blocks))
            }
            Self::Quad { along } => {
                let (own, high) = (lane % 4, if lane >= 16 { 4 } else { 0 });
                let element = 2 * register + index;
                if along { (own + high, element) } else { (element + high, own) }
            }
            Self::QuadAccumulator { single } => {
                let high = if lane >= 16 { 4 } else { 0 };
                if single {
                    ((lane & 1) + (register & 2) + high, (register & 4) + (lane & 2) + (register & 1))
                } else {
                    (lane % 4 + high, 2 * register + index)
                }
            }
        }
    }
}

/// Returns how many elements of `bits` bits a register holds.
pub(crate) fn per_register(bits: u32) -> u32 {
    (32 / bits).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Asserts that every place of a fragment is held exactly once.
    fn covers(fragment: Fragment, bits: u32, elements: usize) {
        let mut seen = HashSet::new();
        for register in 0..fragment.registers(bits) {
            for lane in 0..FRAGMENT_LANES {
                for index in 0..per_register(bits) {
                    assert!(
                        seen.insert(fragment.position(bits, register, lane, index)),
                        "{fragment:?} {register} {lane}"
                    );
                }
            }
        }
        assert_eq!(seen.len(), elements, "{fragment:?}");
    }

    #[test]
    fn fragments_hold_each_element_once() {
        for (lines, depth, bits) in
            [(16, 16, 16), (32, 16, 16), (8, 16, 16), (16, 8, 32), (32, 16, 8), (16, 64, 4), (16, 256, 1), (8, 4, 64)]
        {
            covers(Fragment::Left { lines, depth }, bits, (lines * depth) as usize);
            covers(Fragment::Right { lines, depth }, bits, (lines * depth) as usize);
        }
        for (rows, columns) in [(16, 8), (8, 8), (16, 16), (32, 8)] {
            covers(Fragment::Accumulator { rows, columns }, 32, (rows * columns) as usize);
            covers(Fragment::Accumulator { rows, columns }, 16, (rows * columns) as usize);
        }
    }

    #[test]
    fn wmma_fragments_are_where_an_h200_has_them() {
        let left = Fragment::Left { lines: 32, depth: 16 };
        assert_eq!(
            (left.position(16, 1, 1, 1), left.position(16, 2, 0, 0), left.position(16, 4, 4, 0)),
            ((8, 3), (0, 8), (17, 0))
        );
        let right = Fragment::Right { lines: 16, depth: 16 };
        assert_eq!((right.position(16, 1, 1, 0), right.position(16, 2, 0, 0)), ((0, 10), (8, 0)));
        let sum = Fragment::Accumulator { rows: 16, columns: 16 };
        assert_eq!(
            (sum.position(32, 1, 1, 0), sum.position(32, 2, 0, 0), sum.position(32, 4, 0, 0)),
            ((0, 3), (8, 0), (0, 8))
        );
    }
}
