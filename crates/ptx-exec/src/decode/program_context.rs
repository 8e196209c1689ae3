//! State that all functions of a program share while they are decoded.

use super::draft::Ref;
use crate::alu::video::operation::Video;
use crate::code::CallSite;
use crate::engine::registers::{Row, WARP_LANES};
use crate::load::globals::Globals;
use crate::load::link::LinkedProgram;
use crate::matrix::operation::Matrix;
use crate::slot::CONSTANT_BIT;
use crate::types::Width;
use std::collections::HashMap;

/// Rows of constants, one per value.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(super) rows: Vec<Row>,
    known: HashMap<(u64, Width), Ref>,
}

impl Constants {
    /// Returns the slot of a row that holds `value` in every lane.
    pub(crate) fn slot(&mut self, value: u64, width: Width) -> Ref {
        if let Some(slot) = self.known.get(&(value, width)) {
            return *slot;
        }
        let slot = (self.rows.len() * WARP_LANES) as Ref | CONSTANT_BIT;
        let (low, high) = (value as u32, (value >> 32) as u32);
        match width {
            Width::Double => {
                let pairs: [u32; WARP_LANES] = std::array::from_fn(|word| if word % 2 == 0 { low } else { high });
                self.rows.extend([Row(pairs), Row(pairs)]);
            }
            Width::Word | Width::Pred => self.rows.push(Row([low; WARP_LANES])),
        }
        self.known.insert((value, width), slot);
        slot
    }
}

/// State that all functions of a program share while they are decoded.
pub(crate) struct ProgramContext<'a> {
    /// The symbols of the program.
    pub(crate) linked: &'a LinkedProgram<'a, 'a>,
    /// Addresses of variables.
    pub(crate) globals: &'a Globals,
    /// Constants so far.
    pub(crate) constants: Constants,
    /// Call sites so far.
    pub(crate) call_sites: Vec<CallSite>,
    /// Descriptions of matrix instructions so far, each once.
    pub(crate) matrices: Vec<Matrix>,
    /// Descriptions of video instructions so far, each once.
    pub(crate) videos: Vec<Video>,
    /// Offsets of shared variables that functions use: the same in every kernel.
    pub(crate) common_shared: HashMap<usize, u32>,
    /// Alignment of dynamic shared memory.
    pub(crate) dynamic_align: u32,
    /// Whether addresses of shared memory contain the rank of their block in the cluster.
    pub(crate) ranked: bool,
    /// Whether the program uses the system's reserved memory.
    pub(crate) reserved: bool,
}

impl ProgramContext<'_> {
    /// Returns the index of a matrix instruction's description.
    pub(crate) fn matrix(&mut self, matrix: Matrix) -> u64 {
        index_of(&mut self.matrices, matrix)
    }

    /// Returns the index of a video instruction's description.
    pub(crate) fn video(&mut self, video: Video) -> u64 {
        index_of(&mut self.videos, video)
    }
}

/// Returns the index of `item` in a short list without duplicates, and adds it if necessary.
fn index_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> u64 {
    let position = list.iter().position(|listed| *listed == item);
    position.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }) as u64
}
