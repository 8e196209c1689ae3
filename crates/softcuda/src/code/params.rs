//! Kernel parameters as the caller passes them, packed into the buffer that the kernel reads.

#![expect(unsafe_code, reason = "the caller passes pointers to parameters whose sizes only the kernel knows")]

use std::ffi::c_void;

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::params::{Form, Param, check_packed, gather, read_extra};
use katydid_ptx_exec::Kernel;

use crate::ffi::Outcome;

/// Builds the parameter buffer of a launch, from an array of pointers or a packed buffer. Refuses both at once.
///
/// # Safety
///
/// `values` must be null or hold a pointer for each parameter of `kernel`, each null or readable for that parameter's size;
/// `extra` must be null or a list as the driver API describes it. The launch's caller upholds both.
pub(crate) unsafe fn pack(kernel: &Kernel, values: *mut *mut c_void, extra: *mut *mut c_void) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0; kernel.param_bytes as usize];
    match Form::of(values, extra, !kernel.params.is_empty())? {
        Form::Array => {
            let params = kernel.params.iter().map(|param| Param { offset: param.offset, size: param.size });
            // SAFETY: the contract of this function.
            unsafe { gather(params, values, &mut buffer) }?;
        }
        // SAFETY: the contract of this function.
        Form::Extra => unsafe { unpack(kernel, extra, &mut buffer) }?,
        Form::None => {}
    }
    Ok(buffer)
}

/// # Safety
///
/// As [`pack`], with `extra` not null.
unsafe fn unpack(kernel: &Kernel, extra: *mut *mut c_void, buffer: &mut [u8]) -> Outcome {
    // SAFETY: the contract.
    let (data, size) = unsafe { read_extra(extra) }?;
    let size = size.filter(|_| !data.is_null()).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    check_packed(size, kernel.params.iter().map(|param| (param.offset + param.size) as usize).max().unwrap_or(0))?;
    let length = size.min(buffer.len());
    // SAFETY: the caller's buffer has `size` bytes, and both sides have at least `length`.
    unsafe { data.copy_to_nonoverlapping(buffer.as_mut_ptr(), length) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::module_image::{AddressOnlyMemory, Code};
    use std::cell::Cell;
    use std::ptr;
    use std::sync::Arc;

    fn kernel() -> Arc<Kernel> {
        let text =
            b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 b) { ret; }";
        let program = Code::from_bytes(text).unwrap().load(&mut AddressOnlyMemory::default()).unwrap();
        program.kernel("k").unwrap()
    }

    #[test]
    fn pointers_are_gathered_at_their_offsets() {
        let (mut a, mut b) = (0x0807_0605_0403_0201_u64, 0x0c0b_0a09_u32);
        let mut values = [ptr::from_mut(&mut a).cast::<c_void>(), ptr::from_mut(&mut b).cast()];
        // SAFETY: both values live and have their parameters' sizes.
        let buffer = unsafe { pack(&kernel(), values.as_mut_ptr(), ptr::null_mut()) };
        assert_eq!(buffer, Ok((1..=12).collect()));
    }

    #[test]
    fn a_packed_buffer_is_not_empty_and_alone() {
        let mut bytes = [7_u8; 16];
        let size = Cell::new(12_usize);
        let mut extra = [
            ptr::without_provenance_mut(1),
            ptr::from_mut(&mut bytes).cast::<c_void>(),
            ptr::without_provenance_mut(2),
            size.as_ptr().cast(),
            ptr::null_mut(),
        ];
        let extra = extra.as_mut_ptr();
        // SAFETY: the list is complete, the buffer has 16 bytes.
        unsafe {
            assert_eq!(pack(&kernel(), ptr::null_mut(), extra), Ok(vec![7; 12]));
            assert_eq!(pack(&kernel(), extra, extra), Err(CUresult::ERROR_INVALID_VALUE));
            // A shorter buffer is filled up with zeroes.
            size.set(8);
            let short = [[7; 8].as_slice(), &[0; 4]].concat();
            assert_eq!(pack(&kernel(), ptr::null_mut(), extra), Ok(short));
            size.set(0);
            assert_eq!(pack(&kernel(), ptr::null_mut(), extra), Err(CUresult::ERROR_INVALID_VALUE));
            assert_eq!(pack(&kernel(), ptr::null_mut(), ptr::null_mut()), Err(CUresult::ERROR_INVALID_VALUE));
        }
        assert_eq!(size.get(), 0);
    }
}
