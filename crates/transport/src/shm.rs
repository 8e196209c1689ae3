//! The link through shared memory: frames go into a ring, each thread's replies into its slot.

pub(crate) mod channel;
pub(crate) mod layout;
pub(crate) mod mapped_fd;
pub(crate) mod program;
pub(crate) mod reply;
pub(crate) mod ring;
pub(crate) mod shared_mapping;
pub(crate) mod staging;
pub(crate) mod staging_map;
pub(crate) mod staging_piece;
pub(crate) mod worker;
