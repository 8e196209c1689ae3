//! The descriptors of arrays, textures, references, tensor maps and parts of a device.

pub mod array_map;
pub mod reference;
pub mod resource;
pub mod tensor_map;
pub mod texture;
