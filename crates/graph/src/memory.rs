//! Memory that graphs allocate and free.
//!
//! An allocation node has an address from its creation on, which every launch uses again. Memory that a launch allocates and
//! does not free lives until the program, or another graph, frees it. The graph cannot be launched again before that, unless
//! it was instantiated to free such memory by itself.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use katydid_cuda_sys::{CUresult, graph_memory, instantiate_flags};

use crate::captures::StreamKey;
use crate::outcome::Outcome;
use crate::params::{KeepAlive, Params};
use crate::plan::Plan;

/// The driver allocates memory for graphs in pieces of this many bytes.
const GRAPH_MEMORY_PIECE_BYTES: u64 = 32 << 20;

/// The memory of an allocation node.
#[derive(Debug)]
struct Block {
    size: u64,
    device: i32,
    memory: Weak<dyn Any + Send + Sync>,
    /// Keeps the memory while it is allocated, whatever becomes of the graph.
    live: Option<KeepAlive>,
    /// Whether a node that frees it was made.
    has_free: bool,
}

/// The values that keep blocks, by the blocks' addresses.
pub(crate) type OldStates = Vec<(u64, Option<KeepAlive>)>;

/// Bytes of one device that graphs use. Launches in one stream follow each other and so use the same memory, except for what
/// they leave allocated; launches in several streams have their own. Memory once taken is kept, and counts as used, until it
/// is trimmed (seen on an H100, driver 580).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that outlive their launch.
    live: u64,
    /// The last executable graph of each stream, and its bytes while it runs.
    running: HashMap<StreamKey, (u32, u64)>,
    reserved: u64,
    used_high: u64,
    reserved_high: u64,
}

impl Usage {
    /// Returns an attribute as the driver API numbers it.
    pub(crate) fn get(&self, attribute: u32) -> Outcome<u64> {
        match attribute {
            graph_memory::USED_CURRENT | graph_memory::RESERVED_CURRENT => Ok(self.reserved),
            graph_memory::USED_HIGH => Ok(self.used_high),
            graph_memory::RESERVED_HIGH => Ok(self.reserved_high),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Resets a high mark to the current bytes.
    pub(crate) fn reset(&mut self, attribute: u32, value: u64) -> Outcome {
        match (attribute, value) {
            (graph_memory::USED_HIGH, 0) => self.used_high = self.reserved,
            (graph_memory::RESERVED_HIGH, 0) => self.reserved_high = self.reserved,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// Reserves the bytes needed now, if they are more than before.
    fn mark(&mut self) {
        let needed = self.running.values().fold(self.live, |sum, (_, bytes)| sum.saturating_add(*bytes));
        self.reserved = self.reserved.max(needed);
        self.used_high = self.used_high.max(self.reserved);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// Forgets an executable graph that no longer runs anywhere.
    fn leave(&mut self, exec: u32) {
        self.running.retain(|_, (other, _)| *other != exec);
    }
}

/// All blocks, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: HashMap<u64, Block>,
    usage: HashMap<i32, Usage>,
}

impl Memory {
    /// Adds the block of a new allocation node.
    pub(crate) fn add(&mut self, address: u64, size: u64, device: i32, memory: &KeepAlive) {
        self.blocks.retain(|_, block| block.memory.strong_count() > 0);
        let memory = Arc::downgrade(&memory.0);
        self.blocks.insert(address, Block { size, device, memory, live: None, has_free: false });
    }

    /// Lets a new node allocate a block that another node has freed before it.
    pub(crate) fn begin_again(&mut self, address: u64) {
        if let Some(block) = self.block(address) {
            block.has_free = false;
        }
    }

    /// Returns whether a block has at least `size` bytes on `device`.
    pub(crate) fn fits(&self, address: u64, size: u64, device: i32) -> bool {
        let block = self.blocks.get(&address).filter(|block| block.memory.strong_count() > 0);
        block.is_some_and(|block| block.device == device && block.size >= size)
    }

    /// Returns the number of known blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    fn block(&mut self, address: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&address).filter(|block| block.memory.strong_count() > 0)
    }

    /// Claims a block for a node that frees it: a graph must allocate it, and no other node free it.
    pub(crate) fn claim_free(&mut self, address: u64) -> Outcome {
        let block = self.block(address).filter(|block| !block.has_free).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        block.has_free = true;
        Ok(())
    }

    /// Frees an address for the program; returns true if it was a graph's memory.
    pub(crate) fn free(&mut self, address: u64) -> Outcome<bool> {
        let Some(block) = self.block(address) else { return Ok(false) };
        block.live.take().map(|_| true).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Starts a launch: its allocations must not be live already, and blocks that it frees must be. Returns the old states,
    /// in case it fails.
    pub(crate) fn launch(&mut self, plan: &Plan, flags: u64) -> Outcome<OldStates> {
        let (allocations, ended) = effects(plan);
        let frees_itself = flags & u64::from(instantiate_flags::AUTO_FREE_ON_LAUNCH) != 0;
        let lives = |memory: &mut Self, address| memory.block(address).is_some_and(|block| block.live.is_some());
        let again = allocations.iter().any(|(address, _)| lives(self, *address)) && !frees_itself;
        if again || !ended.iter().all(|address| lives(self, *address)) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let ended = ended.into_iter().map(|address| (address, None));
        let new_states = allocations.into_iter().map(|(address, memory)| (address, Some(memory))).chain(ended);
        Ok(self.exchange(new_states.collect()))
    }

    /// Replaces the values that keep blocks; returns the old ones.
    fn exchange(&mut self, lives: OldStates) -> OldStates {
        let mut exchange_one =
            |(address, live)| Some((address, std::mem::replace(&mut self.block(address)?.live, live)));
        lives.into_iter().filter_map(&mut exchange_one).collect()
    }

    /// Restores the old states after a failed launch.
    pub(crate) fn take_back(&mut self, old_states: OldStates) {
        self.exchange(old_states);
    }

    /// Counts the bytes that an executable graph, launched in a stream or prepared for it, uses there besides those it
    /// leaves allocated.
    pub(crate) fn run(&mut self, exec: u32, plan: &Plan, stream: StreamKey) {
        let (allocations, _) = effects(plan);
        let left: HashSet<u64> = allocations.iter().map(|(address, _)| *address).collect();
        let mut needs: HashMap<i32, HashMap<u64, u64>> = HashMap::new();
        plan.visit(&mut |params| {
            if let Params::MemAlloc(alloc) = params {
                let blocks = needs.entry(alloc.params.location.id).or_default();
                if !left.contains(&alloc.params.dptr) {
                    let bytes = blocks.entry(alloc.params.dptr).or_default();
                    *bytes = (*bytes).max(alloc.params.bytesize as u64);
                }
            }
        });
        for (device, blocks) in needs {
            self.count_live(device);
            let bytes = blocks.values().sum::<u64>().next_multiple_of(GRAPH_MEMORY_PIECE_BYTES);
            let usage = self.usage.entry(device).or_default();
            usage.leave(exec);
            usage.running.insert(stream, (exec, bytes));
            usage.mark();
        }
    }

    /// Forgets an executable graph.
    pub(crate) fn forget_exec(&mut self, exec: u32) {
        self.usage.values_mut().for_each(|usage| usage.leave(exec));
    }

    /// Counts the live bytes on a device.
    fn count_live(&mut self, device: i32) {
        let alive = |block: &&Block| block.device == device && block.live.is_some() && block.memory.strong_count() > 0;
        let live: u64 = self.blocks.values().filter(alive).map(|block| block.size).sum();
        self.usage.entry(device).or_default().live = live.next_multiple_of(GRAPH_MEMORY_PIECE_BYTES);
    }

    /// Returns the usage of a device.
    pub(crate) fn usage(&mut self, device: i32) -> &mut Usage {
        self.count_live(device);
        self.usage.entry(device).or_default()
    }

    /// Releases memory that nothing uses: all except the live bytes. Launches reserve it again.
    pub(crate) fn trim(&mut self, device: i32) {
        let usage = self.usage(device);
        usage.running.clear();
        usage.reserved = usage.live;
    }
}

/// Returns the allocations that outlive a launch, and its frees of other memory.
fn effects(plan: &Plan) -> (Vec<(u64, KeepAlive)>, Vec<u64>) {
    // One address may be allocated and freed several times, one after the other.
    let (mut allocations, mut balance) = (Vec::new(), HashMap::<u64, i64>::new());
    plan.visit(&mut |params| match params {
        Params::MemAlloc(alloc) => {
            allocations.push((alloc.params.dptr, alloc.memory.clone()));
            *balance.entry(alloc.params.dptr).or_default() += 1;
        }
        Params::MemFree(address) => *balance.entry(*address).or_default() -= 1,
        _ => {}
    });
    let mut addresses = HashSet::new();
    allocations
        .retain(|(address, _)| balance.get(address).is_some_and(|count| *count > 0) && addresses.insert(*address));
    let ended = balance.into_iter().filter(|(_, count)| *count < 0).map(|(address, _)| address);
    (allocations, ended.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Alloc;
    use crate::plan::PlanStep;
    use katydid_cuda_sys::CUDA_MEM_ALLOC_NODE_PARAMS;

    fn plan(steps: Vec<Params>) -> Plan {
        let step = |params| PlanStep { node: 0, params, dependencies: Vec::new(), is_enabled: true, inner: Vec::new() };
        Plan::new(steps.into_iter().map(step).collect()).unwrap()
    }

    fn alloc(keep_alive: &KeepAlive) -> Params {
        let params =
            CUDA_MEM_ALLOC_NODE_PARAMS { dptr: 0x1000, bytesize: 100, ..CUDA_MEM_ALLOC_NODE_PARAMS::default() };
        Params::MemAlloc(Alloc { params, memory: keep_alive.clone() })
    }

    #[test]
    fn memory_that_lives_on_cannot_be_allocated_again() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        let keeps = plan(vec![alloc(&keep_alive)]);
        let launch = |memory: &mut Memory, plan: &Plan, flags| memory.launch(plan, flags).map(drop);
        assert_eq!(launch(&mut memory, &keeps, 0), Ok(()));
        assert_eq!(launch(&mut memory, &keeps, 0), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(launch(&mut memory, &keeps, 1), Ok(()));
        assert_eq!(memory.free(0x1000), Ok(true));
        assert_eq!(memory.free(0x1000), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(memory.free(0x2000), Ok(false));
        let frees = plan(vec![Params::MemFree(0x1000)]);
        assert_eq!(launch(&mut memory, &frees, 0), Err(CUresult::ERROR_INVALID_VALUE));
        let both = plan(vec![alloc(&keep_alive), Params::MemFree(0x1000)]);
        assert_eq!([(); 2].map(|()| launch(&mut memory, &both, 0)), [Ok(()); 2]);
    }

    #[test]
    fn a_launch_that_fails_begins_and_ends_nothing() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        let (keeps, frees) = (plan(vec![alloc(&keep_alive)]), plan(vec![Params::MemFree(0x1000)]));
        let old_states = memory.launch(&keeps, 0).unwrap();
        memory.take_back(old_states);
        assert!(memory.launch(&keeps, 0).is_ok());
        let old_states = memory.launch(&frees, 0).unwrap();
        memory.take_back(old_states);
        assert_eq!(memory.free(0x1000), Ok(true));
    }

    #[test]
    fn a_block_is_freed_by_one_node_and_forgotten_with_its_memory() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        assert_eq!(memory.claim_free(0x1000), Ok(()));
        assert_eq!(memory.claim_free(0x1000), Err(CUresult::ERROR_INVALID_VALUE));
        drop(keep_alive);
        assert_eq!(memory.free(0x1000), Ok(false));
    }

    fn figures(memory: &mut Memory) -> [u64; 4] {
        let usage = memory.usage(0);
        [0, 1, 2, 3].map(|id| usage.get(id).unwrap())
    }

    #[test]
    fn graph_memory_outlives_the_graph_until_a_trim() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        let both = plan(vec![alloc(&keep_alive), Params::MemFree(0x1000)]);
        memory.launch(&both, 0).unwrap();
        memory.run(1, &both, 7);
        memory.forget_exec(1);
        assert_eq!(figures(&mut memory), [GRAPH_MEMORY_PIECE_BYTES; 4]);
        memory.trim(0);
        assert_eq!(figures(&mut memory), [0, GRAPH_MEMORY_PIECE_BYTES, 0, GRAPH_MEMORY_PIECE_BYTES]);
        assert_eq!((memory.usage(0).reset(1, 0), memory.usage(0).reset(3, 0)), (Ok(()), Ok(())));
        assert_eq!(figures(&mut memory), [0; 4]);
        assert!(memory.usage(0).reset(0, 0).is_err() && memory.usage(0).get(4).is_err());
    }

    #[test]
    fn launches_of_one_stream_have_the_same_memory_and_trimming_leaves_what_lives() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        let (both, keeps) = (plan(vec![alloc(&keep_alive), Params::MemFree(0x1000)]), plan(vec![alloc(&keep_alive)]));
        for exec in 1..4 {
            memory.run(exec, &both, 7);
        }
        assert_eq!(figures(&mut memory), [GRAPH_MEMORY_PIECE_BYTES; 4]);
        memory.run(4, &both, 8);
        assert_eq!(figures(&mut memory), [2 * GRAPH_MEMORY_PIECE_BYTES; 4], "another stream");
        memory.trim(0);
        assert_eq!(figures(&mut memory)[..3], [0, 2 * GRAPH_MEMORY_PIECE_BYTES, 0], "while they can be launched again");
        memory.run(4, &both, 8);
        memory.run(4, &both, 7);
        assert_eq!(memory.usage(0).get(0), Ok(GRAPH_MEMORY_PIECE_BYTES), "it has left the other stream");
        memory.launch(&keeps, 0).unwrap();
        memory.run(5, &keeps, 7);
        memory.trim(0);
        assert_eq!(
            figures(&mut memory)[..3],
            [GRAPH_MEMORY_PIECE_BYTES, 2 * GRAPH_MEMORY_PIECE_BYTES, GRAPH_MEMORY_PIECE_BYTES]
        );
        assert_eq!(memory.free(0x1000), Ok(true));
        assert_eq!(memory.usage(0).get(2), Ok(GRAPH_MEMORY_PIECE_BYTES), "freeing does not give it back");
        memory.trim(0);
        assert_eq!(memory.usage(0).get(2), Ok(0));
    }

    #[test]
    fn an_address_that_begins_twice_and_ends_once_lives() {
        let keep_alive = KeepAlive(Arc::new(()));
        let mut memory = Memory::default();
        memory.add(0x1000, 100, 0, &keep_alive);
        assert_eq!(memory.claim_free(0x1000), Ok(()));
        assert!(memory.fits(0x1000, 100, 0) && !memory.fits(0x1000, 101, 0) && !memory.fits(0x1000, 1, 1));
        memory.begin_again(0x1000);
        assert_eq!(memory.claim_free(0x1000), Ok(()));
        let again = plan(vec![alloc(&keep_alive), Params::MemFree(0x1000), alloc(&keep_alive)]);
        assert!(memory.launch(&again, 0).is_ok() && memory.launch(&again, 0).is_err());
        assert_eq!(memory.free(0x1000), Ok(true));
    }
}
