//! Heads of frames and replies: an accepted head is the same when written again, and splits without a panic.

#![no_main]

use katydid_wire::frame::{FrameHead, HEAD_BYTES, MAX_BULK_CONNECTIONS, MAX_PAYLOAD_BYTES, ReplyHead};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    if let Ok((frame, payload)) = FrameHead::decode(head) {
        assert!(payload <= MAX_PAYLOAD_BYTES);
        assert_eq!(frame.encode(payload).as_ref(), Ok(head));
    }
    if let Ok((frame, connections, payload)) = FrameHead::decode_over(head) {
        assert!(payload <= MAX_PAYLOAD_BYTES && connections.payload.max(connections.reply) <= MAX_BULK_CONNECTIONS);
        assert_eq!(frame.encode_over(payload, connections).as_ref(), Ok(head));
    }
    if let Ok((reply, length)) = ReplyHead::decode(head) {
        assert_eq!(reply.encode(length).as_ref(), Ok(head));
        if let Some(beat) = reply.heartbeat() {
            assert_eq!(ReplyHead::from(beat), reply);
        }
        if let Ok((payload, output)) = reply.split(body) {
            assert!(payload.len() + output.stdout.len() + output.stderr.len() <= body.len());
        }
    }
});
