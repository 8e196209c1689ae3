//! Operands: registers, constants, addresses, vectors, argument lists.

use super::tokens::{ParseResult, Parser, error};
use crate::ast::Operand;
use crate::lexer::{Token, TokenKind};

impl<'a> Parser<'a> {
    /// One operand, `d|p` pairs included.
    pub(super) fn operand(&mut self) -> ParseResult<Operand<'a>> {
        let first = self.simple_operand()?;
        if self.accept(b'|')? {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new((first, second))));
        }
        Ok(first)
    }

    /// One operand without what may follow a `|`.
    fn simple_operand(&mut self) -> ParseResult<Operand<'a>> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Word("_") => Ok(Operand::Discard),
            TokenKind::Word(name) => self.named(name),
            TokenKind::Punct(b'!') => Ok(Operand::Not(self.word()?)),
            TokenKind::Punct(b'{') => Ok(Operand::Vector(self.operand_list(b'}')?)),
            TokenKind::Punct(b'(') => Ok(Operand::List(self.operand_list(b')')?)),
            TokenKind::Punct(b'[') => self.bracket(),
            _ => self.constant(&token),
        }
    }

    /// A name, with a component (`%tid.x`) or an offset (`var+4`) after it.
    fn named(&mut self, name: &'a str) -> ParseResult<Operand<'a>> {
        if let TokenKind::Dotted(member) = self.peek()?.kind {
            self.next()?;
            return Ok(Operand::Member(name, member));
        }
        match self.peek()?.kind {
            TokenKind::Punct(b'+' | b'-') => Ok(Operand::Offset(name, self.signed_offset()?)),
            _ => Ok(Operand::Name(name)),
        }
    }

    /// A number with any signs before it.
    fn constant(&mut self, token: &Token<'a>) -> ParseResult<Operand<'a>> {
        let negative = token.kind == TokenKind::Punct(b'-');
        let token = if negative { self.next()? } else { *token };
        Ok(match token.kind {
            TokenKind::Int(value) if negative => Operand::Int(value.wrapping_neg()),
            TokenKind::Int(value) => Operand::Int(value),
            TokenKind::F32(bits) => Operand::F32(if negative { bits ^ (1 << 31) } else { bits }),
            TokenKind::F64(bits) => Operand::F64(if negative { bits ^ (1 << 63) } else { bits }),
            TokenKind::Word(name) if negative => Operand::Negated(Box::new(self.named(name)?)),
            _ => return Err(error(&token, "expected an operand")),
        })
    }

    /// Operands with commas between them, up to `close`; trailing commas are refused, an empty list is not.
    fn operand_list(&mut self, close: u8) -> ParseResult<Vec<Operand<'a>>> {
        self.descend()?;
        let mut list = Vec::new();
        if !self.accept(close)? {
            loop {
                list.push(self.operand()?);
                if self.accept(close)? {
                    break;
                }
                self.expect(b',')?;
            }
        }
        self.ascend();
        Ok(list)
    }

    /// `[base+offset]`, `[number]`, or several operands in brackets.
    fn bracket(&mut self) -> ParseResult<Operand<'a>> {
        let mut list = self.operand_list(b']')?;
        if list.len() != 1 {
            return Ok(Operand::Bracket(list));
        }
        Ok(match list.remove(0) {
            Operand::Name(name) => Operand::Address { base: Some(name), offset: 0 },
            Operand::Offset(name, offset) => Operand::Address { base: Some(name), offset },
            Operand::Int(value) => Operand::Address { base: None, offset: value.cast_signed() },
            other => Operand::Bracket(vec![other]),
        })
    }

    /// `+8`, `-8`, `+-8`, or nothing, which is 0.
    pub(super) fn signed_offset(&mut self) -> ParseResult<i64> {
        let mut negative = false;
        let mut found = false;
        while let TokenKind::Punct(sign @ (b'+' | b'-')) = self.peek()?.kind {
            self.next()?;
            negative ^= sign == b'-';
            found = true;
        }
        if !found {
            return Ok(0);
        }
        let value = self.int()?.cast_signed();
        Ok(if negative { value.wrapping_neg() } else { value })
    }
}
