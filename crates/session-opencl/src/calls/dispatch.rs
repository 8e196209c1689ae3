//! What happens with each message, generated from `spec/opencl-session.api`: decoded, handed to
//! [`crate::handlers`] (where one is missing if this does not compile), answered.

use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message;

use crate::calls::fault::{Fault, SessionError};
use crate::state::Session;

include!(concat!(env!("OUT_DIR"), "/opencl_dispatch.rs"));
