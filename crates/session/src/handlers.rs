//! Handlers of Katydid's own messages (`spec/session.api`): one file a concept, one function a message.
//!
//! A handler of an enqueued message returns the code of the call; of a call, code and reply; of a blocking call, the job for
//! an executor. An error is the call's code or the end of the session.

#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

mod code;
mod context;
mod event;
mod facts;
mod graph;
mod green_ctx;
mod memory;
mod output;
mod sm_topology;
mod stream_attribute;
mod textures;
mod upcall;

use katydid_cuda_sys::CUresult;
use katydid_wire::frame::MAX_PAYLOAD_BYTES;

use crate::calls::executor::ExecutorCall;
use crate::calls::fault::Fault;

pub(crate) use code::*;
pub(crate) use context::*;
pub(crate) use event::*;
pub(crate) use facts::*;
pub(crate) use graph::*;
pub(crate) use green_ctx::*;
pub(crate) use memory::*;
pub(crate) use output::*;
pub(crate) use sm_topology::*;
pub(crate) use stream_attribute::*;
pub(crate) use textures::*;
pub(crate) use upcall::*;

/// Most bytes of data in one reply, after the 4 bytes of their length.
const MAX_REPLY_DATA_BYTES: usize = MAX_PAYLOAD_BYTES - 4;

/// What a handler of an enqueued message returns.
type EnqueueResult = Result<CUresult, Fault>;
/// What a handler of a call returns.
type CallResult<R> = Result<(CUresult, R), Fault>;
/// What a handler of a blocking call returns.
type ExecutorResult<R> = Result<ExecutorCall<R>, Fault>;

/// Success, with a reply.
fn success<R>(reply: R) -> CallResult<R> {
    Ok((CUresult::SUCCESS, reply))
}
