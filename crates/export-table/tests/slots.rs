//! The slots as a runtime calls them: through the addresses in the tables, with the facts of one library installed.

#![expect(unsafe_code, reason = "calls functions through the words of a table, as C callers do")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use katydid_export_table::{
    ContextState, DeviceIdentity, DriverFacts, Handle, Header, Status, context_gone, digest, install, lookup, status,
};

/// A library with one device, whose primary context 0x100 is inactive, and an active current context 0x200.
struct Library;

impl DriverFacts for Library {
    fn driver_version(&self) -> u32 {
        13000
    }
    fn devices(&self) -> Vec<DeviceIdentity> {
        vec![DeviceIdentity { uuid: [7; 16], pci_domain: 0, pci_bus: 6, pci_device: 0 }]
    }
    fn alive(&self) -> Result<(), Status> {
        Ok(())
    }
    fn current_context(&self) -> Handle {
        0x200
    }
    fn context_state(&self, context: Handle) -> ContextState {
        if context == 0x200 { ContextState::Active } else { ContextState::Inactive }
    }
    fn primary_context(&self, device: i32) -> Result<Handle, Status> {
        if device == 0 { Ok(0x100) } else { Err(101) }
    }
    fn context_device(&self, _context: Handle) -> Result<i32, Status> {
        Ok(0)
    }
    fn context_id(&self, context: Handle) -> Result<u64, Status> {
        Ok(context as u64 / 0x100)
    }
    fn module_functions(&self, module: Handle) -> Result<Vec<(Handle, CString)>, Status> {
        if module == 0x900 { Ok(vec![(0x901, c"first".into()), (0x902, c"second".into())]) } else { Err(400) }
    }
    fn multiprocessor_locations(&self) -> Result<(Vec<u8>, Vec<u8>), Status> {
        Ok((vec![0, 1, 0], vec![0, 0, 1]))
    }
    fn stream_object(&self, _context: Handle, stream: Handle, per_thread: bool) -> Result<Handle, Status> {
        Ok(stream + 8 + usize::from(per_thread))
    }
    fn stream_id(&self, _context: Handle, object: Handle) -> Result<u64, Status> {
        Ok(object as u64)
    }
    unsafe fn load_image(&self, image: *const c_void) -> Result<Handle, Status> {
        Ok(image.addr() + 1)
    }
    fn unload_module(&self, module: Handle) -> Result<(), Status> {
        if module == 0x5001 { Ok(()) } else { Err(400) }
    }
}

/// Returns word `slot` of the table with this id, as a function of type `F`.
fn slot<F: Copy>(id: u128, slot: usize) -> F {
    install(&Library);
    let table: *const *const c_void = lookup(&id.to_be_bytes()).unwrap_or(ptr::null()).cast();
    assert!(!table.is_null(), "a served table");
    // SAFETY: each test asks for a slot that its table has.
    let word = unsafe { table.add(slot).read() };
    assert!(!word.is_null(), "slot {slot} is empty");
    // SAFETY: each test names the type of the function in that slot.
    unsafe { std::mem::transmute_copy(&word) }
}

const CUDART: u128 = 0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9;
const STORAGE: u128 = 0xc693336e_1121_df11_a8c3_68f355d89593;
const INTEGRITY: u128 = 0xd4082055_bde6_704b_8d34_ba123c66e1f2;
const TOOLS_CONTEXT: u128 = 0x21318c60_9714_3248_8ca6_41ff7324c8f2;

type Put = extern "C" fn(Handle, usize, usize, Option<extern "C" fn(Handle, usize, usize)>) -> Status;
type Get = extern "C" fn(*mut usize, Handle, usize) -> Status;

#[test]
fn the_primary_context_is_named_without_being_activated() {
    let primary: extern "C" fn(*mut Handle, i32) -> Status = slot(CUDART, 2);
    let mut context = 0;
    assert_eq!((primary(&mut context, 0), context), (0, 0x100));
    assert_eq!((primary(&mut context, 5), context), (101, 0x100));
    assert_eq!(primary(ptr::null_mut(), 0), status::INVALID_VALUE);
}

#[test]
fn a_registered_image_is_unloaded_by_its_wrapper() {
    let load: extern "C" fn(*mut Handle, usize, usize, usize, usize) -> Status = slot(CUDART, 6);
    let unload: extern "C" fn(usize) -> Status = slot(CUDART, 7);
    let mut module = 0;
    assert_eq!((load(&mut module, 0x5000, 0, 0, 0), module), (0, 0x5001));
    assert_eq!(unload(0x5000), 0);
    assert_eq!(unload(0x5000), status::INVALID_HANDLE);
}

#[test]
fn values_belong_to_a_context_and_zero_means_the_current_one() {
    let (put, get): (Put, Get) = (slot(STORAGE, 0), slot(STORAGE, 2));
    let mut value = 9;
    assert_eq!((get(&mut value, 0x100, 1), value), (status::INVALID_HANDLE, 9));
    assert_eq!(put(0, 1, 42, None), 0);
    assert_eq!((get(&mut value, 0x200, 1), value), (0, 42));
    assert_eq!(put(0x200, 1, 43, None), status::INVALID_HANDLE);
    context_gone(0x200);
    assert_eq!(get(&mut value, 0, 1), status::INVALID_HANDLE);
}

#[test]
fn the_digest_covers_our_own_answers() {
    let prove: extern "C" fn(u32, u64, *mut [u64; 2]) -> Status = slot(INTEGRITY, 1);
    let mut words = [0; 2];
    assert_eq!(prove(13002, 99, &mut words), 0);
    let header = Header {
        driver_version: 13000,
        version: 13002,
        process: std::process::id(),
        // SAFETY: has no preconditions.
        thread: unsafe { libc::pthread_self() } as u32,
        cudart_table: lookup(&CUDART.to_be_bytes()).unwrap().addr() as u64,
        integrity_table: lookup(&INTEGRITY.to_be_bytes()).unwrap().addr() as u64,
        integrity_slot: prove as *const () as u64,
        unix_seconds: 99,
    };
    assert_eq!(words, digest(&header, &Library.devices()));
}

#[test]
fn context_zero_has_id_zero_and_stream_objects_are_not_handles() {
    let context_id: extern "C" fn(Handle, *mut u64) -> Status = slot(TOOLS_CONTEXT, 4);
    let object: extern "C" fn(Handle, Handle, *mut Handle, i32) -> Status = slot(TOOLS_CONTEXT, 51);
    let mut id = 77;
    assert_eq!((context_id(0, &mut id), id), (0, 0));
    assert_eq!((context_id(0x200, &mut id), id), (0, 2));
    let mut at = 0;
    assert_eq!((object(0x200, 0x40, &mut at, 0), at), (0, 0x48));
}

#[test]
fn every_kernel_of_a_module_is_visited() {
    unsafe extern "C" fn visit(seen: *mut c_void, function: Handle, name: *const c_char) {
        // SAFETY: the vector below, and a string of the table.
        let (seen, name) = unsafe { (&mut *seen.cast::<Vec<(Handle, String)>>(), CStr::from_ptr(name)) };
        seen.push((function, name.to_string_lossy().into_owned()));
    }
    install(&Library);
    let table = lookup(&0x6e163fbe_b958_444d_835c_e182aff1991e_u128.to_be_bytes()).unwrap().cast::<usize>();
    type Each = unsafe extern "C" fn(
        Handle,
        Handle,
        unsafe extern "C" fn(*mut c_void, Handle, *const c_char),
        *mut c_void,
        Handle,
    ) -> i32;
    // SAFETY: slot 7 has this signature; `seen` outlives the calls.
    unsafe {
        let each: Each = std::mem::transmute(table.add(7).read());
        let mut seen: Vec<(Handle, String)> = Vec::new();
        assert_eq!(each(0x200, 0x900, visit, (&raw mut seen).cast(), 0x900), 2);
        assert_eq!(seen, [(0x901, "first".to_owned()), (0x902, "second".to_owned())]);
        assert_eq!(each(0x200, 0x7, visit, (&raw mut seen).cast(), 0x7), 0);
    }
}

#[test]
fn places_of_multiprocessors_are_given_and_taken_back() {
    install(&Library);
    let table = lookup(&0x1734dc26_800d_4745_8726_c0f1e7dd8bca_u128.to_be_bytes()).unwrap().cast::<usize>();
    // SAFETY: the slots have these signatures; the arrays have three bytes each.
    unsafe {
        let get: unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> Status = std::mem::transmute(table.add(4).read());
        let free: unsafe extern "C" fn(*mut u8, *mut u8) -> Status = std::mem::transmute(table.add(13).read());
        let (mut first, mut second) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(get(&mut first, &mut second), status::SUCCESS);
        assert_eq!(std::slice::from_raw_parts(first, 3), [0, 1, 0]);
        assert_eq!(std::slice::from_raw_parts(second, 3), [0, 0, 1]);
        assert_eq!((free(first, second), free(ptr::null_mut(), ptr::null_mut())), (0, 0));
        assert_eq!(get(ptr::null_mut(), &mut second), status::INVALID_VALUE);
    }
}
