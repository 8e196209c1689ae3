//! The operation of a video instruction, without its registers.

/// The operation on two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `vadd`
    Add,
    /// `vsub`
    Subtract,
    /// `vabsdiff`
    Distance,
    /// `vmin`
    Min,
    /// `vmax`
    Max,
    /// `vavrg`
    Average,
    /// `vset`
    Compare(Comparison),
    /// `vshl`, and whether the distance wraps at 32
    Left(bool),
    /// `vshr`, and whether the distance wraps at 32
    Right(bool),
    /// `vmad`, with the right shift of the sum
    Multiply(u32),
}

/// The comparison of `vset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// `.eq`
    Equal,
    /// `.ne`
    Different,
    /// `.lt`
    Less,
    /// `.le`
    LessOrEqual,
    /// `.gt`
    Greater,
    /// `.ge`
    GreaterOrEqual,
}

impl Comparison {
    pub(super) fn holds(self, a: i64, b: i64) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Different => a != b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
        }
    }
}

/// Combination of a result with the third operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// None; the result may replace some parts of the operand.
    Merge,
    /// `.add`
    Add,
    /// `.min`
    Min,
    /// `.max`
    Max,
}

/// All properties of an instruction except its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Video {
    /// The operation.
    pub(crate) operation: Operation,
    /// Bits of a part: 32, 16 or 8.
    pub(crate) bits: u32,
    /// Whether result, first and second source are signed.
    pub(crate) signed: [bool; 3],
    /// `.sat`
    pub(crate) saturate: bool,
    /// Combination with the third operand.
    pub(crate) join: Join,
    /// The parts of the result that are computed: a bit for each.
    pub(crate) mask: u32,
    /// Width and shift of the part of the result that a single value goes to; 32 and 0 for all of it.
    pub(crate) target: (u32, u32),
    /// Parts of the first and second source, for each part of the result: first bit among 64 (the second source on top),
    /// and the number of bits.
    pub(crate) select: [[(u32, u32); 4]; 2],
    /// `vmad`: whether the product, and the addend, are negated.
    pub(crate) negate: [bool; 2],
    /// `vmad.po`: whether one is added.
    pub(crate) plus_one: bool,
}
