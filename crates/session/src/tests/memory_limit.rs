//! What counts against a session's limit of device memory beside its blocks. The limit is 64 granules, all of which the
//! tests use up.

use katydid_cuda_sys::{CUresult, limit};
use katydid_wire::codec::Message;
use katydid_wire::message::{
    cuLibraryUnload, cuModuleUnload, kdArrayCreate, kdContextRelease, kdContextSetLimit, kdDeviceGrow, kdDeviceShrink,
    kdLibraryLoad, kdManagedCreate, kdManagedDestroy, kdModuleLoad, kdUpload,
};

use super::fake::calls;
use super::stage::{DEVICE, GRANULE_BYTES, Stage};

const OUT_OF_MEMORY: u32 = CUresult::ERROR_OUT_OF_MEMORY.0;

impl Stage {
    fn held_bytes(&self) -> u64 {
        self.session.shared.usage.memory()
    }

    /// Loads code with a variable of `bytes` bytes.
    fn load_variable<M: Message>(&mut self, bytes: u64, message: &M) -> u32 {
        let text = format!(".version 8.0\n.global .b8 x[{bytes}];");
        let image = katydid_fatbin::ModuleImage::from_bytes(text.as_bytes()).unwrap().encode();
        self.enqueue(&kdUpload { total: image.len() as u64, data: &image });
        self.call(message).status
    }
}

fn module(module: u32) -> kdModuleLoad<'static> {
    kdModuleLoad { module, infoLogSize: 0, errorLogSize: 0, options: &[] }
}

#[test]
fn variables_of_a_module_count_from_its_load_to_its_end() {
    let mut stage = Stage::new();
    assert_eq!(stage.load_variable(64 * GRANULE_BYTES + 1, &module(1)), OUT_OF_MEMORY);
    assert_eq!((calls(), stage.held_bytes()), (Vec::<String>::new(), 0), "the driver is not asked");
    assert_eq!(stage.load_variable(60 * GRANULE_BYTES, &module(1)), 0);
    assert_eq!(stage.held_bytes(), 60 * GRANULE_BYTES);
    let grow = kdDeviceGrow { device: 0, address: DEVICE, size: 5 * GRANULE_BYTES };
    assert_eq!(stage.call(&grow).status, OUT_OF_MEMORY);
    stage.enqueue(&cuModuleUnload { hmod: 1 });
    assert_eq!(stage.held_bytes(), 0);
    stage.reply(&grow);
}

#[test]
fn a_library_counts_once_in_each_context() {
    let mut stage = Stage::new();
    let load = kdLibraryLoad { library: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
    assert_eq!(stage.load_variable(20 * GRANULE_BYTES, &load), 0);
    assert_eq!(stage.held_bytes(), 20 * GRANULE_BYTES);
    stage.retain(2);
    assert_eq!(stage.held_bytes(), 40 * GRANULE_BYTES);
    stage.reply(&kdContextRelease { context: 2, device: 0 });
    stage.context = 1;
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    assert_eq!(stage.held_bytes(), 20 * GRANULE_BYTES, "it belongs to no context");
    stage.enqueue(&cuLibraryUnload { library: 1 });
    assert_eq!(stage.held_bytes(), 0);
}

#[test]
fn managed_memory_goes_with_its_context_or_by_itself() {
    let mut stage = Stage::new();
    let hold = |address| kdManagedCreate { address, size: 30 * GRANULE_BYTES };
    stage.reply(&hold(0x1000));
    stage.reply(&hold(0x2000));
    assert_eq!(stage.call(&hold(0x3000)).status, OUT_OF_MEMORY);
    assert_eq!(stage.call(&kdManagedCreate { address: 0x1000, size: 1 }).status, CUresult::ERROR_INVALID_VALUE.0);
    stage.enqueue(&kdManagedDestroy { address: 0x2000 });
    assert_eq!(stage.held_bytes(), 30 * GRANULE_BYTES);
    // This block belongs to no context.
    stage.context = 0;
    stage.reply(&kdManagedCreate { address: 0x2000, size: GRANULE_BYTES });
    stage.context = 1;
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    assert_eq!(stage.held_bytes(), GRANULE_BYTES);
}

#[test]
fn a_limit_counts_as_the_driver_has_it_and_stays_when_it_is_refused() {
    let mut stage = Stage::new();
    // The driver of these tests reports 7 bytes for each limit, whatever was set.
    stage.reply(&kdContextSetLimit { limit: limit::MALLOC_HEAP_SIZE, value: 4096 });
    assert_eq!(stage.held_bytes(), 7);
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: 63 * GRANULE_BYTES });
    stage.reply(&kdManagedCreate { address: 0x1000, size: GRANULE_BYTES - 7 });
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    stage.retain(2);
    stage.reply(&kdManagedCreate { address: 0x1000, size: GRANULE_BYTES - 6 });
    calls();
    let refused = stage.call(&kdContextSetLimit { limit: limit::MALLOC_HEAP_SIZE, value: 4096 });
    assert_eq!((refused.status, stage.held_bytes()), (OUT_OF_MEMORY, 64 * GRANULE_BYTES - 6));
    assert_eq!(calls(), ["limit 2 4096", "limit 2 7"], "it is set back");
    stage.reply(&kdDeviceShrink { device: 0, address: DEVICE, size: 63 * GRANULE_BYTES });
}

#[test]
fn small_arrays_of_a_context_count_with_the_whole_pieces_that_they_share() {
    let mut stage = Stage::new();
    let texel = |array| kdArrayCreate { array, width: 1, height: 0, depth: 0, format: 1, channels: 1, flags: 0 };
    stage.reply(&texel(1));
    assert_eq!(stage.held_bytes(), GRANULE_BYTES);
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: 63 * GRANULE_BYTES });
    stage.reply(&texel(2));
    // This array does not fit beside them.
    let large = kdArrayCreate { array: 3, width: 1025, height: 1024, depth: 0, format: 1, channels: 1, flags: 0 };
    assert_eq!((stage.call(&large).status, stage.held_bytes()), (OUT_OF_MEMORY, 64 * GRANULE_BYTES));
    stage.reply(&kdDeviceShrink { device: 0, address: DEVICE, size: 63 * GRANULE_BYTES });
    stage.reply(&large);
    assert_eq!(stage.held_bytes(), 2 * GRANULE_BYTES);
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    assert_eq!(stage.held_bytes(), 0);
}
