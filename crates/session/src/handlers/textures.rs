//! Messages about arrays, textures, surfaces and tensor maps.

pub(crate) mod array;
mod array_size;
pub(crate) mod reference;
pub(crate) mod tensor_map;
pub(crate) mod texture;

pub(crate) use array::*;
pub(crate) use reference::*;
pub(crate) use tensor_map::*;
pub(crate) use texture::*;
