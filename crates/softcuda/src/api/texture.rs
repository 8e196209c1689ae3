//! Functions on arrays, textures, surfaces and tensor maps.

mod array;
mod object;
mod reference;
mod tensor_map;

pub(crate) use array::*;
pub(crate) use object::*;
pub(crate) use reference::*;
pub(crate) use tensor_map::*;
