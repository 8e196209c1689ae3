//! Arrays, textures, surfaces and tensor maps.

pub(crate) mod array;
pub(crate) mod backing;
pub(crate) mod format;
pub(crate) mod object;
pub(crate) mod reference;
pub(crate) mod sparse;
pub(crate) mod tensor_map;
pub(crate) mod volume;
