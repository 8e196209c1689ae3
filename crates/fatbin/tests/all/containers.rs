//! Containers: which entry a device gets, and what it decompresses to.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{CUBIN, PTX, Stored, container, entry, entry_with_flags, ptx};
use katydid_fatbin::{Container, EntryKind, ModuleImage, ModuleImageError};

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
        let image = ModuleImage::from_bytes(&bytes).unwrap();
        let texts = image.ptx(Some(90)).unwrap();
        assert_eq!(texts[0].text.as_bytes(), &ptx("kernel")[..ptx("kernel").len() - 1], "{stored:?}");
    }
}

#[test]
fn the_highest_ptx_that_the_device_can_run_is_chosen() {
    let of = |sm| entry(PTX, sm, &ptx(&format!("for_{sm}")), Stored::Plain);
    let bytes = container(&[of(75), of(120), of(90), entry(CUBIN, 90, b"code", Stored::Plain)]);
    let image = ModuleImage::from_bytes(&bytes).unwrap();
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

/// Returns what remains of a container of these entries for these devices, by kind and architecture.
fn remaining_entries(entries: &[Vec<u8>], devices: &[u32]) -> Vec<(u16, u32)> {
    let bytes = container(entries);
    let image = ModuleImage::from_bytes(&bytes).unwrap();
    let flat = image.for_devices(devices).encode();
    let cut = ModuleImage::decode(&flat).unwrap();
    cut.containers().unwrap()[0].entries().map(Result::unwrap).map(|entry| (entry.kind.0, entry.sm)).collect()
}

#[test]
fn machine_code_for_other_devices_is_left_out_and_nothing_else() {
    let of = |kind, sm| entry(kind, sm, &[7; 20], Stored::Lz4);
    let special = |sm, flag: u64| entry_with_flags(CUBIN, sm, b"code", Stored::Plain, 0x11 | flag);
    const LTO: u16 = 8;
    let entries = [of(CUBIN, 80), of(PTX, 120), of(CUBIN, 86), of(LTO, 80), of(77, 80), of(CUBIN, 90), of(PTX, 75)];
    let always = [(PTX, 120), (LTO, 80), (77, 80)];
    let [ptx, lto, unknown] = always;
    let text = (PTX, 75);
    assert_eq!(remaining_entries(&entries, &[90]), [ptx, lto, unknown, (CUBIN, 90), text]);
    assert_eq!(remaining_entries(&entries, &[86]), [(CUBIN, 80), ptx, (CUBIN, 86), lto, unknown, text]);
    assert_eq!(remaining_entries(&entries, &[80, 90]), [(CUBIN, 80), ptx, lto, unknown, (CUBIN, 90), text]);
    // The text serves a device without machine code.
    assert_eq!(remaining_entries(&entries, &[103]), [ptx, lto, unknown, text]);
    // A special entry of the device's own family stays, whatever the driver makes of it.
    let special = [special(100, 0), special(103, 0x10_0000), special(103, 0x20_0000), special(103, 0)];
    assert_eq!(remaining_entries(&special, &[100]).len(), 3);
    assert_eq!(
        remaining_entries(&[of(CUBIN, 101), of(CUBIN, 110), of(CUBIN, 80)], &[110]),
        [(CUBIN, 101), (CUBIN, 110)]
    );
}

#[test]
fn where_nothing_is_to_be_left_out_the_image_stays_as_it_is() {
    let (code, other) = (entry(CUBIN, 90, b"code", Stored::Zstd), entry(CUBIN, 80, b"code", Stored::Plain));
    let whole = |bytes: &[u8], devices: &[u32]| {
        let image = ModuleImage::from_bytes(bytes).unwrap();
        image.for_devices(devices).encode() == image.encode()
    };
    let both = container(&[code.clone(), other.clone()]);
    assert!(!whole(&both, &[90]));
    // Everything stays if it serves all devices, if one device has no code (the driver must report that), or if no device is
    // known.
    assert!(whole(&both, &[90, 80]) && whole(&both, &[75]) && whole(&both, &[90, 75]) && whole(&both, &[]));
    // The driver must find a damaged entry.
    let mut damaged = both.clone();
    damaged[16 + code.len() + 4] = 1;
    assert!(whole(&damaged, &[90]));
    assert!(whole(&other[64..], &[90]) && whole(b".version 9.0", &[90]));
}

#[test]
fn a_longer_header_of_a_container_keeps_what_it_says() {
    let code = entry(CUBIN, 90, b"code", Stored::Plain);
    let mut bytes = container(&[entry(CUBIN, 80, b"other", Stored::Plain), code.clone()]);
    bytes[6] = 24;
    bytes.splice(16..16, [9; 8]);
    let flat = ModuleImage::from_bytes(&bytes).unwrap().for_devices(&[90]).encode();
    let cut = ModuleImage::decode(&flat).unwrap();
    let expected = [&bytes[..8], &(code.len() as u64).to_le_bytes(), &[9; 8], &code].concat();
    assert_eq!(cut.parts(), [&expected[..]]);
}

#[test]
fn an_image_without_ptx_says_what_it_has() {
    let bytes = container(&[entry(CUBIN, 90, b"code", Stored::Plain), entry(PTX, 120, &ptx("x"), Stored::Plain)]);
    let error = ModuleImage::from_bytes(&bytes).unwrap().ptx(Some(90)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ModuleImageError::NoPtx { major: 9, minor: 0, .. }));
    assert!(text.contains("it has PTX for 120, machine code for 90"), "{text}");
}

#[test]
fn a_cubin_alone_says_what_it_was_made_for_and_what_to_ask_a_compiler_for() {
    let mut file = katydid_fatbin::linked_image(&[]);
    for (version, flags, arch) in [(8, 0x0600_5a04_u32, 90), (8, 0x0600_6402, 100), (7, 0x0050_054b, 75)] {
        file[8] = version;
        file[48..52].copy_from_slice(&flags.to_le_bytes());
        let text = ModuleImage::from_bytes(&file).unwrap().ptx(Some(90)).unwrap_err().to_string();
        assert!(text.contains(&format!("machine code for {arch}")) && text.contains("compute_XX (NVRTC)"), "{text}");
    }
}

#[test]
fn text_ends_at_its_nul_wherever_that_is() {
    let image = ModuleImage::from_bytes(b"\n.version 9.0\0garbage").unwrap();
    assert_eq!(image.ptx(Some(90)).unwrap()[0].text, "\n.version 9.0");
    assert_eq!(ModuleImage::from_bytes(b"").unwrap().parts(), [b""]);
}

#[test]
fn files_that_are_no_images_are_refused() {
    assert_eq!(ModuleImage::from_bytes(&[0xb1, 0x43, 0x62, 0x46, 1, 0, 0, 0]), Err(ModuleImageError::WrapperInFile));
    assert_eq!(ModuleImage::from_bytes(&[0x01, 0x5a, 0xe5, 0x1e]), Err(ModuleImageError::Ancient));
    let cut = &container(&[entry(PTX, 90, &ptx("x"), Stored::Plain)])[..40];
    assert!(matches!(ModuleImage::from_bytes(cut), Err(ModuleImageError::CutOff { .. })));
    assert!(matches!(ModuleImage::from_bytes(b"\x7fELF\x02\x01"), Err(ModuleImageError::CutOff { .. })));
}

#[test]
fn a_false_uncompressed_size_is_an_error_and_no_allocation() {
    for stored in [Stored::Lz4, Stored::Zstd] {
        for size in [0_u64, 5, 1 << 29, 1 << 40, u64::MAX] {
            let mut bytes = container(&[entry(PTX, 90, &ptx("x"), stored)]);
            bytes[16 + 56..16 + 64].copy_from_slice(&size.to_le_bytes());
            assert!(ModuleImage::from_bytes(&bytes).unwrap().ptx(None).is_err(), "{stored:?} {size}");
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
        let Ok(image) = ModuleImage::from_bytes(&copy) else { continue };
        let _ =
            (image.ptx(None), image.ptx(Some(90)), ModuleImage::decode(&image.for_devices(&[90]).encode()).unwrap());
        for container in image.containers().unwrap_or_default() {
            container.entries().flatten().for_each(|entry| drop((entry.contents(), entry.name())));
        }
    }
}
