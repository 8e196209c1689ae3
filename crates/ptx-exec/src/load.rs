//! From decoded PTX to a program that can be launched: what is accepted, linked and placed.

pub(crate) mod accept;
pub(crate) mod directives;
pub(crate) mod globals;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod program;
pub(crate) mod register_limit;
pub(crate) mod vector_names;
