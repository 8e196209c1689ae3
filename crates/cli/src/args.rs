//! Input of users: flags and variables.

pub(crate) mod command;
pub(crate) mod flags;
pub(crate) mod mistake;
pub(crate) mod periodic;
#[cfg(test)]
mod reference;
pub(crate) mod variables;
