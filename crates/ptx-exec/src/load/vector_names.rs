//! Names of the components of vector registers: `v.x` to `v.w` of `.reg .v4 .f32 v`.
//!
//! A component is a register like any other, but its name may stand nowhere in the text, and names borrow from the text. So
//! they are made once for a program, before it is decoded.

use crate::api::LoadError;
use katydid_ptx::ast::{Space, Statement, Variable};
use std::collections::HashMap;

/// The components of a vector, each by its two names.
const COMPONENTS: [[&str; 2]; 4] = [["x", "r"], ["y", "g"], ["z", "b"], ["w", "a"]];

/// Most vector registers of a program that are declared as ranges.
const MAX_VECTOR_REGISTERS: usize = 4096;

/// One vector register, or all in the program that have its name.
#[derive(Debug)]
pub(crate) struct VectorName {
    /// Its own name.
    pub(crate) name: String,
    /// The names of its components.
    pub(crate) components: [String; 4],
}

/// The vector registers of a program by name.
#[derive(Debug, Default)]
pub(crate) struct VectorNames(HashMap<String, VectorName>);

/// The number of the component called `member`.
pub(crate) fn component(member: &str) -> Option<usize> {
    COMPONENTS.iter().position(|names| names.contains(&member))
}

/// The names of the registers that a declaration makes.
pub(crate) fn declared_names(variable: &Variable<'_>) -> Vec<String> {
    match variable.count {
        Some(count) => (0..count).map(|number| format!("{}{number}", variable.name)).collect(),
        None => vec![variable.name.to_owned()],
    }
}

impl VectorNames {
    /// Those that the bodies of functions declare.
    pub(crate) fn of<'m>(mut bodies: impl Iterator<Item = &'m [Statement<'m>]>) -> Result<Self, LoadError> {
        let mut names = Self::default();
        bodies.try_for_each(|body| names.add(body))?;
        Ok(names)
    }

    /// Takes in the declarations of a body.
    fn add(&mut self, body: &[Statement<'_>]) -> Result<(), LoadError> {
        for statement in body {
            match statement {
                Statement::Declare(variable) if variable.space == Space::Reg && variable.vector > 1 => {
                    let count = variable.count.unwrap_or(1) as usize;
                    if self.0.len().saturating_add(count) > MAX_VECTOR_REGISTERS {
                        let name = format!("more than {MAX_VECTOR_REGISTERS} vector registers");
                        return Err(LoadError::Unsupported { line: variable.line, name });
                    }
                    for name in declared_names(variable) {
                        let components = COMPONENTS.map(|[component, _]| format!("{name}.{component}"));
                        self.0.insert(name.clone(), VectorName { name, components });
                    }
                }
                Statement::Block(inner) => self.add(inner)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The vector register called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&VectorName> {
        self.0.get(name)
    }
}
