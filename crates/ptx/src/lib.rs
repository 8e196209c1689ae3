//! PTX text to a checked syntax tree.
