//! Finds the module-level declarations of a PTX text without reading its code: names and sizes of variables, and names of
//! functions that are defined elsewhere.
//!
//! A few rules of the grammar suffice. Bodies and initializers stand in braces, parameters in parentheses, and both are skipped;
//! a declaration ends with a semicolon. So texts of later language versions are read as well. In a text that is not PTX, it may
//! find anything or nothing.

/// Variables and functions that a PTX text declares.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Declarations<'a> {
    /// Variables in global or constant memory that the text defines.
    pub(crate) variables: Vec<VariableDeclaration<'a>>,
    /// Functions that are declared but not defined.
    pub(crate) functions: Vec<&'a str>,
}

/// A variable that the text declares, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VariableDeclaration<'a> {
    pub(crate) name: &'a str,
    /// Bytes; for an array without a length, those of its initializer's elements.
    pub(crate) size: u64,
}

/// A word, or a sign between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(u8),
}

/// Parses the declarations of a text at module level.
pub(crate) fn declarations(text: &str) -> Declarations<'_> {
    let mut tokens = Tokens { text, at: 0 };
    let mut declarations_of_text = Declarations::default();
    let mut is_extern = false;
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(".extern") => is_extern = true,
            Token::Word(".global" | ".const") => {
                let names = tokens.variables();
                declarations_of_text.variables.extend(names.into_iter().filter(|_| !is_extern));
                is_extern = false;
            }
            Token::Word(".func") => {
                declarations_of_text.functions.extend(tokens.function().filter(|_| is_extern));
                is_extern = false;
            }
            Token::Sign(b'(' | b'{') => drop(tokens.skip_group()),
            Token::Sign(b';') => is_extern = false,
            _ => {}
        }
    }
    declarations_of_text
}

struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    /// Reads the variables of a declaration, from after its state space to its semicolon. References to textures and surfaces do
    /// not count: they have no bytes.
    fn variables(&mut self) -> Vec<VariableDeclaration<'a>> {
        let mut variables: Vec<VariableDeclaration<'a>> = Vec::new();
        let (mut is_wanted, mut is_reference, mut element) = (true, false, 1_u64);
        while let Some(token) = self.next() {
            match token {
                Token::Word(".texref" | ".surfref" | ".samplerref") => is_reference = true,
                Token::Word(".align") => drop(self.next()),
                Token::Word(word) if is_wanted && word.starts_with('.') => {
                    element = element.saturating_mul(factor(word));
                }
                Token::Word(name) if is_wanted => {
                    variables.push(VariableDeclaration { name, size: element });
                    is_wanted = false;
                }
                Token::Sign(b'[') => {
                    let length = self.length();
                    if let Some(last) = variables.last_mut() {
                        last.size = last.size.saturating_mul(length);
                    }
                }
                Token::Sign(b'{') => {
                    let elements = self.skip_group();
                    if let Some(last) = variables.last_mut().filter(|last| last.size == 0) {
                        last.size = element.saturating_mul(elements);
                    }
                }
                Token::Sign(b'(') => drop(self.skip_group()),
                Token::Sign(b',') => is_wanted = true,
                Token::Sign(b';') => break,
                _ => {}
            }
        }
        if is_reference {
            variables.clear();
        }
        variables
    }

    /// Reads one dimension of an array, from after its bracket; 0 if none is written.
    fn length(&mut self) -> u64 {
        let mut length = 0;
        loop {
            match self.next() {
                Some(Token::Word(word)) => length = number(word).unwrap_or(length),
                Some(Token::Sign(b']')) | None => return length,
                Some(Token::Sign(_)) => {}
            }
        }
    }

    /// Reads the name of a function that is declared here; `None` if it is defined.
    fn function(&mut self) -> Option<&'a str> {
        let mut name = None;
        loop {
            match self.next()? {
                Token::Word(word) if !word.starts_with('.') => name = name.or(Some(word)),
                Token::Sign(b'(') => drop(self.skip_group()),
                Token::Sign(b'{') => {
                    self.skip_group();
                    return None;
                }
                Token::Sign(b';') => return name,
                _ => {}
            }
        }
    }

    /// Skips the rest of a group whose first sign was read, and returns the number of its elements, including those of nested
    /// groups.
    fn skip_group(&mut self) -> u64 {
        let (mut depth, mut elements, mut is_empty) = (1_usize, 0_u64, true);
        while depth > 0 {
            match self.next() {
                Some(Token::Sign(b'(' | b'{' | b'[')) => depth += 1,
                Some(Token::Sign(b')' | b'}' | b']')) => depth -= 1,
                Some(Token::Sign(b',')) => is_empty = true,
                Some(_) => elements += u64::from(std::mem::replace(&mut is_empty, false)),
                None => break,
            }
        }
        elements
    }

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let (start, bytes) = (self.at, self.text.as_bytes());
        let first = *bytes.get(start)?;
        if first == b'"' {
            let closing = bytes[start + 1..].iter().position(|byte| *byte == b'"');
            self.at = closing.map_or(bytes.len(), |length| start + length + 2);
            return Some(Token::Sign(first));
        }
        let length = bytes[start..].iter().take_while(|byte| is_of_word(**byte)).count();
        self.at += length.max(1);
        // A word is ASCII, so its ends are character boundaries.
        Some(if length > 0 { Token::Word(&self.text[start..self.at]) } else { Token::Sign(first) })
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) {
        let bytes = self.text.as_bytes();
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let end_of = |mark: &[u8]| rest.windows(mark.len()).skip(2).position(|window| window == mark);
            self.at += match rest {
                [b'/', b'/', ..] => end_of(b"\n").map_or(rest.len(), |at| at + 2),
                [b'/', b'*', ..] => end_of(b"*/").map_or(rest.len(), |at| at + 4),
                [first, ..] if first.is_ascii_whitespace() => 1,
                _ => return,
            };
        }
    }
}

/// Returns the factor by which a word of a type multiplies the bytes of an element; 1 for other words.
fn factor(word: &str) -> u64 {
    let width = word.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    match (word.as_bytes(), width) {
        ([b'.', b'v', ..], count) => count.parse().unwrap_or(1),
        ([b'.', b'b' | b'u' | b's' | b'f', ..], "8") => 1,
        ([b'.', b'b' | b'u' | b's' | b'f', ..], "16") => 2,
        ([b'.', b'b' | b'u' | b's' | b'f', ..], "32" | "16x2") => 4,
        ([b'.', b'b' | b'u' | b's' | b'f', ..], "64") => 8,
        ([b'.', b'b', ..], "128") => 16,
        _ => 1,
    }
}

/// Parses a number: decimal, hexadecimal, octal or binary.
fn number(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(&word[2..], 16),
        [b'0', b'b' | b'B', ..] => radix(&word[2..], 2),
        [b'0', _, ..] => radix(&word[1..], 8),
        _ => word.parse().ok(),
    }
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'$' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_comments_and_strings_declare_nothing() {
        let text = r#"
            .version 9.0
            .target sm_90
            .file 1 ".global .u32 no;"
            // .global .u32 no;
            /* .const .u32 no;
               */ .extern .func (.param .b64 r) malloc ( .param .b64 n ) ;
            .extern .global .align 4 .u32 elsewhere;
            .visible .const .align 8 .b8 limits[16] = {1, 0, {2}, 3}, more[2];
            .global .attribute(.managed) .align 4 .u32 man = 9;
            .weak .func (.param .b32 r) f(.param .b64 .ptr .global p) { .reg .b32 %no; { .global .u32 no; } ret; }
            .visible .entry k(.param .u64 .ptr .const p) .maxntid 32, 1, 1 { ret; }
            .global .v4 .f32 last;"#;
        let variables = [("limits", 16), ("more", 2), ("man", 4), ("last", 16)];
        let variables = variables.map(|(name, size)| VariableDeclaration { name, size }).to_vec();
        assert_eq!(declarations(text), Declarations { variables, functions: vec!["malloc"] });
    }

    #[test]
    fn sizes_are_those_of_the_elements() {
        let sizes = |text: &str| declarations(text).variables.iter().map(|it| it.size).collect::<Vec<_>>();
        assert_eq!(sizes(".global .align 8 .f64 a, b[0x10][2]; .const .v2 .u16 c[010];"), [8, 256, 32]);
        assert_eq!(
            sizes(".global .f16x2 a[0b11U]; .global .b128 b; .global .u32 c[] = {1, {2, 3}, f + 4};"),
            [12, 16, 16]
        );
        assert_eq!(sizes(".global .b8 huge[18446744073709551615][9], none[];"), [u64::MAX, 0]);
    }

    #[test]
    fn references_to_textures_and_surfaces_are_no_variables() {
        let text = ".global .texref a, b; .visible .global .surfref c; .global .u32 d;";
        assert_eq!(declarations(text).variables, [VariableDeclaration { name: "d", size: 4 }]);
    }

    #[test]
    fn a_text_cut_anywhere_is_read_to_its_end() {
        let text = ".global .align 4 .u32 ä = {1, \"x\"}; /* é */ .extern .func (.param .b32 r) g; .const .b8 c[4];";
        for (length, _) in text.char_indices() {
            let declared = declarations(&text[..length]);
            assert!(declared.variables.len() <= 2 && declared.functions.len() <= 1, "{length}");
        }
        assert_eq!(
            declarations("\u{e9}\u{e9} .global .u32 a;").variables,
            [VariableDeclaration { name: "a", size: 4 }]
        );
    }
}
