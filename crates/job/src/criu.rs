//! CRIU: finding and running it, and the image files that it reads and writes.

pub(crate) mod capabilities;
pub(crate) mod dump_progress;
pub(crate) mod filelocks_img;
pub(crate) mod files_img;
pub mod io_uring_filter;
pub(crate) mod kernel_data;
pub(crate) mod link_remap;
pub mod link_remap_lock;
pub(crate) mod net_lock;
pub(crate) mod options;
pub(crate) mod protobuf;
pub(crate) mod restore_images;
pub(crate) mod rpc;
pub(crate) mod sk_queues_img;
pub mod tool;
pub(crate) mod watchdog;
