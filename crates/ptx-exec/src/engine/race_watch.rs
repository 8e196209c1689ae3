//! Looks at each access while a launch runs, and reports the races.

use crate::control::cluster;
use crate::engine::machine::{Exec, Inst, Machine};
use crate::engine::order::BLOCK_RANK_SHIFT;
use crate::engine::races::{Access, AccessMark, Race, RaceDetector, RaceSide};
use crate::engine::registers::lanes_of;
use crate::types::Space;
use crate::window;

/// Whether an instruction is a barrier of a cluster.
fn is_cluster_barrier(exec: Exec) -> bool {
    let those: [Exec; 2] = [cluster::arrive, cluster::wait];
    those.iter().any(|one| std::ptr::fn_addr_eq(exec, *one))
}

impl Machine<'_> {
    /// Looks at what the next instruction, of the lanes in `mask`, is about to touch.
    #[cold]
    pub(crate) fn watch(&mut self, inst: &Inst, mask: u32) {
        let Some(mut races) = self.races.take() else { return };
        let (block, warp) = (self.env.order.number(self.block.index), self.warp.index);
        let accesses = &self.env.code.accesses;
        let access = accesses.binary_search_by_key(&self.pc, |(pc, _)| *pc).ok().map(|at| accesses[at].1);
        if is_cluster_barrier(inst.exec) || access.is_some_and(|access| access.strong) {
            races.publish(block, warp);
        }
        if let Some(access) = access {
            for lane in lanes_of(mask) {
                self.watch_lane(&mut races, inst, access, (block, warp, lane));
            }
        }
        self.races = Some(races);
    }

    /// The instruction that has just run did what waiting for others looks like.
    pub(crate) fn watch_published(&mut self) {
        let (block, warp) = (self.env.order.number(self.block.index), self.warp.index);
        if let Some(races) = &mut self.races {
            races.publish(block, warp);
        }
    }

    /// One lane of the instruction that has just run did what waiting for others looks like.
    fn watch_lane(
        &self,
        races: &mut RaceDetector,
        inst: &Inst,
        access: Access,
        (block, warp, lane): (u64, u32, usize),
    ) {
        let address = match access.narrow {
            true => u64::from(self.registers.row::<u32>(inst.a)[lane].wrapping_add(inst.imm as u32)),
            false => self.registers.row::<u64>(inst.a)[lane].wrapping_add(inst.imm),
        };
        let shared = match access.space {
            Space::Local => return,
            Space::Shared => Some(address),
            Space::Generic | Space::Global => window::offset_in(window::SHARED_ADDRESS, address),
        };
        if shared.is_none() && address >= window::SHARED_ADDRESS {
            return;
        }
        // Addresses in a cluster say whose shared memory they are of; all others are of the block itself.
        let owner = if self.env.code.ranked { block / u64::from(self.env.order.size()).max(1) } else { block };
        let (space, start) = (shared.map(|_| owner), shared.unwrap_or(address));
        let end = start.saturating_add(access.bytes.into());
        let mut at = start;
        while at < end {
            let next = (at / 4 * 4 + 4).min(end);
            let bytes = (at..next).fold(0, |bytes, byte| bytes | 1 << (byte % 4));
            let epochs = (self.block.epoch, self.warp.epoch);
            let (kind, strong, time) = (access.kind, access.strong, races.time);
            let mark = AccessMark { pc: self.pc, kind, strong, bytes, block, warp, lane: lane as u32, epochs, time };
            if let Some(first) = races.touch((space, at / 4), mark) {
                let byte = (first.bytes & bytes).trailing_zeros();
                self.report_race(at / 4 * 4 + u64::from(byte), space.is_some(), &first, &mark);
            }
            at = next;
        }
    }

    /// Tells the host.
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
