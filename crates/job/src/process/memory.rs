//! Memory of a job's processes: its mappings, their NUMA policies, and pointers in a saved copy.

pub(crate) mod maps;
pub(crate) mod policy;
pub(crate) mod saved_pointers;
