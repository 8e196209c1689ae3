//! Copies over TCP between threads of this process: the speed of the path itself.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

/// Numbers of connections of a plain copy, with their keys.
pub(super) const PLAIN_COPIES: [(usize, &str); 3] = [(1, "plain_64m_1"), (4, "plain_64m_4"), (8, "plain_64m_8")];
/// Bytes of one copy, over all connections.
pub(super) const NETWORK_COPY_BYTES: usize = 64 << 20;
/// Bytes of one write.
pub(super) const NETWORK_PIECE_BYTES: usize = 1 << 20;

/// Times `repetitions` plain copies over `connections` connections on loopback, in nanoseconds. Like iperf3, it sends the same
/// bytes again and again.
///
/// # Errors
///
/// What the system refuses.
pub(super) fn plain(connections: usize, repetitions: usize) -> io::Result<Vec<f64>> {
    let piece = vec![1; NETWORK_PIECE_BYTES];
    let bytes = NETWORK_COPY_BYTES / connections;
    let send = |stream: &mut TcpStream| {
        (0..bytes)
            .step_by(NETWORK_PIECE_BYTES)
            .try_for_each(|at| stream.write_all(&piece[..NETWORK_PIECE_BYTES.min(bytes - at)]))
    };
    timed(connections, repetitions, |_, stream| answer(stream, send))
}

/// Times copies over connections, in nanoseconds. `serve` serves each connection, and gets its number. The first tenth of copies,
/// at least one, does not count, while TCP adapts its window.
///
/// # Errors
///
/// What the system refuses, and failures of `serve`.
pub(super) fn timed<E: From<io::Error> + Send>(
    connections: usize,
    repetitions: usize,
    serve: impl Fn(usize, &mut TcpStream) -> Result<(), E> + Sync,
) -> Result<Vec<f64>, E> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (mut local, mut peers) = (Vec::with_capacity(connections), Vec::with_capacity(connections));
    for _ in 0..connections {
        local.push(TcpStream::connect(listener.local_addr()?)?);
        peers.push(listener.accept()?.0);
    }
    thread::scope(|scope| {
        let serve = &serve;
        let served: Vec<_> =
            (0..).zip(peers).map(|(at, mut stream)| scope.spawn(move || serve(at, &mut stream))).collect();
        let samples = received(local, repetitions);
        // A failure of `serve` explains why no more bytes came, so it takes precedence.
        served.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(died().into())))?;
        Ok(samples?)
    })
}

/// Answers each byte with `send`, until the other end closes.
///
/// # Errors
///
/// What the system refuses, and failures of `send`.
pub(super) fn answer<E: From<io::Error>>(
    stream: &mut TcpStream,
    mut send: impl FnMut(&mut TcpStream) -> Result<(), E>,
) -> Result<(), E> {
    while stream.read(&mut [0])? == 1 {
        send(stream)?;
    }
    Ok(())
}

/// Requests and times `repetitions` copies, then closes.
fn received(mut streams: Vec<TcpStream>, repetitions: usize) -> io::Result<Vec<f64>> {
    let mut memory = vec![0; NETWORK_COPY_BYTES];
    let mut samples = Vec::with_capacity(repetitions);
    let warm = (repetitions / 10).max(1);
    for round in 0..warm + repetitions {
        let start = Instant::now();
        receive(&mut streams, &mut memory)?;
        if round >= warm {
            samples.push(start.elapsed().as_nanos() as f64);
        }
    }
    Ok(samples)
}

fn died() -> io::Error {
    io::ErrorKind::Other.into()
}

/// Requests all bytes, and reads each connection's into its part of the memory.
fn receive(streams: &mut [TcpStream], memory: &mut [u8]) -> io::Result<()> {
    let each = memory.len() / streams.len();
    thread::scope(|scope| {
        let parts = streams.iter_mut().zip(memory.chunks_mut(each));
        let fetch = |(stream, part): (&mut TcpStream, &mut [u8])| {
            stream.write_all(&[1])?;
            stream.read_exact(part)
        };
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || fetch(part))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(died())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_over_however_many_connections() {
        for connections in [1, 4] {
            assert_eq!(plain(connections, 2).unwrap().len(), 2);
        }
    }

    #[test]
    fn an_error_of_a_sender_is_reported() {
        let failing = |at, stream: &mut TcpStream| {
            answer(stream, |stream| {
                if at == 1 { Err(io::Error::other("no bytes")) } else { stream.write_all(&[0; NETWORK_COPY_BYTES / 2]) }
            })
        };
        assert_eq!(timed(2, 1, failing).unwrap_err().to_string(), "no bytes");
    }
}
