//! The modifiers of an instruction. A decoder must take each of them, or the instruction is refused.

use crate::alu::round::mode;
use crate::types::Ty;

/// Modifiers that have not been taken yet, in the order written.
#[derive(Debug, Clone)]
pub(crate) struct Modifiers<'a> {
    words: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Returns all modifiers of an instruction.
    pub(crate) fn new(words: &[&'a str]) -> Self {
        Self { words: words.to_vec() }
    }

    /// Takes `word` if it is present.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        self.take_if(|found| found == word).is_some()
    }

    /// Takes the first of the words that is in `choices`.
    pub(crate) fn one_of(&mut self, choices: &[&str]) -> Option<&'a str> {
        self.take_if(|found| choices.contains(&found))
    }

    /// Takes the first word that satisfies `test`.
    pub(crate) fn take_if(&mut self, test: impl Fn(&str) -> bool) -> Option<&'a str> {
        let index = self.words.iter().position(|word| test(word))?;
        Some(self.words.remove(index))
    }

    /// Takes the next word that is a type.
    pub(crate) fn ty(&mut self) -> Option<Ty> {
        self.take_if(|word| Ty::parse(word).is_some()).and_then(Ty::parse)
    }

    /// Takes a float rounding; nearest if there is none.
    pub(crate) fn rounding(&mut self) -> u8 {
        match self.one_of(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => mode::ZERO,
            Some("rm") => mode::DOWN,
            Some("rp") => mode::UP,
            _ => mode::NEAREST,
        }
    }

    /// Takes a rounding to integers.
    pub(crate) fn integral_rounding(&mut self) -> Option<u8> {
        Some(match self.one_of(&["rni", "rzi", "rmi", "rpi"])? {
            "rzi" => mode::ZERO,
            "rmi" => mode::DOWN,
            "rpi" => mode::UP,
            _ => mode::NEAREST,
        })
    }

    /// Takes modifiers that affect only memory order or caching, not the results of a correct program: caching hints, eviction
    /// priorities, and the scope. Returns whether the order modifiers need a fence before and after.
    pub(crate) fn memory_order(&mut self) -> MemoryOrdering {
        let mut order = MemoryOrdering::default();
        while let Some(word) = self.take_if(is_memory_word) {
            order.acquire |= matches!(word, "acquire" | "acq_rel" | "sc");
            order.release |= matches!(word, "release" | "acq_rel" | "sc");
            order.strong |= matches!(word, "volatile" | "relaxed" | "acquire" | "release" | "acq_rel" | "mmio");
        }
        order
    }

    /// Returns whether all have been taken.
    pub(crate) fn all_consumed(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns whether `word` is among the remaining ones.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

/// Requirements of an instruction's memory model modifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryOrdering {
    /// Whether no later access may move before it.
    pub(crate) acquire: bool,
    /// Whether no earlier access may move after it.
    pub(crate) release: bool,
    /// Whether it may be one side of a wait loop.
    pub(crate) strong: bool,
}

/// Returns whether a modifier is an order, a scope or a cache hint, which never change the operation.
fn is_memory_word(word: &str) -> bool {
    matches!(
        word,
        "weak"
            | "relaxed"
            | "acquire"
            | "release"
            | "acq_rel"
            | "sc"
            | "volatile"
            | "mmio"
            | "cta"
            | "cluster"
            | "gpu"
            | "sys"
            | "gl"
            | "ca"
            | "cg"
            | "cs"
            | "cv"
            | "lu"
            | "wb"
            | "wt"
            | "nc"
            | "noftz"
            | "unified"
    ) || word.starts_with("L1::")
        || word.starts_with("L2::64B")
        || word.starts_with("L2::128B")
        || word.starts_with("L2::256B")
        || word.starts_with("L2::evict")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_in_any_order_and_none_is_lost() {
        let mut modifiers = Modifiers::new(&["ftz", "rm", "f32", "sat"]);
        assert!(modifiers.take("sat") && !modifiers.take("sat"));
        assert_eq!((modifiers.rounding(), modifiers.ty()), (mode::DOWN, Some(Ty::F32)));
        assert!(!modifiers.all_consumed() && modifiers.take("ftz") && modifiers.all_consumed());
    }

    #[test]
    fn memory_words_give_their_order() {
        let mut modifiers = Modifiers::new(&["acquire", "sys", "global", "L1::no_allocate", "u8"]);
        assert_eq!(modifiers.memory_order(), MemoryOrdering { acquire: true, release: false, strong: true });
        assert!(modifiers.take("global") && modifiers.ty() == Some(Ty::U(8)) && modifiers.all_consumed());
    }
}
