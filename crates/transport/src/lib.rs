//! Shared-memory and stream links that carry frames.
