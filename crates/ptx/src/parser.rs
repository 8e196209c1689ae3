//! Tokens to a syntax tree: module level. Bodies are in `statement`, operands in `operand`, variables in `variable`.
//!
//! The parser looks one token ahead, never recurses deeper than `MAX_DEPTH`, and skips what has no effect on execution:
//! debug sections, `.file`, `.loc`, `.pragma`.

mod operand;
mod statement;
mod variable;

use crate::ast::{Function, Item, Linkage, Module, Variable};
use crate::error::ParseError;
use crate::lexer::{Lexer, Token, TokenKind};

/// Deepest nesting of braces that is followed; compilers nest two or three deep.
const MAX_DEPTH: u32 = 64;

/// The first version of PTX that has `.address_size`.
const ADDRESS_SIZE_SINCE: (u32, u32) = (2, 3);

/// A parser over one text.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token read ahead, if any.
    ahead: Option<Token<'a>>,
    depth: u32,
}

/// What most parsing functions return.
type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    /// A parser at the start of `text`.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { lexer: Lexer::new(text), ahead: None, depth: 0 }
    }

    /// The whole text.
    pub(crate) fn module(mut self) -> Parsed<Module<'a>> {
        let mut module = Module { address_size: 64, ..Module::default() };
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::End if module.version == (0, 0) => return Err(error(&token, "a text without .version")),
                TokenKind::End => return Ok(module),
                TokenKind::Punct(b';') => {}
                TokenKind::Dotted(word) => self.directive(word, &token, &mut module)?,
                _ => return Err(error(&token, "expected a directive")),
            }
        }
    }

    /// The version, if the text begins with it.
    pub(crate) fn first_version(mut self) -> Option<(u32, (u32, u32))> {
        let token = self.next().ok()?;
        match token.kind {
            TokenKind::Dotted("version") => Some((token.line, self.version().ok()?)),
            _ => None,
        }
    }

    /// One directive at module level, whose first word has been read.
    fn directive(&mut self, word: &'a str, token: &Token<'a>, module: &mut Module<'a>) -> Parsed<()> {
        match word {
            "version" => module.version = self.version()?,
            "target" => module.target = self.words()?,
            "address_size" if module.version < ADDRESS_SIZE_SINCE => {
                return Err(error(token, "this directive needs .version 2.3 or later"));
            }
            "address_size" => module.address_size = u32::try_from(self.int()?).unwrap_or(u32::MAX),
            "file" | "loc" => self.skip_line(token.line)?,
            "section" => self.skip_section()?,
            "pragma" => self.skip_statement()?,
            "alias" => module.items.push(self.alias(token.line)?),
            _ => self.declaration(word, token, module)?,
        }
        Ok(())
    }

    /// `.visible .entry ...`, `.extern .shared ...`: linkage, then what is declared.
    fn declaration(&mut self, word: &'a str, token: &Token<'a>, module: &mut Module<'a>) -> Parsed<()> {
        let linkage = match word {
            "visible" => Linkage::Visible,
            "extern" => Linkage::Extern,
            "weak" => Linkage::Weak,
            "common" => Linkage::Common,
            _ => return self.declared(word, token, Linkage::Private, module),
        };
        let next = self.next()?;
        match next.kind {
            TokenKind::Dotted(word) => self.declared(word, &next, linkage, module),
            _ => Err(error(&next, "expected .entry, .func or a state space")),
        }
    }

    /// What follows the linkage: a function, or variables of a state space.
    fn declared(&mut self, word: &'a str, token: &Token<'a>, linkage: Linkage, module: &mut Module<'a>) -> Parsed<()> {
        if word == "entry" || word == "func" {
            let function = self.function(word == "entry", linkage)?;
            module.items.push(Item::Function(function));
            return Ok(());
        }
        let space = variable::space(word).ok_or_else(|| error(token, "unknown directive"))?;
        let variables = self.variables(space, linkage)?;
        module.items.extend(variables.into_iter().map(Item::Variable));
        Ok(())
    }

    /// `9.0`; the lexer has made a decimal number of it.
    fn version(&mut self) -> Parsed<(u32, u32)> {
        let token = self.next()?;
        let parts =
            token.text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.ok_or_else(|| error(&token, "expected a version such as 9.0"))
    }

    /// Words with commas between them.
    fn words(&mut self) -> Parsed<Vec<&'a str>> {
        let mut words = vec![self.word()?];
        while self.accept(b',')? {
            words.push(self.word()?);
        }
        Ok(words)
    }

    /// `.alias name, target;`
    fn alias(&mut self, line: u32) -> Parsed<Item<'a>> {
        let name = self.word()?;
        self.expect(b',')?;
        let target = self.word()?;
        self.expect(b';')?;
        Ok(Item::Alias { name, target, line })
    }

    /// Everything after `.entry` or `.func`.
    fn function(&mut self, entry: bool, linkage: Linkage) -> Parsed<Function<'a>> {
        let mut function = self.signature(entry, linkage)?;
        function.directives = self.function_directives()?;
        if !self.accept(b';')? {
            self.expect(b'{')?;
            function.body = Some(self.block()?);
        }
        Ok(function)
    }

    /// `(returns) name (params)`, also of a `.callprototype`, whose name is `_`.
    fn signature(&mut self, entry: bool, linkage: Linkage) -> Parsed<Function<'a>> {
        let returns = self.params()?;
        let token = self.next()?;
        let TokenKind::Word(name) = token.kind else { return Err(error(&token, "expected a function name")) };
        let params = self.params()?;
        Ok(Function { linkage, entry, name, returns, params, directives: Vec::new(), body: None, line: token.line })
    }

    /// A parenthesised parameter list, or nothing.
    fn params(&mut self) -> Parsed<Vec<Variable<'a>>> {
        let mut params = Vec::new();
        if !self.accept(b'(')? || self.accept(b')')? {
            return Ok(params);
        }
        loop {
            params.push(self.param()?);
            if self.accept(b')')? {
                return Ok(params);
            }
            self.expect(b',')?;
        }
    }

    /// `.maxntid 128, 1, 1 .minnctapersm 2 .pragma "..."; .noreturn`
    fn function_directives(&mut self) -> Parsed<Vec<(&'a str, Vec<u64>)>> {
        let mut directives = Vec::new();
        while let TokenKind::Dotted(name) = self.peek()?.kind {
            self.next()?;
            if name == "pragma" {
                self.skip_statement()?;
                continue;
            }
            let mut numbers = Vec::new();
            while let TokenKind::Int(number) = self.peek()?.kind {
                self.next()?;
                numbers.push(number);
                self.accept(b',')?;
            }
            directives.push((name, numbers));
        }
        Ok(directives)
    }

    /// `.section .debug_info { ... }`, or `.section name` and nothing else on its line.
    fn skip_section(&mut self) -> Parsed<()> {
        let name = self.next()?;
        let brace = self.peek()?;
        if brace.kind != TokenKind::Punct(b'{') {
            return self.skip_line(name.line);
        }
        let mut open = 0_u32;
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b'{') => open += 1,
                TokenKind::Punct(b'}') if open == 1 => return Ok(()),
                TokenKind::Punct(b'}') => open -= 1,
                TokenKind::End => return Err(error(&token, "section without end")),
                _ => {}
            }
        }
    }

    /// Skips the rest of line `line`: `.loc` and `.file` have no terminator.
    fn skip_line(&mut self, line: u32) -> Parsed<()> {
        while self.peek()?.line == line && self.peek()?.kind != TokenKind::End {
            self.next()?;
        }
        Ok(())
    }

    /// Skips up to and including the next `;`.
    fn skip_statement(&mut self) -> Parsed<()> {
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b';') => return Ok(()),
                TokenKind::End => return Err(error(&token, "expected ;")),
                _ => {}
            }
        }
    }

    // Token access.

    /// Takes the next token.
    fn next(&mut self) -> Parsed<Token<'a>> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.lexer.next(),
        }
    }

    /// Looks at the next token without taking it.
    fn peek(&mut self) -> Parsed<Token<'a>> {
        let token = self.next()?;
        self.ahead = Some(token);
        Ok(token)
    }

    /// Takes the next token if it is `punct`.
    fn accept(&mut self, punct: u8) -> Parsed<bool> {
        let found = self.peek()?.kind == TokenKind::Punct(punct);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    /// Takes the next token, which must be `punct`.
    fn expect(&mut self, punct: u8) -> Parsed<()> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Punct(found) if found == punct => Ok(()),
            _ => Err(error(&token, format!("expected '{}'", char::from(punct)))),
        }
    }

    /// Takes a name.
    fn word(&mut self) -> Parsed<&'a str> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Word(word) => Ok(word),
            _ => Err(error(&token, "expected a name")),
        }
    }

    /// Takes an integer.
    fn int(&mut self) -> Parsed<u64> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Int(value) => Ok(value),
            _ => Err(error(&token, "expected an integer")),
        }
    }

    /// Enters one level of nesting; every call is paired with `depth -= 1`.
    fn descend(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let token = self.peek()?;
            return Err(error(&token, "nested too deeply"));
        }
        Ok(())
    }
}

/// An error at `token`.
fn error(token: &Token<'_>, message: impl Into<String>) -> ParseError {
    ParseError::at(token.line, token.column, token.text, message)
}
