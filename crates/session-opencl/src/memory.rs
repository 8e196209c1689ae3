//! Memory that program and worker share: staged pieces, zero-copy buffers, shared virtual memory, pinned buffers.

pub(crate) mod address;
pub(crate) mod charge;
pub(crate) mod free;
pub(crate) mod host;
pub(crate) mod images_in_place;
pub(crate) mod initial_data;
pub(crate) mod pinned;
pub(crate) mod programs;
pub(crate) mod staged;
pub(crate) mod staging_pin;
pub(crate) mod svm;
pub(crate) mod svm_placement;
pub(crate) mod unshare;
pub(crate) mod unshared_pages;
pub(crate) mod zero_copy;
pub(crate) mod zero_copy_area;
