//! Device memory that built programs hold: their variables, and their machine code.
//!
//! A driver reports a program's memory once it is built. Memory beyond the session's limit counts all the same, since the driver
//! has it: the call fails, and no other allocation succeeds until the program and its kernels are released.
//!
//! Machine code for processors lies in memory of the machine, which has a limit of its own. A query of its size would make some
//! drivers recompile it.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;

use katydid_opencl_sys::constant::{
    DEVICE_TYPE, DEVICE_TYPE_CPU, PROGRAM_BINARY_SIZES, PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, PROGRAM_DEVICES,
};
use katydid_opencl_sys::{cl_device_id, cl_program, void};

use crate::drivers::call::driver;
use crate::drivers::driver::value;
use crate::drivers::query::ask;
use crate::objects::object::Object;

/// Returns a program's memory on all of its devices; what a driver does not report counts as 0.
pub(crate) fn bytes(program: &Object<cl_program>) -> u64 {
    let info = |parameter| {
        value(|size, out, needed| driver!(program.api, clGetProgramInfo(program.handle, parameter, size, out, needed)))
    };
    let devices: Vec<cl_device_id> = values_of(&info(PROGRAM_DEVICES).unwrap_or_default())
        .map(|word| cl_device_id(ptr::with_exposed_provenance_mut::<void>(word as usize)))
        .collect();
    let is_processor = |device: &cl_device_id| {
        let kind = ask::<u64>(|size, out| {
            driver!(program.api, clGetDeviceInfo(*device, DEVICE_TYPE, size, out, ptr::null_mut()))
        });
        kind.unwrap_or(DEVICE_TYPE_CPU) & DEVICE_TYPE_CPU != 0
    };
    let variables = |device: &cl_device_id| {
        let (parameter, none) = (PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, ptr::null_mut());
        let total_size = ask::<u64>(|size, out| {
            driver!(program.api, clGetProgramBuildInfo(program.handle, *device, parameter, size, out, none))
        });
        total_size.unwrap_or(0)
    };
    let code =
        if devices.iter().all(is_processor) { Vec::new() } else { info(PROGRAM_BINARY_SIZES).unwrap_or_default() };
    let code = devices.iter().zip(values_of(&code)).filter(|(device, _)| !is_processor(device)).map(|(_, size)| size);
    devices.iter().map(variables).chain(code).fold(0, u64::saturating_add)
}

fn values_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use katydid_opencl_sys::{Code, Dispatch, cl_kernel};
    use katydid_session_core::{Capture, Usage};
    use katydid_wire::opencl::{id, kind};

    use super::*;
    use crate::calls::session_shared::OpenclSessionShared;
    use crate::tests::empty_table;

    const PROCESSOR: usize = 64;
    const GPU: usize = 128;

    /// Writes an answer as a driver does.
    fn write_answer(values: &[u64], size: usize, out: *mut void, needed: *mut usize) -> i32 {
        if !needed.is_null() {
            // SAFETY: room for a length.
            unsafe { needed.write(values.len() * 8) };
        }
        if size >= values.len() * 8 && !out.is_null() {
            // SAFETY: as much room as stated.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), out.cast(), values.len()) };
        }
        0
    }

    unsafe extern "C" fn program_info(
        _: cl_program,
        what: u32,
        size: usize,
        out: *mut void,
        needed: *mut usize,
    ) -> i32 {
        match what {
            PROGRAM_DEVICES => write_answer(&[PROCESSOR as u64, GPU as u64], size, out, needed),
            PROGRAM_BINARY_SIZES => write_answer(&[1 << 40, 300], size, out, needed),
            _ => -30,
        }
    }

    unsafe extern "C" fn build_info(
        _: cl_program,
        _: cl_device_id,
        what: u32,
        size: usize,
        out: *mut void,
        needed: *mut usize,
    ) -> i32 {
        if what == PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE { write_answer(&[1000], size, out, needed) } else { -30 }
    }

    unsafe extern "C" fn device_info(
        device: cl_device_id,
        _: u32,
        size: usize,
        out: *mut void,
        needed: *mut usize,
    ) -> i32 {
        let kind = if device.0.addr() == PROCESSOR { DEVICE_TYPE_CPU } else { 4 };
        write_answer(&[kind], size, out, needed)
    }

    #[test]
    fn variables_and_the_code_of_gpus_count_until_a_program_is_released() {
        let mut table = empty_table();
        table.clGetProgramInfo = Some(program_info);
        table.clGetProgramBuildInfo = Some(build_info);
        table.clGetDeviceInfo = Some(device_info);
        let api: &'static Dispatch = Box::leak(Box::new(table));
        let shared = OpenclSessionShared::new(Arc::new(Usage::new(Some(3000))), Capture::default());
        let object = Object { handle: cl_program::NULL, api, size: 0 };
        let [one, other, gone] = [1, 2, 3].map(|number| id(kind::PROGRAM, number));
        for program in [one, other] {
            shared.objects.set(program, object, Vec::new()).unwrap();
        }
        // Built twice, counted once.
        assert_eq!([(); 2].map(|()| shared.count_program(one, &object)), [Ok(()); 2]);
        assert_eq!(shared.usage.memory(), 2300);
        assert_eq!(shared.count_program(other, &object), Err(Code::OUT_OF_RESOURCES));
        assert!(!shared.usage.allows(1));
        drop(shared.objects.take(other));
        assert_eq!((shared.count_program(gone, &object), shared.usage.memory()), (Ok(()), 2300));
        // A kernel keeps its program's memory.
        let kernel = Object { handle: cl_kernel::NULL, api, size: 0 };
        let made_of = vec![shared.objects.hold::<cl_program>(one).unwrap()];
        shared.objects.set(id(kind::KERNEL, 1), kernel, made_of).unwrap();
        drop(shared.objects.take(one));
        assert_eq!(shared.usage.memory(), 2300);
        drop(shared.objects.take(id(kind::KERNEL, 1)));
        assert_eq!(shared.usage.memory(), 0);
    }
}
