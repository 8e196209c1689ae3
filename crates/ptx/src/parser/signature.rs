//! Signatures of functions: return values, name, parameters and directives.

use super::tokens::{ParseResult, Parser, error};
use crate::ast::{Function, Linkage, Variable};
use crate::lexer::TokenKind;

impl<'a> Parser<'a> {
    /// Parses `(returns) name (params)`, also of a `.callprototype`, whose name is `_`.
    pub(super) fn signature(&mut self, entry: bool, linkage: Linkage) -> ParseResult<Function<'a>> {
        let returns = self.params()?;
        let token = self.next()?;
        let TokenKind::Word(name) = token.kind else { return Err(error(&token, "expected a function name")) };
        let params = self.params()?;
        Ok(Function { linkage, entry, name, returns, params, directives: Vec::new(), body: None, line: token.line })
    }

    /// Parses an optional parameter list in parentheses.
    pub(super) fn params(&mut self) -> ParseResult<Vec<Variable<'a>>> {
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

    /// Parses `.maxntid 128, 1, 1 .minnctapersm 2 .pragma "..."; .noreturn`.
    pub(super) fn function_directives(&mut self) -> ParseResult<Vec<(&'a str, Vec<u64>)>> {
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
}
