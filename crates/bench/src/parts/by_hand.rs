//! Copies from the device over TCP by a program itself: the driver copies parts of memory to pinned memory, from which threads
//! send them. Such copies through Katydid take at least this long.

use std::io::Write;
use std::net::TcpStream;

use crate::cuda::objects::Event;
use crate::cuda::{Cuda, CudaError, PinnedMemory};
use crate::network::{self, NETWORK_COPY_BYTES, NETWORK_PIECE_BYTES};
use crate::sampling::{Body, Samples};

const COPY_CONNECTIONS: usize = 8;
/// Bytes that one connection sends.
const CONNECTION_BYTES: usize = NETWORK_COPY_BYTES / COPY_CONNECTIONS;

pub(super) fn measure(body: &mut Body) {
    let samples = copies(&body.cuda, body.plan.large as usize);
    body.note("by_hand_64m_8", samples);
}

fn copies(cuda: &Cuda, repetitions: usize) -> Samples {
    let device = cuda.allocate(NETWORK_COPY_BYTES)?;
    let samples = network::timed(COPY_CONNECTIONS, repetitions, |number, stream| {
        cuda.enter()?;
        serve(cuda, device + (number * CONNECTION_BYTES) as u64, stream)
    });
    cuda.free(device)?;
    samples
}

/// Sends the part of the device's memory that begins at `from`, once per request.
fn serve(cuda: &Cuda, from: u64, stream: &mut TcpStream) -> Result<(), CudaError> {
    let order = cuda.new_stream()?;
    let piece = |at: usize| Ok((from + at as u64, cuda.pinned(NETWORK_PIECE_BYTES)?, cuda.new_event()?));
    let mut pieces = (0..CONNECTION_BYTES)
        .step_by(NETWORK_PIECE_BYTES)
        .map(piece)
        .collect::<Result<Vec<(u64, PinnedMemory<'_>, Event<'_>)>, CudaError>>()?;
    let served = network::answer(stream, |stream| {
        for (from, piece, copied) in &pieces {
            order.begin_copy_out(piece, *from)?;
            order.record(copied)?;
        }
        for (_, piece, copied) in &mut pieces {
            copied.wait()?;
            stream.write_all(piece.bytes_mut())?;
        }
        Ok(())
    });
    // After a failure, no copy may still use the memory.
    order.synchronize()?;
    served
}
