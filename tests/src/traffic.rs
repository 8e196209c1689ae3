//! A network that counts: what passes between programs and a server, which notice nothing of it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Bytes in front of a reply's length, and of all of its head.
const HEAD: usize = 32;

/// What went over a network.
#[derive(Debug, Default)]
pub struct Traffic {
    /// How often somebody waited.
    pub replies: AtomicU64,
    /// Bytes from programs.
    pub sent: AtomicU64,
    /// Bytes of replies.
    pub received: AtomicU64,
}

/// Passes on what a program sends.
fn pass(mut from: TcpStream, mut to: TcpStream, sent: &AtomicU64) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).ok().filter(|length| *length > 0)?;
        sent.fetch_add(length as u64, Ordering::Relaxed);
        to.write_all(&bytes[..length]).ok()?;
    }
}

/// Reads what goes from a worker to its program: one message of the handshake, then replies.
fn count(mut from: TcpStream, mut to: TcpStream, traffic: &Traffic) -> Option<()> {
    let mut message = vec![0; 72];
    from.read_exact(&mut message).ok()?;
    let length = u32::from_le_bytes(message[8..12].try_into().ok()?) as usize;
    message.resize(length, 0);
    from.read_exact(&mut message[72..]).ok()?;
    to.write_all(&message).ok()?;
    loop {
        let mut frame = vec![0; HEAD];
        from.read_exact(&mut frame).ok()?;
        // Thread 2^32 - 1 is a worker that says that it is there: nobody waits for that.
        if frame[16..20] != [0xff; 4] {
            traffic.replies.fetch_add(1, Ordering::Relaxed);
        }
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        traffic.received.fetch_add(length as u64, Ordering::Relaxed);
        frame.resize(length, 0);
        from.read_exact(&mut frame[HEAD..]).ok()?;
        to.write_all(&frame).ok()?;
    }
}

/// A network to `server` (`tcp://…`) that counts what passes; its address.
///
/// # Errors
///
/// The address is none of TCP, or no other one can be had.
pub fn counting(server: &str, traffic: &Arc<Traffic>) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let server = server
        .strip_prefix("tcp://")
        .ok_or_else(|| io::Error::other(format!("{server} is no address of TCP")))?
        .to_owned();
    let traffic = Arc::clone(traffic);
    thread::spawn(move || {
        while let Ok((program, _)) = listener.accept() {
            let Ok(worker) = TcpStream::connect(&server) else { return };
            let (Ok(from), Ok(to)) = (program.try_clone(), worker.try_clone()) else { return };
            let (forth, back) = (Arc::clone(&traffic), Arc::clone(&traffic));
            thread::spawn(move || {
                let ended = to.try_clone();
                pass(from, to, &forth.sent);
                ended.map(|worker| worker.shutdown(Shutdown::Write))
            });
            thread::spawn(move || {
                let ended = program.try_clone();
                count(worker, program, &back);
                ended.map(|program| program.shutdown(Shutdown::Both))
            });
        }
    });
    Ok(address)
}
