//! Tables of Markdown that show measured figures: what `gpu-test` prints, and what pages have of the same reports.

pub(crate) mod markdown;
pub(crate) mod reports;
