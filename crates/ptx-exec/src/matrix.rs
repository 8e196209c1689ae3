//! Matrix instructions: `mma wmma ldmatrix stmatrix movmatrix`. All lanes of a warp hold one matrix together.
//!
//! | module | what |
//! |---|---|
//! | `layout` | which lane and register holds which element |
//! | `element` | what the bits of an element are |
//! | `dot` | sums of products as the H200 rounds them |
//! | `multiply` | `mma`, `wmma.mma` |
//! | `transfer` | between memory and fragments |
//!
//! A fragment is the registers that one operand takes. Results are those of an H200 bit for bit: the layouts of `wmma`, which
//! PTX leaves open, and the order and width of sums were measured there.

pub(crate) mod dot;
pub(crate) mod element;
pub(crate) mod gather;
pub(crate) mod layout;
pub(crate) mod multiply;
pub(crate) mod operation;
pub(crate) mod transfer;
