//! How often a program waits for the network, and how much it sends: counted replies and bytes, never times. A link of 1 ms
//! costs a step so many milliseconds and no more, since what is not waited for is on its way beside it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::places::Places;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::PATIENCE;
use katydid_tests::way::Way;

/// Bytes in front of a reply's length, and of all of its head.
const HEAD: usize = 32;
/// A network that holds replies back lets them go when nothing has come from either side for so long.
const SILENCE: Duration = Duration::from_millis(4);

/// How a network carries what is sent.
#[derive(Clone, Copy)]
enum Manner {
    AtOnce,
    /// Each way takes so long, for however much.
    Late(Duration),
    /// What the worker says is held back until there is silence: the program gets no further before it has heard something.
    Held,
}

/// What went over a network.
#[derive(Default)]
struct Traffic {
    replies: AtomicU64,
    /// Bytes from the program.
    sent: AtomicU64,
    /// Bytes of replies.
    received: AtomicU64,
    /// How often replies that had been held back were let go.
    rounds: AtomicU64,
    held: Mutex<Held>,
    more: Condvar,
}

/// What is held back, and when something was last heard.
#[derive(Default)]
struct Held {
    /// Bytes, where they go, and whether they are a reply.
    frames: Vec<(TcpStream, Vec<u8>, bool)>,
    heard: Option<Instant>,
}

impl Traffic {
    /// Somebody has said something; what a worker says is `frame`.
    fn hear(&self, frame: Option<(TcpStream, Vec<u8>, bool)>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.frames.extend(frame);
        held.heard = Some(Instant::now());
        self.more.notify_all();
    }

    /// Waits for silence after something that is held back, and takes all of that.
    fn wait(&self) -> Vec<(TcpStream, Vec<u8>, bool)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let silent = held.heard.map_or(SILENCE, |heard| heard.elapsed());
            if !held.frames.is_empty() && silent >= SILENCE {
                return std::mem::take(&mut held.frames);
            }
            held = if held.frames.is_empty() {
                self.more.wait(held).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.more.wait_timeout(held, SILENCE - silent).unwrap_or_else(PoisonError::into_inner).0
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

/// What takes bytes on their way, and is told whether they are a reply.
type Onward = Box<dyn FnMut(Vec<u8>, bool) -> Option<()> + Send>;

/// The way on over a connection, in this manner.
fn onward(mut to: TcpStream, manner: Manner, traffic: &Arc<Traffic>, is_back: bool) -> Onward {
    match manner {
        Manner::Held if is_back => {
            let traffic = Arc::clone(traffic);
            Box::new(move |bytes, is_reply| {
                traffic.hear(Some((to.try_clone().ok()?, bytes, is_reply)));
                Some(())
            })
        }
        Manner::Late(delay) => {
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
        Manner::AtOnce | Manner::Held => Box::new(move |bytes, _| to.write_all(&bytes).ok()),
    }
}

/// Passes on what a program sends.
fn pass(mut from: TcpStream, traffic: &Traffic, mut onward: Onward) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).ok().filter(|length| *length > 0)?;
        traffic.sent.fetch_add(length as u64, Ordering::Relaxed);
        traffic.hear(None);
        onward(bytes[..length].to_vec(), false)?;
    }
}

/// Reads what goes from a worker to its program: one message of the handshake, then replies.
fn count(mut from: TcpStream, traffic: &Traffic, mut onward: Onward) -> Option<()> {
    let mut message = vec![0; 72];
    from.read_exact(&mut message).ok()?;
    let length = u32::from_le_bytes(message[8..12].try_into().ok()?) as usize;
    message.resize(length, 0);
    from.read_exact(&mut message[72..]).ok()?;
    onward(message, false)?;
    loop {
        let mut frame = vec![0; HEAD];
        from.read_exact(&mut frame).ok()?;
        // Thread 2^32 - 1 is a worker that says that it is there: nobody waits for that.
        let is_reply = frame[16..20] != [0xff; 4];
        traffic.replies.fetch_add(u64::from(is_reply), Ordering::Relaxed);
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        traffic.received.fetch_add(length as u64, Ordering::Relaxed);
        frame.resize(length, 0);
        from.read_exact(&mut frame[HEAD..]).ok()?;
        onward(frame, is_reply)?;
    }
}

/// A network to `server` that counts what passes; its address.
fn counting(server: &str, manner: Manner, traffic: &Arc<Traffic>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let server = server.strip_prefix("tcp://").context("not TCP")?.to_owned();
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
                program.shutdown(Shutdown::Both)
            });
        }
    });
    Ok(address)
}

/// What goes over the network while a program runs.
fn traffic_of(places: &Places, server: &Server, name: &str, arguments: &[String]) -> Result<Arc<Traffic>> {
    traffic_with(places, server, &[], name, arguments)
}

/// The same with options of `katydid run`.
fn traffic_with(
    places: &Places,
    server: &Server,
    options: &[&str],
    name: &str,
    arguments: &[String],
) -> Result<Arc<Traffic>> {
    Ok(run(places, server, Manner::AtOnce, options, name, arguments)?.0)
}

/// The same over a network of this manner, and how long it took.
fn run(
    places: &Places,
    server: &Server,
    manner: Manner,
    options: &[&str],
    name: &str,
    arguments: &[String],
) -> Result<(Arc<Traffic>, Duration)> {
    let traffic = Arc::default();
    let address = counting(server.tcp(), manner, &traffic)?;
    let way = Way::Served { name: "tcp", address, as_stream: false };
    let mut command = way.job(places, options, &places.program(name, Variant::Static));
    let outcome = program::run(command.args(arguments), PATIENCE)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    Ok((traffic, outcome.took))
}

/// Programs, and how often a step of each waits for its worker.
const STEPS: [(&str, u64); 2] = [("launch_bound", 1), ("long_loop", 1)];

/// Each step of 48 kernels, an upload, two events, two waits of streams and a result that is copied to pinned memory and
/// waited for: what it costs on a link is that one waiting. Neither does a network with a delay make it more, nor one on which
/// the program hears nothing before it has said all that it has to say.
#[test]
fn a_step_of_many_calls_waits_for_its_result_alone() -> Result<()> {
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let late = Manner::Late(Duration::from_micros(500));
    for (name, per_step) in STEPS {
        for (manner, said) in [(Manner::AtOnce, "at once"), (late, "0.5 ms each way"), (Manner::Held, "held back")] {
            let of = |steps: u64| run(&places, &server, manner, &[], name, &[steps.to_string()]);
            let ((few, start), (many, end)) = (of(10)?, of(60)?);
            let counted = |traffic: &Traffic| match manner {
                Manner::Held => traffic.rounds.load(Ordering::Relaxed),
                _ => traffic.replies.load(Ordering::Relaxed),
            };
            let waited = counted(&many) - counted(&few);
            println!("{name}, {said}: {:?} a step, {start:?} for 10", end.saturating_sub(start) / 50);
            ensure!(waited <= 50 * per_step, "{name}, {said}: 50 steps waited {waited} times");
        }
    }
    Ok(())
}

/// A kernel writes into a large pinned block and into many small ones, 17 MiB in all: once it is done, what the program asks for
/// is on its way together, and small blocks come in one piece.
#[test]
fn pinned_memory_comes_back_together() -> Result<()> {
    /// Replies of a step, and how often replies were let go for it, of 16 pieces for the large block and 40 small ones.
    const MOST: (u64, u64) = (18, 12);
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let counted = |steps: u64| -> Result<[u64; 2]> {
        let (traffic, _) = run(&places, &server, Manner::Held, &[], "mapped_steps", &[steps.to_string()])?;
        Ok([&traffic.replies, &traffic.rounds].map(|count| count.load(Ordering::Relaxed)))
    };
    let (few, many) = (counted(2)?, counted(6)?);
    let [replies, rounds] = [0, 1].map(|at| many[at] - few[at]);
    ensure!(replies <= 4 * MOST.0 && rounds <= 4 * MOST.1, "4 steps: {replies} replies in {rounds} rounds");
    Ok(())
}

/// The server has the images of the first.
#[test]
fn a_second_start_sends_no_images() -> Result<()> {
    /// Of more than a megabyte of code, with room for what the build of the program makes of it.
    const CODE: u64 = 512 << 10;
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let mut sent = [0; 2];
    for bytes in &mut sent {
        *bytes = traffic_of(&places, &server, "thrust_algorithms", &[])?.sent.load(Ordering::Relaxed);
    }
    let [first, second] = sent;
    ensure!(second + CODE < first, "{first} bytes, then {second}");
    Ok(())
}

/// Copies that repeat themselves, both ways: whoever asks for it has less of them on the network, and the program, which looks
/// at every byte that comes back, is none the wiser. What is not asked for costs nothing.
#[test]
fn packed_copies_are_fewer_bytes_on_the_network_and_the_same_in_memory() -> Result<()> {
    /// Of 590,000 bytes each way from ordinary memory, in six copies.
    const SAVED: u64 = 400_000;
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let bytes = |packing| -> Result<[u64; 2]> {
        let traffic = traffic_with(&places, &server, &["--packing", packing], "bandwidth", &[])?;
        Ok([&traffic.sent, &traffic.received].map(|bytes| bytes.load(Ordering::Relaxed)))
    };
    let (off, _, always) = (bytes("off")?, bytes("auto")?, bytes("always")?);
    ensure!(always[0] + SAVED < off[0] && always[1] + SAVED < off[1], "{off:?} and {always:?} bytes");
    Ok(())
}
