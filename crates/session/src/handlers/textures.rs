//! Messages about arrays, textures, surfaces and tensor maps.

pub(crate) mod array;
pub(crate) mod reference;
pub(crate) mod tensor_map;
pub(crate) mod texture;
