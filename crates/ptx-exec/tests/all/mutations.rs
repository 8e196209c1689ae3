//! Saved and damaged PTX texts, loaded and run briefly: the short run of the fuzz target `ptx` that needs no fuzzer.
//!
//! Each text of `fuzz/corpus/ptx` is a small program, or an input that once caused trouble. Mutations work on tokens, since
//! random bytes hardly pass the parser. Most often a token becomes another one of its kind (a register, a modifier, a number)
//! from any text. Other mutations remove or double a statement. The numbers come from a fixed seed, so a failure repeats;
//! `KATYDID_MUTATIONS` sets the number of texts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../../fuzz/bodies/interpret.rs"]
mod interpret;
#[path = "../../../../fuzz/bodies/random.rs"]
mod random;

use std::panic::catch_unwind;
use std::path::Path;
use std::{env, fs};

use random::Random;

/// Default number of texts, which take some seconds.
const MUTATION_COUNT: usize = 20_000;

/// Reads the saved texts in a fixed order.
fn corpus() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ptx");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()).collect()
}

/// Splits a text into words, numbers and signs, each with the white space behind it.
fn tokens(text: &str) -> Vec<String> {
    let in_word = |c: char| c.is_alphanumeric() || "_$%".contains(c);
    let mut tokens: Vec<String> = Vec::new();
    let mut last = ' ';
    for c in text.chars() {
        let goes_on = c.is_whitespace() || (in_word(c) && in_word(last));
        match tokens.last_mut() {
            Some(token) if goes_on => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        last = c;
    }
    tokens
}

/// Returns the kind of a token by its first letters: registers of one name, numbers, words, and each sign by itself.
fn kind(token: &str) -> &str {
    let word = token.trim_end();
    match word.chars().next() {
        Some('%') => word.trim_end_matches(|c: char| c.is_ascii_digit()),
        Some('0'..='9') => "number",
        Some(c) if c.is_alphabetic() || c == '_' => "word",
        _ => word,
    }
}

/// Returns where the statement of token `at` begins, and where the next one does.
fn statement(tokens: &[String], at: usize) -> std::ops::Range<usize> {
    let ends = |token: &String| matches!(token.trim_end(), ";" | "{" | "}");
    let start = tokens[..at].iter().rposition(ends).map_or(0, |end| end + 1);
    let end = tokens[at..].iter().position(ends).map_or(tokens.len(), |end| at + end + 1);
    start..end
}

/// Changes a token or a statement; `words` are the tokens of all texts.
fn mutate(tokens: &mut Vec<String>, words: &[String], random: &mut Random) {
    const NUMBER_TOKENS: [&str; 8] = ["0", "1", "31", "65535", "0x80000000", "-1", "4294967296", "9223372036854775807"];
    if tokens.is_empty() {
        return;
    }
    // The first lines declare the text's kind; without them the rest is ignored.
    let at = 12.min(tokens.len() - 1) + random.index(tokens.len().saturating_sub(12));
    match random.index(10) {
        0 => drop(tokens.drain(statement(tokens, at))),
        1 => {
            let doubled = tokens[statement(tokens, at)].to_vec();
            let to = statement(tokens, random.index(tokens.len())).end;
            drop(tokens.splice(to..to, doubled));
        }
        2 => drop(tokens.remove(at)),
        3 if kind(&tokens[at]) == "number" => {
            tokens[at] = format!("{} ", NUMBER_TOKENS[random.index(NUMBER_TOKENS.len())])
        }
        4 => tokens[at] = words[random.index(words.len())].clone(),
        _ => {
            let start = random.index(words.len());
            let mut others = words[start..].iter().chain(&words[..start]);
            if let Some(other) = others.find(|other| kind(other) == kind(&tokens[at]) && **other != tokens[at]) {
                tokens[at] = other.clone();
            }
        }
    }
}

/// Runs a text, and prints which one it was if it panics.
fn survives(text: &str) -> bool {
    catch_unwind(|| interpret::interpret(text)).unwrap_or_else(|_| panic!("this text is trouble:\n{text}"))
}

#[test]
fn kept_texts_are_survived() {
    let texts = corpus();
    let loaded = texts.iter().filter(|text| survives(text)).count();
    assert!(loaded >= 8, "{loaded} of {} texts load", texts.len());
}

#[test]
fn mutated_texts_are_survived() {
    let texts: Vec<Vec<String>> = corpus().iter().map(|text| tokens(text)).collect();
    let words: Vec<String> = texts.concat();
    let mutation_count = env::var("KATYDID_MUTATIONS").map_or(MUTATION_COUNT, |count| count.parse().unwrap());
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut loaded = 0;
    for _ in 0..mutation_count {
        let mut text = texts[random.index(texts.len())].clone();
        for _ in 0..=random.index(2) {
            mutate(&mut text, &words, &mut random);
        }
        loaded += usize::from(survives(&text.concat()));
    }
    // If the mutations never loaded, they would test the parser only.
    assert!(loaded > mutation_count / 20, "{loaded} of {mutation_count} mutated texts load");
}
