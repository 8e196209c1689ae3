//! Prints the round trip of an empty call, and the time to queue a frame, on each path:
//! `cargo run --release -p katydid-transport --example ping`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{ADD, ECHO, Path, link, work};

const ROUNDS: u32 = 20_000;

fn main() {
    for path in [Path::Shm, Path::Unix, Path::Tcp] {
        let (connection, worker) = link(path);
        std::thread::scope(|scope| {
            scope.spawn(|| work(worker));
            let link = connection.link;
            let mut reply = Vec::new();
            let mut trips: Vec<Duration> = (0..ROUNDS)
                .map(|_| {
                    let start = Instant::now();
                    assert!(link.call(ECHO, 0, &[b"12345678"], &mut reply).is_ok());
                    start.elapsed()
                })
                .collect();
            trips.sort();
            let start = Instant::now();
            (0..ROUNDS).for_each(|_| drop(link.enqueue(ADD, 0, &[&[0; 64]])));
            let queued = start.elapsed() / ROUNDS;
            let (half, most) = (trips[trips.len() / 2], trips[trips.len() * 99 / 100]);
            println!("{path:?}: round trip {half:?} (99 %: {most:?}), queue a frame {queued:?}");
        });
    }
}
