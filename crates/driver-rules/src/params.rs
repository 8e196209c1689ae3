//! Kernel parameters: packed from the program's array of pointers, or its packed buffer, into one block of bytes.
//!
//! The driver's `kernelParams` has no sizes; they come with the facts of the function when its handle is made. In the block
//! each parameter is at the compiler's offset, with zeros between. No parameter is read beyond its size.
#![expect(unsafe_code, reason = "parameters are read through pointers of the program")]

use std::ffi::c_void;
use std::ptr;

use katydid_cuda_sys::{CUresult, launch_param};

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// The location of one parameter in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Bytes from the start of the block.
    pub offset: u32,
    /// Bytes of the parameter.
    pub size: u32,
}

/// Most bytes of a kernel's parameters (CUDA 12.1 on sm_70 and later).
pub const MAX_PARAMETER_BYTES: usize = 32764;

/// Most entries of a packed buffer's list: a list without an end is the caller's mistake.
const MAX_EXTRA_PAIRS: usize = 16;

/// The form of a launch's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A pointer to each parameter.
    Array,
    /// A packed buffer in the `extra` list (`CU_LAUNCH_PARAM_BUFFER_POINTER`).
    Extra,
    /// Nowhere: the kernel has no parameters.
    None,
}

impl Form {
    /// Returns the form of a launch's two arguments, for a kernel with or without parameters. Refuses both forms, and
    /// neither if the kernel has parameters.
    #[inline]
    pub fn of(array: *const *mut c_void, extra: *const *mut c_void, has_params: bool) -> Outcome<Self> {
        match (array.is_null(), extra.is_null()) {
            (false, true) => Ok(Self::Array),
            (true, false) => Ok(Self::Extra),
            (true, true) if !has_params => Ok(Self::None),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// The parameters of one kernel, in order.
#[derive(Clone, Debug, Default)]
pub struct ParamLayout {
    params: Vec<Param>,
    total: usize,
}

impl ParamLayout {
    /// Makes the layout from the facts of a function. None if they describe a block larger than any kernel's.
    pub fn new(params: Vec<Param>) -> Option<Self> {
        let ends = params.iter().map(|param| param.offset as usize + param.size as usize);
        let total = ends.max().unwrap_or(0);
        (total <= MAX_PARAMETER_BYTES).then_some(Self { params, total })
    }

    /// Number of the kernel's parameters.
    pub fn count(&self) -> usize {
        self.params.len()
    }

    /// Returns the parameter with this index; none beyond the last.
    pub fn get(&self, index: usize) -> Option<Param> {
        self.params.get(index).copied()
    }

    /// Returns the bytes of the block.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Appends the parameters to `block`, read from the form that the program used.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for a wrong form and for null, `ERROR_LAUNCH_OUT_OF_RESOURCES` for a packed buffer that is
    /// larger than the kernel's parameters.
    ///
    /// # Safety
    ///
    /// `array`, when not null, points to one pointer a parameter, each valid for reading the parameter's size.
    /// `extra`, when not null, is a list as `cuLaunchKernel` documents it.
    pub unsafe fn pack(&self, array: *const *mut c_void, extra: *const *mut c_void, block: &mut Vec<u8>) -> Outcome {
        let start = block.len();
        match Form::of(array, extra, !self.params.is_empty())? {
            Form::None => Ok(()),
            Form::Array => {
                block.resize(start + self.total, 0);
                // SAFETY: forwarded from this function's own contract.
                unsafe { gather(self.params.iter().copied(), array, &mut block[start..]) }
            }
            // SAFETY: as above.
            Form::Extra => unsafe { self.pack_extra(extra, block) },
        }
    }

    /// # Safety
    ///
    /// As `pack` requires of `extra`.
    unsafe fn pack_extra(&self, extra: *const *mut c_void, block: &mut Vec<u8>) -> Outcome {
        // SAFETY: the caller's list ends with CU_LAUNCH_PARAM_END.
        let (buffer, size) = unsafe { read_extra(extra) }?;
        let size = size.unwrap_or(0);
        if size > self.total {
            return Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        check_packed(size, self.total)?;
        check(size == 0 || !buffer.is_null())?;
        let start = block.len();
        if size > 0 {
            // SAFETY: the list says that the buffer holds `size` bytes.
            block.extend_from_slice(unsafe { std::slice::from_raw_parts(buffer, size) });
        }
        block.resize(start + self.total, 0);
        Ok(())
    }
}

/// Copies one value for each parameter to its place in `block`. Refuses a null pointer, and a parameter that does not lie in
/// the block.
///
/// # Safety
///
/// `array` has a pointer for each parameter, null or valid for reading the parameter's size.
#[inline]
pub unsafe fn gather(params: impl Iterator<Item = Param>, array: *const *mut c_void, block: &mut [u8]) -> Outcome {
    for (index, param) in params.enumerate() {
        // SAFETY: the caller gives one pointer a parameter.
        let source = unsafe { array.add(index).read_unaligned() };
        let at = param.offset as usize;
        let target = block.get_mut(at..at + param.size as usize).filter(|_| !source.is_null()).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer is valid for the parameter's size; the target is a slice of `block`.
        unsafe { ptr::copy_nonoverlapping(source.cast::<u8>(), target.as_mut_ptr(), target.len()) };
    }
    Ok(())
}

/// Checks the size of a packed buffer for parameters of `total` bytes. A shorter one is accepted (driver 580.159.04), an
/// empty one is not.
#[inline]
pub const fn check_packed(size: usize, total: usize) -> Outcome {
    check(size > 0 || total == 0)
}

/// Returns the buffer of a list of pairs, null without one, and its size, if that is given. Refuses an unknown key, a size
/// without a pointer to it, and a list without an end.
///
/// # Safety
///
/// `extra` is a list as `cuLaunchKernel` documents it; the pointer after the key of a size is valid for reading a `usize`.
pub unsafe fn read_extra(extra: *const *mut c_void) -> Outcome<(*const u8, Option<usize>)> {
    let (mut buffer, mut size) = (ptr::null::<u8>(), None);
    for pair in 0..MAX_EXTRA_PAIRS {
        // SAFETY: no pair before this one was the end, so this key belongs to the list.
        let key = unsafe { extra.add(pair * 2).read_unaligned() }.addr();
        if key == launch_param::END as usize {
            return Ok((buffer, size));
        }
        // SAFETY: every key but the end is followed by its value.
        let value = unsafe { extra.add(pair * 2 + 1).read_unaligned() };
        match u32::try_from(key) {
            Ok(launch_param::BUFFER_POINTER) => buffer = value.cast_const().cast(),
            Ok(launch_param::BUFFER_SIZE) if !value.is_null() => {
                // SAFETY: not null, and by the contract valid for reading the size.
                size = Some(unsafe { value.cast::<usize>().read_unaligned() });
            }
            _ => return Err(INVALID_VALUE),
        }
    }
    Err(INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> ParamLayout {
        // float*, int, a 16-byte struct, char, short, double: the offsets that nvcc gives them.
        let params = [(0, 8), (8, 4), (16, 16), (32, 1), (34, 2), (40, 8)];
        ParamLayout::new(params.map(|(offset, size)| Param { offset, size }).to_vec()).unwrap()
    }

    fn address<T>(value: &T) -> *mut c_void {
        ptr::from_ref(value).cast_mut().cast()
    }

    #[test]
    fn an_array_of_pointers_is_packed_at_the_compilers_offsets() {
        let (p, n, s, c, h, d) = (0x1122_u64, 7_u32, [9_u64, 10], 3_u8, 4_u16, 1.5_f64);
        let array = [address(&p), address(&n), address(&s), address(&c), address(&h), address(&d)];
        let mut block = vec![0xff];
        // SAFETY: one valid pointer for each of the six parameters.
        unsafe { layout().pack(array.as_ptr(), ptr::null(), &mut block) }.unwrap();
        let mut expected = vec![0xff];
        expected.extend([0x22, 0x11, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 10]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0]);
        expected.extend(1.5_f64.to_le_bytes());
        assert_eq!(block, expected);
    }

    #[test]
    fn a_packed_buffer_is_taken_as_it_is() {
        let bytes = [5u8; 48];
        let size = 48_usize;
        let list = [ptr::without_provenance_mut(1), address(&bytes), ptr::without_provenance_mut(2), address(&size)];
        let list = [&list[..], &[ptr::null_mut()]].concat();
        let mut block = Vec::new();
        // SAFETY: a complete list; the buffer is as long as the size says.
        unsafe { layout().pack(ptr::null(), list.as_ptr(), &mut block) }.unwrap();
        assert_eq!(block, bytes);
    }

    #[test]
    fn a_short_buffer_is_filled_up_with_zeros() {
        let (bytes, size) = ([5u8; 48], 40_usize);
        let key = ptr::without_provenance_mut::<c_void>;
        let list = [key(1), address(&bytes), key(2), address(&size), key(0)];
        let mut block = Vec::new();
        // SAFETY: a complete list; the buffer is longer than the size says.
        unsafe { layout().pack(ptr::null(), list.as_ptr(), &mut block) }.unwrap();
        assert_eq!((&block[..40], &block[40..]), (&[5; 40][..], &[0; 8][..]));
    }

    #[test]
    fn wrong_forms_are_refused() {
        let long = 49_usize;
        let bytes = [0u8; 49];
        let key = ptr::without_provenance_mut::<c_void>;
        let large = [key(1), address(&bytes), key(2), address(&long), key(0)];
        let unknown = [key(9), address(&bytes), key(0)];
        let nulls = [ptr::null_mut::<c_void>(); 6];
        let layout = layout();
        let try_pack = |array: *const *mut c_void, extra: *const *mut c_void| {
            // SAFETY: each list above is complete, and the arrays hold six (null) pointers.
            unsafe { layout.pack(array, extra, &mut Vec::new()) }
        };
        assert_eq!(try_pack(nulls.as_ptr(), large.as_ptr()), Err(INVALID_VALUE));
        assert_eq!(try_pack(ptr::null(), ptr::null()), Err(INVALID_VALUE));
        assert_eq!(try_pack(nulls.as_ptr(), ptr::null()), Err(INVALID_VALUE));
        assert_eq!(try_pack(ptr::null(), large.as_ptr()), Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES));
        assert_eq!(try_pack(ptr::null(), unknown.as_ptr()), Err(INVALID_VALUE));
    }

    #[test]
    fn a_kernel_without_parameters_needs_neither_form() {
        let none = ParamLayout::new(Vec::new()).unwrap();
        // SAFETY: both null, nothing is read.
        unsafe { none.pack(ptr::null(), ptr::null(), &mut Vec::new()) }.unwrap();
        assert_eq!((none.count(), none.total()), (0, 0));
    }

    #[test]
    fn a_block_beyond_the_limit_is_no_layout() {
        assert!(ParamLayout::new(vec![Param { offset: 32760, size: 8 }]).is_none());
        assert!(ParamLayout::new(vec![Param { offset: u32::MAX, size: u32::MAX }]).is_none());
    }
}
