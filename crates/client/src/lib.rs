//! The program's side of a session, shared by the shims: connection, handle records, cached facts, memory books.
pub mod life;
pub mod output;
pub mod params;
pub mod slab;
pub mod stack;
pub mod trace;
