//! Branches, exits, fences, and barriers of the block.

use super::draft::{Draft, OperandRole};
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::control::barrier::kind;
use crate::control::{barrier, collective, flow};
use crate::decode::decoder::{Binding, FunctionDecoder};
use crate::slot::NO_SLOT;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Bytes of a tensor map.
const TENSOR_MAP_BYTES: u64 = 128;

/// The largest event number of `pmevent`, and the largest mask of events.
const LARGEST_EVENT: u64 = 15;
const LARGEST_EVENT_MASK: u64 = 0xffff;

impl<'a> FunctionDecoder<'_, 'a> {
    /// Any instruction of this family but barriers.
    pub(crate) fn control(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        m.take("uni");
        match i.opcode {
            "bra" => self.branch(i),
            "brx" => self.branch_indexed(i, m),
            "ret" => {
                self.spill_results();
                self.end(Draft::new(flow::ret))
            }
            "exit" => self.end(Draft::new(flow::exit)),
            "trap" | "brkpt" => self.end(Draft::new(flow::trap)),
            "nanosleep" => {
                m.ty();
                self.plain(Draft::new(flow::sleep))
            }
            "membar" | "fence" => self.fence(i, m),
            "griddepcontrol" => {
                m.one_of(&["wait", "launch_dependents"]);
                self.plain(Draft::new(flow::nothing))
            }
            _ => self.event(i, m),
        }
    }

    /// Decodes `pmevent 3`, `pmevent.mask 0xff`. No counter counts the events.
    fn event(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let largest = if m.take("mask") { LARGEST_EVENT_MASK } else { LARGEST_EVENT };
        match i.operands.as_slice() {
            [Operand::Int(event)] if *event <= largest => self.plain(Draft::new(flow::nothing)),
            _ => Err(self.invalid(format!("{} takes a number up to {largest}", i.full_name()))),
        }
    }

    /// Adds an instruction that falls through.
    fn plain(&mut self, draft: Draft) -> Result<(), LoadError> {
        self.push(draft);
        Ok(())
    }

    /// Adds an instruction that ends the lanes that run it.
    fn end(&mut self, draft: Draft) -> Result<(), LoadError> {
        let draft = if self.guard == NO_SLOT { draft.ends() } else { draft };
        self.plain(draft)
    }

    /// Decodes `bra label`; the guard makes it conditional.
    fn branch(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        let [Operand::Name(name)] = i.operands.as_slice() else { return Err(self.invalid("branch without a label")) };
        let Some(Binding::Label(label)) = self.binding(name).cloned() else {
            return Err(self.invalid(format!("{name} is not a label")));
        };
        self.end(Draft::new(flow::branch).to(label))
    }

    /// `brx.idx index, table`
    fn branch_indexed(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let [index, Operand::Name(table)] = self.operands(i)? else { return Err(self.invalid("brx without a table")) };
        let Some(Binding::Targets(labels)) = self.binding(table).cloned() else {
            return Err(self.invalid(format!("{table} is not a list of labels")));
        };
        if !m.take("idx") {
            return Err(self.unsupported(i));
        }
        let index = self.source(index, Ty::U(32))?;
        let count = labels.len() as u64;
        let mut draft =
            self.with_list(Draft::new(flow::branch_indexed).a(index), &labels, OperandRole::Plain).imm(count);
        draft.table = true;
        self.end(draft)
    }

    /// Decodes `membar.gl`, `fence.acq_rel.gpu`, `fence.proxy.async`. All are the strongest fence, since there is only one path
    /// to memory.
    fn fence(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        const SCOPE_NAMES: &[&str] = &["cta", "cluster", "gl", "gpu", "sys"];
        const PROXIES: &[&str] = &["alias", "async", "async::generic", "tensormap::generic"];
        let proxy = m.take("proxy");
        let is_known_form = if proxy {
            let proxy = m.one_of(PROXIES);
            if proxy == Some("async") {
                m.one_of(&["global", "shared::cta", "shared::cluster"]);
            }
            proxy.is_some()
        } else {
            m.take("mbarrier_init");
            true
        };
        let order = m.one_of(&["sc", "acq_rel", "acquire", "release"]);
        m.one_of(&["sync_restrict::shared::cta", "sync_restrict::shared::cluster"]);
        let scope = m.one_of(SCOPE_NAMES);
        if !is_known_form || (order.is_none() && scope.is_none() && !proxy) {
            return Err(self.unsupported(i));
        }
        // A fence that acquires a tensor map names it, with its size.
        if let [_, size] = i.operands.as_slice()
            && *size != Operand::Int(TENSOR_MAP_BYTES)
        {
            return Err(self.invalid(format!("{} of other than {TENSOR_MAP_BYTES} bytes", i.full_name())));
        }
        self.plain(Draft::new(flow::fence))
    }

    /// `bar.sync 0`, `barrier.cta.red.popc.aligned.u32 d, a, b, p`, `bar.warp.sync mask`.
    pub(crate) fn barrier(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if m.take("warp") {
            return self.warp_barrier(i, m);
        }
        if m.take("cluster") {
            return self.cluster_barrier(i, m);
        }
        m.take("cta");
        m.take("aligned");
        let what = m.one_of(&["sync", "arrive", "red"]);
        match what {
            Some("sync") => self.block_barrier(i.operands.as_slice(), NO_SLOT, kind::SYNC, None),
            Some("arrive") => self.block_barrier(i.operands.as_slice(), NO_SLOT, kind::ARRIVE, None),
            Some(_) => self.reducing_barrier(i, m),
            None => Err(self.unsupported(i)),
        }
    }

    /// `bar.warp.sync members`
    fn warp_barrier(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if !m.take("sync") {
            return Err(self.unsupported(i));
        }
        let [members] = self.operands(i)?;
        let members = self.source(members, Ty::B(32))?;
        self.push(Draft::new(collective::warp_barrier).member(members));
        Ok(())
    }

    /// `bar.red.popc.u32 d, a, b, p`; the count `b` may be absent.
    fn reducing_barrier(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let how = match m.one_of(&["and", "or", "popc"]) {
            Some("and") => kind::AND,
            Some("or") => kind::OR,
            Some(_) => kind::POPC,
            None => return Err(self.unsupported(i)),
        };
        let result = m.ty().ok_or_else(|| self.unsupported(i))?;
        let [destination, operands @ .., vote] = i.operands.as_slice() else {
            return Err(self.invalid("reducing barrier without operands"));
        };
        let d = self.destination(destination, result)?;
        let (vote, negated) = self.predicate(vote)?;
        self.block_barrier(operands, d, how | if negated { kind::NEGATE } else { 0 }, Some(vote))
    }

    /// A barrier of the block; `operands` are its number and perhaps the count of threads.
    fn block_barrier(
        &mut self,
        operands: &[Operand<'a>],
        result: u32,
        how: u64,
        vote: Option<u32>,
    ) -> Result<(), LoadError> {
        let mut sources =
            operands.iter().map(|operand| self.source(operand, Ty::U(32))).collect::<Result<Vec<_>, _>>()?;
        if sources.len() > 2 || sources.is_empty() {
            return Err(self.invalid("barrier with the wrong number of operands"));
        }
        sources.push(self.constant(0, Width::Word));
        let mut draft = Draft::new(barrier::barrier).a(sources[0]).b(sources[1]).imm(how).distinct_slots();
        if result != NO_SLOT {
            draft = draft.d(result);
        }
        if let Some(vote) = vote {
            draft = draft.c(vote);
        }
        self.push(draft);
        Ok(())
    }
}
