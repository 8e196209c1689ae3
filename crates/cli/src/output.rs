//! What users read: documents, failures, tables, dates.

pub(crate) mod date;
pub(crate) mod document;
pub(crate) mod failure;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod terminal;
