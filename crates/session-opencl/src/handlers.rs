//! What each message does, by subject. The generated dispatch names these functions.
//!
//! Handles come out of the session's table, so they are a driver's own and alive; every pointer given to a driver is to
//! a local or to bytes that outlive the call, or the command by [`crate::objects::held_events`].

mod command;
mod device;
mod event;
mod info;
mod kernel;
mod life;
mod map;
mod memory;
mod program;
mod svm;
mod transfer;

pub(crate) use command::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use info::kdclInfo;
pub(crate) use kernel::*;
pub(crate) use life::*;
pub(crate) use map::*;
pub(crate) use memory::*;
pub(crate) use program::*;
pub(crate) use svm::*;
pub(crate) use transfer::*;

/// A list as drivers take it: null when it is empty.
fn pointer<T>(list: &[T]) -> *const T {
    if list.is_empty() { std::ptr::null() } else { list.as_ptr() }
}
