//! Names of the components of vector registers: `v.x` to `v.w` of `.reg .v4 .f32 v`.
//!
//! A component is a register like any other, but the text may not contain its name, and names borrow from the text. So the names
//! are made once for a program, before it is decoded.

use crate::api::LoadError;
use katydid_ptx::ast::{Space, Statement, Variable};
use std::collections::HashMap;

/// The components of a vector, each with its two names.
const COMPONENTS: [[&str; 2]; 4] = [["x", "r"], ["y", "g"], ["z", "b"], ["w", "a"]];

/// Most vector registers of a program in declared ranges.
const MAX_VECTOR_REGISTERS: usize = 4096;

/// A vector register; registers of the same name in a program share it.
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

/// Returns the number of the component called `member`.
pub(crate) fn component(member: &str) -> Option<usize> {
    COMPONENTS.iter().position(|names| names.contains(&member))
}

/// Returns the names of the registers in a declaration.
pub(crate) fn declared_names(variable: &Variable<'_>) -> Vec<String> {
    match variable.count {
        Some(count) => (0..count).map(|number| format!("{}{number}", variable.name)).collect(),
        None => vec![variable.name.to_owned()],
    }
}

impl VectorNames {
    /// Collects the vector registers that the bodies of functions declare.
    pub(crate) fn of<'m>(mut bodies: impl Iterator<Item = &'m [Statement<'m>]>) -> Result<Self, LoadError> {
        let mut names = Self::default();
        bodies.try_for_each(|body| names.add(body))?;
        Ok(names)
    }

    /// Adds the declarations of a body.
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

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the vector register called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&VectorName> {
        self.0.get(name)
    }
}
