//! Matrix instructions, and lanes that meet at different instructions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::Device;
use katydid_ptx_exec::LoadError;

/// Runs a kernel of one warp whose parameters are `input` and a buffer for `output` words.
fn warp(text: &str, input: &[u32], output: usize) -> Vec<u32> {
    let device = Device::default();
    let (from, to) = (device.put(input), device.allocate(output as u64 * 4));
    device.run(text, [1, 1, 1], [32, 1, 1], &[from, to]).unwrap();
    device.words(to, output)
}

/// Start of every kernel here: addresses, and the lane in `t`.
const START: &str = ".visible .entry k(.param .u64 pin, .param .u64 pout) {
    .reg .b64 in, out, at; .reg .b32 t, n, a, b, r<8>; .reg .pred p;
    ld.param.u64 in, [pin]; ld.param.u64 out, [pout]; mov.u32 t, %tid.x;";

#[test]
fn a_product_with_the_unit_matrix_is_the_matrix() {
    // A is the unit matrix of bytes, each row in the lanes of a group; B is numbered along its columns.
    let text = format!(
        "{START}
        shr.u32 n, t, 2; and.b32 a, t, 3; shl.b32 b, a, 2; sub.u32 b, n, b; shl.b32 b, b, 3;
        mov.u32 a, 1; shl.b32 a, a, b; setp.lt.u32 p, b, 32; selp.b32 a, a, 0, p;
        mad.wide.u32 at, t, 4, in; ld.global.b32 b, [at];
        mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {{r0, r1}}, {{a}}, {{b}}, {{n, t}};
        mad.wide.u32 at, t, 8, out; st.global.v2.b32 [at], {{r0, r1}}; ret; }}"
    );
    let bytes: Vec<u32> = (0..32).map(|lane| u32::from_le_bytes([0, 1, 2, 3].map(|index| 4 * lane + index))).collect();
    for (lane, pair) in warp(&text, &bytes, 64).chunks_exact(2).enumerate() {
        let (row, column) = (lane as u32 / 4, lane as u32 % 4 * 2);
        // Column c of B is at lanes 4 c and on: its element k is byte 16 c + k.
        assert_eq!(pair, [16 * column + row + row, 16 * (column + 1) + row + lane as u32], "lane {lane}");
    }
}

#[test]
fn wmma_loads_multiplies_and_stores_in_any_layout() {
    // f64: A by columns, B by rows, the sum by columns; powers of two keep everything exact.
    let text = format!(
        "{START} .reg .f64 x, y, c<2>;
        wmma.load.a.sync.aligned.col.m8n8k4.global.f64 {{x}}, [in], 8;
        wmma.load.b.sync.aligned.row.m8n8k4.global.f64 {{y}}, [in+256], 8;
        mov.f64 c0, 0d3FF0000000000000; mov.f64 c1, c0;
        wmma.mma.sync.aligned.col.row.m8n8k4.f64.f64.f64.f64 {{c0, c1}}, {{x}}, {{y}}, {{c0, c1}};
        wmma.store.d.sync.aligned.col.m8n8k4.global.f64 [out], {{c0, c1}}, 8; ret; }}"
    );
    let value = |index: u32| f64::from(index % 7) - 3.0;
    let input: Vec<u32> =
        (0..64).flat_map(|index| [value(index).to_bits() as u32, (value(index).to_bits() >> 32) as u32]).collect();
    let output = warp(&text, &input, 128);
    for column in 0..8_usize {
        for row in 0..8_usize {
            let at = 2 * (8 * column + row);
            let found = f64::from_bits(u64::from(output[at]) | u64::from(output[at + 1]) << 32);
            let sum: f64 = (0..4).map(|k| value(8 * k + row as u32) * value(32 + 8 * k + column as u32)).sum();
            assert_eq!(found, sum + 1.0, "{row} {column}");
        }
    }
}

#[test]
fn lanes_meet_at_different_matches() {
    let text = format!(
        "{START} .reg .b64 v; .reg .pred odd;
        and.b32 n, t, 1; setp.ne.u32 odd, n, 0; shr.u32 n, t, 3; mul.wide.u32 v, n, 0x40000001;
        @odd bra other; match.any.sync.b64 r0, v, -1; bra done;
        other: match.any.sync.b64 r0, v, -1;
        done: mad.wide.u32 at, t, 4, out; st.global.b32 [at], r0; ret; }}"
    );
    let output = warp(&text, &[0], 32);
    assert!(output.iter().enumerate().all(|(lane, mask)| *mask == 0xff << (lane / 8 * 8)), "{output:x?}");
}

#[test]
fn a_product_waits_for_lanes_that_come_late() {
    let text = format!(
        "{START}
        mov.u32 a, 1; setp.gt.u32 p, t, 20; @!p bra meet; mov.u32 a, 2;
        meet: mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc {{r0, r1}}, {{a}}, {{a}}, {{t, t}};
        mad.wide.u32 at, t, 4, out; st.global.b32 [at], r0; ret; }}"
    );
    let output = warp(&text, &[0], 32);
    // Rows 0 to 4 hold bit 0, rows 6 and 7 bit 1, row 5 one lane of the first and three of the second.
    let lane = |lane: u32| output[lane as usize] - lane;
    assert_eq!([lane(0), lane(3), lane(20), lane(23), lane(28), lane(31)], [4, 0, 1, 3, 0, 4]);
}

#[test]
fn tensor_instructions_beyond_the_warp_are_refused_by_name() {
    let crossed =
        Device::default().load(&format!("{START} mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32; ret; }}"));
    assert!(matches!(crossed, Err(LoadError::InvalidPtx { .. })));
    for name in ["wgmma.fence.sync.aligned", "tcgen05.wait::ld.sync.aligned"] {
        let error = Device::default().load(&format!("{START} {name}; ret; }}")).unwrap_err();
        assert!(matches!(&error, LoadError::Unsupported { name: found, .. } if found == name), "{error}");
    }
}
