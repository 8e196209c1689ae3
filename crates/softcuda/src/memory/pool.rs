//! Memory pools: memory that streams allocate and free in their own order.
//!
//! A pool owns a range of addresses. It takes memory of its budget in blocks of 32 MiB, in which it packs allocations. The call
//! returns the address at once. The stream that freed an allocation can reuse it at once, because its old work comes before the
//! new. Other streams can when that stream has reached the free. Empty blocks go back at synchronisation points, down to the
//! pool's release threshold.
//!
//! `state` knows what is allocated and freed, `object` orders that with streams, `choice` finds the pool that a call means, and
//! `operations` implements calls.

mod choice;
mod object;
mod operations;
mod state;

pub(crate) use choice::{
    current, default_of, default_of_device, named, of_device, reclaim_completed, select, trim_device,
};
pub(crate) use object::Pool;
pub(crate) use operations::{allocate, create, destroy, free_async, free_now, resolve};
