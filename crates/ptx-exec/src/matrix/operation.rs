//! Descriptions of matrix instructions, without their registers.

use super::element::Element;
use super::layout::Fragment;
use crate::types::Space;

/// Description of a matrix instruction without its registers; `Inst::imm` is its index in `Code::matrices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// `mma`, `wmma.mma`
    Multiply(Multiply),
    /// `wmma.load`, `wmma.store`, `ldmatrix`, `stmatrix`
    Transfer(Transfer),
}

/// A multiplication of two matrices, with an addend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Multiply {
    /// Rows, columns, and depth of the product, or of the transposed product if fragments are held that way.
    pub(crate) shape: [u32; 3],
    /// Element type of the left operand.
    pub(crate) left: Element,
    /// Element type of the right operand.
    pub(crate) right: Element,
    /// Element type of the addend.
    pub(crate) addend: Element,
    /// Element type of the result.
    pub(crate) result: Element,
    /// Whether A and B change places.
    pub(crate) transposed: bool,
    /// Whether integers clamp instead of wrapping.
    pub(crate) saturate: bool,
    /// Rounding mode of `f64`.
    pub(crate) rounding: u8,
    /// Whether bits are combined by `and` instead of `xor`.
    pub(crate) and: bool,
    /// For `mma.sp`: which lanes of four hold metadata.
    pub(crate) sparse: Option<u32>,
    /// For `m8n8k4` on `f16`: whether lanes hold elements along K, for A and for B.
    pub(crate) quad: Option<[bool; 2]>,
}

impl Multiply {
    /// Returns the fragments of left operand, right operand and accumulator.
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
    /// The fragment that is moved; `None` for tiles.
    pub(crate) fragment: Option<Fragment>,
    /// Whether neighbours in a line of the fragment are neighbours in memory; for tiles, whether they are not transposed.
    pub(crate) along: bool,
    /// Size of an element in bits.
    pub(crate) bits: u32,
    /// Registers of the operand; a fragment with fewer is repeated in the others.
    pub(crate) registers: u32,
    /// State space of the address.
    pub(crate) space: Space,
    /// Whether the address register has 32 bits.
    pub(crate) narrow: bool,
    /// Constant that is added to the address.
    pub(crate) offset: u64,
}
