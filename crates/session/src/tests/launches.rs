//! Launches and module loads.

use katydid_cuda_sys::{CUlaunchAttribute, CUresult, Pod as _, launch_attribute};
use katydid_wire::message::{cuEventCreate, kdFacts, kdLaunch, kdModuleLoad, kdModuleLookup, kdUpload};

use super::fake::calls;
use super::stage::Stage;
use crate::calls::fault::SessionError;
use crate::code::module_cache::ModuleCache;

fn launch(bytes: &[u8], attributes: u32) -> kdLaunch<'_> {
    kdLaunch {
        function: 1,
        kernel: 0,
        gridX: 7,
        gridY: 1,
        gridZ: 1,
        blockX: 128,
        blockY: 1,
        blockZ: 1,
        sharedSize: 64,
        stream: 0,
        attributeCount: attributes,
        attributesAndParams: bytes,
    }
}

fn attribute(id: u32, value: u64) -> Vec<u8> {
    CUlaunchAttribute { id, value: [value, 0, 0, 0, 0, 0, 0, 0], ..Default::default() }.to_bytes()
}

#[test]
fn parameters_reach_the_driver_as_they_were_packed() {
    let mut stage = Stage::new();
    stage.load();
    stage.enqueue(&launch(&[1, 2, 3], 0));
    stage.enqueue(&launch(&[], 0));
    let calls = calls();
    assert!(calls[0].ends_with("7 128 64 0x0 [1, 2, 3]"), "{calls:?}");
    assert!(calls[1].ends_with("[]"), "{calls:?}");
}

#[test]
fn attributes_are_passed_on_and_their_events_resolved() {
    let mut stage = Stage::new();
    stage.load();
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    let event = calls()[0].rsplit("0x").next().unwrap().to_owned();
    let cooperative = attribute(launch_attribute::COOPERATIVE, 1);
    let completion = attribute(launch_attribute::LAUNCH_COMPLETION_EVENT, 1);
    stage.enqueue(&launch(&[cooperative, completion, vec![9]].concat(), 2));
    let calls = calls();
    assert!(calls[0].ends_with(&format!("[(2, 1), (c, {event})] [9]")), "{calls:?}");
}

#[test]
fn an_attribute_that_would_write_to_the_program_is_not_supported() {
    let mut stage = Stage::new();
    stage.load();
    stage.enqueue(&launch(&attribute(launch_attribute::DEVICE_UPDATABLE_KERNEL_NODE, 0x1000), 1));
    assert_eq!(calls(), [""; 0]);
    assert_eq!(stage.call(&kdFacts {}).deferred, CUresult::ERROR_NOT_SUPPORTED.0);
}

#[test]
fn attributes_beyond_the_message_end_the_session() {
    let mut stage = Stage::new();
    stage.load();
    for (bytes, count) in [(&[0; 71][..], 1), (&[0; 72][..], 2), (&[][..], u32::MAX), (&[0; 80 * 72][..], 65)] {
        let outcome = stage.try_send(&launch(bytes, count), false);
        assert!(matches!(outcome, Err(SessionError::DamagedPart { part: "attributes", .. })), "{count}");
    }
}

#[test]
fn one_of_function_and_kernel_must_be_named() {
    let mut stage = Stage::new();
    stage.load();
    for (function, kernel) in [(0, 0), (1, 1)] {
        stage.enqueue(&kdLaunch { function, kernel, ..launch(&[], 0) });
        assert_eq!(stage.call(&kdFacts {}).deferred, CUresult::ERROR_INVALID_HANDLE.0);
    }
}

#[test]
fn invalid_image_is_refused_by_the_call() {
    let mut stage = Stage::new();
    let load = kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
    for bytes in
        [&b"garbage"[..], &[2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0x45, 0x4c, 0x46, 0, 0, 0, 0]]
    {
        stage.enqueue(&kdUpload { total: bytes.len() as u64, data: bytes });
        assert_eq!(stage.call(&load).status, CUresult::ERROR_INVALID_IMAGE.0);
    }
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn an_image_that_a_program_sent_is_there_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ModuleCache::new(folder.path().to_owned(), 1 << 20);
    let image = katydid_fatbin::ModuleImage::from_bytes(b".version 8.0\n").unwrap().encode();
    let (total, hash) = (image.len() as u64, blake3::hash(&image));
    let recall = kdModuleLookup { total, hash: hash.as_bytes() };
    let load = kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
    for is_known in [false, true] {
        let mut stage = Stage::new();
        stage.session.use_module_cache(cache.clone());
        assert_eq!(stage.call(&recall).payload, u32::from(is_known).to_le_bytes());
        if !is_known {
            stage.enqueue(&kdUpload { total, data: &image });
        }
        assert_eq!(stage.call(&load).status, 0);
    }
    // Nothing is known without a cache, or of another length. A hash of the wrong size is refused.
    let mut stage = Stage::new();
    assert_eq!(stage.call(&recall).payload, [0; 4]);
    stage.session.use_module_cache(cache.clone());
    assert_eq!(stage.call(&kdModuleLookup { total: total + 1, ..recall }).payload, [0; 4]);
    let short = kdModuleLookup { total, hash: &hash.as_bytes()[1..] };
    assert_eq!(stage.call(&short).status, CUresult::ERROR_INVALID_VALUE.0);
}

/// A load that is refused before it takes its uploaded pieces leaves none of them to the thread's next load.
#[test]
fn a_refused_load_leaves_nothing_of_its_image() {
    let mut stage = Stage::new();
    let image = katydid_fatbin::ModuleImage::from_bytes(b".version 8.0\n").unwrap().encode();
    let piece = kdUpload { total: image.len() as u64, data: &image };
    let load = kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
    let good = std::mem::replace(&mut stage.context, 2);
    stage.enqueue(&piece);
    assert_ne!(stage.call(&load).status, CUresult::SUCCESS.0, "there is no context 2");
    stage.context = good;
    stage.enqueue(&piece);
    assert_eq!(stage.call(&load).status, CUresult::SUCCESS.0);
}
