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
pub(crate) mod layout;
pub(crate) mod multiply;
pub(crate) mod transfer;

use crate::engine::machine::Machine;
use crate::engine::warp::Wait;
use crate::inst::Flow;
use multiply::Multiply;
use transfer::Transfer;

/// What a matrix instruction does, apart from its registers; `Inst::imm` is its index in `Code::matrices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// `mma`, `wmma.mma`
    Multiply(Multiply),
    /// `wmma.load`, `wmma.store`, `ldmatrix`, `stmatrix`
    Transfer(Transfer),
}

/// Waits until all lanes of the warp are here: a matrix belongs to them together.
fn gather(machine: &mut Machine<'_>) -> bool {
    if machine.warp.alive & !machine.mask == 0 {
        return true;
    }
    machine.park_rest();
    machine.wait = Wait::Lanes;
    false
}

/// `d = fetch(matrix)` for the instruction's matrix, of the kind that its code wants.
fn description<T>(machine: &Machine<'_>, index: u64, pick: impl Fn(Matrix) -> Option<T>) -> Option<T> {
    machine.env.code.matrices.get(index as usize).copied().and_then(pick)
}

/// What an instruction without its description comes to; the decoder makes none such.
const LOST: Flow = Flow::Next;
