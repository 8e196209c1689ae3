//! Bodies of functions: labels, declarations, scopes and instructions.

use super::tokens::{ParseResult, Parser, error};
use super::variable;
use crate::ast::{Guard, Instruction, Linkage, Operand, Statement};
use crate::lexer::{Token, TokenKind};

impl<'a> Parser<'a> {
    /// Parses the statements up to the closing brace, after the opening one.
    pub(super) fn block(&mut self) -> ParseResult<Vec<Statement<'a>>> {
        self.descend()?;
        let mut statements = Vec::new();
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b'}') => break,
                TokenKind::Punct(b';') => {}
                TokenKind::Punct(b'{') => statements.push(Statement::Block(self.block()?)),
                TokenKind::Punct(b'@') => statements.push(self.guarded()?),
                TokenKind::Dotted(word) => self.body_directive(word, &token, &mut statements)?,
                TokenKind::Word(word) => statements.push(self.label_or_instruction(word, &token)?),
                _ => return Err(error(&token, "expected a statement")),
            }
        }
        self.ascend();
        Ok(statements)
    }

    /// Parses a directive inside a body: a declaration, or a directive without effect on execution.
    fn body_directive(&mut self, word: &'a str, token: &Token<'a>, out: &mut Vec<Statement<'a>>) -> ParseResult<()> {
        match word {
            "loc" | "file" => self.skip_line(token.line),
            "pragma" => self.skip_statement(),
            "section" => self.skip_section(),
            _ => {
                let space = variable::space(word).ok_or_else(|| error(token, "unknown directive"))?;
                let variables = self.variables(space, Linkage::Private)?;
                out.extend(variables.into_iter().map(Statement::Declare));
                Ok(())
            }
        }
    }

    /// Parses a predicate and an instruction after `@`.
    fn guarded(&mut self) -> ParseResult<Statement<'a>> {
        let negated = self.accept(b'!')?;
        let register = self.word()?;
        let token = self.next()?;
        let TokenKind::Word(opcode) = token.kind else { return Err(error(&token, "expected an instruction")) };
        self.instruction(Some(Guard { negated, register }), opcode, token.line)
    }

    /// Parses a statement that begins with a word: a label if a colon follows, else an opcode.
    ///
    /// A label before a directive names the directive.
    fn label_or_instruction(&mut self, word: &'a str, token: &Token<'a>) -> ParseResult<Statement<'a>> {
        if !self.accept(b':')? {
            return self.instruction(None, word, token.line);
        }
        match self.peek()?.kind {
            TokenKind::Dotted("callprototype") => self.prototype(word),
            TokenKind::Dotted("branchtargets" | "calltargets") => {
                self.next()?;
                let targets = self.word_list()?;
                self.expect(b';')?;
                Ok(Statement::Targets { name: word, targets, line: token.line })
            }
            _ => Ok(Statement::Label(word, token.line)),
        }
    }

    /// Parses `name: .callprototype (returns) _ (params) .noreturn;`.
    fn prototype(&mut self, name: &'a str) -> ParseResult<Statement<'a>> {
        self.next()?;
        let mut prototype = self.signature(false, Linkage::Private)?;
        prototype.name = name;
        prototype.directives = self.function_directives()?;
        self.expect(b';')?;
        Ok(Statement::Prototype(prototype))
    }

    /// Parses modifiers and operands, up to the semicolon.
    fn instruction(&mut self, guard: Option<Guard<'a>>, opcode: &'a str, line: u32) -> ParseResult<Statement<'a>> {
        let mut modifiers = Vec::new();
        while let TokenKind::Dotted(word) = self.peek()?.kind {
            self.next()?;
            modifiers.push(word);
        }
        let operands = self.operands(opcode == "call")?;
        Ok(Statement::Instruction(Instruction { guard, opcode, modifiers, operands, line }))
    }

    /// Parses operands with commas between them, up to and including the semicolon. Only a call has lists in parentheses.
    fn operands(&mut self, is_call: bool) -> ParseResult<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        if self.accept(b';')? {
            return Ok(operands);
        }
        loop {
            operands.push(if is_call { self.call_operand()? } else { self.operand()? });
            if self.accept(b';')? {
                return Ok(operands);
            }
            self.expect(b',')?;
        }
    }
}
