//! Operands: registers, constants, addresses, vectors, argument lists.

use super::expression::WARP_SIZE;
use super::tokens::{ParseResult, Parser};
use crate::ast::Operand;
use crate::constant::Constant;
use crate::lexer::{Token, TokenKind};

impl<'a> Parser<'a> {
    /// Parses one operand, including `d|p` pairs.
    pub(super) fn operand(&mut self) -> ParseResult<Operand<'a>> {
        let first = self.simple_operand()?;
        if self.accept(b'|')? {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new((first, second))));
        }
        Ok(first)
    }

    /// Parses one operand of a call, which may be a list in parentheses.
    pub(super) fn call_operand(&mut self) -> ParseResult<Operand<'a>> {
        if self.accept(b'(')? { Ok(Operand::List(self.operand_list(b')')?)) } else { self.operand() }
    }

    /// Parses one operand, without a second one after `|`.
    fn simple_operand(&mut self) -> ParseResult<Operand<'a>> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Word("_") => Ok(Operand::Discard),
            TokenKind::Word(name) if name != WARP_SIZE => self.named(name),
            TokenKind::Punct(b'{') => Ok(Operand::Vector(self.operand_list(b'}')?)),
            TokenKind::Punct(b'[') => self.bracket(),
            TokenKind::Punct(sign @ (b'!' | b'-')) => match self.peek()?.kind {
                TokenKind::Word(name) if name != WARP_SIZE => self.signed_name(sign),
                _ => self.constant(token),
            },
            _ => self.constant(token),
        }
    }

    /// Parses the name after a sign: `!p`, `-r`, `-r.h1`.
    fn signed_name(&mut self, sign: u8) -> ParseResult<Operand<'a>> {
        let name = self.word()?;
        Ok(if sign == b'!' { Operand::Not(name) } else { Operand::Negated(Box::new(self.named(name)?)) })
    }

    /// Parses what follows a name: a component (`%tid.x`), an offset (`var+4`) or nothing.
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

    /// Parses the constant expression that starts with `first`.
    fn constant(&mut self, first: Token<'a>) -> ParseResult<Operand<'a>> {
        Ok(match self.expression(first)? {
            Constant::Signed(value) => Operand::Int(value.cast_unsigned()),
            Constant::Unsigned(value) => Operand::Int(value),
            Constant::F32(bits) => Operand::F32(bits),
            Constant::F64(value) => Operand::F64(value.to_bits()),
        })
    }

    /// Parses operands with commas between them, up to `close`. Refuses a trailing comma, but not an empty list.
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

    /// Parses `[base+offset]`, `[number]`, or several operands in brackets.
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

    /// Parses `+` and a constant expression, `-8`, or nothing, which is 0.
    pub(super) fn signed_offset(&mut self) -> ParseResult<i64> {
        if self.accept(b'+')? {
            return Ok(self.integer_bits()?.cast_signed());
        }
        if self.accept(b'-')? {
            return Ok(self.int()?.cast_signed().wrapping_neg());
        }
        Ok(0)
    }
}
