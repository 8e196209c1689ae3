//! Memory that begins and ends in graphs.
//!
//! An allocation node has an address from its creation on, which every launch uses again. Memory that a launch began
//! and did not end lives until the program, or another graph, frees it; the graph cannot be launched again before
//! that, unless it was instantiated to free such memory by itself.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use katydid_cuda_sys::{CUresult, graph_memory, instantiate_flags};

use crate::backend::Outcome;
use crate::params::{Kept, Params};
use crate::plan::Plan;

/// The driver takes memory for graphs in pieces of this many bytes.
const PIECE: u64 = 32 << 20;

/// One block.
#[derive(Debug)]
struct Block {
    size: u64,
    device: i32,
    memory: Weak<dyn Any + Send + Sync>,
    /// Holds the memory while it is allocated, whatever becomes of the graph.
    live: Option<Kept>,
    /// A node that frees it was made.
    has_free: bool,
}

/// What holds blocks, by their addresses.
pub(crate) type Before = Vec<(u64, Option<Kept>)>;

/// Bytes of one device that graphs have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

impl Usage {
    /// An attribute as the driver API numbers it.
    pub(crate) fn get(&self, attribute: u32) -> Outcome<u64> {
        match attribute {
            graph_memory::USED_CURRENT => Ok(self.used),
            graph_memory::USED_HIGH => Ok(self.used_high),
            graph_memory::RESERVED_CURRENT => Ok(self.reserved),
            graph_memory::RESERVED_HIGH => Ok(self.reserved_high),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// High marks can be set back to nothing.
    pub(crate) fn reset(&mut self, attribute: u32, value: u64) -> Outcome {
        match (attribute, value) {
            (graph_memory::USED_HIGH, 0) => self.used_high = self.used,
            (graph_memory::RESERVED_HIGH, 0) => self.reserved_high = self.reserved,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved = self.reserved.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }
}

/// All blocks, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: HashMap<u64, Block>,
    usage: HashMap<i32, Usage>,
}

impl Memory {
    /// A node began to stand for a block.
    pub(crate) fn add(&mut self, address: u64, size: u64, device: i32, memory: &Kept) {
        self.blocks.retain(|_, block| block.memory.strong_count() > 0);
        let memory = Arc::downgrade(&memory.0);
        self.blocks.insert(address, Block { size, device, memory, live: None, has_free: false });
    }

    /// Number of blocks that are known.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    fn block(&mut self, address: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&address).filter(|block| block.memory.strong_count() > 0)
    }

    /// A node is to free a block: one that a graph allocates and no other node frees.
    pub(crate) fn claim_free(&mut self, address: u64) -> Outcome {
        let block = self.block(address).filter(|block| !block.has_free).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        block.has_free = true;
        Ok(())
    }

    /// The program frees an address: true if it was a graph's memory.
    pub(crate) fn free(&mut self, address: u64) -> Outcome<bool> {
        let Some(block) = self.block(address) else { return Ok(false) };
        block.live.take().map(|_| true).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// A launch: what it begins must not live already, and what it ends must. What lived before, for a launch that fails.
    pub(crate) fn launch(&mut self, plan: &Plan, flags: u64) -> Outcome<Before> {
        let (begun, ended) = effects(plan);
        let frees_itself = flags & u64::from(instantiate_flags::AUTO_FREE_ON_LAUNCH) != 0;
        let lives = |memory: &mut Self, address| memory.block(address).is_some_and(|block| block.live.is_some());
        let again = begun.iter().any(|(address, _)| lives(self, *address)) && !frees_itself;
        if again || !ended.iter().all(|address| lives(self, *address)) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let ended = ended.into_iter().map(|address| (address, None));
        let after = begun.into_iter().map(|(address, memory)| (address, Some(memory))).chain(ended);
        Ok(self.exchange(after.collect()))
    }

    /// Gives blocks other holders, and those that they had.
    fn exchange(&mut self, lives: Before) -> Before {
        let mut one = |(address, live)| Some((address, std::mem::replace(&mut self.block(address)?.live, live)));
        lives.into_iter().filter_map(&mut one).collect()
    }

    /// A launch has failed: what lives is what lived before.
    pub(crate) fn take_back(&mut self, before: Before) {
        self.exchange(before);
    }

    /// Bytes and device of what a graph allocates.
    pub(crate) fn needs(&mut self, plan: &Plan) -> Option<(i32, u64)> {
        let mut total = 0;
        let mut device = None;
        plan.visit(&mut |params| {
            if let Params::MemAlloc(alloc) = params {
                total += alloc.params.bytesize as u64;
                device = Some(alloc.params.location.id);
            }
        });
        device.map(|device| (device, total.next_multiple_of(PIECE)))
    }

    /// An executable graph has the memory it needs.
    pub(crate) fn take(&mut self, (device, bytes): (i32, u64)) {
        self.usage.entry(device).or_default().take(bytes);
    }

    /// An executable graph is gone.
    pub(crate) fn give_back(&mut self, (device, bytes): (i32, u64)) {
        let usage = self.usage.entry(device).or_default();
        usage.used = usage.used.saturating_sub(bytes);
    }

    /// What the graphs of a device have.
    pub(crate) fn usage(&mut self, device: i32) -> &mut Usage {
        self.usage.entry(device).or_default()
    }

    /// Memory that no graph needs goes back to the system.
    pub(crate) fn trim(&mut self, device: i32) {
        let kept = self.blocks.values().filter(|block| block.device == device && block.live.is_some());
        let kept: u64 = kept.map(|block| block.size.next_multiple_of(PIECE)).sum();
        let usage = self.usage(device);
        usage.reserved = usage.used.max(kept);
    }
}

/// What outlives a launch, and what it ends that began elsewhere.
fn effects(plan: &Plan) -> (Vec<(u64, Kept)>, Vec<u64>) {
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    plan.visit(&mut |params| match params {
        Params::MemAlloc(alloc) => begun.push((alloc.params.dptr, alloc.memory.clone())),
        Params::MemFree(address) => ended.push(*address),
        _ => {}
    });
    let own: HashSet<u64> = begun.iter().map(|(address, _)| *address).collect();
    let freed: HashSet<u64> = ended.iter().copied().collect();
    begun.retain(|(address, _)| !freed.contains(address));
    ended.retain(|address| !own.contains(address));
    (begun, ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Alloc;
    use crate::plan::Step;
    use katydid_cuda_sys::CUDA_MEM_ALLOC_NODE_PARAMS;

    fn plan(steps: Vec<Params>) -> Plan {
        let step = |params| Step { node: 0, params, before: Vec::new(), is_enabled: true, inner: Vec::new() };
        Plan::new(steps.into_iter().map(step).collect()).unwrap()
    }

    fn alloc(kept: &Kept) -> Params {
        let params =
            CUDA_MEM_ALLOC_NODE_PARAMS { dptr: 0x1000, bytesize: 100, ..CUDA_MEM_ALLOC_NODE_PARAMS::default() };
        Params::MemAlloc(Alloc { params, memory: kept.clone() })
    }

    #[test]
    fn memory_that_lives_on_cannot_be_allocated_again() {
        let kept = Kept(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &kept);
        let keeps = plan(vec![alloc(&kept)]);
        let launch = |memory: &mut Memory, plan: &Plan, flags| memory.launch(plan, flags).map(drop);
        assert_eq!(launch(&mut memory, &keeps, 0), Ok(()));
        assert_eq!(launch(&mut memory, &keeps, 0), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(launch(&mut memory, &keeps, 1), Ok(()));
        assert_eq!(memory.free(0x1000), Ok(true));
        assert_eq!(memory.free(0x1000), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(memory.free(0x2000), Ok(false));
        let frees = plan(vec![Params::MemFree(0x1000)]);
        assert_eq!(launch(&mut memory, &frees, 0), Err(CUresult::ERROR_INVALID_VALUE));
        let both = plan(vec![alloc(&kept), Params::MemFree(0x1000)]);
        assert_eq!([(); 2].map(|()| launch(&mut memory, &both, 0)), [Ok(()); 2]);
    }

    #[test]
    fn a_launch_that_fails_begins_and_ends_nothing() {
        let kept = Kept(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &kept);
        let (keeps, frees) = (plan(vec![alloc(&kept)]), plan(vec![Params::MemFree(0x1000)]));
        let before = memory.launch(&keeps, 0).unwrap();
        memory.take_back(before);
        assert!(memory.launch(&keeps, 0).is_ok());
        let before = memory.launch(&frees, 0).unwrap();
        memory.take_back(before);
        assert_eq!(memory.free(0x1000), Ok(true));
    }

    #[test]
    fn a_block_is_freed_by_one_node_and_forgotten_with_its_memory() {
        let kept = Kept(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &kept);
        assert_eq!(memory.claim_free(0x1000), Ok(()));
        assert_eq!(memory.claim_free(0x1000), Err(CUresult::ERROR_INVALID_VALUE));
        drop(kept);
        assert_eq!(memory.free(0x1000), Ok(false));
    }

    #[test]
    fn usage_falls_with_the_graph_and_high_marks_stay() {
        let mut memory = Memory::default();
        memory.take((0, PIECE));
        memory.give_back((0, PIECE));
        let usage = *memory.usage(0);
        assert_eq!([0, 1, 2, 3].map(|id| usage.get(id).unwrap()), [0, PIECE, PIECE, PIECE]);
        memory.trim(0);
        assert_eq!(memory.usage(0).get(2), Ok(0));
        assert_eq!(memory.usage(0).reset(1, 0), Ok(()));
        assert_eq!(memory.usage(0).get(1), Ok(0));
        assert!(memory.usage(0).reset(0, 0).is_err() && memory.usage(0).get(4).is_err());
    }
}
