//! The surroundings of a job: files, standard streams, rights, containers.

pub(crate) mod containers;
pub(crate) mod here_documents;
pub(crate) mod modes;
pub(crate) mod names;
pub(crate) mod rights;
pub(crate) mod streams;
pub(crate) mod surroundings;
