//! CUDA graphs and stream capture as far as they need no GPU: what a program builds, queries and changes.
//!
//! Both driver libraries keep their graphs here: softcuda, which also runs them, and the shim, which sends a graph to the
//! worker when it is instantiated. The [`Backend`] has their differences. So one place knows which call invalidates a
//! capture and with which code; the codes were measured on driver 580.
//!
//! | part | files |
//! |---|---|
//! | parameters of nodes | `params` |
//! | graphs, nodes, edges, clones | `handles`, `graph`, `edges`, `clone` |
//! | capture | `captures`, `capture`, `legality` |
//! | all graphs and captures, under one lock | `api::store` |
//! | executable graphs | `plan`, `exec`, `instantiate`, `update` |
//! | memory, user objects, drawings | `memory`, `objects`, `dot` |
//! | the functions of the driver API | `api`, `functions` |

#![allow(non_snake_case, reason = "fields of the driver's structures keep the vendor's names")]

mod api;
mod backend;
mod capture;
mod captures;
mod clone;
mod dot;
mod edges;
mod exec;
mod functions;
mod graph;
mod handles;
mod instantiate;
mod legality;
mod memory;
mod objects;
mod outcome;
mod params;
mod plan;
mod update;

pub use api::{Graphs, Store};
pub use backend::{Backend, Code, Launch};
pub use captures::{CaptureOutcome, CaptureStream, StreamKey};
pub use graph::GraphState;
pub use handles::{GraphId, NodeId};
pub use legality::UncapturedCall;
pub use memory::Usage;
pub use outcome::Outcome;
pub use params::{Alloc, Arguments, Attributes, Batch, Conditional, Host, KeepAlive, Kernel, Memcpy, Memset, Params};
pub use plan::{Plan, PlanStep};
