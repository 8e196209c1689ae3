//! Feeds each access of a running launch to the race detector, and reports the races.

use crate::control::cluster;
use crate::engine::machine::{Exec, Inst, Machine};
use crate::engine::order::BLOCK_RANK_SHIFT;
use crate::engine::races::{AccessKind, AccessMark, Race, RaceDetector, RaceSide, Watched};
use crate::engine::registers::lanes_of;
use crate::matrix::transfer;
use crate::memory::async_copy;
use crate::types::Space;
use crate::window;

/// An access of a lane.
struct LaneAccess {
    kind: AccessKind,
    strong: bool,
    space: Space,
    address: u64,
    bytes: u32,
}

/// Returns whether an instruction is a barrier of a cluster.
fn is_cluster_barrier(exec: Exec) -> bool {
    let those: [Exec; 2] = [cluster::arrive, cluster::wait];
    those.iter().any(|one| std::ptr::fn_addr_eq(exec, *one))
}

impl Machine<'_> {
    /// Checks the accesses of the next instruction, for the lanes in `mask`.
    #[cold]
    pub(crate) fn watch(&mut self, inst: &Inst, mask: u32) {
        let Some(mut races) = self.races.take() else { return };
        let (block, warp) = (self.env.order.number(self.block.index), self.warp.index);
        let accesses = &self.env.code.accesses;
        let watched = accesses.binary_search_by_key(&self.pc, |(pc, _)| *pc).ok().map(|at| accesses[at].1);
        let is_strong = matches!(watched, Some(Watched::Memory(access)) if access.strong);
        if is_cluster_barrier(inst.exec) || is_strong {
            races.publish(block, warp);
        }
        if let Some(watched) = watched {
            for lane in lanes_of(mask) {
                self.watch_lane(&mut races, inst, watched, (block, warp, lane as u32));
            }
        }
        self.races = Some(races);
    }

    /// Notes that the last instruction may have published data to others.
    pub(crate) fn watch_published(&mut self) {
        let (block, warp) = (self.env.order.number(self.block.index), self.warp.index);
        if let Some(races) = &mut self.races {
            races.publish(block, warp);
        }
    }

    /// Checks one lane of the next instruction.
    fn watch_lane(&self, races: &mut RaceDetector, inst: &Inst, watched: Watched, thread: (u64, u32, u32)) {
        let lane = thread.2 as usize;
        match watched {
            Watched::Memory(access) => {
                let address = match access.narrow {
                    true => u64::from(self.registers.row::<u32>(inst.a)[lane].wrapping_add(inst.imm as u32)),
                    false => self.registers.row::<u64>(inst.a)[lane].wrapping_add(inst.imm),
                };
                let (kind, strong, space, bytes) = (access.kind, access.strong, access.space, access.bytes);
                self.watch_bytes(races, &LaneAccess { kind, strong, space, address, bytes }, thread);
            }
            Watched::Copy { bytes, narrow } => {
                let (to, from) = async_copy::addresses(self, inst, narrow, lane);
                let load = AccessKind::Load;
                let source = LaneAccess { kind: load, strong: false, space: Space::Global, address: from, bytes };
                let target = LaneAccess { kind: AccessKind::Copy, space: Space::Shared, address: to, ..source };
                self.watch_bytes(races, &source, thread);
                self.watch_bytes(races, &target, thread);
            }
            Watched::Commit => races.commit(thread),
            Watched::Wait(pending) => races.wait(thread, pending, (self.block.epoch, self.warp.epoch)),
            Watched::Tiles(kind) => {
                if let Some((space, address)) = transfer::row_of_tile(self, inst, lane) {
                    let bytes = transfer::ROW_BYTES as u32;
                    self.watch_bytes(races, &LaneAccess { kind, strong: false, space, address, bytes }, thread);
                }
            }
        }
    }

    /// Checks the words that one lane accesses.
    fn watch_bytes(&self, races: &mut RaceDetector, access: &LaneAccess, (block, warp, lane): (u64, u32, u32)) {
        let &LaneAccess { kind, strong, space, address, bytes } = access;
        let shared = match space {
            Space::Local => return,
            Space::Shared => Some(address),
            Space::Generic | Space::Global => window::offset_in(window::SHARED_ADDRESS, address),
        };
        if shared.is_none() && address >= window::SHARED_ADDRESS {
            return;
        }
        // In a cluster, addresses name the owner of their shared memory. All others are the block's own.
        let owner = if self.env.code.ranked { block / u64::from(self.env.order.size()).max(1) } else { block };
        let (space, start) = (shared.map(|_| owner), shared.unwrap_or(address));
        let end = start.saturating_add(bytes.into());
        let group = if kind == AccessKind::Copy { races.open_group((block, warp, lane)) } else { 0 };
        let mut at = start;
        while at < end {
            let next = (at / 4 * 4 + 4).min(end);
            let bytes = (at..next).fold(0, |bytes, byte| bytes | 1 << (byte % 4));
            let (epochs, time) = ((self.block.epoch, self.warp.epoch), races.time);
            let mark = AccessMark { pc: self.pc, kind, strong, bytes, block, warp, lane, epochs, time, group };
            if let Some(first) = races.touch((space, at / 4), mark) {
                let byte = (first.bytes & bytes).trailing_zeros();
                self.report_race(at / 4 * 4 + u64::from(byte), space.is_some(), &first, &mark);
            }
            at = next;
        }
    }

    /// Reports a race to the host.
    fn report_race(&self, address: u64, shared: bool, first: &AccessMark, second: &AccessMark) {
        let side = |mark: &AccessMark| {
            let linear = mark.warp * 32 + mark.lane;
            let [x, y, _] = self.env.block;
            RaceSide {
                line: self.env.code.insts.get(mark.pc as usize).map_or(0, |inst| inst.line),
                kind: mark.kind.word(),
                block: self.env.order.index(mark.block),
                thread: [linear % x, linear / x % y, linear / x / y],
            }
        };
        let kernel = self.env.code.kernels.iter().find(|kernel| kernel.function == self.env.function);
        let kernel = kernel.map(|kernel| kernel.name.clone()).unwrap_or_default();
        let address = if shared { address & ((1 << BLOCK_RANK_SHIFT) - 1) } else { address };
        self.env.host.race(&Race { kernel, shared, address, first: side(first), second: side(second) });
    }
}
