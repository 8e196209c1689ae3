//! Tokens to a syntax tree: module level.
//!
//! | module | what |
//! |---|---|
//! | `tokens` | access to the tokens, with one read ahead |
//! | `expression` | constant expressions |
//! | `operand` | operands of instructions |
//! | `variable` | declarations of variables and parameters |
//! | `signature` | returns, name, parameters and directives of a function |
//! | `statement` | bodies of functions |
//!
//! The parser looks one token ahead, never recurses deeper than `MAX_BRACE_DEPTH`, and skips what has no effect on execution:
//! debug sections, `.file`, `.loc`, `.pragma`.

mod expression;
mod operand;
mod signature;
mod statement;
mod tokens;
mod variable;

use crate::ast::{Function, Item, Linkage, Module};
use crate::lexer::{Token, TokenKind};
pub use expression::WARP_THREADS;
pub(crate) use tokens::Parser;
use tokens::{ParseResult, error};

/// The first version of PTX that has `.address_size`.
const ADDRESS_SIZE_SINCE: (u32, u32) = (2, 3);

impl<'a> Parser<'a> {
    /// Parses the whole text.
    pub(crate) fn module(mut self) -> ParseResult<Module<'a>> {
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

    /// Returns the version, if the text begins with it.
    pub(crate) fn first_version(mut self) -> Option<(u32, (u32, u32))> {
        let token = self.next().ok()?;
        match token.kind {
            TokenKind::Dotted("version") => Some((token.line, self.version().ok()?)),
            _ => None,
        }
    }

    /// Parses one directive at module level, whose first word has been read.
    fn directive(&mut self, word: &'a str, token: &Token<'a>, module: &mut Module<'a>) -> ParseResult<()> {
        match word {
            "version" => module.version = self.version()?,
            "target" => module.target = self.word_list()?,
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

    /// Parses `.visible .entry ...`, `.extern .shared ...`: linkage, then a declaration.
    fn declaration(&mut self, word: &'a str, token: &Token<'a>, module: &mut Module<'a>) -> ParseResult<()> {
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

    /// Parses a declaration after the linkage: a function, or variables of a state space.
    fn declared(
        &mut self,
        word: &'a str,
        token: &Token<'a>,
        linkage: Linkage,
        module: &mut Module<'a>,
    ) -> ParseResult<()> {
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

    /// Parses `9.0`, which the lexer reads as a decimal number.
    fn version(&mut self) -> ParseResult<(u32, u32)> {
        let token = self.next()?;
        let parts =
            token.text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.ok_or_else(|| error(&token, "expected a version such as 9.0"))
    }

    /// `.alias name, target;`
    fn alias(&mut self, line: u32) -> ParseResult<Item<'a>> {
        let name = self.word()?;
        self.expect(b',')?;
        let target = self.word()?;
        self.expect(b';')?;
        Ok(Item::Alias { name, target, line })
    }

    /// Parses everything after `.entry` or `.func`.
    fn function(&mut self, entry: bool, linkage: Linkage) -> ParseResult<Function<'a>> {
        let mut function = self.signature(entry, linkage)?;
        function.directives = self.function_directives()?;
        if !self.accept(b';')? {
            self.expect(b'{')?;
            function.body = Some(self.block()?);
        }
        Ok(function)
    }
}
