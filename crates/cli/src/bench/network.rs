//! A plain copy over TCP between two threads of this process, as iperf3 would make it: what the path itself can do.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

/// Bytes of one copy, all connections together.
const BYTES: usize = 64 << 20;
/// What is written at a time.
const PIECE: usize = 1 << 20;

/// Nanoseconds of each of `repetitions` copies over so many connections of loopback. The first tenth, and at least one, is
/// thrown away: TCP learns how much may be under way.
///
/// # Errors
///
/// What the system refuses.
pub(super) fn plain(connections: usize, repetitions: usize) -> io::Result<Vec<f64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut pairs = Vec::with_capacity(connections);
    for _ in 0..connections {
        let ours = TcpStream::connect(listener.local_addr()?)?;
        pairs.push((ours, listener.accept()?.0));
    }
    thread::scope(|scope| {
        let (mut ours, theirs): (Vec<TcpStream>, Vec<TcpStream>) = pairs.into_iter().unzip();
        for stream in theirs {
            scope.spawn(move || send(stream, BYTES / connections));
        }
        let mut memory = vec![0; BYTES];
        let mut samples = Vec::with_capacity(repetitions);
        let warm = (repetitions / 10).max(1);
        for round in 0..warm + repetitions {
            let start = Instant::now();
            receive(&mut ours, &mut memory)?;
            if round >= warm {
                samples.push(start.elapsed().as_nanos() as f64);
            }
        }
        Ok(samples)
    })
}

/// Answers each byte with `bytes` of them, until the other end closes.
fn send(mut stream: TcpStream, bytes: usize) -> io::Result<()> {
    let piece = vec![1; PIECE];
    while stream.read(&mut [0])? == 1 {
        for at in (0..bytes).step_by(PIECE) {
            stream.write_all(&piece[..PIECE.min(bytes - at)])?;
        }
    }
    Ok(())
}

/// Asks for all bytes, each connection's into its part of the memory.
fn receive(streams: &mut [TcpStream], memory: &mut [u8]) -> io::Result<()> {
    let each = memory.len() / streams.len();
    thread::scope(|scope| {
        let parts = streams.iter_mut().zip(memory.chunks_mut(each));
        let fetch = |(stream, part): (&mut TcpStream, &mut [u8])| {
            stream.write_all(&[1])?;
            stream.read_exact(part)
        };
        let all: Vec<_> = parts.map(|part| scope.spawn(move || fetch(part))).collect();
        all.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(io::ErrorKind::Other.into())))
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
}
