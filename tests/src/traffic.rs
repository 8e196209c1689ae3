//! A network that counts: what passes between programs and a server, which notice nothing of it, but that it may be slow.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes in front of a reply's length, and of all of its head.
const FRAME_HEAD_BYTES: usize = 32;
/// A network that holds replies back lets them go when nothing has come from either side for so long.
const SILENCE_TIME: Duration = Duration::from_millis(20);

/// How a network carries what is sent.
#[derive(Debug, Clone, Copy)]
pub enum DelayModel {
    /// Bytes are passed on as they come.
    AtOnce,
    /// Each way takes so long, for however much.
    Late(Duration),
    /// What the worker says is held back until there is silence: the program gets no further before it has heard something.
    Held,
}

/// What went over a network.
#[derive(Debug, Default)]
pub struct Traffic {
    /// How often a side waited.
    pub replies: AtomicU64,
    /// Bytes that programs have sent.
    pub sent: AtomicU64,
    /// Bytes of replies that servers have sent.
    pub received: AtomicU64,
    /// How often replies that had been held back were let go.
    pub rounds: AtomicU64,
    state: Mutex<HeldTraffic>,
    changed: Condvar,
}

/// What is held back, and when something was last heard.
#[derive(Debug, Default)]
struct HeldTraffic {
    /// Bytes, where they go, and whether they are a reply.
    frames: Vec<(TcpStream, Vec<u8>, bool)>,
    last_frame: Option<Instant>,
}

impl Traffic {
    /// A side has said something; what a worker says is `frame`.
    fn on_frame(&self, frame: Option<(TcpStream, Vec<u8>, bool)>) {
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        held.frames.extend(frame);
        held.last_frame = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits for silence after something that is held back, and takes all of that.
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

    /// Lets go what is held back, again and again.
    fn let_go(&self) {
        loop {
            let frames = self.wait();
            let is_round = frames.iter().any(|(.., is_reply)| *is_reply);
            self.rounds.fetch_add(u64::from(is_round), Ordering::Relaxed);
            for (mut to, bytes, _) in frames {
                // A program that has ended wants nothing any more.
                let _ = to.write_all(&bytes);
            }
        }
    }
}

/// Takes bytes on their way; the second argument is whether they are a reply.
type ForwardFrame = Box<dyn FnMut(Vec<u8>, bool) -> Option<()> + Send>;

/// The way on over a connection, in this manner.
fn onward(mut to: TcpStream, manner: DelayModel, traffic: &Arc<Traffic>, is_back: bool) -> ForwardFrame {
    match manner {
        DelayModel::Held if is_back => {
            let (traffic, mut has_greeted) = (Arc::clone(traffic), false);
            Box::new(move |bytes, is_reply| {
                // The handshake goes on at once: the server hangs up behind the answer to a question for its driver.
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

/// Passes on what a program sends.
fn pass(mut from: TcpStream, traffic: &Traffic, mut onward: ForwardFrame) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).ok().filter(|length| *length > 0)?;
        traffic.sent.fetch_add(length as u64, Ordering::Relaxed);
        traffic.on_frame(None);
        onward(bytes[..length].to_vec(), false)?;
    }
}

/// Reads what goes from a worker to its program: one message of the handshake, then replies.
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
        // Thread 2^32 - 1 is a worker that says that it is there: no thread waits for that.
        let is_reply = frame[16..20] != [0xff; 4];
        traffic.replies.fetch_add(u64::from(is_reply), Ordering::Relaxed);
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        traffic.received.fetch_add(length as u64, Ordering::Relaxed);
        frame.resize(length, 0);
        from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).ok()?;
        onward(frame, is_reply)?;
    }
}

/// A network of this manner to `server` (`tcp://…`) that counts what passes; its address.
///
/// # Errors
///
/// The address is none of TCP, or no other one can be had.
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
            // What is small is not kept back for more to come.
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
                // What is late is still on its way to the program, and shut behind it.
                program.shutdown(if matches!(manner, DelayModel::Late(_)) { Shutdown::Read } else { Shutdown::Both })
            });
        }
    });
    Ok(address)
}
