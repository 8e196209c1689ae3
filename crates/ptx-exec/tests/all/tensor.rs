//! Copies of tensors by maps: boxes, edges, swizzles, reductions and changed maps as PTX describes them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{self, Device, TARGET};
use katydid_ptx_exec::{FaultKind, LoadError, Program};

/// Returns a map of two dimensions of 32-bit elements, from the tensor's size, its pitch in elements, and the size of a box.
fn map(address: u64, [width, height]: [u64; 2], pitch: u64, [columns, rows]: [u64; 2], kinds: u64) -> Vec<u32> {
    let mut words = [0_u64; 16];
    (words[0], words[1]) = (address, kinds | 2 << 32);
    (words[2], words[3], words[7]) = (width, height, 4 * pitch);
    (words[11], words[12]) = (1 << 48 | 1 << 36, columns << 48 | rows << 36);
    words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect()
}

/// Words for the kinds of a map: of `u32`, of `f32`, and of a swizzle of 128 bytes.
const U32: u64 = 2 << 40;
const F32: u64 = 7 << 40;
const SWIZZLE_128: u64 = 3 << 16;
const NAN: u64 = 1;

/// Returns a kernel that runs `body` with a box `room` of 1 KiB and a barrier `bar`, and writes `room` to its second parameter.
fn text(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 map, .param .u64 out, .param .s32 left, .param .s32 top) {{
         .shared .align 1024 .b8 room[1024]; .shared .align 8 .b64 bar;
         .reg .u64 m, to, at; .reg .s32 x, y; .reg .u32 n, w; .reg .pred p;
         ld.param.u64 m, [map]; ld.param.u64 to, [out]; ld.param.s32 x, [left]; ld.param.s32 y, [top];
         mbarrier.init.shared.b64 [bar], 1; mov.u64 at, room; mov.u32 n, 0;
         {body}
         COPY: ld.shared.u32 w, [at]; st.global.u32 [to], w; add.u64 at, at, 4; add.u64 to, to, 4;
         add.u32 n, n, 1; setp.lt.u32 p, n, 256; @p bra COPY; ret; }}"
    )
}

/// Returns a load of `bytes` bytes, followed by the wait for them.
fn load(bytes: u32) -> String {
    format!(
        "mbarrier.arrive.expect_tx.shared.b64 _, [bar], {bytes};
         cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [room], [m, {{x, y}}], [bar];
         WAIT: mbarrier.try_wait.parity.shared.b64 p, [bar], 0; @!p bra WAIT;"
    )
}

/// Runs a kernel over a tensor of 8 by 4 with a pitch of 12, where element (x, y) is 100 y + x. Returns `room` and the tensor.
fn run(device: &Device, body: &str, kinds: u64, tile: [u64; 2], [x, y]: [i32; 2]) -> (Vec<u32>, Vec<u32>) {
    let elements: Vec<u32> = (0..48).map(|at| at / 12 * 100 + at % 12).collect();
    let tensor = device.put(&elements);
    let map = device.put(&map(tensor, [8, 4], 12, tile, kinds));
    let out = device.allocate(1024);
    let coordinates = u64::from(x.cast_unsigned()) | u64::from(y.cast_unsigned()) << 32;
    device.run(&text(body), [1; 3], [1; 3], &[map, out, coordinates]).unwrap();
    (device.words(out, 256), device.words(tensor, 48))
}

#[test]
fn a_box_comes_row_by_row_and_what_lies_outside_is_zero() {
    let (tile, _) = run(&Device::default(), &load(48), U32, [4, 3], [2, 1]);
    assert_eq!(tile[..12], [102, 103, 104, 105, 202, 203, 204, 205, 302, 303, 304, 305]);
    let (tile, _) = run(&Device::default(), &load(48), U32, [4, 3], [-1, 2]);
    assert_eq!(tile[..12], [0, 200, 201, 202, 0, 300, 301, 302, 0, 0, 0, 0]);
    let (tile, _) = run(&Device::default(), &load(48), F32 | NAN, [4, 3], [6, 3]);
    assert_eq!(tile[..2], [306, 307]);
    assert!(tile[2..12].iter().all(|bits| f32::from_bits(*bits).is_nan()), "{tile:?}");
}

#[test]
fn a_swizzle_moves_pieces_of_16_bytes_by_the_row() {
    let (room, _) = run(&Device::default(), &load(512), U32 | SWIZZLE_128, [32, 4], [0, 0]);
    // The second row of 128 bytes has its first two pieces in places 1 and 0.
    assert_eq!(room[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(room[32..40], [104, 105, 106, 107, 100, 101, 102, 103]);
    assert_eq!(room[64 + 8..64 + 16], [200, 201, 202, 203, 204, 205, 206, 207]);
}

/// Fills `room` with 1, 2, 3 and so on.
const FILL: &str = "FILL: add.u32 w, n, 1; st.shared.u32 [at], w; add.u64 at, at, 4; add.u32 n, n, 1;
    setp.lt.u32 p, n, 256; @p bra FILL; mov.u32 n, 0; mov.u64 at, room;";

#[test]
fn a_box_goes_back_and_what_lies_outside_is_left_alone() {
    let store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [m, {x, y}], [room];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    let (_, tensor) = run(&Device::default(), &format!("{FILL}{store}"), U32, [4, 3], [6, 2]);
    assert_eq!(tensor[24..36], [200, 201, 202, 203, 204, 205, 1, 2, 208, 209, 210, 211]);
    assert_eq!(tensor[36..48], [300, 301, 302, 303, 304, 305, 5, 6, 308, 309, 310, 311]);
}

#[test]
fn reductions_are_those_of_the_maps_type() {
    let reduce = |name: &str| {
        format!(
            "{FILL} cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.tile.bulk_group [m, {{x, y}}], [room];"
        )
    };
    let (_, tensor) = run(&Device::default(), &reduce("add"), U32, [4, 2], [0, 0]);
    assert_eq!((&tensor[..5], &tensor[12..17]), (&[1, 3, 5, 7, 4][..], &[105, 107, 109, 111, 104][..]));
    let (_, tensor) = run(&Device::default(), &reduce("max"), U32, [4, 2], [0, 0]);
    assert_eq!((&tensor[..4], &tensor[12..16]), (&[1, 2, 3, 4][..], &[100, 101, 102, 103][..]));
    let (_, tensor) = run(&Device::default(), &reduce("xor"), U32, [4, 1], [0, 1]);
    assert_eq!(tensor[12..16], [101, 103, 101, 99]);
}

#[test]
fn a_changed_map_is_used_as_it_is_then() {
    let replace = "add.u64 at, m, 0;
        tensormap.replace.tile.global_dim.global.b1024.b32 [m], 1, 2;
        tensormap.replace.tile.box_dim.global.b1024.b32 [m], 0, 4;
        tensormap.replace.tile.fill_mode.global.b1024.b32 [m], 1;
        tensormap.replace.tile.elemtype.global.b1024.b32 [m], 7;
        fence.proxy.tensormap::generic.acquire.gpu [m], 128; mov.u64 at, room;";
    let device = Device::default();
    let tensor = device.put(&[7; 48]);
    let map = device.put(&map(tensor, [8, 4], 12, [8, 3], U32));
    let out = device.allocate(1024);
    let body = text(&format!("{replace}{}", load(48)));
    let whole = format!(".version 9.0\n.target sm_90a\n.address_size 64\n{body}");
    let program = Program::load(&[&whole], &mut common::Globals(&device), TARGET).unwrap();
    let launch = common::launch(&program, [1; 3], [1; 3], &[map, out, 1 << 32]);
    katydid_ptx_exec::run(&launch, &device, 1, &katydid_ptx_exec::Switch::new()).unwrap();
    let tile = device.words(out, 12);
    assert_eq!(tile[..4], [7; 4]);
    assert!(tile[4..].iter().all(|bits| f32::from_bits(*bits).is_nan()), "{tile:?}");
    // The form is refused for sm_90.
    assert!(matches!(device.load(&body), Err(LoadError::Unsupported { .. })));
}

#[test]
fn maps_of_another_rank_and_what_is_no_map_are_faults() {
    let device = Device::default();
    let out = device.allocate(1024);
    let other = load(48).replace("2d", "1d").replace("{x, y}", "{x}");
    for (body, map) in [(other, map(out, [8, 4], 12, [4, 3], U32)), (load(48), vec![0; 32])] {
        let map = device.put(&map);
        let fault = device.run(&text(&body), [1; 3], [1; 3], &[map, out, 0]).unwrap_err();
        assert_eq!(fault.kind, FaultKind::BadTensorMap(map));
    }
    let map = device.put(&map(out, [8, 4], 12, [4, 3], U32));
    let fault = device.run(&text(&load(48)), [1; 3], [1; 3], &[map + 32, out, 0]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::MisalignedAddress(map + 32));
}
