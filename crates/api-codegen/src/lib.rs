//! Generates Rust from the API model.
