//! Instructions for memory, textures, tensors and matrices.

pub(crate) mod async_copy;
pub(crate) mod atomic;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod multimem;
pub(crate) mod tensor;
pub(crate) mod texture;
