//! Constant expressions: numbers, operators with the precedence of C, casts, parentheses and `?:`.

use super::tokens::{ParseResult, Parser, error};
use crate::constant::{Binary, Constant, Unary};
use crate::lexer::{Token, TokenKind};

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;
/// Name of that number in PTX.
pub(super) const WARP_SIZE: &str = "WARP_SZ";

impl<'a> Parser<'a> {
    /// Evaluates the constant expression that starts with `first`.
    pub(super) fn expression(&mut self, first: Token<'a>) -> ParseResult<Constant> {
        self.descend()?;
        let mut value = self.operators(first)?;
        if self.accept(b'?')? {
            let holds = value.holds().map_err(|message| error(&first, message))?;
            let yes = self.integer_expression()?;
            self.expect(b':')?;
            let no = self.integer_expression()?;
            value = if holds { yes } else { no };
        }
        self.ascend();
        Ok(value)
    }

    /// Evaluates a constant expression that must be an integer.
    fn integer_expression(&mut self) -> ParseResult<Constant> {
        let first = self.next()?;
        let value = self.expression(first)?;
        value.bits().map_err(|message| error(&first, message))?;
        Ok(value)
    }

    /// Returns the bits of a constant expression that must be an integer.
    pub(super) fn integer_bits(&mut self) -> ParseResult<u64> {
        let first = self.next()?;
        self.expression(first)?.bits().map_err(|message| error(&first, message))
    }

    /// Evaluates values and the operators between them, tighter ones first, and those of one precedence from left to right.
    fn operators(&mut self, first: Token<'a>) -> ParseResult<Constant> {
        let mut value = self.unary(first)?;
        // Values and their operators that wait for a right operand, each operator tighter than the one before.
        let mut waiting: Vec<(Constant, Binary)> = Vec::new();
        loop {
            let token = self.peek()?;
            let operator = self.operator()?;
            while let Some((left, tighter)) =
                waiting.pop_if(|(_, waits)| operator.is_none_or(|next| waits.precedence() >= next.precedence()))
            {
                value = left.join(tighter, value).map_err(|message| error(&token, message))?;
            }
            let Some(operator) = operator else { return Ok(value) };
            waiting.push((value, operator));
            let next = self.next()?;
            value = self.unary(next)?;
        }
    }

    /// Takes the next operator, if there is one. The word `%` is the remainder operator, while `%3` would be a register.
    fn operator(&mut self) -> ParseResult<Option<Binary>> {
        let token = self.peek()?;
        let first = match token.kind {
            TokenKind::Punct(first @ (b'|' | b'&' | b'=' | b'!' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' | b'^')) => {
                first
            }
            TokenKind::Word("%") => b'%',
            _ => return Ok(None),
        };
        self.next()?;
        let second = self.peek()?;
        let is_adjacent = (second.line, second.column) == (token.line, token.column + 1);
        if let TokenKind::Punct(character) = second.kind
            && is_adjacent
            && let Some(operator) = Binary::parse(first, Some(character))
        {
            self.next()?;
            return Ok(Some(operator));
        }
        Binary::parse(first, None).map(Some).ok_or_else(|| error(&token, "expected an operator"))
    }

    /// Evaluates a number, `WARP_SZ` or an expression in parentheses, with the operators before it.
    fn unary(&mut self, first: Token<'a>) -> ParseResult<Constant> {
        let mut token = first;
        let mut operators = Vec::new();
        let value = loop {
            operators.push(match token.kind {
                TokenKind::Punct(b'+') => Unary::Plus,
                TokenKind::Punct(b'-') => Unary::Minus,
                TokenKind::Punct(b'!') => Unary::Not,
                TokenKind::Punct(b'~') => Unary::Complement,
                TokenKind::Punct(b'(') => match self.cast()? {
                    Some(cast) => cast,
                    None => break self.parenthesized()?,
                },
                _ => break literal(&token)?,
            });
            token = self.next()?;
        };
        let apply = |value: Constant, operator| value.apply(operator);
        operators.into_iter().rev().try_fold(value, apply).map_err(|message| error(&first, message))
    }

    /// Parses `.s64)` or `.u64)`, after the opening parenthesis.
    fn cast(&mut self) -> ParseResult<Option<Unary>> {
        let token = self.peek()?;
        let cast = match token.kind {
            TokenKind::Dotted("s64") => Unary::ToSigned,
            TokenKind::Dotted("u64") => Unary::ToUnsigned,
            TokenKind::Dotted(_) => return Err(error(&token, "a constant is cast to .s64 or .u64")),
            _ => return Ok(None),
        };
        self.next()?;
        self.expect(b')')?;
        Ok(Some(cast))
    }

    /// Evaluates an expression, up to the closing parenthesis.
    fn parenthesized(&mut self) -> ParseResult<Constant> {
        let first = self.next()?;
        let value = self.expression(first)?;
        self.expect(b')')?;
        Ok(value)
    }
}

/// Converts a number token.
fn literal(token: &Token<'_>) -> ParseResult<Constant> {
    Ok(match token.kind {
        TokenKind::Int(value) => match i64::try_from(value) {
            Ok(value) if !token.text.ends_with('U') => Constant::Signed(value),
            _ => Constant::Unsigned(value),
        },
        TokenKind::F32(bits) => Constant::F32(bits),
        TokenKind::F64(bits) => Constant::F64(f64::from_bits(bits)),
        TokenKind::Word(WARP_SIZE) => Constant::Signed(WARP_THREADS.into()),
        _ => return Err(error(token, "expected a value")),
    })
}
