//! A rule: the words that a form has, in any order but for its types, and what its operands are.

/// Words of which one may stand, or must.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The words.
    pub(super) words: Vec<&'static str>,
    /// Whether one of them must stand.
    pub(super) is_needed: bool,
    /// Whether it must stand before all others.
    pub(super) is_first: bool,
}

/// What kind of operand stands in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A register that is written.
    Destination,
    /// The same, or `_`.
    DestinationOrSink,
    /// `_`
    Sink,
    /// A register or a constant.
    Source,
    /// The same, a special register or the address of a variable.
    Moved,
    /// As a source, or the address of a variable.
    Symbolic,
    /// A register.
    Register,
    /// A register or constant that may be wider than the type.
    Wide,
    /// The same, or a special register.
    Converted,
    /// A vector of what may be wider, whose length a word gives.
    WideVector,
    /// A vector of registers of the type, whose length a word gives; a register without such a word.
    Vector,
    /// An integer constant.
    Integer,
    /// A predicate, perhaps negated.
    Negatable,
    /// A register, and after a bar a predicate.
    Pair,
    /// A register, and after a bar perhaps a predicate.
    MaybePair,
    /// The same, or `_`.
    MaybePairOrSink,
    /// An address in brackets, which is a number only in local memory.
    Address,
    /// An address in brackets that is no 32-bit register.
    LongAddress,
    /// An address in brackets, a number too.
    AnyAddress,
    /// A texture or surface and its coordinates.
    Coordinates,
    /// A register of a video instruction, perhaps a part of it.
    Part,
    /// The same, perhaps negated, or a constant.
    PartOrConstant,
    /// Anything in braces.
    Braces,
    /// Anything: the decoder of the family looks at it.
    Any,
}

impl Kind {
    /// Whether a constant may stand there.
    pub(super) fn takes_constants(self) -> bool {
        matches!(self, Self::Source | Self::Moved | Self::Symbolic | Self::Wide | Self::Converted)
    }
}

/// Which type an operand has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotType {
    /// That of a type word, counted from the first.
    Word(usize),
    /// That of the last type word.
    Last,
    /// One that the rule names.
    Named(&'static str),
}

/// A place for an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// What stands there.
    pub(super) kind: Kind,
    /// Its type.
    pub(super) ty: SlotType,
    /// Elements of a vector in braces; 0 where there are none.
    pub(super) elements: usize,
    /// A constant is less than this.
    pub(super) limit: Option<u64>,
    /// A constant is a multiple of this.
    pub(super) multiple: Option<u64>,
    /// Whether it may be absent.
    pub(super) is_optional: bool,
}

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The types, in order; any type where none is named.
    pub(super) types: Vec<Vec<&'static str>>,
    /// The other words.
    pub(super) groups: Vec<Group>,
    /// Only texts of older versions of PTX have it.
    pub(super) before: Option<u32>,
    /// Places of operands.
    pub(super) slots: Vec<Slot>,
}

/// Whether a word is a type, and so has a place among the types.
pub(super) fn is_type(word: &str) -> bool {
    crate::types::Ty::parse(word).is_some() || matches!(word, "s2" | "u2" | "s4" | "u4" | "b1" | "e4m3" | "e5m2")
}

impl Rule {
    /// Whether a word stands somewhere in the rule.
    pub(super) fn knows(&self, word: &str) -> bool {
        self.groups.iter().any(|group| group.words.contains(&word))
    }

    /// The type words of an instruction that has the words of this rule.
    pub(super) fn types_of<'m>(&self, modifiers: &[&'m str]) -> Option<Vec<&'m str>> {
        let types: Vec<&str> = modifiers.iter().copied().filter(|word| is_type(word)).collect();
        if !self.has_types(&types) {
            return None;
        }
        let (left, used) = self.left_over(modifiers);
        (left.is_empty() && self.missing(&used).is_none()).then_some(types)
    }

    fn has_types(&self, types: &[&str]) -> bool {
        self.types.len() == types.len()
            && self.types.iter().zip(types).all(|(known, word)| known.is_empty() || known.contains(word))
    }

    /// Words that have no place, and the groups that have one.
    fn left_over<'m>(&self, modifiers: &[&'m str]) -> (Vec<&'m str>, Vec<bool>) {
        let mut used = vec![false; self.groups.len()];
        let mut left = Vec::new();
        for (at, word) in modifiers.iter().enumerate().filter(|(_, word)| !is_type(word)) {
            let free = |(index, group): &(usize, &Group)| {
                !used[*index] && group.words.contains(word) && (at == 0 || !group.is_first)
            };
            match self.groups.iter().enumerate().find(free) {
                Some((index, _)) => used[index] = true,
                None => left.push(*word),
            }
        }
        (left, used)
    }

    /// The first group that must have a word and has none, by which of the groups have one.
    fn missing(&self, used: &[bool]) -> Option<&Group> {
        self.groups.iter().zip(used).find(|(group, used)| group.is_needed && !**used).map(|(group, _)| group)
    }

    /// How far the words are from this rule, and what is wrong with them.
    pub(super) fn miss(&self, modifiers: &[&str]) -> (usize, String) {
        let types: Vec<&str> = modifiers.iter().copied().filter(|word| is_type(word)).collect();
        let (left, used) = self.left_over(modifiers);
        let (far, own) = (100, usize::from(!left.is_empty()) + left.len());
        if !self.has_types(&types) {
            let wrong = self.types.iter().zip(&types).find(|(known, word)| !known.is_empty() && !known.contains(*word));
            let text = match wrong {
                Some((known, word)) => format!("type .{word} is not one of .{}", known.join(" .")),
                None => format!("it has {} types, not {}", self.types.len(), types.len()),
            };
            return (far + own, text);
        }
        match (left.first(), self.missing(&used)) {
            (Some(word), _) if modifiers.iter().filter(|other| *other == word).count() > 1 => {
                (own, format!(".{word} is given twice"))
            }
            (Some(word), _) => (own, format!(".{word} is not allowed here")),
            (None, Some(group)) => (1, format!("one of .{} is missing", group.words.join(" ."))),
            (None, None) => (0, "no such form".to_owned()),
        }
    }
}
