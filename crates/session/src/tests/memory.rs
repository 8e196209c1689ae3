//! Device memory, pinned memory, and which addresses copies may name.

use katydid_cuda_sys::{CUlibrary, CUresult};
use katydid_wire::message::{
    cuLibraryUnload, kdContextRelease, kdCopy, kdCopyIn, kdCopyOut, kdDeviceGrow, kdDeviceShrink, kdFacts,
    kdFactsReply, kdFill, kdHostPull, kdHostPush, kdHostPushWords, kdHostRegister, kdHostUnregister, kdLibraryModule,
};
use katydid_wire::ranges;

use super::fake::{calls, fail_next};
use super::stage::{DEVICE, GRANULE_BYTES, Stage};
use crate::calls::fault::SessionError;
use crate::memory::host_memory::VariableOwner;

fn grow(address: u64, size: u64) -> kdDeviceGrow {
    kdDeviceGrow { device: 0, address, size }
}

#[test]
fn growth_maps_new_memory_at_the_named_address() {
    let mut stage = Stage::new();
    stage.reply(&grow(DEVICE, GRANULE_BYTES));
    assert_eq!(calls(), ["create 0x200000", "map 0x200000000000 0x200000", "access 1"]);
    assert_eq!(stage.session.shared.usage.memory(), GRANULE_BYTES);
}

#[test]
fn out_of_memory_is_told_exactly_and_leaves_nothing() {
    let mut stage = Stage::new();
    fail_next(CUresult::ERROR_OUT_OF_MEMORY);
    assert_eq!(stage.call(&grow(DEVICE, GRANULE_BYTES)).status, CUresult::ERROR_OUT_OF_MEMORY.0);
    assert_eq!(calls(), ["create 0x200000"]);
    stage.reply(&grow(DEVICE, GRANULE_BYTES));
}

#[test]
fn a_limit_is_a_full_device() {
    let mut stage = Stage::new();
    assert_eq!(stage.call(&grow(DEVICE, 65 * GRANULE_BYTES)).status, CUresult::ERROR_OUT_OF_MEMORY.0);
    assert_eq!(calls(), [""; 0]);
    stage.reply(&grow(DEVICE, 64 * GRANULE_BYTES));
    assert_eq!(stage.call(&grow(DEVICE + 64 * GRANULE_BYTES, GRANULE_BYTES)).status, CUresult::ERROR_OUT_OF_MEMORY.0);
}

#[test]
fn a_limit_is_shown_as_the_size_of_the_device() {
    let mut stage = Stage::new();
    stage.session.facts.devices[0].total_memory = 1 << 40;
    let kdFactsReply { facts } = stage.reply(&kdFacts {});
    let facts = katydid_wire::facts::Facts::decode(&facts).unwrap();
    assert_eq!(facts.devices[0].total_memory, 64 * GRANULE_BYTES);
}

#[test]
fn memory_is_given_back_in_whole_growths() {
    let mut stage = Stage::new();
    stage.reply(&grow(DEVICE, GRANULE_BYTES));
    stage.reply(&grow(DEVICE + GRANULE_BYTES, 2 * GRANULE_BYTES));
    stage.reply(&kdDeviceShrink { device: 0, address: DEVICE, size: 3 * GRANULE_BYTES });
    assert_eq!(stage.session.shared.usage.memory(), 0);
    stage.reply(&grow(DEVICE, GRANULE_BYTES));
}

#[test]
fn growth_outside_the_arena_or_over_itself_ends_the_session() {
    let past = [
        (DEVICE + 1, GRANULE_BYTES),
        (DEVICE, GRANULE_BYTES - 1),
        (DEVICE, 0),
        (DEVICE - GRANULE_BYTES, GRANULE_BYTES),
        (DEVICE + (1 << 40), GRANULE_BYTES),
        (u64::MAX - GRANULE_BYTES + 1, 2 * GRANULE_BYTES),
        (DEVICE + GRANULE_BYTES, GRANULE_BYTES),
    ];
    for (address, size) in past {
        let mut stage = Stage::new();
        stage.reply(&grow(DEVICE + GRANULE_BYTES, GRANULE_BYTES));
        let outcome = stage.try_send(&grow(address, size), true);
        assert!(matches!(outcome, Err(SessionError::BadRange { .. })), "{address:#x} + {size:#x}");
    }
    let mut stage = Stage::new();
    for device in [1, -1, i32::MAX] {
        let reply = stage.call(&kdDeviceGrow { device, ..grow(DEVICE, GRANULE_BYTES) });
        assert_eq!(reply.status, CUresult::ERROR_INVALID_DEVICE.0);
    }
}

#[test]
fn copies_and_fills_reach_only_the_session() {
    let mut stage = Stage::new();
    let own = &raw const stage as u64;
    stage.enqueue(&kdCopy { destination: DEVICE, source: own, size: 8, stream: 0 });
    stage.enqueue(&kdCopy { destination: own, source: DEVICE, size: 8, stream: 0 });
    stage.enqueue(&kdCopyIn { destination: own, stream: 0, data: b"overwrite" });
    let (value, element) = (0, 4);
    stage.enqueue(&kdFill { destination: own, pitch: 0, value, elementSize: element, width: 2, height: 1, stream: 0 });
    let out = stage.call(&kdCopyOut { source: own, size: 64, stream: 0 });
    assert_eq!((out.status, out.deferred), (CUresult::ERROR_INVALID_VALUE.0, CUresult::ERROR_INVALID_VALUE.0));
    assert_eq!(calls(), [""; 0]);
    stage.enqueue(&kdCopy { destination: DEVICE, source: DEVICE + 64, size: 8, stream: 0 });
    assert_eq!(calls().len(), 1);
}

#[test]
fn private_pinned_memory_goes_with_its_context_and_begins_again_empty() {
    const BASE: u64 = 0x4200_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, false);
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE, size: 4096, flags: 0 });
    stage.enqueue(&kdHostPush { address: BASE, data: b"gone" });
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE, size: 4096, flags: 0 });
    assert_eq!(stage.reply(&kdHostPull { ranges: &ranges::encode(&[(BASE, 4)]) }).data, [0; 4]);
}

#[test]
fn shared_pinned_memory_outlives_the_context_it_was_registered_in() {
    const BASE: u64 = 0x4300_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, true);
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE, size: 4096, flags: 0 });
    stage.enqueue(&kdHostPush { address: BASE, data: b"kept" });
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    calls();
    stage.retain(1);
    assert!(calls().contains(&format!("register {BASE:#x} 0x1000")));
    assert_eq!(stage.reply(&kdHostPull { ranges: &ranges::encode(&[(BASE, 4)]) }).data, b"kept");
}

#[test]
fn shared_pinned_memory_can_be_named_as_far_as_the_program_has_made_it() {
    const BASE: u64 = 0x4700_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, true);
    stage.retain(1);
    let end = BASE + (1 << 19);
    assert!(stage.try_send(&kdHostRegister { address: end - 4096, size: 8192, flags: 0 }, true).is_err());
    assert!(stage.session.address_check.check(BASE, 4).is_err());
    stage.reply(&kdHostRegister { address: end - 4096, size: 4096, flags: 0 });
    assert!(stage.session.address_check.check(BASE, 4).is_ok() && stage.session.address_check.check(end, 4).is_err());
}

#[test]
fn pinned_memory_is_written_and_read_only_where_it_is_registered() {
    const BASE: u64 = 0x4100_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, false);
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE + 4096, size: 8192, flags: 0 });
    stage.enqueue(&kdHostPush { address: BASE + 4100, data: b"pushed" });
    assert_eq!(stage.reply(&kdHostPull { ranges: &ranges::encode(&[(BASE + 4100, 6)]) }).data, b"pushed");
    let again = stage.call(&kdHostRegister { address: BASE + 8192, size: 4096, flags: 0 });
    assert_eq!(again.status, CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.0);
    for (address, data) in [(BASE, &b"x"[..]), (BASE + 12287, b"xy"), (u64::MAX, b"xy")] {
        let outcome = stage.try_send(&kdHostPush { address, data }, false);
        assert!(matches!(outcome, Err(SessionError::BadRange { .. })), "{address:#x}");
    }
    assert!(stage.try_send(&kdHostPull { ranges: &ranges::encode(&[(BASE, 1)]) }, true).is_err());
    assert!(stage.try_send(&kdHostPull { ranges: &ranges::encode(&[(BASE + 4096, u32::MAX)]) }, true).is_err());
    let list = |sizes: [u32; 2]| ranges::encode(&[(BASE + 4100, sizes[0]), (BASE + 4098, sizes[1])]);
    assert_eq!(stage.reply(&kdHostPull { ranges: &list([2, 3]) }).data, b"pu\0\0p");
    let too_much = vec![(BASE + 4096, 8192); 200];
    for ranges in [&list([2, 8192])[..], &list([2, 3])[1..], &[], &ranges::encode(&too_much)] {
        assert!(stage.try_send(&kdHostPull { ranges }, true).is_err(), "{} bytes", ranges.len());
    }
    for (address, size) in [(BASE + 1, 4096), (BASE, 1 << 21), (BASE - 4096, 8192), (BASE, 0), (u64::MAX - 4095, 8192)]
    {
        assert!(stage.try_send(&kdHostRegister { address, size, flags: 0 }, true).is_err(), "{address:#x}");
    }
}

#[test]
fn words_of_a_page_are_written_and_nothing_between_them() {
    const BASE: u64 = 0x4800_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, false);
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE, size: 8192, flags: 0 });
    stage.enqueue(&kdHostPush { address: BASE, data: &[9; 8192] });
    let mut words = vec![0_u8; 128];
    (words[0], words[127]) = (0b1101, 0x80);
    words.extend_from_slice(b"onetwothreelast!");
    stage.enqueue(&kdHostPushWords { address: BASE + 4, words: &words });
    let got = stage.reply(&kdHostPull { ranges: &ranges::encode(&[(BASE, 8192)]) }).data;
    let mut expected = vec![9_u8; 8192];
    expected[4..8].copy_from_slice(b"onet");
    expected[12..20].copy_from_slice(b"wothreel");
    expected[4096..4100].copy_from_slice(b"ast!");
    assert!(got == expected);
    let unset = vec![0_u8; 132];
    for (address, words) in [(BASE + 4100, &words[..]), (BASE, &words[..140]), (BASE, &unset), (BASE, &words[..60])] {
        let outcome = stage.try_send(&kdHostPushWords { address, words }, false);
        assert!(matches!(outcome, Err(SessionError::BadRange { .. })), "{address:#x}, {} bytes", words.len());
    }
}

#[test]
fn registered_memory_of_the_program_has_pages_of_the_workers_own_at_its_address() {
    const BASE: u64 = 0x4400_0000_0000;
    const OUTSIDE: u64 = 0x4500_0000_0000;
    let mut stage = Stage::with_host_memory(BASE, 1 << 20, true);
    stage.retain(1);
    let register = kdHostRegister { address: OUTSIDE, size: 8192, flags: 0 };
    for ends_with_context in [false, true, false] {
        stage.reply(&register);
        assert!(stage.session.host.as_ref().is_some_and(|host| host.is_private(OUTSIDE) && !host.is_private(BASE)));
        assert_eq!(stage.reply(&kdHostPull { ranges: &ranges::encode(&[(OUTSIDE, 4)]) }).data, [0; 4]);
        stage.enqueue(&kdHostPush { address: OUTSIDE + 4096, data: b"pushed" });
        assert_eq!(stage.reply(&kdHostPull { ranges: &ranges::encode(&[(OUTSIDE + 4096, 6)]) }).data, b"pushed");
        if ends_with_context {
            stage.reply(&kdContextRelease { context: 1, device: 0 });
            stage.retain(1);
        } else {
            stage.reply(&kdHostUnregister { address: OUTSIDE, size: 8192 });
        }
        assert!(stage.try_send(&kdHostPull { ranges: &ranges::encode(&[(OUTSIDE, 4)]) }, true).is_err());
    }
}

#[test]
fn memory_of_the_worker_is_never_replaced_by_registered_memory() {
    let mut stage = Stage::with_host_memory(0x4600_0000_0000, 1 << 20, true);
    stage.retain(1);
    let own = vec![7_u8; 3 * 4096];
    let address = (own.as_ptr().addr() as u64).next_multiple_of(4096);
    let refused = stage.call(&kdHostRegister { address, size: 4096, flags: 0 });
    assert_eq!(refused.status, CUresult::ERROR_NOT_SUPPORTED.0);
    assert!(own.iter().all(|byte| *byte == 7));
}

#[test]
fn variables_of_a_librarys_module_go_with_the_library() {
    let mut stage = Stage::new();
    stage.session.tables.libraries.set(1, CUlibrary::NULL, 0).unwrap();
    stage.session.tables.libraries.set(2, CUlibrary::NULL, 0).unwrap();
    let variables = [(5, 0x7f00_0000_0000), (6, 0x7f00_0000_1000)];
    for (library, (module, address)) in (1..).zip(variables) {
        stage.reply(&kdLibraryModule { module, library });
        stage.session.shared.blocks.add_variable(address, 64, VariableOwner::Module { module, context: 1 });
    }
    stage.enqueue(&cuLibraryUnload { library: 1 });
    assert_eq!(variables.map(|(_, address)| stage.session.shared.blocks.holds(address, 64)), [false, true]);
    // The id may belong to another module by now.
    stage.enqueue(&cuLibraryUnload { library: 1 });
    assert!(stage.session.tables.modules.get(5).is_err() && stage.session.tables.modules.get(6).is_ok());
}
