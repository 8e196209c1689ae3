//! Modules: loaded from PTX and unloaded again. A native driver caches compiled code on disk; so does the same driver under
//! Katydid.

use std::ffi::{CStr, CString};

use crate::empty_kernel::EMPTY_KERNEL_PTX;
use crate::sampling::{Body, each};

/// Kernels of the larger module.
const KERNELS_PER_MODULE: usize = 200;

pub(super) fn measure(body: &mut Body) {
    let repetitions = body.plan.large;
    let many = of_many_kernels();
    for (key, ptx) in [("module_load", EMPTY_KERNEL_PTX), ("module_load_200", many.as_c_str())] {
        let samples = each(repetitions, || body.cuda.load_and_unload(ptx));
        body.note(key, samples);
    }
}

/// Returns a module of that many kernels, each of which writes its own number.
fn of_many_kernels() -> CString {
    let mut text = ".version 7.0\n.target sm_75\n.address_size 64\n".to_owned();
    for number in 0..KERNELS_PER_MODULE {
        text.push_str(&format!(
            ".visible .entry write{number}(.param .u64 to)\n{{\n    .reg .b64 %rd<3>;\n    .reg .b32 %r<2>;\n    \
             ld.param.u64 %rd1, [to];\n    cvta.to.global.u64 %rd2, %rd1;\n    mov.u32 %r1, {number};\n    \
             st.global.u32 [%rd2], %r1;\n    ret;\n}}\n"
        ));
    }
    // The text has no zero byte. If it had one, the driver would refuse the empty module, and the bench would report that.
    CString::new(text).unwrap_or_else(|_| CStr::to_owned(c""))
}
