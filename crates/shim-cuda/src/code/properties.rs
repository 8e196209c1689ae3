//! Properties of a function or kernel: parameters, attributes, occupancy.
//!
//! They come with the reply that makes the handle. Attributes that the program sets are checked against them and stored in
//! them, within the bounds that driver 580 was seen to keep.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_cuda_sys::{CUresult, device_attribute, function_attribute};
use katydid_driver_rules::code::{check_carveout, check_dynamic_shared};
use katydid_driver_rules::params::{Param, ParamLayout};
use katydid_wire::facts::{DriverAnswer, FunctionFacts};

use crate::context::device;
use crate::ffi::arguments::out;

/// Block size, dynamic shared memory in bytes, flags.
pub(crate) type OccupancyQuery = (i32, u64, u32);

/// Device code and its properties.
pub(crate) struct Code {
    pub(crate) layout: ParamLayout,
    /// Answers of the driver, each in one word ([`packed`]), so that launches read them without a lock.
    attributes: Box<[AtomicU64]>,
    /// Blocks per multiprocessor for earlier queries; emptied when an attribute changes.
    occupancy: Mutex<HashMap<OccupancyQuery, i32>>,
}

/// Packs an answer into one word.
fn packed(answer: DriverAnswer<i32>) -> u64 {
    u64::from(answer.code) << 32 | u64::from(answer.value.cast_unsigned())
}

impl Code {
    /// Decodes the bytes of a reply; none for malformed ones.
    pub(crate) fn decode(facts: &[u8]) -> Option<Self> {
        let facts = FunctionFacts::decode(facts).ok()?;
        let params = facts.parameters.iter().map(|param| Param { offset: param.offset, size: param.size });
        let layout = ParamLayout::new(params.collect())?;
        let attributes = facts.attributes.into_iter().map(|answer| AtomicU64::new(packed(answer))).collect();
        Some(Self { layout, attributes, occupancy: Mutex::default() })
    }

    /// Returns a copy with attributes of its own.
    pub(crate) fn copy(&self) -> Self {
        let attributes = self.attributes.iter().map(|answer| AtomicU64::new(answer.load(Ordering::Relaxed))).collect();
        Self { layout: self.layout.clone(), attributes, occupancy: Mutex::default() }
    }

    /// Returns an attribute as the driver answers it.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for an attribute that does not exist.
    pub(crate) fn attribute(&self, id: u32) -> Result<i32, CUresult> {
        let word = self.attributes.get(id as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?.load(Ordering::Relaxed);
        CUresult((word >> 32) as u32).ok().map(|()| (word as u32).cast_signed())
    }

    /// Checks a value and stores it.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for an attribute that cannot be set, or not to this value.
    pub(crate) fn set_attribute(&self, id: u32, value: i32, device: u32) -> Result<(), CUresult> {
        let optin = device::all()?[device as usize].value(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        self.check(id, value, optin)?;
        self.keep(id, value);
        Ok(())
    }

    fn check(&self, id: u32, value: i32, optin: i32) -> Result<(), CUresult> {
        match id {
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                check_dynamic_shared(value, optin, self.attribute(function_attribute::SHARED_SIZE_BYTES)?)
            }
            function_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => check_carveout(value),
            function_attribute::REQUIRED_CLUSTER_WIDTH..=function_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE
                if value >= 0 =>
            {
                Ok(())
            }
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Stores a value that was checked.
    pub(crate) fn keep(&self, id: u32, value: i32) {
        if let Some(answer) = self.attributes.get(id as usize) {
            answer.store(packed(DriverAnswer { code: 0, value }), Ordering::Relaxed);
        }
        self.occupancy.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the blocks of a shape that fit on a multiprocessor; calls `ask` for a new shape.
    pub(crate) fn occupancy(
        &self,
        shape: OccupancyQuery,
        ask: impl FnOnce() -> Result<i32, CUresult>,
    ) -> Result<i32, CUresult> {
        if let Some(blocks) = self.occupancy.lock().unwrap_or_else(PoisonError::into_inner).get(&shape) {
            return Ok(*blocks);
        }
        let blocks = ask()?;
        self.occupancy.lock().unwrap_or_else(PoisonError::into_inner).insert(shape, blocks);
        Ok(blocks)
    }

    /// Answers `cuFuncGetParamInfo` and `cuKernelGetParamInfo`; nothing is written on error.
    ///
    /// # Safety
    ///
    /// Both outputs are null or writable.
    pub(crate) unsafe fn write_param(
        &self,
        index: usize,
        offset: *mut usize,
        size: *mut usize,
    ) -> Result<(), CUresult> {
        let param = self.layout.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: null or writable, by the contract.
        unsafe {
            out(offset)?.write(param.offset as usize);
            write_optional(size, param.size as usize);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_wire::facts::ParameterFacts;

    fn code() -> Code {
        let mut attributes = vec![DriverAnswer { code: 0, value: 0 }; 16];
        attributes[0].value = 1024;
        attributes[1].value = 16384;
        let parameters = vec![ParameterFacts { offset: 0, size: 8 }, ParameterFacts { offset: 8, size: 4 }];
        Code::decode(&FunctionFacts { attributes, parameters }.encode()).unwrap()
    }

    #[test]
    fn only_some_attributes_can_be_set() {
        let code = code();
        let settable: Vec<_> = (0..20).filter(|id| code.check(*id, 1, 232_448).is_ok()).collect();
        assert_eq!(settable, [8, 9, 11, 12, 13, 14, 15]);
        assert!(code.check(9, 101, 0).is_err() && code.check(9, -1, 0).is_ok());
    }

    #[test]
    fn a_set_attribute_is_answered_and_drops_cached_occupancy() {
        let code = code();
        assert_eq!(code.occupancy((128, 0, 0), || Ok(16)), Ok(16));
        assert_eq!(code.occupancy((128, 0, 0), || Err(CUresult::ERROR_UNKNOWN)), Ok(16));
        code.keep(8, 60000);
        assert_eq!(code.attribute(8), Ok(60000));
        assert_eq!(code.occupancy((128, 0, 0), || Ok(3)), Ok(3));
        assert_eq!(code.attribute(16), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn an_attribute_set_on_a_copy_leaves_the_original_unchanged() {
        let code = code();
        let copy = code.copy();
        copy.keep(8, 60000);
        assert_eq!((code.attribute(8), copy.attribute(8)), (Ok(0), Ok(60000)));
        assert_eq!((copy.attribute(1), copy.layout.count()), (Ok(16384), 2));
    }

    #[test]
    fn parameters_are_told_and_none_beyond_the_last() {
        let (mut offset, mut size) = (77, 77);
        // SAFETY: locals, and null where that is allowed.
        unsafe {
            assert_eq!(code().write_param(1, &mut offset, &mut size), Ok(()));
            assert_eq!((offset, size), (8, 4));
            assert_eq!(code().write_param(2, &mut offset, &mut size), Err(CUresult::ERROR_INVALID_VALUE));
            assert_eq!(code().write_param(0, &mut offset, std::ptr::null_mut()), Ok(()));
            assert_eq!(code().write_param(0, std::ptr::null_mut(), &mut size), Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
