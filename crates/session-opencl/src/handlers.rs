//! Handlers of all messages, by subject. The generated dispatch calls these functions.
//!
//! Handles come from the session's table, so they belong to a driver and are alive. Every pointer given to a driver is to a local
//! or to bytes that outlive the call. [`crate::objects::held_events`] keeps bytes until a command ends.

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

/// Returns the pointer that drivers expect for a list: null if it is empty.
fn pointer<T>(list: &[T]) -> *const T {
    if list.is_empty() { std::ptr::null() } else { list.as_ptr() }
}
