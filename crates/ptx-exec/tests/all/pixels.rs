//! Copies of pixels (`.im2col`), compared with an H200's results for the same maps, coordinates and offsets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::Device;
use katydid_ptx_exec::{FaultKind, LoadError};

/// A tensor of `u16`, each its own index: 16 channels of 7 by 5 pixels, 3 images.
const SIZES: [u64; 4] = [16, 7, 5, 3];
const STRIDES: [u64; 3] = [32, 224, 1120];
const BYTES: usize = 3360;

/// Settings of a map of pixels.
#[derive(Clone, Copy)]
struct Pixels {
    lower: [i16; 2],
    upper: [i16; 2],
    channels: u64,
    count: u64,
    steps: [u64; 4],
}

const ALL: Pixels = Pixels { lower: [0; 2], upper: [0; 2], channels: 8, count: 64, steps: [1; 4] };

fn map(tensor: u64, pixels: Pixels) -> Vec<u32> {
    let corner = |[x, y]: [i16; 2]| u64::from(x.cast_unsigned()) << 32 | u64::from(y.cast_unsigned()) << 16;
    let mut words = [0_u64; 16];
    (words[0], words[1]) = (tensor, 1 << 48 | 1 << 40 | 4 << 32);
    words[2..6].copy_from_slice(&SIZES);
    words[7..10].copy_from_slice(&STRIDES);
    words[11] = pixels.steps.iter().fold(0, |word, step| word << 12 | step) << 12;
    (words[13], words[14]) = (corner(pixels.lower), corner(pixels.upper));
    words[15] = pixels.channels << 32 | pixels.count;
    words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect()
}

/// Returns a kernel that runs `body` between a tensor and `room` of 1 KiB, and writes `room` to its second parameter.
fn text(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 map, .param .u64 out) {{
         .shared .align 1024 .b8 room[1024]; .shared .align 8 .b64 bar;
         .reg .u64 m, to, at; .reg .u32 n, w; .reg .pred p;
         ld.param.u64 m, [map]; ld.param.u64 to, [out];
         mbarrier.init.shared.b64 [bar], 1; mov.u64 at, room; mov.u32 n, 0;
         {body}
         COPY: ld.shared.u32 w, [at]; st.global.u32 [to], w; add.u64 at, at, 4; add.u64 to, to, 4;
         add.u32 n, n, 1; setp.lt.u32 p, n, 256; @p bra COPY; ret; }}"
    )
}

fn load(corner: [i32; 4], offsets: [u16; 2], bytes: u64) -> String {
    let ([c, x, y, n], [right, down]) = (corner, offsets);
    format!(
        "mbarrier.arrive.expect_tx.shared.b64 _, [bar], {bytes};
         cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
             [room], [m, {{{c}, {x}, {y}, {n}}}], [bar], {{{right}, {down}}};
         WAIT: mbarrier.try_wait.parity.shared.b64 p, [bar], 0; @!p bra WAIT;"
    )
}

/// Returns the first channel of each pixel that was loaded.
fn first_channels(pixels: Pixels, corner: [i32; 4], offsets: [u16; 2]) -> Result<Vec<u32>, FaultKind> {
    let device = Device::default();
    let words: Vec<u32> = (0..BYTES as u32 / 4).map(|word| (2 * word) | ((2 * word + 1) << 16)).collect();
    let tensor = device.put(&words);
    let (map, out) = (device.put(&map(tensor, pixels)), device.allocate(1024));
    let row = pixels.channels * 2;
    let body = load(corner, offsets, row * pixels.count);
    device.run(&text(&body), [1; 3], [1; 3], &[map, out]).map_err(|fault| fault.kind)?;
    let words = device.words(out, 256);
    Ok(words.chunks(row as usize / 4).take(pixels.count as usize).map(|row| row[0] & 0xffff).collect())
}

/// Returns a row of pixels from a line of an image.
fn line(image: u32, y: u32, columns: &[u32]) -> Vec<u32> {
    columns.iter().map(|x| image * 560 + y * 112 + x * 16).collect()
}

#[test]
fn pixels_go_on_in_the_next_line_and_the_next_image() {
    let found = first_channels(ALL, [8, 2, 3, 1], [0; 2]).unwrap();
    let mut all = [line(1, 3, &[2, 3, 4, 5, 6]), line(1, 4, &[0, 1, 2, 3, 4, 5, 6])].concat();
    all.extend((0..5).flat_map(|y| line(2, y, &[0, 1, 2, 3, 4, 5, 6])));
    all.iter_mut().for_each(|pixel| *pixel += 8);
    all.resize(64, 0);
    assert_eq!(found, all, "what lies behind the last image is filled");
}

#[test]
fn offsets_are_added_to_pixels_of_a_box_that_goes_beyond_the_image() {
    let pixels = Pixels { lower: [-1; 2], upper: [-1; 2], ..ALL };
    let found = first_channels(pixels, [0, -1, -1, 0], [1, 2]).unwrap();
    let image = |image| {
        let lines = (1..5).flat_map(move |y| line(image, y, &[0, 1, 2, 3, 4, 5, 6]));
        lines.chain([0; 7]).collect::<Vec<_>>()
    };
    assert_eq!(found, [image(0), image(1)].concat()[..64]);
}

#[test]
fn steps_leave_pixels_and_images_out() {
    let pixels = Pixels { lower: [-1, 0], upper: [0, -1], count: 16, steps: [1, 3, 2, 1], ..ALL };
    let found = first_channels(pixels, [0, -1, 0, 1], [1, 0]).unwrap();
    let images = (1..3).flat_map(|image| [line(image, 0, &[0, 3, 6]), line(image, 2, &[0, 3, 6])].concat());
    assert_eq!(found, images.chain([0; 4]).collect::<Vec<_>>());
    let pixels = Pixels { count: 16, steps: [1, 2, 2, 2], ..ALL };
    let found = first_channels(pixels, [0; 4], [0; 2]).unwrap();
    assert_eq!((found[11], found[12]), (544, 1120));
}

#[test]
fn channels_that_there_are_not_are_filled_and_others_are_faults() {
    let pixels = Pixels { channels: 16, count: 8, ..ALL };
    assert_eq!(first_channels(pixels, [-8, 5, 0, 0], [0; 2]).unwrap(), [0; 8]);
    assert_eq!(first_channels(pixels, [8, 5, 0, 0], [0; 2]).unwrap()[..3], [88, 104, 120]);
    let small = Pixels { lower: [1; 2], upper: [-2; 2], ..ALL };
    for (pixels, corner) in [(ALL, [4, 0, 0, 0]), (small, [0; 4]), (small, [0, 2, 4, 0]), (small, [0, 6, 2, 0])] {
        assert!(matches!(first_channels(pixels, corner, [0; 2]), Err(FaultKind::BadTensorMap(_))), "{corner:?}");
    }
    let first_images = first_channels(Pixels { count: 16, ..ALL }, [0, 5, 4, -1], [0; 2]).unwrap();
    assert_eq!(first_images[..4], [0, 0, 0, 16], "images before the first one are filled");
}

#[test]
fn pixels_go_out_without_offsets() {
    let pixels = Pixels { channels: 8, count: 2, ..ALL };
    let body = "mov.u32 w, 0x00030002; st.shared.u32 [room], w; st.shared.u32 [room+16], w;
                cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [m, {0, 6, 4, 2}], [room];
                cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    let device = Device::default();
    let tensor = device.allocate(BYTES as u64);
    let (map, out) = (device.put(&map(tensor, pixels)), device.allocate(1024));
    device.run(&text(body), [1; 3], [1; 3], &[map, out]).unwrap();
    let last = tensor + 2 * 1120 + 4 * 224 + 6 * 32;
    assert_eq!(device.words(last, 2), [0x0003_0002, 0], "the pixel behind the last image is left alone");
}

#[test]
fn maps_of_tiles_and_copies_of_pixels_do_not_go_together() {
    let device = Device::default();
    let body = load([0; 4], [0; 2], 1024);
    let tiles = [device.allocate(64) as u32, 0, 0, 1 << 8 | 4];
    let map = device.put(&tiles.into_iter().chain([0; 28]).collect::<Vec<_>>());
    let fault = device.run(&text(&body), [1; 3], [1; 3], &[map, map]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BadTensorMap(map));
    let refused = |from: &str, to: &str| device.load(&text(&body.replace(from, to))).unwrap_err();
    assert!(matches!(refused("im2col", "im2col::w"), LoadError::Unsupported { .. }));
    assert!(matches!(refused("im2col", "im2col_no_offs"), LoadError::InvalidPtx { .. }));
    assert!(matches!(refused(", {0, 0};", ";"), LoadError::InvalidPtx { .. }));
    assert!(matches!(refused("{0, 0};", "{0};"), LoadError::InvalidPtx { .. }));
}
