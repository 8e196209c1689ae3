//! Module images as programs pass them to the driver: PTX text, cubins, fatbin containers, and wrappers around those.
//!
//! ```text
//! wrapper (24 bytes) ──▶ container ── entry (PTX | cubin | LTO), entry, …
//!                   └──▶ NULL-ended array of further containers (version 2: separately compiled objects)
//! ```
//!
//! An API call passes a bare pointer; [`image_at`] finds the kind and length of the image there. A [`ModuleImage`] is a view of
//! the parts, wherever they lie. It has a flat form for the wire ([`ModuleImage::encode`], [`ModuleImage::decode`]) and can be
//! rebuilt for a driver ([`ModuleImage::rebuild`]). [`ModuleImage::for_devices`] leaves out what none of the devices can use.
//! [`ModuleImage::ptx`] selects the text that a software device runs.
//!
//! Apart from [`image_at`], which must trust its caller, this crate trusts no length: damaged images are errors.

mod compilation;
mod container;
mod declarations;
mod elf;
mod entry;
mod error;
mod extent;
mod image;
mod linked;
mod object;
mod ptx;
mod rebuild;
mod selection;
mod system_atomics;
mod variables;

pub use compilation::Compilation;
pub use container::{Container, Entries};
pub use entry::{EntryKind, FatbinEntry};
pub use error::ModuleImageError;
pub use extent::image_at;
pub use image::{ModuleImage, ModuleImageKind};
pub use linked::linked_image;
pub use object::{containers_of_object, members_of_library};
pub use ptx::Ptx;
pub use rebuild::OwnedImage;
pub use selection::{SELECTION_RULES, Selection};
pub use variables::{CodeLocation, MachineCode, Variable, Variables};
