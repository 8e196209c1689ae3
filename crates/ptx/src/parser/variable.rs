//! Variable declarations and their initialisers.

use super::expression::WARP_SIZE;
use super::tokens::{ParseResult, Parser, error};
use crate::ast::{Initial, Linkage, Space, SymbolAddress, Variable};
use crate::constant::Constant;
use crate::lexer::TokenKind;

/// Returns the state space called `word`.
pub(super) fn space(word: &str) -> Option<Space> {
    Some(match word {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        "reg" => Space::Reg,
        // Old texts declare texture references in a space of their own.
        "tex" => Space::Global,
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    /// Parses declarations after the state space, up to the semicolon. Several names may share a type.
    pub(super) fn variables(&mut self, space: Space, linkage: Linkage) -> ParseResult<Vec<Variable<'a>>> {
        let head = self.variable_head(space, linkage)?;
        let mut variables = Vec::new();
        loop {
            let mut variable = head.clone();
            self.variable_name(&mut variable)?;
            if self.accept(b'=')? {
                variable.initial = self.initializer()?;
            }
            variables.push(variable);
            if self.accept(b';')? {
                return Ok(variables);
            }
            self.expect(b',')?;
        }
    }

    /// Parses one formal parameter of a function, `.param` or `.reg`.
    pub(super) fn param(&mut self) -> ParseResult<Variable<'a>> {
        let token = self.next()?;
        let space = match token.kind {
            TokenKind::Dotted(word) => space(word),
            _ => None,
        };
        let space = space.ok_or_else(|| error(&token, "expected .param or .reg"))?;
        let mut variable = self.variable_head(space, Linkage::Private)?;
        self.variable_name(&mut variable)?;
        Ok(variable)
    }

    /// Parses the dotted words before a name: alignment, vector, type, and hints about the target of a pointer parameter.
    fn variable_head(&mut self, space: Space, linkage: Linkage) -> ParseResult<Variable<'a>> {
        let line = self.peek()?.line;
        let (name, dimensions, initial) = ("", Vec::new(), Vec::new());
        let mut head = Variable {
            linkage,
            space,
            align: 0,
            vector: 1,
            ty: "",
            name,
            count: None,
            dimensions,
            initial,
            managed: false,
            line,
        };
        let mut pointer = false;
        while let TokenKind::Dotted(word) = self.peek()?.kind {
            self.next()?;
            match word {
                "align" if pointer => drop(self.int()?),
                "align" => head.align = u32::try_from(self.int()?).unwrap_or(u32::MAX),
                "v2" => head.vector = 2,
                "v4" => head.vector = 4,
                "v8" => head.vector = 8,
                "ptr" => pointer = true,
                "attribute" => head.managed |= self.has_managed_attribute()?,
                _ if pointer => {}
                _ => head.ty = word,
            }
        }
        Ok(head)
    }

    /// Parses the name with its register range or array dimensions.
    fn variable_name(&mut self, variable: &mut Variable<'a>) -> ParseResult<()> {
        let token = self.next()?;
        let TokenKind::Word(name) = token.kind else { return Err(error(&token, "expected a variable name")) };
        variable.name = name;
        variable.line = token.line;
        if variable.ty.is_empty() {
            return Err(error(&token, "variable without a type"));
        }
        if self.accept(b'<')? {
            let count = self.int()?;
            variable.count = Some(u32::try_from(count).map_err(|_| error(&token, "too many registers"))?);
            self.expect(b'>')?;
        }
        while self.accept(b'[')? {
            let open = self.accept(b']')?;
            variable.dimensions.push(if open { 0 } else { self.int()? });
            if !open {
                self.expect(b']')?;
            }
        }
        Ok(())
    }

    /// Reads `( ... )`, and returns whether it contains `.managed`. The other attributes have no effect here.
    fn has_managed_attribute(&mut self) -> ParseResult<bool> {
        self.expect(b'(')?;
        let (mut open, mut managed) = (1, false);
        while open > 0 {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b'(') => open += 1,
                TokenKind::Punct(b')') => open -= 1,
                TokenKind::Dotted("managed") => managed = true,
                TokenKind::End => return Err(error(&token, "expected ')'")),
                _ => {}
            }
        }
        Ok(managed)
    }

    /// Parses `5` or `{1, 2, {3}}`; a scalar is a list of one.
    fn initializer(&mut self) -> ParseResult<Vec<Initial<'a>>> {
        if self.accept(b'{')? { self.initial_list() } else { Ok(vec![self.initial()?]) }
    }

    /// Parses the elements up to the closing brace. Accepts a trailing comma.
    fn initial_list(&mut self) -> ParseResult<Vec<Initial<'a>>> {
        self.descend()?;
        let mut list = Vec::new();
        while !self.accept(b'}')? {
            list.push(if self.accept(b'{')? { Initial::List(self.initial_list()?) } else { self.initial()? });
            if !self.accept(b',')? {
                self.expect(b'}')?;
                break;
            }
        }
        self.ascend();
        Ok(list)
    }

    /// Parses one scalar: a constant expression, a symbol, `generic(symbol)`, `0xFF00(symbol)`.
    fn initial(&mut self) -> ParseResult<Initial<'a>> {
        let token = self.next()?;
        if matches!(token.kind, TokenKind::Word(name) if name != WARP_SIZE) {
            self.put_back(token);
            return Ok(Initial::Address(self.symbol_address(None)?));
        }
        let value = match self.expression(token)? {
            Constant::Signed(value) => value.cast_unsigned(),
            Constant::Unsigned(value) => value,
            Constant::F32(bits) => return Ok(Initial::F32(bits)),
            Constant::F64(value) => return Ok(Initial::F64(value.to_bits())),
        };
        if !self.accept(b'(')? {
            return Ok(Initial::Int(value));
        }
        let address = self.symbol_address(Some(value))?;
        self.expect(b')')?;
        Ok(Initial::Address(address))
    }

    /// Parses `name` or `generic(name)`, each with an optional `+ offset` inside or outside the parentheses.
    fn symbol_address(&mut self, mask: Option<u64>) -> ParseResult<SymbolAddress<'a>> {
        let mut name = self.word()?;
        let mut offset = 0;
        let generic = name == "generic" && self.accept(b'(')?;
        if generic {
            name = self.word()?;
            offset = self.signed_offset()?;
            self.expect(b')')?;
        }
        offset = i64::wrapping_add(offset, self.signed_offset()?);
        Ok(SymbolAddress { name, generic, offset, mask })
    }
}
