//! Arrays, textures, surfaces and tensor maps.

pub(crate) mod array;
pub(crate) mod array_map;
pub(crate) mod object;
pub(crate) mod reference;
pub(crate) mod surface_reference;
pub(crate) mod tensor_map;
