//! What a PTX text declares at module level, without reading any of its code: names of variables and of functions that
//! are defined elsewhere.
//!
//! A few rules of the grammar do: bodies and initialisers stand in braces, parameters in parentheses, both are passed
//! over; a declaration ends with a semicolon. So texts of later language versions are read as well. Of a text that is no
//! PTX something or nothing is found.

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Declarations<'a> {
    /// Variables in global or constant memory, defined here.
    pub(crate) variables: Vec<&'a str>,
    /// Functions that are only declared.
    pub(crate) functions: Vec<&'a str>,
}

/// A word, or a sign between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(u8),
}

/// Reads a text.
pub(crate) fn declarations(text: &str) -> Declarations<'_> {
    let mut tokens = Tokens { text, at: 0 };
    let mut found = Declarations::default();
    let mut is_extern = false;
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(".extern") => is_extern = true,
            Token::Word(".global" | ".const") => {
                let names = tokens.variables();
                found.variables.extend(names.into_iter().filter(|_| !is_extern));
                is_extern = false;
            }
            Token::Word(".func") => {
                found.functions.extend(tokens.function().filter(|_| is_extern));
                is_extern = false;
            }
            Token::Sign(b'(' | b'{') => tokens.skip_group(),
            Token::Sign(b';') => is_extern = false,
            _ => {}
        }
    }
    found
}

struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    /// Names of the variables of a declaration, from behind its state space to its semicolon. References to textures and
    /// surfaces are none: they have no bytes.
    fn variables(&mut self) -> Vec<&'a str> {
        let mut names = Vec::new();
        let (mut is_wanted, mut is_reference) = (true, false);
        while let Some(token) = self.next() {
            match token {
                Token::Word(".texref" | ".surfref" | ".samplerref") => is_reference = true,
                Token::Word(".align") => drop(self.next()),
                Token::Word(word) if is_wanted && !word.starts_with('.') => {
                    names.push(word);
                    is_wanted = false;
                }
                Token::Sign(b'(' | b'{' | b'[') => self.skip_group(),
                Token::Sign(b',') => is_wanted = true,
                Token::Sign(b';') => break,
                _ => {}
            }
        }
        if is_reference {
            names.clear();
        }
        names
    }

    /// The name of a function that is declared here; none if it is defined.
    fn function(&mut self) -> Option<&'a str> {
        let mut name = None;
        loop {
            match self.next()? {
                Token::Word(word) if !word.starts_with('.') => name = name.or(Some(word)),
                Token::Sign(b'(') => self.skip_group(),
                Token::Sign(b'{') => {
                    self.skip_group();
                    return None;
                }
                Token::Sign(b';') => return name,
                _ => {}
            }
        }
    }

    /// Passes over everything up to the end of the group whose first sign was read.
    fn skip_group(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next() {
                Some(Token::Sign(b'(' | b'{' | b'[')) => depth += 1,
                Some(Token::Sign(b')' | b'}' | b']')) => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
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
        // A word is ASCII, so its ends are ends of letters.
        Some(if length > 0 { Token::Word(&self.text[start..self.at]) } else { Token::Sign(first) })
    }

    /// Passes over blanks and comments.
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

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'$' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_groups_comments_and_strings_declares_nothing() {
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
        let expected = Declarations { variables: vec!["limits", "more", "man", "last"], functions: vec!["malloc"] };
        assert_eq!(declarations(text), expected);
    }

    #[test]
    fn references_to_textures_and_surfaces_are_no_variables() {
        let text = ".global .texref a, b; .visible .global .surfref c; .global .u32 d;";
        assert_eq!(declarations(text).variables, ["d"]);
    }

    #[test]
    fn a_text_cut_anywhere_is_read_to_its_end() {
        let text = ".global .align 4 .u32 ä = {1, \"x\"}; /* é */ .extern .func (.param .b32 r) g; .const .b8 c[4];";
        for (length, _) in text.char_indices() {
            let found = declarations(&text[..length]);
            assert!(found.variables.len() <= 2 && found.functions.len() <= 1, "{length}");
        }
        assert_eq!(declarations("\u{e9}\u{e9} .global .u32 a;").variables, ["a"]);
    }
}
