//! What a matrix instruction does, apart from its registers.

use super::element::Element;
use super::layout::Fragment;
use crate::types::Space;

/// What a matrix instruction does, apart from its registers; `Inst::imm` is its index in `Code::matrices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// `mma`, `wmma.mma`
    Multiply(Multiply),
    /// `wmma.load`, `wmma.store`, `ldmatrix`, `stmatrix`
    Transfer(Transfer),
}

/// A multiplication of two matrices, and what is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Multiply {
    /// Rows, columns, and depth of the product; of the transposed one where that is how fragments are held.
    pub(crate) shape: [u32; 3],
    /// Elements of the left operand.
    pub(crate) left: Element,
    /// Elements of the right operand.
    pub(crate) right: Element,
    /// Elements that are added.
    pub(crate) addend: Element,
    /// Elements of the result.
    pub(crate) result: Element,
    /// Whether A and B are held the other way round.
    pub(crate) transposed: bool,
    /// Integers clamp instead of wrapping.
    pub(crate) saturate: bool,
    /// Rounding of `f64`.
    pub(crate) rounding: u8,
    /// Bits are joined by `and`, not by `xor`.
    pub(crate) and: bool,
    /// `mma.sp`: which lanes of four hold metadata.
    pub(crate) sparse: Option<u32>,
    /// `m8n8k4` on `f16`: whether lanes hold elements along K, of A and of B.
    pub(crate) quad: Option<[bool; 2]>,
}

impl Multiply {
    /// Fragments of left operand, right operand and accumulator.
    pub(crate) fn fragments(&self) -> [Fragment; 3] {
        let [rows, columns, depth] = self.shape;
        if let Some([a, b]) = self.quad {
            let single = self.result == Element::Word;
            return [Fragment::Quad { along: a }, Fragment::Quad { along: b }, Fragment::QuadAccumulator { single }];
        }
        let held = if self.sparse.is_some() { depth / 2 } else { depth };
        [
            Fragment::Left { lines: rows, depth: held },
            Fragment::Right { lines: columns, depth },
            Fragment::Accumulator { rows, columns },
        ]
    }
}

/// A load or store of a matrix; its address is `Inst::a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// What is held; `None` for tiles.
    pub(crate) fragment: Option<Fragment>,
    /// Whether neighbours in a line of the fragment are neighbours in memory; of tiles, whether they are not transposed.
    pub(crate) along: bool,
    /// Size of an element.
    pub(crate) bits: u32,
    /// Registers of the operand; a fragment with fewer is repeated in the others.
    pub(crate) registers: u32,
    /// What the address means.
    pub(crate) space: Space,
    /// Whether the address register has 32 bits.
    pub(crate) narrow: bool,
    /// Added to the address.
    pub(crate) offset: u64,
}
