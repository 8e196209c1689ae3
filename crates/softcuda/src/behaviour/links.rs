//! Links, compiler options, and the logs for wrong code. Codes are those of driver 580.

use super::*;
use katydid_cuda_sys::{CUfunction, CUjit_option, CUlinkState, CUmodule, jit_input, jit_option};
use std::ptr;

const PTX_HEAD: &str = ".version 7.0\n.target sm_75\n.address_size 64\n";
const CALLER_PTX: &str = ".extern .func (.param .b32 r) f(.param .b32 a);
.visible .entry k(.param .u64 o) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [o]; mov.u32 %r1, 7;
{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), f, (p); ld.param.b32 %r2, [q]; }
st.global.u32 [%rd1], %r2; ret; }";
const CALLEE_PTX: &str = ".visible .func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a];
add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }";

/// A linking with an error log, and the log.
struct Linking {
    state: CUlinkState,
    kinds: [CUjit_option; 2],
    values: Box<[*mut c_void; 2]>,
    log: Box<[u8; 400]>,
}

impl Linking {
    fn new() -> Self {
        let mut log = Box::new([0_u8; 400]);
        let kinds = [jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
        let values = Box::new([log.as_mut_ptr().cast(), ptr::without_provenance_mut(400)]);
        let mut linking = Self { state: CUlinkState::NULL, kinds, values, log };
        // SAFETY: two options, whose values and buffer live as long as the linking.
        ok(unsafe { cuLinkCreate_v2(2, linking.kinds.as_mut_ptr(), linking.values.as_mut_ptr(), &mut linking.state) });
        linking
    }

    fn add(&self, kind: u32, text: &str, name: &std::ffi::CStr) -> CUresult {
        let (data, size) = (text.as_ptr().cast_mut().cast(), text.len());
        // SAFETY: readable for that size; no options.
        unsafe { cuLinkAddData_v2(self.state, kind, data, size, name.as_ptr(), 0, ptr::null_mut(), ptr::null_mut()) }
    }

    fn ptx(&self, body: &str, name: &std::ffi::CStr) -> CUresult {
        self.add(jit_input::PTX, &format!("{PTX_HEAD}{body}"), name)
    }

    fn complete(&self) -> Result<*mut c_void, CUresult> {
        let (mut image, mut size) = (ptr::null_mut(), 0);
        // SAFETY: locals.
        unsafe { cuLinkComplete(self.state, &mut image, &mut size) }.ok().map(|()| image)
    }

    fn log(&self) -> String {
        let length = self.log.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8_lossy(&self.log[..length]).into_owned()
    }
}

impl Drop for Linking {
    fn drop(&mut self) {
        // SAFETY: a handle by value.
        ok(unsafe { cuLinkDestroy(self.state) });
    }
}

#[test]
fn two_texts_become_one_module() {
    let _context = TestContext::new();
    let linking = Linking::new();
    assert_eq!((linking.ptx(CALLER_PTX, c"a"), linking.ptx(CALLEE_PTX, c"b")), (CUresult::SUCCESS, CUresult::SUCCESS));
    let image = linking.complete().unwrap();
    assert_eq!(linking.ptx(CALLEE_PTX, c"c"), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(linking.complete().err(), Some(CUresult::ERROR_INVALID_HANDLE));
    let (mut module, mut function, mut out) = (CUmodule::NULL, CUfunction::NULL, device_memory(4));
    let (mut params, mut result) = ([ptr::from_mut(&mut out).cast()], 0_u32);
    // SAFETY: locals, and an image that lives as long as the linking.
    unsafe {
        ok(cuModuleLoadData(&mut module, image));
        ok(cuModuleGetFunction(&mut function, module, c"k".as_ptr()));
        let values = params.as_mut_ptr();
        ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, values, ptr::null_mut()));
        ok(cuMemcpyDtoH_v2(ptr::from_mut(&mut result).cast(), out, 4));
    }
    assert_eq!(result, 8);
}

#[test]
fn a_failed_link_reports_its_code_and_log() {
    let _context = TestContext::new();
    let alone = Linking::new();
    ok(alone.ptx(CALLER_PTX, c"a"));
    assert_eq!(alone.complete().err(), Some(CUresult::ERROR_INVALID_SOURCE));
    assert!(alone.log().contains("unresolved symbol f"), "{}", alone.log());
    assert_eq!(alone.complete().err(), Some(CUresult::ERROR_INVALID_SOURCE));
    let twice = Linking::new();
    ok(twice.ptx(CALLEE_PTX, c"a"));
    assert_eq!(twice.ptx(CALLEE_PTX, c"b"), CUresult::ERROR_INVALID_SOURCE);
    assert!(twice.log().contains("'f' in 'b' is defined already, in 'a'"), "{}", twice.log());
    assert_eq!(twice.complete().err(), Some(CUresult::ERROR_INVALID_SOURCE));
    let junk = Linking::new();
    assert_eq!(junk.ptx(".visible .entry k() {\n bogus; }", c"a"), CUresult::ERROR_INVALID_PTX);
    assert!(junk.log().contains("line 5") && junk.log().contains("bogus"), "{}", junk.log());
    assert_eq!(junk.add(jit_input::PTX, "hello", c"a"), CUresult::ERROR_INVALID_IMAGE);
    assert_eq!(junk.add(jit_input::OBJECT, "hello", c"a"), CUresult::ERROR_UNKNOWN);
    assert_eq!(junk.add(jit_input::LIBRARY, "hello", c"a"), CUresult::ERROR_UNKNOWN);
    assert_eq!(junk.add(9, "hello", c"a"), CUresult::ERROR_INVALID_VALUE);
    assert!(junk.complete().is_ok());
    let failed = Linking::new();
    assert_eq!(failed.add(jit_input::NVVM, "hello", c"a"), CUresult::ERROR_JIT_COMPILER_NOT_FOUND);
    assert_eq!(failed.ptx(CALLEE_PTX, c"b"), CUresult::ERROR_JIT_COMPILER_NOT_FOUND);
    let failed = Linking::new();
    assert_eq!(failed.add(jit_input::CUBIN, "hello", c"a"), CUresult::ERROR_INVALID_IMAGE);
    assert_eq!(failed.complete().err(), Some(CUresult::ERROR_INVALID_IMAGE));
}

/// Returns the code of loading a text, and the error log.
fn load(text: &str) -> (CUresult, String) {
    let (mut log, text) = ([0_u8; 300], std::ffi::CString::new(text).unwrap());
    let mut kinds = [jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(300)];
    let mut module = CUmodule::NULL;
    // SAFETY: locals with two entries each, and a complete text.
    let code =
        unsafe { cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, kinds.as_mut_ptr(), values.as_mut_ptr()) };
    let length = log.iter().position(|byte| *byte == 0).unwrap();
    assert_eq!(values[1].addr(), if length == 0 { 0 } else { length + 1 });
    (code, String::from_utf8_lossy(&log[..length]).into_owned())
}

#[test]
fn every_kind_of_wrong_code_has_its_number_and_a_log_that_names_the_place() {
    let _context = TestContext::new();
    let invalid = CUresult::ERROR_INVALID_PTX;
    let newer = CUresult::ERROR_UNSUPPORTED_PTX_VERSION;
    let entry = |params: &str, body: &str| format!("{PTX_HEAD}.visible .entry k({params}) {{\n{body}\nret; }}");
    let large = "const .b8 c[65537];\n.visible .entry k() { ret; }";
    for (text, code, part) in [
        (entry("", ""), CUresult::SUCCESS, ""),
        (PTX_HEAD.replace("7.0", "9.1"), newer, "line 1: .version 9.1"),
        (PTX_HEAD.replace("sm_75", "sm_100"), invalid, "sm_100"),
        (PTX_HEAD.replace("sm_75", "bogus"), invalid, "bogus"),
        (PTX_HEAD.replace("size 64", "size 32"), invalid, "address_size 32"),
        (String::new(), CUresult::ERROR_INVALID_IMAGE, ""),
        (PTX_HEAD.replace(".version 7.0", ""), CUresult::ERROR_INVALID_IMAGE, ""),
        (entry("", "bogus.u32 %r1;"), invalid, "line 5: bogus.u32"),
        (entry("", "mov.u32 %r1, 5"), invalid, "line 6"),
        (entry("", "bra X;"), invalid, "X"),
        (entry(".param .b8 a[4352]", ""), CUresult::SUCCESS, ""),
        (entry(".param .b8 a[4353]", ""), invalid, "4353 bytes"),
        (entry(".param .b8 a[32765]", "").replace("7.0", "8.1"), invalid, "32765 bytes"),
        (format!("{PTX_HEAD}.visible .{large}"), invalid, "65537 bytes"),
        (format!("{PTX_HEAD}.visible .entry k() .reqntid 0 {{ ret; }}"), invalid, "reqntid"),
        (format!("{PTX_HEAD}{CALLER_PTX}"), invalid, "symbol f"),
        (entry("", "")[..PTX_HEAD.len() + 20].to_owned(), invalid, "line"),
    ] {
        let (status, log) = load(&text);
        assert_eq!(status, code, "{text}: {log}");
        assert!(log.contains(part), "{text}: {log}");
    }
}

#[test]
fn a_managed_variable_is_the_hosts_too() {
    let _context = TestContext::new();
    let text = c".version 7.0
.target sm_75
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared_word[3] = {5, 6, 7};
.visible .global .u32 own_word = 9;";
    let (mut library, mut address, mut size) = (katydid_cuda_sys::CUlibrary::NULL, 0, 0);
    let (null, nulls) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: locals, and complete texts.
    unsafe {
        ok(cuLibraryLoadData(&mut library, text.as_ptr().cast(), null, nulls, 0, null, nulls, 0));
        ok(cuLibraryGetManaged(&mut address, &mut size, library, c"shared_word".as_ptr()));
        let words = ptr::with_exposed_provenance::<[u32; 3]>(address as usize).read();
        assert_eq!((size, words), (12, [5, 6, 7]));
        let own = cuLibraryGetManaged(&mut address, &mut size, library, c"own_word".as_ptr());
        assert_eq!(own, CUresult::ERROR_NOT_FOUND);
        ok(cuMemPrefetchAsync(address, 12, -1, CUstream::NULL));
        ok(cuLibraryUnload(library));
    }
}
