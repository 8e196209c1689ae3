//! Device output that did not fit a reply: the program asks until nothing is left. So all of it is printed before the call
//! returns that waited for the device.

use katydid_cuda_sys::CUresult;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdOutput, kdOutputReply};

use crate::handlers::ExecutorResult;
use crate::state::Session;

/// Does nothing: printed text comes with every reply to a blocking message.
pub(crate) fn kdOutput(_session: &mut Session, _head: &FrameHead, _message: kdOutput) -> ExecutorResult<kdOutputReply> {
    Ok(Box::new(|_| (CUresult::SUCCESS, kdOutputReply {})))
}
