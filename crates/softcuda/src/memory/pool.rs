//! Memory pools: places that streams allocate and free in their own order.
//!
//! A pool owns a range of addresses and takes memory of its budget in blocks of 32 MiB, where its places are packed. An
//! address is given at the call. A place that a stream freed can be had again by that stream at once, because the old
//! work comes before the new, and by other streams when the stream has got there. Blocks without a place go back at
//! synchronisation points, down to the pool's release threshold.
//!
//! `state` says what is taken and freed, `object` orders that with streams, `choice` says which pool a call means, and
//! `operations` holds what calls do.

mod choice;
mod object;
mod operations;
mod state;

pub(crate) use choice::{
    current, default_of, default_of_device, named, of_device, reclaim_completed, select, trim_device,
};
pub(crate) use object::Pool;
pub(crate) use operations::{allocate, create, destroy, free_async, free_now, resolve};
