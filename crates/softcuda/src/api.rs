//! The functions of the driver API that are implemented, as the generated symbols call them: a few lines each, over the
//! core. `implemented.txt` lists them.

mod batches;
mod contexts;
mod copies;
mod devices;
mod events;
mod fills;
mod functions;
mod hosts;
mod launches;
mod libraries;
mod links;
mod manageds;
mod mappings;
mod memories;
mod modules;
mod occupancies;
mod peers;
mod pointers;
mod pools;
mod start;
mod streams;
mod upcalls;

pub(crate) use batches::*;
pub(crate) use contexts::*;
pub(crate) use copies::*;
pub(crate) use devices::*;
pub(crate) use events::*;
pub(crate) use fills::*;
pub(crate) use functions::*;
pub(crate) use hosts::*;
pub(crate) use launches::*;
pub(crate) use libraries::*;
pub(crate) use links::*;
pub(crate) use manageds::*;
pub(crate) use mappings::*;
pub(crate) use memories::*;
pub(crate) use modules::*;
pub(crate) use occupancies::*;
pub(crate) use peers::*;
pub(crate) use pointers::*;
pub(crate) use pools::*;
pub(crate) use start::*;
pub(crate) use streams::*;
pub(crate) use upcalls::*;
