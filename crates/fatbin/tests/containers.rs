//! Containers: which entry a device gets, and what it unfolds to.

mod common;

use common::{CUBIN, PTX, Stored, container, entry, entry_with_flags, ptx};
use katydid_fatbin::{Container, EntryKind, Image, ImageError};

#[test]
fn entries_come_in_order_with_their_fields() {
    let bytes = container(&[entry(PTX, 80, &ptx("a"), Stored::Zstd), entry(CUBIN, 90, b"\x7fELF", Stored::Plain)]);
    let entries: Vec<_> = Container::new(&bytes).unwrap().entries().map(Result::unwrap).collect();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.sm, entry.version, entry.flags)).collect();
    assert_eq!(kinds, [(EntryKind::PTX, 80, (9, 0), 0x8011), (EntryKind::CUBIN, 90, (9, 0), 0x11)]);
}

#[test]
fn every_way_of_storing_unfolds_to_the_same_text() {
    for stored in [Stored::Plain, Stored::Lz4, Stored::Zstd] {
        let bytes = container(&[entry(PTX, 90, &ptx("kernel"), stored)]);
        let image = Image::from_bytes(&bytes).unwrap();
        let texts = image.ptx(Some(90)).unwrap();
        assert_eq!(texts[0].text.as_bytes(), &ptx("kernel")[..ptx("kernel").len() - 1], "{stored:?}");
    }
}

#[test]
fn the_highest_ptx_that_the_device_can_run_is_chosen() {
    let of = |sm| entry(PTX, sm, &ptx(&format!("for_{sm}")), Stored::Plain);
    let bytes = container(&[of(75), of(120), of(90), entry(CUBIN, 90, b"code", Stored::Plain)]);
    let image = Image::from_bytes(&bytes).unwrap();
    let chosen = |sm| image.ptx(sm).unwrap()[0].sm;
    assert_eq!((chosen(Some(90)), chosen(Some(100)), chosen(Some(80)), chosen(None)), (90, 90, 75, 120));
}

#[test]
fn code_for_one_architecture_suits_no_other() {
    let of = |kind, sm, flags| {
        let bytes = container(&[entry_with_flags(kind, sm, b"", Stored::Plain, flags)]);
        move |device| Container::new(&bytes).unwrap().entries().next().unwrap().unwrap().suits(device)
    };
    let sm_90a = of(PTX, 90, 0x10_0011);
    assert!(sm_90a(90) && !sm_90a(100));
    let sm_100f = of(PTX, 100, 0x120_0011);
    assert!(sm_100f(103) && !sm_100f(110) && !sm_100f(90));
    let cubin = of(CUBIN, 80, 0x11);
    assert!(cubin(86) && !cubin(75) && !cubin(90));
    let ptx = of(PTX, 80, 0x11);
    assert!(ptx(90) && !ptx(75));
}

#[test]
fn an_image_without_ptx_says_what_it_has() {
    let bytes = container(&[entry(CUBIN, 90, b"code", Stored::Plain), entry(PTX, 120, &ptx("x"), Stored::Plain)]);
    let error = Image::from_bytes(&bytes).unwrap().ptx(Some(90)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ImageError::NoPtx { major: 9, minor: 0, .. }));
    assert!(text.contains("it has PTX for 120, machine code for 90"), "{text}");
}

#[test]
fn text_ends_at_its_nul_wherever_that_is() {
    let image = Image::from_bytes(b"\n.version 9.0\0garbage").unwrap();
    assert_eq!(image.ptx(Some(90)).unwrap()[0].text, "\n.version 9.0");
    assert_eq!(Image::from_bytes(b"").unwrap().parts(), [b""]);
}

#[test]
fn files_that_are_no_images_are_refused() {
    assert_eq!(Image::from_bytes(&[0xb1, 0x43, 0x62, 0x46, 1, 0, 0, 0]), Err(ImageError::WrapperInFile));
    assert_eq!(Image::from_bytes(&[0x01, 0x5a, 0xe5, 0x1e]), Err(ImageError::Ancient));
    let cut = &container(&[entry(PTX, 90, &ptx("x"), Stored::Plain)])[..40];
    assert!(matches!(Image::from_bytes(cut), Err(ImageError::CutOff { .. })));
    assert!(matches!(Image::from_bytes(b"\x7fELF\x02\x01"), Err(ImageError::CutOff { .. })));
}

#[test]
fn a_false_uncompressed_size_is_an_error_and_no_allocation() {
    for stored in [Stored::Lz4, Stored::Zstd] {
        for size in [0_u64, 5, 1 << 29, 1 << 40, u64::MAX] {
            let mut bytes = container(&[entry(PTX, 90, &ptx("x"), stored)]);
            bytes[16 + 56..16 + 64].copy_from_slice(&size.to_le_bytes());
            assert!(Image::from_bytes(&bytes).unwrap().ptx(None).is_err(), "{stored:?} {size}");
        }
    }
}

#[test]
fn random_damage_never_panics() {
    let whole = container(&[
        entry(PTX, 90, &ptx("a"), Stored::Zstd),
        entry(PTX, 80, &ptx("b"), Stored::Lz4),
        entry(CUBIN, 90, &[7; 100], Stored::Plain),
    ]);
    let mut state = 0x1234_5678_9abc_def1_u64;
    for _ in 0..20_000 {
        let mut copy = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            copy[(state >> 33) as usize % whole.len()] = (state >> 24) as u8;
        }
        copy.truncate(copy.len() - (state >> 60) as usize);
        let Ok(image) = Image::from_bytes(&copy) else { continue };
        let _ = (image.ptx(None), image.ptx(Some(90)));
        for container in image.containers().unwrap_or_default() {
            container.entries().flatten().for_each(|entry| drop((entry.contents(), entry.name())));
        }
    }
}
