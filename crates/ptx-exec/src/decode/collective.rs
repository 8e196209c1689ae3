//! `shfl vote match redux elect activemask`, with and without `.sync`.

use super::draft::{Draft, OperandRole, Ref};
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::control::collective as code;
use crate::decode::decoder::FunctionDecoder;
use crate::engine::machine::Exec;
use crate::slot::NO_SLOT;
use crate::types::Ty;
use katydid_ptx::ast::{Instruction, Operand};

/// Code for `redux`.
fn reduction(name: &str, ty: Ty) -> Option<Exec> {
    Some(match (name, ty) {
        ("add", Ty::U(32) | Ty::S(32)) => code::reduce::<code::Sum>,
        ("min", Ty::U(32)) => code::reduce::<code::Min>,
        ("max", Ty::U(32)) => code::reduce::<code::Max>,
        ("min", Ty::S(32)) => code::reduce::<code::MinSigned>,
        ("max", Ty::S(32)) => code::reduce::<code::MaxSigned>,
        ("and", Ty::B(32)) => code::reduce::<code::And>,
        ("or", Ty::B(32)) => code::reduce::<code::Or>,
        ("xor", Ty::B(32)) => code::reduce::<code::Xor>,
        _ => return None,
    })
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Any instruction of this family.
    pub(crate) fn collective(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let sync = m.take("sync");
        match i.opcode {
            "shfl" | "vote" if !sync && self.needs_members => Err(self.unsupported(i)),
            "shfl" => self.shuffle(i, m, sync),
            "vote" => self.vote(i, m, sync),
            "match" if sync => self.find_matches(i, m),
            "redux" if sync => self.reduce(i, m),
            "elect" if sync => self.elect(i),
            "activemask" => {
                m.ty();
                let [destination] = self.operands(i)?;
                let d = self.destination(destination, Ty::B(32))?;
                self.push(Draft::new(code::active_mask).d(d));
                Ok(())
            }
            _ => Err(self.unsupported(i)),
        }
    }

    /// Splits off the member mask, the last operand of the `.sync` forms.
    fn members<'i>(
        &mut self,
        i: &'i Instruction<'a>,
        sync: bool,
    ) -> Result<(&'i [Operand<'a>], Option<Ref>), LoadError> {
        if !sync {
            return Ok((&i.operands, None));
        }
        let Some((members, operands)) = i.operands.split_last() else { return Err(self.invalid("no member mask")) };
        let members = self.source(members, Ty::B(32))?;
        Ok((operands, Some(members)))
    }

    /// Adds a draft. Without members, the active lanes take part.
    fn push_collective(&mut self, draft: Draft, members: Option<Ref>) {
        let draft = match members {
            Some(members) => draft.member(members),
            None => draft.imm(u64::from(NO_SLOT)),
        };
        self.push(draft.distinct_slots());
    }

    /// `shfl.sync.down.b32 d|p, a, b, c, members`
    fn shuffle(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, sync: bool) -> Result<(), LoadError> {
        let exec: Exec = match m.one_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => code::shuffle::<{ code::SHUFFLE_UP }>,
            Some("down") => code::shuffle::<{ code::SHUFFLE_DOWN }>,
            Some("bfly") => code::shuffle::<{ code::SHUFFLE_BUTTERFLY }>,
            Some(_) => code::shuffle::<{ code::SHUFFLE_INDEX }>,
            None => return Err(self.unsupported(i)),
        };
        let ty = m.ty().filter(|ty| ty.bits() == 32).ok_or_else(|| self.unsupported(i))?;
        let (operands, members) = self.members(i, sync)?;
        let [destination, a, b, c] = operands else {
            return Err(self.invalid("shfl with the wrong number of operands"));
        };
        let a = self.source(a, ty)?;
        let (b, c) = (self.source(b, Ty::B(32))?, self.source(c, Ty::B(32))?);
        let draft = self.with_predicate(Draft::new(exec).a(a).b(b).c(c), destination, ty)?;
        self.push_collective(draft, members);
        Ok(())
    }

    /// Sets the destination `d` or `d|p`.
    fn with_predicate(&mut self, draft: Draft, operand: &Operand<'a>, ty: Ty) -> Result<Draft, LoadError> {
        let (first, second) = self.pair(operand);
        let d = self.destination(first, ty)?;
        let draft = draft.d(d);
        Ok(match second {
            Some(second) => {
                let predicate = self.destination(second, Ty::Pred)?;
                draft.x(predicate, OperandRole::Def)
            }
            None => draft,
        })
    }

    /// `vote.sync.any.pred d, p, members` in either order of the words.
    fn vote(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, sync: bool) -> Result<(), LoadError> {
        use code::question::{ALL, ANY, UNIFORM};
        let (exec, result): (Exec, Ty) = match m.one_of(&["all", "any", "uni", "ballot"]) {
            Some("all") => (code::vote::<{ ALL }>, Ty::Pred),
            Some("any") => (code::vote::<{ ANY }>, Ty::Pred),
            Some("uni") => (code::vote::<{ UNIFORM }>, Ty::Pred),
            Some(_) => (code::ballot, Ty::B(32)),
            None => return Err(self.unsupported(i)),
        };
        m.ty();
        let (operands, members) = self.members(i, sync)?;
        let [destination, vote] = operands else { return Err(self.invalid("vote with the wrong number of operands")) };
        let vote = self.plain_predicate(vote)?;
        let d = self.destination(destination, result)?;
        self.push_collective(Draft::new(exec).d(d).a(vote), members);
        Ok(())
    }

    /// `match.any.sync.b32 d, a, members` and `match.all.sync.b32 d|p, a, members`
    fn find_matches(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let is_all = match m.one_of(&["any", "all"]) {
            Some(word) => word == "all",
            None => return Err(self.unsupported(i)),
        };
        let ty = m.ty().ok_or_else(|| self.unsupported(i))?;
        let exec: Exec = match (is_all, ty.bits()) {
            (false, 32) => code::match_any::<u32>,
            (false, 64) => code::match_any::<u64>,
            (true, 32) => code::match_all::<u32>,
            (true, 64) => code::match_all::<u64>,
            _ => return Err(self.unsupported(i)),
        };
        let (operands, members) = self.members(i, true)?;
        let [destination, a] = operands else { return Err(self.invalid("match with the wrong number of operands")) };
        let a = self.source(a, ty)?;
        let draft = self.with_predicate(Draft::new(exec).a(a), destination, Ty::B(32))?;
        self.push_collective(draft, members);
        Ok(())
    }

    /// `redux.sync.add.s32 d, a, members`
    fn reduce(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let name = m.one_of(&["add", "min", "max", "and", "or", "xor"]);
        let ty = m.ty();
        let exec = name.zip(ty).and_then(|(name, ty)| Some((reduction(name, ty)?, ty)));
        let (exec, ty) = exec.ok_or_else(|| self.unsupported(i))?;
        let (operands, members) = self.members(i, true)?;
        let [destination, a] = operands else { return Err(self.invalid("redux with the wrong number of operands")) };
        let a = self.source(a, ty)?;
        let d = self.destination(destination, ty)?;
        self.push_collective(Draft::new(exec).d(d).a(a), members);
        Ok(())
    }

    /// `elect.sync d|p, members`
    fn elect(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        let (operands, members) = self.members(i, true)?;
        let [destination] = operands else { return Err(self.invalid("elect with the wrong number of operands")) };
        let draft = self.with_predicate(Draft::new(code::elect), destination, Ty::B(32))?;
        self.push_collective(draft, members);
        Ok(())
    }
}
