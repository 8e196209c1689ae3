//! Turns decoded PTX into a launchable program: checks, links and places it.

pub(crate) mod accept;
pub(crate) mod directives;
pub(crate) mod globals;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod program;
pub(crate) mod register_limit;
pub(crate) mod vector_names;
