//! A proxy that counts traffic between programs and a server. They notice nothing of it, except delays.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a reply frame's head, which begins with the length of the whole frame.
const FRAME_HEAD_BYTES: usize = 32;
/// A proxy that holds replies back forwards them when neither side has sent anything for this long.
const SILENCE_TIME: Duration = Duration::from_millis(20);

/// How a proxy forwards traffic.
#[derive(Debug, Clone, Copy)]
pub enum DelayModel {
    /// Bytes are forwarded as they arrive.
    AtOnce,
    /// Each direction is delayed by this time, whatever the size.
    Late(Duration),
    /// Replies are held back until both sides are silent: the program must then be waiting for one.
    Held,
}

/// Counters of a proxy's traffic.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Number of replies, each of which a side waited for.
    pub replies: AtomicU64,
    /// Bytes that programs have sent.
    pub sent: AtomicU64,
    /// Bytes of replies that servers have sent.
    pub received: AtomicU64,
    /// How often held replies were forwarded.
    pub rounds: AtomicU64,
    state: Mutex<HeldTraffic>,
    changed: Condvar,
}

/// Held frames, and when the last traffic arrived.
#[derive(Debug, Default)]
struct HeldTraffic {
    /// Bytes, their destination, and whether they are a reply.
    frames: Vec<(TcpStream, Vec<u8>, bool)>,
    last_frame: Option<Instant>,
}

impl Traffic {
    /// Records traffic of either side; `frame` is that of a worker.
    fn on_frame(&self, frame: Option<(TcpStream, Vec<u8>, bool)>) {
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        held.frames.extend(frame);
        held.last_frame = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits for silence after a held frame, and takes all held frames.
    fn wait(&self) -> Vec<(TcpStream, Vec<u8>, bool)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let silent = state.last_frame.map_or(SILENCE_TIME, |last_frame| last_frame.elapsed());
            if !state.frames.is_empty() && silent >= SILENCE_TIME {
                return std::mem::take(&mut state.frames);
            }
            state = if state.frames.is_empty() {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(state, SILENCE_TIME - silent).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Forwards held frames in an endless loop.
    fn let_go(&self) {
        loop {
            let frames = self.wait();
            let is_round = frames.iter().any(|(.., is_reply)| *is_reply);
            self.rounds.fetch_add(u64::from(is_round), Ordering::Relaxed);
            for (mut to, bytes, _) in frames {
                // A program that has ended needs no more data.
                let _ = to.write_all(&bytes);
            }
        }
    }
}

/// Forwards bytes; the second argument tells whether they are a reply.
type ForwardFrame = Box<dyn FnMut(Vec<u8>, bool) -> Option<()> + Send>;

/// Returns the forwarding function of a connection, for this delay model.
fn onward(mut to: TcpStream, manner: DelayModel, traffic: &Arc<Traffic>, is_back: bool) -> ForwardFrame {
    match manner {
        DelayModel::Held if is_back => {
            let (traffic, mut has_greeted) = (Arc::clone(traffic), false);
            Box::new(move |bytes, is_reply| {
                // The handshake is forwarded at once: after a query for its driver, the server closes the connection.
                if !std::mem::replace(&mut has_greeted, true) {
                    return to.write_all(&bytes).ok();
                }
                traffic.on_frame(Some((to.try_clone().ok()?, bytes, is_reply)));
                Some(())
            })
        }
        DelayModel::Late(delay) => {
            let (queue, queued) = channel::<(Instant, Vec<u8>)>();
            thread::spawn(move || {
                for (due, bytes) in queued {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    if to.write_all(&bytes).is_err() {
                        return;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            });
            Box::new(move |bytes, _| queue.send((Instant::now() + delay, bytes)).ok())
        }
        DelayModel::AtOnce | DelayModel::Held => Box::new(move |bytes, _| to.write_all(&bytes).ok()),
    }
}

/// Forwards what a program sends.
fn pass(mut from: TcpStream, traffic: &Traffic, mut onward: ForwardFrame) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).ok().filter(|length| *length > 0)?;
        traffic.sent.fetch_add(length as u64, Ordering::Relaxed);
        traffic.on_frame(None);
        onward(bytes[..length].to_vec(), false)?;
    }
}

/// Reads what a worker sends to its program: one message of the handshake, then replies.
fn count(mut from: TcpStream, traffic: &Traffic, mut onward: ForwardFrame) -> Option<()> {
    let mut message = vec![0; 72];
    from.read_exact(&mut message).ok()?;
    let length = u32::from_le_bytes(message[8..12].try_into().ok()?) as usize;
    message.resize(length, 0);
    from.read_exact(&mut message[72..]).ok()?;
    onward(message, false)?;
    loop {
        let mut frame = vec![0; FRAME_HEAD_BYTES];
        from.read_exact(&mut frame).ok()?;
        // Thread 2^32 - 1 marks a worker's sign of life, for which no thread waits.
        let is_reply = frame[16..20] != [0xff; 4];
        traffic.replies.fetch_add(u64::from(is_reply), Ordering::Relaxed);
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        traffic.received.fetch_add(length as u64, Ordering::Relaxed);
        frame.resize(length, 0);
        from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).ok()?;
        onward(frame, is_reply)?;
    }
}

/// Starts a counting proxy to `server` (`tcp://…`) with this delay model, and returns its address.
///
/// # Errors
///
/// The address is not a TCP address, or no port is available.
pub fn counting(server: &str, manner: DelayModel, traffic: &Arc<Traffic>) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let server = server
        .strip_prefix("tcp://")
        .ok_or_else(|| io::Error::other(format!("{server} is not an address of TCP")))?
        .to_owned();
    let (traffic, held) = (Arc::clone(traffic), Arc::clone(traffic));
    thread::spawn(move || held.let_go());
    thread::spawn(move || {
        while let Ok((program, _)) = listener.accept() {
            let Ok(worker) = TcpStream::connect(&server) else { return };
            // Small writes are not delayed to be merged.
            let _ = program.set_nodelay(true).and_then(|()| worker.set_nodelay(true));
            let (Ok(from), Ok(to)) = (program.try_clone(), worker.try_clone()) else { return };
            let (there, back) =
                (onward(to, manner, &traffic, false), program.try_clone().map(|to| onward(to, manner, &traffic, true)));
            let (forth, home) = (Arc::clone(&traffic), Arc::clone(&traffic));
            let ended = worker.try_clone();
            thread::spawn(move || {
                pass(from, &forth, there);
                ended.map(|worker| worker.shutdown(Shutdown::Write))
            });
            thread::spawn(move || {
                let _ = back.map(|back| count(worker, &home, back));
                // Delayed data is still on its way to the program, which is closed after it.
                program.shutdown(if matches!(manner, DelayModel::Late(_)) { Shutdown::Read } else { Shutdown::Both })
            });
        }
    });
    Ok(address)
}
