//! Control flow: branches, calls, returns, exits.
//!
//! Each of these may send some lanes one way and the rest another. The rest is parked; the scheduler decides which set runs on.

use crate::code::{CallSite, LocalArea};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{WARP_LANES, lanes_of};
use crate::engine::warp::{Split, Wait, Warp};
use crate::window;

/// Deepest nesting of calls.
const MAX_CALL_DEPTH: u32 = 10_000;

/// Most local memory of a thread with all its frames, in bytes.
const MAX_THREAD_LOCAL_BYTES: usize = 512 * 1024;

/// Most rows of registers of a warp with all its frames.
const MAX_STACK_ROWS: usize = 1 << 17;

/// Bytes between the addresses of two functions.
pub(crate) const FUNCTION_STEP: u64 = 16;

/// `bra`: lanes with a true guard go to `x`.
pub(crate) fn branch(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let masked_out = machine.lanes & !machine.mask;
    if masked_out != 0 {
        machine.park(machine.pc + 1, masked_out);
        machine.lanes = machine.mask;
    }
    machine.pc = inst.x;
    Flow::Jump
}

/// `brx.idx`: each lane goes to entry `a` of the list at `x`, which has `imm` entries.
pub(crate) fn branch_indexed(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let indices = *machine.registers.row::<u32>(inst.a);
    let mut left = machine.mask;
    machine.park_masked_lanes();
    while let Some(lane) = lanes_of(left).next() {
        let index = indices[lane];
        if u64::from(index) >= inst.imm {
            return machine.fail(FaultKind::InvalidPc(u64::from(index)), lane);
        }
        let together = lanes_of(left).filter(|lane| indices[*lane] == index).fold(0, |mask, lane| mask | 1 << lane);
        left &= !together;
        let target = machine.env.code.list(inst.x + index);
        machine.park(target, together);
    }
    machine.lanes = 0;
    Flow::Jump
}

/// `exit`, and `ret` of a kernel.
pub(crate) fn exit(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    let leaving = machine.mask;
    machine.warp.alive &= !leaving;
    machine.lanes &= !leaving;
    for frame in 0..machine.warp.frames.len() as u32 {
        machine.warp.leave_frame(frame, leaving);
    }
    machine.warp.recheck();
    machine.pc += 1;
    Flow::Jump
}

/// `trap`
pub(crate) fn trap(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    let lane = lanes_of(machine.mask).next().unwrap_or(0);
    machine.fail(FaultKind::Trap, lane)
}

/// `nanosleep`: lets other warps run.
pub(crate) fn sleep(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    machine.park_masked_lanes();
    machine.pc += 1;
    machine.wait = Wait::Ready;
    machine.spinning = true;
    std::thread::yield_now();
    Flow::Wait
}

/// `membar`, `fence`: orders all accesses before it before all after it.
pub(crate) fn fence(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    machine.spinning = true;
    Flow::Next
}

/// Instructions without an effect here: `prefetch`, `discard`, `griddepcontrol`.
pub(crate) fn nothing(_: &mut Machine<'_>, _: &Inst) -> Flow {
    Flow::Next
}

/// `call` of function `x`, with the arguments of call site `imm`.
pub(crate) fn call(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    machine.park_masked_lanes();
    let lanes = machine.mask;
    machine.lanes = 0;
    machine.enter_function(inst.x, inst.imm as u32, lanes)
}

/// `call` of the function with address `a`. Lanes with different functions diverge.
pub(crate) fn call_indirect(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let targets = *machine.registers.row::<u64>(inst.a);
    let Some(first) = lanes_of(machine.mask).next() else { return Flow::Next };
    let together = lanes_of(machine.mask).filter(|lane| targets[*lane] == targets[first]);
    let together = together.fold(0, |mask, lane| mask | 1 << lane);
    let diverging = machine.mask & !together;
    if diverging != 0 {
        machine.park(machine.pc, diverging);
    }
    machine.park_masked_lanes();
    machine.lanes = 0;
    let offset =
        window::offset_in(window::FUNCTION_ADDRESS, targets[first]).filter(|offset| offset % FUNCTION_STEP == 0);
    let function = offset.map_or(u32::MAX, |offset| (offset / FUNCTION_STEP) as u32);
    if !machine.env.code.accepts(function, inst.imm as u32) {
        return machine.fail(FaultKind::InvalidPc(targets[first]), first);
    }
    machine.enter_function(function, inst.imm as u32, together)
}

/// `ret` of a function.
pub(crate) fn ret(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let Some(frame) = machine.warp.frames.get(machine.frame as usize).copied() else { return Flow::Next };
    if frame.depth == 0 {
        return exit(machine, inst);
    }
    let leaving = machine.mask;
    let code = machine.env.code;
    let parent = machine.warp.frames.get(frame.parent as usize).map_or(0, |parent| parent.local);
    if let (Some(callee), Some(site)) =
        (code.functions.get(frame.function as usize), code.call_sites.get(frame.call_site as usize))
    {
        copy_areas(&mut machine.warp, frame.local, &callee.returns, parent, &site.results, leaving);
    }
    machine.warp.leave_frame(machine.frame, leaving);
    let last_slice = machine.warp.slices;
    let back = Split { pc: frame.return_pc, frame: frame.parent, lanes: leaving, wait: Wait::Ready, last_slice };
    machine.lanes &= !leaving;
    machine.pc += 1;
    machine.resume_or_park(back);
    Flow::Jump
}

/// Copies areas of local memory from one frame to another, for some lanes.
fn copy_areas(warp: &mut Warp, from: u32, sources: &[LocalArea], to: u32, targets: &[LocalArea], lanes: u32) {
    for (source, target) in sources.iter().zip(targets) {
        let rows = source.size.min(target.size).div_ceil(8);
        for row in 0..rows {
            let read = ((from + source.offset) / 8 + row) as usize;
            let write = ((to + target.offset) / 8 + row) as usize;
            let Some(values) = warp.local.get(read).copied() else { continue };
            let Some(target) = warp.local.get_mut(write) else { continue };
            for lane in lanes_of(lanes) {
                target[lane] = values[lane];
            }
        }
    }
}

impl Machine<'_> {
    /// Continues with `split` if no lanes run any more, else parks it.
    fn resume_or_park(&mut self, split: Split) {
        if self.lanes == 0 && self.warp.splits.is_empty() {
            (self.pc, self.frame, self.lanes) = (split.pc, split.frame, split.lanes);
            self.map_frame();
        } else {
            self.warp.splits.push(split);
            self.map_frame();
        }
    }

    /// Starts `function` for `lanes`, as a call from the current instruction of the current frame.
    fn enter_function(&mut self, function: u32, site: u32, lanes: u32) -> Flow {
        let code = self.env.code;
        let Some(callee) = code.functions.get(function as usize) else {
            return self.fail(FaultKind::InvalidPc(u64::from(function)), 0);
        };
        let caller = self.warp.frames.get(self.frame as usize).map_or((0, 0), |frame| (frame.local, frame.depth));
        let rows = self.warp.rows.len() + callee.rows as usize;
        let local = self.warp.local.len() * 8 + callee.local_bytes as usize;
        if caller.1 >= MAX_CALL_DEPTH || local > MAX_THREAD_LOCAL_BYTES || rows > MAX_STACK_ROWS {
            let lane = lanes_of(lanes).next().unwrap_or(0);
            return self.fail(FaultKind::StackOverflow, lane);
        }
        let frame = self.warp.push_frame(callee, function, self.frame, self.pc + 1, site, lanes);
        let local = self.warp.frames.get(frame as usize).map_or(0, |frame| frame.local);
        let empty = CallSite::default();
        let site = code.call_sites.get(site as usize).unwrap_or(&empty);
        copy_areas(&mut self.warp, caller.0, &site.args, local, &callee.params, u32::MAX);
        let last_slice = self.warp.slices;
        self.resume_or_park(Split { pc: callee.entry, frame, lanes, wait: Wait::Ready, last_slice });
        Flow::Jump
    }
}

/// `mov` of the address of a local variable: the offset from the start of local memory, `imm` bytes into the frame.
pub(crate) fn local_address(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let base = machine.warp.frames.get(machine.frame as usize).map_or(0, |frame| frame.local);
    machine.registers.set(inst.d, machine.mask, &[u64::from(base) + inst.imm; WARP_LANES]);
    Flow::Next
}
