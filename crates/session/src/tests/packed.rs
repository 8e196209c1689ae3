//! Copies whose bytes travel packed: the driver calls, and false claims of peers.

use katydid_cuda_sys::CUresult;
use katydid_transport::compression::{CompressionMode, CompressionPolicy, Pace, unpack};
use katydid_wire::frame::MAX_PAYLOAD_BYTES;
use katydid_wire::message::{cuEventCreate, cuEventRecord, kdCopyInPacked, kdCopyOutPacked};

use super::fake::calls;
use super::stage::{DEVICE, Stage};

const TEXT_BYTES: u32 = 200_000;

fn packed() -> Vec<u8> {
    let text: Vec<u8> = (0..TEXT_BYTES).map(|at| (at / 9) as u8).collect();
    CompressionPolicy::new().pack(CompressionMode::Always, &text).unwrap()
}

#[test]
fn packed_bytes_are_copied_as_what_they_become() {
    let mut stage = Stage::new();
    stage.enqueue(&kdCopyInPacked { destination: DEVICE, stream: 0, size: TEXT_BYTES, data: &packed() });
    assert_eq!(calls(), [format!("in {DEVICE:#x} {TEXT_BYTES} 0x0")]);
}

#[test]
fn blocks_that_are_not_what_was_announced_end_the_session() {
    let (honest, noise) = (packed(), vec![0xf5; 5000]);
    let cases: [(&str, u32, &[u8], &str); 8] = [
        ("less than announced", TEXT_BYTES + 1, &honest, "do not become"),
        ("more than announced", TEXT_BYTES - 1, &honest, "do not become"),
        ("nothing announced", 0, &honest, "do not become"),
        ("nothing there", TEXT_BYTES, &[], "do not become"),
        ("a cut block", TEXT_BYTES, &honest[..honest.len() / 2], "do not become"),
        ("no block", TEXT_BYTES, &noise, "do not become"),
        ("more than a frame", MAX_PAYLOAD_BYTES as u32 + 1, &honest, "one frame"),
        ("as much as can be said", u32::MAX, &honest, "one frame"),
    ];
    for (what, size, data, expected) in cases {
        let message = kdCopyInPacked { destination: DEVICE, stream: 0, size, data };
        let error = Stage::new().try_send(&message, false).expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        assert_eq!(calls(), [""; 0], "{what}");
    }
}

#[test]
fn copies_outside_of_what_the_program_may_name_are_refused() {
    let (mut stage, data) = (Stage::new(), packed());
    let outwards = |source, size| kdCopyOutPacked { source, size, stream: 0, pace: u32::MAX };
    stage.enqueue(&kdCopyInPacked { destination: 0x1000, stream: 0, size: TEXT_BYTES, data: &data });
    let refused = CUresult::ERROR_INVALID_VALUE.0;
    let answer = stage.call(&outwards(0x1000, TEXT_BYTES));
    assert_eq!((answer.deferred, answer.status), (refused, refused));
    let error = stage.try_send(&outwards(DEVICE, MAX_PAYLOAD_BYTES as u32), true).unwrap_err().to_string();
    assert!(error.contains("one frame"), "{error}");
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn bytes_come_packed_where_the_link_is_slow_and_as_they_are_where_it_is_only_measured() {
    let mut stage = Stage::new();
    // The thread that waits for the stream finds its work complete.
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    stage.enqueue(&cuEventRecord { hEvent: 1, hStream: 0 });
    let expected: Vec<u8> = (0..TEXT_BYTES).map(|at| at as u8).collect();
    let ask = |pace: Pace| kdCopyOutPacked { source: DEVICE, size: TEXT_BYTES, stream: 0, pace: pace.0 };
    let plain = stage.reply(&ask(Pace::UNKNOWN));
    assert_eq!((plain.isPacked, plain.packerPace), (0, 0));
    assert!(plain.data == expected);
    let packed = stage.reply(&ask(Pace::ENDLESS));
    assert!(packed.isPacked == 1 && packed.packerPace > 0 && packed.data.len() < TEXT_BYTES as usize / 10);
    let mut whole = vec![0; TEXT_BYTES as usize];
    unpack(&packed.data, &mut whole).unwrap();
    assert!(whole == expected);
}
