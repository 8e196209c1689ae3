//! Fuzzes a stream of TLS records as an attacker between the peers could make it.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::RecvFlags;

use crate::tls::record::{DATA_RECORD, Sealer, Seals, Suite, TRAFFIC_SECRET_BYTES};

/// Most bytes of a stream: as many as a socket buffers without a reader.
const MAX_FUZZ_INPUT_BYTES: usize = 64 << 10;

/// Makes a stream of `script` and reads it. Returns how many bytes of data were handed out.
///
/// The first byte chooses suite, reading ahead, and how soon keys are renewed. Parts follow: a byte, a length (2) and as many
/// bytes. The byte says how they are sent: as sealed data; unchanged; as the inside of a sealed record, whose kind is their first
/// byte; or as sealed data with a bit changed afterwards.
///
/// Data sealed before anything else is handed out first, unchanged; all of it if nothing else came.
pub fn records(script: &[u8]) -> usize {
    let Some((mode, parts)) = script.split_first() else { return 0 };
    let suite = if mode & 1 == 0 { Suite::Aes128Gcm } else { Suite::ChaCha20Poly1305 };
    let ends = [
        ([1; TRAFFIC_SECRET_BYTES], [2; TRAFFIC_SECRET_BYTES]),
        ([2; TRAFFIC_SECRET_BYTES], [1; TRAFFIC_SECRET_BYTES]),
    ];
    let [Ok(near), Ok(far)] = ends.map(|(sending, receiving)| Seals::new(suite, sending, receiving)) else { return 0 };
    let (mut sealer, mut opener) = (near.sealer, far.opener);
    sealer.worn_after = 2 + u64::from(mode >> 2);
    if mode & 2 != 0 {
        opener.enable_read_ahead();
    }
    let (stream, honest, is_honest) = stream(&mut sealer, parts);
    let Ok((mut local, peer)) = UnixStream::pair() else { return 0 };
    if local.write_all(&stream).is_err() {
        return 0;
    }
    drop(local);
    let mut got = Vec::new();
    let end = loop {
        match opener.fill(peer.as_fd(), RecvFlags::empty()) {
            Ok([]) => break Ok(()),
            Ok(some) => {
                got.extend_from_slice(some);
                let length = some.len();
                opener.take(length);
            }
            Err(error) => break Err(error),
        }
    };
    assert!(got.starts_with(&honest) || honest.starts_with(&got), "data is not what was sealed");
    assert!(!is_honest || (got == honest && end.is_ok()), "an honest stream did not arrive: {end:?}");
    got.len()
}

/// Returns the stream of a script, the data sealed before anything else in it, and whether there was nothing else.
fn stream(sealer: &mut Sealer, mut parts: &[u8]) -> (Vec<u8>, Vec<u8>, bool) {
    let (mut stream, mut honest, mut is_honest) = (Vec::new(), Vec::new(), true);
    while let Some((&[what, low, high], tail)) = parts.split_first_chunk()
        && stream.len() < MAX_FUZZ_INPUT_BYTES
    {
        let length =
            usize::from(u16::from_le_bytes([low, high])).min(tail.len()).min(MAX_FUZZ_INPUT_BYTES - stream.len());
        let (bytes, later) = tail.split_at(length);
        parts = later;
        match what % 4 {
            0 => {
                if is_honest {
                    honest.extend_from_slice(bytes);
                }
                stream.extend(sealer.seal(bytes).unwrap_or_default());
                continue;
            }
            1 => stream.extend_from_slice(bytes),
            2 => {
                let (kind, inner) = bytes.split_first().map_or((DATA_RECORD, bytes), |(kind, inner)| (*kind, inner));
                sealer.out.clear();
                if let Ok(offset) = sealer.begin() {
                    sealer.out.extend_from_slice(inner);
                    let _ = sealer.end(offset, kind);
                }
                stream.append(&mut sealer.out);
            }
            _ => {
                let mut sealed = sealer.seal(bytes).unwrap_or_default();
                let length = sealed.len();
                if let Some(byte) = sealed.get_mut(usize::from(what) * 7 % length.max(1)) {
                    *byte ^= 1 << (what >> 5);
                }
                stream.extend(sealed);
            }
        }
        is_honest = false;
    }
    (stream, honest, is_honest)
}
