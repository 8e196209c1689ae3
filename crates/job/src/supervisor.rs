//! The supervisor of a job: its sockets, its members and their workers, and how a job is found.

pub mod companion;
pub(crate) mod control;
pub mod folder;
pub mod generations;
pub mod guard;
pub mod job;
pub(crate) mod keeper_link;
pub mod member_error;
pub mod members;
pub mod namespace;
pub(crate) mod operations;
pub(crate) mod question;
pub mod ranks;
pub mod registry;
pub(crate) mod runtime_dirs;
pub(crate) mod state;
pub mod view;
