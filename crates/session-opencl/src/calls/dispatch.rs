//! Dispatch of messages, generated from `spec/opencl-session.api`: decodes each, calls [`crate::handlers`] and answers. A missing
//! handler fails the build.

use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message;

use crate::calls::fault::{Fault, SessionError};
use crate::state::Session;

include!(concat!(env!("OUT_DIR"), "/opencl_dispatch.rs"));
