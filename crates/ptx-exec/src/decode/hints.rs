//! Hints: cache policies, `createpolicy`, `setmaxnreg`. They change no result here, so their operands are checked and dropped.
//!
//! Only the cache understands a policy. Those of `createpolicy.fractional` are an H200's:
//!
//! | bits | what |
//! |---|---|
//! | 60 | set |
//! | 57, 58 | priority: 0 unchanged, 1 first, 2 last, 3 normal |
//! | 52 to 55 | sixteenths of the accesses, less one |

use super::draft::{Draft, Ref};
use super::modifiers::Modifiers;
use crate::alu::bits::Or;
use crate::alu::lanes::{binary, unary};
use crate::alu::{cache_policy, moves};
use crate::api::LoadError;
use crate::control::flow;
use crate::decode::decoder::FunctionDecoder;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// The modifier whose last operand is a policy.
const CACHE_HINT_MODIFIER: &str = "L2::cache_hint";

/// Returns the bits of a policy for `fraction` of the accesses.
fn policy(priority: &str, fraction: f32) -> u64 {
    let priority = match priority {
        "L2::evict_first" => 1,
        "L2::evict_last" => 2,
        "L2::evict_normal" => 3,
        _ => 0,
    };
    1 << 60 | priority << 57 | cache_policy::fraction(fraction)
}

/// Returns whether a load, store or atomic ends with a policy.
pub(crate) fn has_policy(i: &Instruction<'_>) -> bool {
    matches!(i.opcode, "ld" | "st" | "atom" | "red") && i.modifiers.contains(&CACHE_HINT_MODIFIER)
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Returns the instruction without its policy.
    pub(crate) fn without_policy(&mut self, i: &Instruction<'a>) -> Result<Instruction<'a>, LoadError> {
        let mut plain = i.clone();
        let policy = plain.operands.pop().ok_or_else(|| self.invalid("no cache policy"))?;
        self.source(&policy, Ty::U(64))?;
        plain.modifiers.retain(|word| *word != CACHE_HINT_MODIFIER);
        Ok(plain)
    }

    /// `createpolicy.fractional.L2::evict_last.b64 d, 0.5`, `createpolicy.range...  d, [a], primary, total`,
    /// `createpolicy.cvt.L2.b64 d, property`
    pub(crate) fn create_policy(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let kind = m.one_of(&["fractional", "range", "cvt"]).ok_or_else(|| self.unsupported(i))?;
        m.take("global");
        let primary = m.take_if(|word| word.starts_with("L2::evict_"));
        m.one_of(&["L2::evict_first", "L2::evict_unchanged"]);
        let converts = kind == "cvt" && m.take("L2");
        if m.ty() != Some(Ty::B(64)) || (primary.is_none() && !converts) {
            return Err(self.unsupported(i));
        }
        let [destination, rest @ ..] = i.operands.as_slice() else { return Err(self.invalid("no operands")) };
        let value = match (kind, rest) {
            ("cvt", [property]) => self.source(property, Ty::B(64))?,
            ("fractional", []) | ("range", [_, _, _]) => {
                self.constant(policy(primary.unwrap_or_default(), 1.0), Width::Double)
            }
            ("fractional", [Operand::F32(bits)]) => {
                self.constant(policy(primary.unwrap_or_default(), f32::from_bits(*bits)), Width::Double)
            }
            ("fractional", [Operand::F64(bits)]) => {
                self.constant(policy(primary.unwrap_or_default(), f64::from_bits(*bits) as f32), Width::Double)
            }
            ("fractional", [Operand::Name(name)]) => self.register_policy(primary.unwrap_or_default(), name)?,
            _ => return Err(self.unsupported(i)),
        };
        let d = self.destination(destination, Ty::B(64))?;
        self.emit(unary::<moves::Copy64>(), d, &[value]);
        Ok(())
    }

    /// Adds code for a policy whose fraction is in a register.
    fn register_policy(&mut self, priority: &str, name: &'a str) -> Result<Ref, LoadError> {
        let fraction = self.source(&Operand::Name(name), Ty::F32)?;
        let least = self.constant(policy(priority, 0.0), Width::Double);
        let (share, all) = (self.temporary(Width::Double), self.temporary(Width::Double));
        self.emit(unary::<cache_policy::Fraction>(), share, &[fraction]);
        self.emit(binary::<Or<u64>>(), all, &[share, least]);
        Ok(all)
    }

    /// Checks `setmaxnreg.inc.sync.aligned.u32 160`: registers are not scarce here.
    pub(crate) fn set_registers(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let is_known_form = m.one_of(&["inc", "dec"]).is_some() && m.take("sync") && m.take("aligned");
        let [Operand::Int(24..=256)] = i.operands.as_slice() else {
            return Err(self.invalid("setmaxnreg takes a number from 24 to 256"));
        };
        if !is_known_form || !self.is_specific || m.ty() != Some(Ty::U(32)) {
            return Err(self.unsupported(i));
        }
        self.push(Draft::new(flow::nothing));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_those_of_an_h200() {
        assert_eq!(policy("L2::evict_last", 1.0), 0x14f0_0000_0000_0000);
        assert_eq!(policy("L2::evict_first", 0.1), 0x1210_0000_0000_0000);
        assert_eq!(policy("L2::evict_normal", 0.0625), 0x1600_0000_0000_0000);
        assert_eq!(policy("L2::evict_unchanged", 0.5), 0x1070_0000_0000_0000);
    }
}
