//! Links several texts to one program: finds the definition of each name.
//!
//! The rules are those of nvlink 13.0. Names that are neither `.visible`, `.weak`, `.common` nor `.extern` belong to their text
//! alone. A visible definition counts before a weak or common one, wherever it is. Without one, the first weak one counts, or the
//! largest common one. All declarations of a variable must agree in space and size; only a common one may be smaller than the
//! definition that counts.

use crate::api::LoadError;
use crate::control::builtin;
use crate::load::layout::layout_of;
use crate::load::vector_names::VectorNames;
use katydid_ptx::ast::{Function, Item, Linkage, Module, Space, Statement, Variable};
use std::collections::HashMap;

/// Meaning of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// Index into `LinkedProgram::functions`.
    Function(usize),
    /// Index into `LinkedProgram::variables`.
    Variable(usize),
    /// A function that the driver provides.
    Builtin,
}

/// A function with a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkedFunction<'m, 'a> {
    /// Index of its text.
    pub(crate) module: usize,
    /// The function as parsed.
    pub(crate) function: &'m Function<'a>,
}

/// A variable with memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkedVariable<'m, 'a> {
    /// Index of its text.
    pub(crate) module: usize,
    /// The variable as parsed.
    pub(crate) variable: &'m Variable<'a>,
}

/// A linked program, with indices in the order of the texts.
#[derive(Debug, Default)]
pub(crate) struct LinkedProgram<'m, 'a> {
    /// Every function with a body.
    pub(crate) functions: Vec<LinkedFunction<'m, 'a>>,
    /// Every variable at module level and every non-register variable inside a function that is static.
    pub(crate) variables: Vec<LinkedVariable<'m, 'a>>,
    /// The vector registers of all functions.
    pub(crate) vector_names: VectorNames,
    private: Vec<HashMap<&'a str, Symbol>>,
    public: HashMap<&'a str, Symbol>,
    /// Linkage of the definitions in `public`.
    linkages: HashMap<&'a str, Linkage>,
    aliases: Vec<(usize, &'a str, &'a str)>,
}

/// Precedence of a definition.
enum Precedence {
    /// It is the first of its name, or belongs to its text alone.
    New,
    /// It replaces another one.
    Instead(Symbol),
    /// Another one counts.
    None,
}

impl<'m, 'a> LinkedProgram<'m, 'a> {
    /// Links modules: finds each name's definition.
    pub(crate) fn new(modules: &'m [Module<'a>]) -> Result<Self, LoadError> {
        let mut linked = Self::default();
        for (number, module) in modules.iter().enumerate() {
            linked.private.push(HashMap::new());
            for item in &module.items {
                linked.add(number, item)?;
            }
        }
        for variable in modules.iter().flat_map(|module| &module.items).filter_map(declared) {
            if let Some(Symbol::Variable(index)) = linked.public.get(variable.name).copied() {
                linked.check_agreement(index, variable)?;
            }
        }
        for (module, name, target) in std::mem::take(&mut linked.aliases) {
            if let Some(symbol) = linked.find(module, target) {
                linked.public.insert(name, symbol);
            }
        }
        let bodies = linked.functions.iter().filter_map(|linked_function| linked_function.function.body.as_deref());
        linked.vector_names = VectorNames::of(bodies)?;
        Ok(linked)
    }

    /// Returns the symbol of `name` in text `module`.
    pub(crate) fn find(&self, module: usize, name: &str) -> Option<Symbol> {
        let private = self.private.get(module).and_then(|names| names.get(name));
        let symbol = private.or_else(|| self.public.get(name)).copied();
        symbol.or_else(|| builtin::find(name).map(|_| Symbol::Builtin))
    }

    /// Adds one item of a text.
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

    /// Adds a definition. A declaration adds nothing to a call.
    fn add_function(&mut self, module: usize, function: &'m Function<'a>) -> Result<(), LoadError> {
        let Some(body) = &function.body else { return Ok(()) };
        let symbol = Symbol::Function(self.functions.len());
        let linked_function = LinkedFunction { module, function };
        match self.define(module, function.name, function.linkage, symbol, function.line)? {
            Precedence::None => return Ok(()),
            Precedence::New => self.functions.push(linked_function),
            Precedence::Instead(Symbol::Function(index)) => self.functions[index] = linked_function,
            Precedence::Instead(_) => return Err(disagreement(function.name, function.line, "kind")),
        }
        self.add_static_variables(module, body, function.entry);
        Ok(())
    }

    /// Adds static variables inside a function: `.global` and `.const` ones, and `.shared` ones, which in a kernel are its own.
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

    /// Adds a variable that has memory in this program.
    fn add_variable(&mut self, module: usize, variable: &'m Variable<'a>) -> Result<(), LoadError> {
        // Dynamic shared memory has no definition anywhere.
        let defined = variable.linkage != Linkage::Extern || variable.space == Space::Shared;
        if !defined {
            return Ok(());
        }
        let linkage = if variable.linkage == Linkage::Extern { Linkage::Private } else { variable.linkage };
        let symbol = Symbol::Variable(self.variables.len());
        let earlier = self.public.get(variable.name).copied().filter(|_| linkage != Linkage::Private);
        match earlier {
            Some(Symbol::Variable(index)) => self.check_agreement(index, variable)?,
            Some(_) => return Err(disagreement(variable.name, variable.line, "kind")),
            None => {}
        }
        let linked_variable = LinkedVariable { module, variable };
        match (self.define(module, variable.name, linkage, symbol, variable.line)?, earlier) {
            (Precedence::New, _) => self.variables.push(linked_variable),
            (Precedence::Instead(Symbol::Variable(index)), _) => self.variables[index] = linked_variable,
            // A common variable takes the largest of its definitions.
            (Precedence::None, Some(Symbol::Variable(index)))
                if linkage == Linkage::Common
                    && size_of_all(variable)? > size_of_all(self.variables[index].variable)? =>
            {
                self.variables[index] = linked_variable;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks variable `index` against its declaration in another text.
    fn check_agreement(&self, index: usize, other: &Variable<'_>) -> Result<(), LoadError> {
        let Some(defined) = self.variables.get(index).map(|defined| defined.variable) else { return Ok(()) };
        if defined.space != other.space {
            return Err(disagreement(other.name, other.line, "state space"));
        }
        let (size, other_size) = (size_of_all(defined)?, size_of_all(other)?);
        let agree = match (defined.linkage, other.linkage) {
            (Linkage::Common, Linkage::Common) => true,
            (Linkage::Common, Linkage::Visible) => size <= other_size,
            (_, Linkage::Common) => other_size <= size,
            // An array without a size has that of its definition.
            _ => size == other_size || (other.linkage == Linkage::Extern && other_size == 0),
        };
        if agree { Ok(()) } else { Err(disagreement(other.name, other.line, "size")) }
    }

    /// Defines a name for one text only.
    fn define_private(&mut self, module: usize, name: &'a str, symbol: Symbol) {
        if let Some(names) = self.private.get_mut(module) {
            names.insert(name, symbol);
        }
    }

    /// Adds a definition, and returns its precedence.
    fn define(
        &mut self,
        module: usize,
        name: &'a str,
        linkage: Linkage,
        symbol: Symbol,
        line: u32,
    ) -> Result<Precedence, LoadError> {
        if linkage == Linkage::Private {
            self.define_private(module, name, symbol);
            return Ok(Precedence::New);
        }
        let earlier = self.public.get(name).copied().zip(self.linkages.get(name).copied());
        match earlier {
            Some((_, Linkage::Visible)) if linkage == Linkage::Visible => {
                return Err(LoadError::DuplicateSymbol { line, name: name.to_owned() });
            }
            Some((symbol, _)) if linkage == Linkage::Visible => {
                self.linkages.insert(name, linkage);
                return Ok(Precedence::Instead(symbol));
            }
            Some(_) => return Ok(Precedence::None),
            None => {}
        }
        self.public.insert(name, symbol);
        self.linkages.insert(name, linkage);
        Ok(Precedence::New)
    }
}

/// Returns the variable that an item declares without defining it.
fn declared<'m, 'a>(item: &'m Item<'a>) -> Option<&'m Variable<'a>> {
    match item {
        Item::Variable(variable) if variable.linkage == Linkage::Extern && variable.space != Space::Shared => {
            Some(variable)
        }
        _ => None,
    }
}

/// Returns the bytes of a variable.
fn size_of_all(variable: &Variable<'_>) -> Result<u64, LoadError> {
    layout_of(variable).map(|layout| layout.size)
}

/// Returns the error of two texts with different declarations of one name.
fn disagreement(name: &str, line: u32, what: &str) -> LoadError {
    LoadError::InvalidPtx { line, message: format!("the {what} of {name} differs from that in another text") }
}

/// Returns whether a variable declared inside a function belongs to the program.
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
        let linked = LinkedProgram::new(&modules).unwrap();
        assert_eq!(linked.find(0, "f"), Some(Symbol::Function(0)));
        assert_eq!(linked.find(0, "x"), Some(Symbol::Variable(0)));
        assert_eq!((linked.find(0, "y"), linked.find(0, "vprintf")), (None, Some(Symbol::Builtin)));
    }

    #[test]
    fn private_names_stay_in_their_text() {
        let modules = parse(&[".func f { ret; }", ".func f { exit; }"]);
        let linked = LinkedProgram::new(&modules).unwrap();
        assert_eq!((linked.find(0, "f"), linked.find(1, "f")), (Some(Symbol::Function(0)), Some(Symbol::Function(1))));
    }

    #[test]
    fn weak_names_give_way_and_visible_ones_clash() {
        let modules = parse(&[".weak .func f { ret; }", ".weak .func f { exit; }"]);
        assert_eq!(LinkedProgram::new(&modules).unwrap().functions.len(), 1);
        let modules = parse(&[".visible .func f { ret; }", ".visible .func f { exit; }"]);
        assert!(matches!(LinkedProgram::new(&modules), Err(LoadError::DuplicateSymbol { .. })));
    }

    #[test]
    fn a_visible_definition_counts_wherever_it_stands() {
        for texts in [
            [".weak .func f { ret; }", ".visible .func f { exit; }"],
            [".visible .func f { exit; }", ".weak .func f { ret; }"],
        ] {
            let modules = parse(&texts);
            let linked = LinkedProgram::new(&modules).unwrap();
            assert_eq!((linked.functions.len(), linked.functions[0].function.linkage), (1, Linkage::Visible));
        }
        let modules = parse(&[".common .global .u32 x[2];", ".visible .global .u32 x[4] = {1, 2, 3, 4};"]);
        let linked = LinkedProgram::new(&modules).unwrap();
        assert_eq!((linked.variables.len(), linked.variables[0].module), (1, 1));
    }

    #[test]
    fn texts_must_agree_on_variables() {
        let differs = |texts: &[&'static str]| match LinkedProgram::new(&parse(texts)) {
            Err(LoadError::InvalidPtx { message, .. }) => message.split(' ').nth(1).unwrap().to_owned(),
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        };
        assert_eq!(differs(&[".weak .global .u32 x[2];", ".visible .global .u32 x[4];"]), "size");
        assert_eq!(differs(&[".visible .global .u32 x[4];", ".weak .global .u32 x[2];"]), "size");
        assert_eq!(differs(&[".visible .global .u32 x[2];", ".common .global .u32 x[4];"]), "size");
        assert_eq!(differs(&[".common .global .u32 x[2];", ".weak .global .u32 x[4];"]), "size");
        assert_eq!(differs(&[".extern .global .u32 x[2];", ".visible .global .u32 x[4];"]), "size");
        assert_eq!(differs(&[".extern .const .u32 x;", ".visible .global .u32 x;"]), "state");
        assert_eq!(differs(&[".visible .func x { ret; }", ".visible .global .u32 x;"]), "kind");
        assert_eq!(differs(&[".extern .global .u32 x[];", ".visible .global .u32 x[4];"]), "");
        assert_eq!(differs(&[".global .u32 x;", ".global .u32 x[2];"]), "");
    }

    #[test]
    fn the_largest_common_definition_counts() {
        let modules = parse(&[".common .global .u32 x[2];", ".common .global .u32 x[5];"]);
        let linked = LinkedProgram::new(&modules).unwrap();
        assert_eq!((linked.variables.len(), linked.variables[0].variable.dimensions[0]), (1, 5));
    }
}
