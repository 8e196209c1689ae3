//! Output for users: documents, failures, tables, dates.

pub mod date;
pub mod document;
pub mod failure;
pub mod report;
pub mod table;
pub mod terminal;
