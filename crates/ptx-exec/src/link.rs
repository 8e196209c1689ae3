//! Several texts as one program: who defines each name.
//!
//! Names that are neither `.visible`, `.weak`, `.common` nor `.extern` belong to their text alone. The first definition of a
//! weak name wins, the largest of a common one.

use crate::api::LoadError;
use crate::builtin;
use katydid_ptx::ast::{Function, Item, Linkage, Module, Space, Statement, Variable};
use std::collections::HashMap;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// Index into `Linked::functions`.
    Function(usize),
    /// Index into `Linked::variables`.
    Variable(usize),
    /// A function that the driver provides.
    Builtin,
}

/// A function with a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkedFunction<'m, 'a> {
    /// Which text it is from.
    pub(crate) module: usize,
    /// The function.
    pub(crate) function: &'m Function<'a>,
}

/// A variable with memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkedVariable<'m, 'a> {
    /// Which text it is from.
    pub(crate) module: usize,
    /// The variable.
    pub(crate) variable: &'m Variable<'a>,
}

/// A linked program; indices are in the order of the texts.
#[derive(Debug, Default)]
pub(crate) struct Linked<'m, 'a> {
    /// Every function with a body.
    pub(crate) functions: Vec<LinkedFunction<'m, 'a>>,
    /// Every variable at module level and every non-register variable inside a function that is static.
    pub(crate) variables: Vec<LinkedVariable<'m, 'a>>,
    private: Vec<HashMap<&'a str, Symbol>>,
    public: HashMap<&'a str, Symbol>,
    aliases: Vec<(usize, &'a str, &'a str)>,
}

impl<'m, 'a> Linked<'m, 'a> {
    /// Links `modules`.
    pub(crate) fn new(modules: &'m [Module<'a>]) -> Result<Self, LoadError> {
        let mut linked = Self::default();
        for (number, module) in modules.iter().enumerate() {
            linked.private.push(HashMap::new());
            for item in &module.items {
                linked.add(number, item)?;
            }
        }
        for (module, name, target) in std::mem::take(&mut linked.aliases) {
            if let Some(symbol) = linked.find(module, target) {
                linked.public.insert(name, symbol);
            }
        }
        Ok(linked)
    }

    /// What `name` stands for in text `module`.
    pub(crate) fn find(&self, module: usize, name: &str) -> Option<Symbol> {
        let private = self.private.get(module).and_then(|names| names.get(name));
        let found = private.or_else(|| self.public.get(name)).copied();
        found.or_else(|| builtin::find(name).map(|_| Symbol::Builtin))
    }

    /// Takes in one item of a text.
    fn add(&mut self, module: usize, item: &'m Item<'a>) -> Result<(), LoadError> {
        match item {
            Item::Function(function) => self.add_function(module, function),
            Item::Variable(variable) => self.add_variable(module, variable),
            Item::Alias { name, target, .. } => {
                self.aliases.push((module, name, target));
                Ok(())
            }
        }
    }

    /// Takes in a definition; declarations say nothing that a call does not.
    fn add_function(&mut self, module: usize, function: &'m Function<'a>) -> Result<(), LoadError> {
        let Some(body) = &function.body else { return Ok(()) };
        let symbol = Symbol::Function(self.functions.len());
        if self.define(module, function.name, function.linkage, symbol, function.line)? {
            self.functions.push(LinkedFunction { module, function });
            self.add_static_variables(module, body, function.entry);
        }
        Ok(())
    }

    /// `.global` and `.const` variables may stand inside a function; so may `.shared` ones, which in a kernel are its own.
    fn add_static_variables(&mut self, module: usize, body: &'m [Statement<'a>], entry: bool) {
        for statement in body {
            match statement {
                Statement::Declare(variable) if is_static(variable.space, entry) => {
                    let symbol = Symbol::Variable(self.variables.len());
                    self.variables.push(LinkedVariable { module, variable });
                    self.define_private(module, variable.name, symbol);
                }
                Statement::Block(inner) => self.add_static_variables(module, inner, entry),
                _ => {}
            }
        }
    }

    /// Takes in a variable that has memory in this program.
    fn add_variable(&mut self, module: usize, variable: &'m Variable<'a>) -> Result<(), LoadError> {
        // Dynamic shared memory has no definition anywhere.
        let defined = variable.linkage != Linkage::Extern || variable.space == Space::Shared;
        if !defined {
            return Ok(());
        }
        let linkage = if variable.linkage == Linkage::Extern { Linkage::Private } else { variable.linkage };
        let symbol = Symbol::Variable(self.variables.len());
        if self.define(module, variable.name, linkage, symbol, variable.line)? {
            self.variables.push(LinkedVariable { module, variable });
        } else if linkage == Linkage::Common {
            self.enlarge(variable);
        }
        Ok(())
    }

    /// A common variable takes the largest of its definitions.
    fn enlarge(&mut self, variable: &'m Variable<'a>) {
        let size =
            |variable: &Variable<'_>| variable.dimensions.iter().fold(1_u64, |size, next| size.saturating_mul(*next));
        if let Some(Symbol::Variable(index)) = self.public.get(variable.name).copied()
            && let Some(known) = self.variables.get_mut(index)
            && size(variable) > size(known.variable)
        {
            known.variable = variable;
        }
    }

    /// A name of one text only.
    fn define_private(&mut self, module: usize, name: &'a str, symbol: Symbol) {
        if let Some(names) = self.private.get_mut(module) {
            names.insert(name, symbol);
        }
    }

    /// Returns whether this definition is the one that counts.
    fn define(
        &mut self,
        module: usize,
        name: &'a str,
        linkage: Linkage,
        symbol: Symbol,
        line: u32,
    ) -> Result<bool, LoadError> {
        match linkage {
            Linkage::Private => self.define_private(module, name, symbol),
            Linkage::Weak | Linkage::Common if self.public.contains_key(name) => return Ok(false),
            _ => {
                if self.public.insert(name, symbol).is_some() && linkage == Linkage::Visible {
                    return Err(LoadError::DuplicateSymbol { line, name: name.to_owned() });
                }
            }
        }
        Ok(true)
    }
}

/// Whether a variable declared inside a function belongs to the program.
fn is_static(space: Space, entry: bool) -> bool {
    matches!(space, Space::Global | Space::Const) || (space == Space::Shared && !entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&'static str]) -> Vec<Module<'static>> {
        let header = ".version 9.0 .target sm_90 .address_size 64 ";
        texts
            .iter()
            .map(|text| katydid_ptx::parse(Box::leak(format!("{header}{text}").into_boxed_str())).unwrap())
            .collect()
    }

    #[test]
    fn a_declaration_finds_the_definition_of_another_text() {
        let modules =
            parse(&[".extern .func f; .extern .global .u32 x;", ".visible .func f { ret; } .visible .global .u32 x;"]);
        let linked = Linked::new(&modules).unwrap();
        assert_eq!(linked.find(0, "f"), Some(Symbol::Function(0)));
        assert_eq!(linked.find(0, "x"), Some(Symbol::Variable(0)));
        assert_eq!((linked.find(0, "y"), linked.find(0, "vprintf")), (None, Some(Symbol::Builtin)));
    }

    #[test]
    fn private_names_stay_in_their_text() {
        let modules = parse(&[".func f { ret; }", ".func f { exit; }"]);
        let linked = Linked::new(&modules).unwrap();
        assert_eq!((linked.find(0, "f"), linked.find(1, "f")), (Some(Symbol::Function(0)), Some(Symbol::Function(1))));
    }

    #[test]
    fn weak_names_give_way_and_visible_ones_clash() {
        let modules = parse(&[".weak .func f { ret; }", ".weak .func f { exit; }"]);
        assert_eq!(Linked::new(&modules).unwrap().functions.len(), 1);
        let modules = parse(&[".visible .func f { ret; }", ".visible .func f { exit; }"]);
        assert!(matches!(Linked::new(&modules), Err(LoadError::DuplicateSymbol { .. })));
    }

    #[test]
    fn the_largest_common_definition_counts() {
        let modules = parse(&[".common .global .u32 x[2];", ".common .global .u32 x[5];"]);
        let linked = Linked::new(&modules).unwrap();
        assert_eq!((linked.variables.len(), linked.variables[0].variable.dimensions[0]), (1, 5));
    }
}
