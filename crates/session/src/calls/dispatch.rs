//! The dispatch of messages, generated from `spec/cuda.api` and `spec/session.api`.
//!
//! Functions of CUDA are complete here: decoded, their ids resolved, called, answered. Katydid's own messages (`kd…`) go to
//! [`crate::handlers`]; if one has no handler, this does not compile.

#![expect(unsafe_code, reason = "calls the driver with the arguments of a message")]
#![allow(non_snake_case, unused_variables, clippy::unnecessary_cast, reason = "generated; names are the vendor's")]

use katydid_cuda_sys as sys;
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message;

use crate::calls::fault::{Fault, SessionError};
use crate::state::Session;

include!(concat!(env!("OUT_DIR"), "/dispatch.rs"));
