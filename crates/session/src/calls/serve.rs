//! Executes the frames of a session of CUDA, and determines what their calls wait for.
//!
//! One thread executes frames in order, and never waits for the GPU (`katydid_session_core::execute_frames`).

use std::sync::Arc;

use katydid_cuda_sys::{CU_STREAM_LEGACY, CUstream};
use katydid_session_core::{FrameHandler, LoopEnd, PumpOutcome, execute, execute_frames, next};
use katydid_transport::{Spin, WorkerLink};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{cuCtxSynchronize, cuEventSynchronize, cuStreamSynchronize};

use crate::calls::busy_poll::{MainLoop, WaitTarget};
use crate::calls::dispatch::dispatch;
use crate::calls::fault::{Fault, SessionError};
use crate::calls::relay::{self, Relay};
use crate::calls::session_shared::{Cuda, CudaSessionShared};
use crate::handlers::uses_pieces;
use crate::state::Session;

/// A context with more streams than this is not polled, since each stream takes a query.
const MAX_EVENT_QUERY_STREAMS: usize = 8;

impl FrameHandler for Session {
    type Api = Cuda;
    type Target = WaitTarget;
    type Fault = Fault;

    fn parts(&mut self) -> (&Arc<CudaSessionShared>, &mut MainLoop) {
        (&self.shared, &mut self.main_loop)
    }

    fn dispatch(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), Fault> {
        self.enter_for(head)?;
        self.main_loop.busy_poll.target = self.target(head, payload);
        dispatch(self, head, payload)
    }

    fn discard(&mut self, head: &FrameHead) {
        self.synchronized = false;
        if uses_pieces(head.opcode) {
            // The pieces are useless now, and must not be taken for those of the thread's next call.
            self.uploads.discard(head.thread);
        }
    }

    fn waiting_upcalls(shared: &CudaSessionShared) -> u64 {
        u64::from(shared.upcalls.waiting().is_some())
    }

    fn set_payload_buffer(&mut self, buffer: Option<usize>) {
        self.payload_buffer = buffer;
    }

    fn ends_loop(opcode: u16) -> bool {
        relay::begins_with(opcode)
    }

    fn resumed(&mut self) {
        // The thread that imports objects waits since the snapshot was taken.
        self.shares.go_on();
    }
}

impl Session {
    /// Executes frames until the program closes its end.
    ///
    /// The driver copies on from and to the session's memory, graphs run on, and a thread may still read the link. So
    /// neither session nor link can be dropped afterwards: they end with the process.
    ///
    /// # Errors
    ///
    /// The program's fault, or why the worker cannot go on.
    pub fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        let outcome = self.execute_all(link);
        // A companion that waits for an order learns that the session has ended.
        self.main_loop.orders = None;
        outcome
    }

    fn execute_all(&mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        if self.is_relayed || self.main_loop.waiting_upcall.is_some() {
            return self.serve_relayed(link);
        }
        match execute_frames(self, link)? {
            LoopEnd::Closed => Ok(()),
            LoopEnd::HandedOver => self.serve_relayed(link),
        }
    }

    /// Executes frames with the relay between link and main loop.
    fn serve_relayed(&mut self, link: &'static mut dyn WorkerLink) -> Result<(), SessionError> {
        self.is_relayed = true;
        let mut relay = Relay::start(link, Arc::clone(&self.shared), self.main_loop.waiting_upcall.take())?;
        let spin = Spin::for_word();
        while let Some(item) = next(&relay.frames, &spin) {
            if relay.take(self, item)? == PumpOutcome::End {
                break;
            }
        }
        Ok(())
    }

    /// Executes one frame, whose payload may be any bytes.
    ///
    /// # Errors
    ///
    /// The program's fault, which ends its session.
    pub fn execute(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
        execute(self, head, payload)
    }

    /// Returns what the frame waits for, if that can be polled here. The frame's context is current.
    fn target(&mut self, head: &FrameHead, payload: &[u8]) -> Option<WaitTarget> {
        let may_look = self.main_loop.busy_poll.is_on && self.main_loop.busy_poll.is_enabled && !self.replay.is_on;
        // An executor could give a stream more work between the query and the call.
        if !may_look || self.main_loop.executors.is_awake(head.thread) || self.shared.calls.in_flight() > 0 {
            return None;
        }
        match head.opcode {
            cuStreamSynchronize::OPCODE => {
                let message = cuStreamSynchronize::decode(payload).ok()?;
                self.handle(head, message.hStream).ok().map(|stream| WaitTarget::Streams(vec![stream]))
            }
            cuEventSynchronize::OPCODE => {
                let message = cuEventSynchronize::decode(payload).ok()?;
                self.handle(head, message.hEvent).ok().map(WaitTarget::Event)
            }
            cuCtxSynchronize::OPCODE => self.streams_to_query().map(WaitTarget::Streams),
            _ => None,
        }
    }

    /// Returns all streams of the current context, if they are few. A primary context counts those of its green ones.
    fn streams_to_query(&self) -> Option<Vec<CUstream>> {
        let owner = |context: &u32| self.green_contexts.get(context).map(|green| green.owner);
        let is_meant = |context: &u32| *context == self.entered || owner(context) == Some(self.entered);
        let streams = self.tables.streams.all().filter(|(_, _, context)| is_meant(context));
        let of_threads = self.thread_streams.iter().filter(|((_, context), _)| is_meant(context));
        let others = streams.map(|(_, stream, _)| stream).chain(of_threads.map(|(_, stream)| *stream));
        let all: Vec<CUstream> =
            [CU_STREAM_LEGACY].into_iter().chain(others).take(MAX_EVENT_QUERY_STREAMS + 1).collect();
        (all.len() <= MAX_EVENT_QUERY_STREAMS).then_some(all)
    }
}
