//! Whether an instruction has a form that exists: its words and its operands, held against a table.
//!
//! The table says what ptxas 13.0 takes for `sm_90`; `crates/ptx-forms` compares it with ptxas form by form. An instruction
//! passes it before a family decodes it. So a family may read words in any order, and need not look for those that mean nothing.

mod operands;
mod rule;
mod table;

use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use katydid_ptx::ast::Instruction;
use rule::Rule;

/// Words that may stand twice.
const MAY_REPEAT: &[&str] = &["sync", "approx", "sat", "cc", "NaN", "relu", "shiftamt", "uni", "satfinite"];

/// The instruction without words that stand twice and may; `None` if it has none.
pub(super) fn without_repeats<'a>(i: &Instruction<'a>) -> Option<Instruction<'a>> {
    let is_repeat = |at: usize, word: &&str| MAY_REPEAT.contains(word) && i.modifiers[..at].contains(word);
    let has_repeat = i.modifiers.iter().enumerate().any(|(at, word)| is_repeat(at, word));
    has_repeat.then(|| {
        let distinct = i.modifiers.iter().enumerate().filter(|(at, word)| !is_repeat(*at, word));
        Instruction { modifiers: distinct.map(|(_, word)| *word).collect(), ..i.clone() }
    })
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Refuses an instruction that no rule of its opcode fits. Opcodes without rules pass. A word that no rule knows may be
    /// that of another architecture, so its form is not supported; what is left is no PTX.
    pub(super) fn check_form(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        let Some(rules) = table::rules_of(i.opcode) else { return Ok(()) };
        let mut operand_miss = None;
        let version = self.version;
        for rule in rules.iter().filter(|rule| rule.before.is_none_or(|before| version < before)) {
            let Some(types) = rule.types_of(&i.modifiers) else { continue };
            match self.operands_fit(rule, &types, i) {
                Ok(()) => return Ok(()),
                Err(miss) => operand_miss = operand_miss.or(Some(miss)),
            }
        }
        let is_known = |word: &&str| rule::is_type(word) || rules.iter().any(|rule| rule.knows(word));
        if operand_miss.is_none() && !i.modifiers.iter().all(is_known) {
            return Err(self.unsupported(i));
        }
        let miss = operand_miss.unwrap_or_else(|| words_wrong(rules, i));
        Err(self.invalid(format!("{}: {miss}", i.full_name())))
    }
}

/// What is wrong with the words, as the rule says it that comes nearest.
fn words_wrong(rules: &[Rule], i: &Instruction<'_>) -> String {
    let nearest = rules.iter().map(|rule| rule.miss(&i.modifiers)).min_by_key(|(distance, _)| *distance);
    nearest.map_or_else(String::new, |(_, miss)| miss)
}
