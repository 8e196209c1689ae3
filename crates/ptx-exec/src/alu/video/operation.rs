//! What a video instruction does, apart from its registers.

/// What is computed of two parts.
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
    /// `vshr`, likewise
    Right(bool),
    /// `vmad`, and by how much the sum is shifted right
    Multiply(u32),
}

/// What `vset` asks.
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

/// How a result meets the third operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// Not at all, or by taking the place of some of its parts.
    Merge,
    /// `.add`
    Add,
    /// `.min`
    Min,
    /// `.max`
    Max,
}

/// Everything about an instruction but its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Video {
    /// What is computed.
    pub(crate) operation: Operation,
    /// Bits of a part: 32, 16 or 8.
    pub(crate) bits: u32,
    /// Whether result, first and second source have a sign.
    pub(crate) signed: [bool; 3],
    /// `.sat`
    pub(crate) saturate: bool,
    /// How the result meets the third operand.
    pub(crate) join: Join,
    /// Which parts of the result are made: a bit each.
    pub(crate) mask: u32,
    /// Bits of the part of the result that a single value goes to, and its place; 32 and 0 for all of it.
    pub(crate) target: (u32, u32),
    /// Parts of the first and second source, for each part of the result: first bit among 64 (the second source on top),
    /// and the number of bits.
    pub(crate) select: [[(u32, u32); 4]; 2],
    /// `vmad`: the product, and the addend, are negated.
    pub(crate) negate: [bool; 2],
    /// `vmad.po`: one more.
    pub(crate) plus_one: bool,
}
