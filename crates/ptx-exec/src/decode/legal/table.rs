//! Reads the table.
//!
//! A line is `OPCODES WORDS : OPERANDS`. Opcodes have commas between them; a name `$NAME` stands for what `let NAME = TEXT` gave it.
//!
//! | words | meaning |
//! |---|---|
//! | `.a\|b` | one of these words |
//! | `[.a\|b]` | one of them or none |
//! | `.^a` | a word that stands before all others |
//! | `.*` | any type |
//! | `<3` | only in texts of PTX before 3.0 |
//!
//! | operand | meaning |
//! |---|---|
//! | `d` `d_` `_` | a register that is written; the same or `_`; `_` |
//! | `s` `r` `i` | a register or constant; a register; an integer constant |
//! | `m` `g` | as `s`, or a special register or the address of a variable; as `s`, or an address |
//! | `w` `v` | as `s` or `d`, perhaps wider than the type; a vector of such, as `.v2` or `.v4` have it |
//! | `W` | as `w`, or a special register |
//! | `e` | a vector of registers of the type, as `.v2`, `.v4` or `.v8` have it |
//! | `n` | a predicate, perhaps negated |
//! | `d\|p` `d\|p_` `_\|p` | a register with a predicate after a bar; perhaps with one; the same or `_` |
//! | `a` `A` `[]` | an address; one of 64 bits; one that may be a number |
//! | `c` | a texture or surface with coordinates |
//! | `y` `x` | a register of a video instruction or a part of it; the same, negated, or a constant |
//! | `{}` `*` | anything in braces; anything |
//! | `4x` before | a vector of four |
//! | `:f32` `:0` after | the type; that of the first type word. Otherwise, it is that of the last |
//! | `<16` `%32` after | a constant is less; it is a multiple |
//! | `?` at the end | may be absent |

use super::rule::{Group, Kind, Rule, Slot, SlotType, is_type};
use std::collections::HashMap;
use std::sync::OnceLock;

/// The tables, by family.
const TEXTS: &[&str] = &[
    include_str!("arithmetic.forms"),
    include_str!("moves.forms"),
    include_str!("memory.forms"),
    include_str!("matrix.forms"),
    include_str!("control.forms"),
    include_str!("texture.forms"),
];

/// The rules of an opcode; `None` where it has none.
pub(super) fn rules_of(opcode: &str) -> Option<&'static [Rule]> {
    static RULES: OnceLock<HashMap<&'static str, Vec<Rule>>> = OnceLock::new();
    RULES.get_or_init(|| all(TEXTS).unwrap_or_default()).get(opcode).map(Vec::as_slice)
}

/// Every rule of the texts; `None` when a line cannot be read.
fn all(texts: &[&'static str]) -> Option<HashMap<&'static str, Vec<Rule>>> {
    let mut rules: HashMap<&'static str, Vec<Rule>> = HashMap::new();
    let mut names: HashMap<&'static str, &'static str> = HashMap::new();
    for line in texts.iter().flat_map(|text| text.lines()).map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, text)) = line.strip_prefix("let ").and_then(|line| line.split_once('=')) {
            names.insert(name.trim(), text.trim());
            continue;
        }
        let (left, operands) = line.split_once(" :")?;
        let (opcodes, words) = left.split_once(' ').unwrap_or((left, ""));
        for opcode in opcodes.split(',') {
            rules.entry(opcode).or_default().push(rule(words, operands, &names)?);
        }
    }
    Some(rules)
}

fn rule(words: &'static str, operands: &'static str, names: &HashMap<&str, &'static str>) -> Option<Rule> {
    let (mut types, mut groups, mut before) = (Vec::new(), Vec::new(), None);
    for word in words.split_whitespace() {
        if let Some(version) = word.strip_prefix('<') {
            before = Some(version.parse().ok()?);
            continue;
        }
        if word == ".*" {
            types.push(Vec::new());
            continue;
        }
        let inner = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        let plain = inner.unwrap_or(word).strip_prefix('.')?;
        let is_first = plain.starts_with('^');
        let mut alternatives = Vec::new();
        for alternative in plain.trim_start_matches('^').split('|') {
            expand(alternative, names, &mut alternatives)?;
        }
        if alternatives.iter().all(|word| is_type(word)) {
            types.push(alternatives);
        } else {
            groups.push(Group { words: alternatives, is_needed: inner.is_none(), is_first });
        }
    }
    let slots = operands.split_whitespace().map(slot).collect::<Option<Vec<_>>>()?;
    Some(Rule { types, groups, before, slots })
}

/// A word, or the words that a name stands for.
fn expand(word: &'static str, names: &HashMap<&str, &'static str>, into: &mut Vec<&'static str>) -> Option<()> {
    match word.strip_prefix('$') {
        Some(name) => names.get(name)?.split('|').try_for_each(|word| expand(word, names, into)),
        None => {
            into.push(word);
            Some(())
        }
    }
}

fn slot(text: &'static str) -> Option<Slot> {
    let (text, is_optional) = text.strip_suffix('?').map_or((text, false), |text| (text, true));
    let (text, multiple) = number_after(text, '%')?;
    let (text, limit) = number_after(text, '<')?;
    let (text, ty) = text.split_once(':').map_or((text, None), |(text, ty)| (text, Some(ty)));
    let counted = text.split_once('x').filter(|(count, _)| !count.is_empty());
    let (elements, text) = counted.map_or((Some(0), text), |(count, text)| (count.parse().ok(), text));
    let ty = match ty {
        None => SlotType::Last,
        Some(name) => name.parse().map_or(SlotType::Named(name), SlotType::Word),
    };
    Some(Slot { kind: kind(text)?, ty, elements: elements?, limit, multiple, is_optional })
}

/// A text and the number after a sign in it, if the sign is there.
fn number_after(text: &'static str, sign: char) -> Option<(&'static str, Option<u64>)> {
    match text.split_once(sign) {
        Some((before, number)) => Some((before, Some(number.parse().ok()?))),
        None => Some((text, None)),
    }
}

fn kind(text: &str) -> Option<Kind> {
    Some(match text {
        "d" => Kind::Destination,
        "d_" => Kind::DestinationOrSink,
        "_" => Kind::Sink,
        "s" => Kind::Source,
        "m" => Kind::Moved,
        "g" => Kind::Symbolic,
        "W" => Kind::Converted,
        "r" => Kind::Register,
        "w" => Kind::Wide,
        "v" => Kind::WideVector,
        "e" => Kind::Vector,
        "i" => Kind::Integer,
        "n" => Kind::Negatable,
        "d|p" => Kind::Pair,
        "d|p_" => Kind::MaybePair,
        "_|p" => Kind::MaybePairOrSink,
        "a" => Kind::Address,
        "A" => Kind::LongAddress,
        "[]" => Kind::AnyAddress,
        "c" => Kind::Coordinates,
        "y" => Kind::Part,
        "x" => Kind::PartOrConstant,
        "{}" => Kind::Braces,
        "*" => Kind::Any,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_can_be_read() {
        for line in TEXTS.iter().flat_map(|text| text.lines()).filter(|line| line.contains(" :")) {
            assert!(!line.starts_with("let"), "{line}");
        }
        assert!(all(TEXTS).is_some_and(|rules| rules.len() > 50));
    }
}
