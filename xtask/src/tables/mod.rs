//! Markdown tables of measured figures: those that `gpu-test` prints, and those that pages have of the same reports.

pub(crate) mod markdown;
pub(crate) mod reports;
