//! Attributes of pointers, out of the map of addresses.
//!
//! Values and widths were measured on driver 580; a caller passes a variable of exactly the width. What a program
//! would use to reach the GPU around us (RDMA) is answered with "not capable".
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use std::ffi::c_void;

use katydid_client::regions::{Place, Region};
use katydid_cuda_sys::{CUdeviceptr, CUresult, pointer_attribute as id};

use crate::process::session::shim;

/// Bytes that the driver maps memory by.
const MAPPING: u64 = 2 << 20;
/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`: read and write.
const READ_WRITE: u32 = 3;
/// The ordinal of memory that belongs to no device.
const NO_DEVICE: u32 = -2_i32 as u32;

/// What is written for one attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Four(u32),
    Eight(u64),
    /// The variable is left as it is.
    Nothing,
}

/// The value for memory that is known.
fn known(attribute: u32, address: u64, region: &Region) -> Option<Value> {
    let host = region.is_host();
    let managed = region.is_managed() && region.place != Place::HostMapped;
    let first_mapped = region.start / MAPPING * MAPPING;
    Some(match attribute {
        id::CONTEXT => Value::Eight(region.context as u64),
        id::MEMORY_TYPE => Value::Four(if host && !managed { HOST } else { DEVICE }),
        id::DEVICE_POINTER => Value::Eight(address),
        id::HOST_POINTER => Value::Eight(if host { address } else { 0 }),
        id::SYNC_MEMOPS => Value::Four(u32::from(region.place == Place::Device || managed)),
        id::BUFFER_ID | id::MEMORY_BLOCK_ID => Value::Eight(region.id),
        id::DEVICE_ORDINAL => Value::Four(region.device),
        id::RANGE_START_ADDR => Value::Eight(region.start),
        id::RANGE_SIZE => Value::Eight(region.size),
        id::MAPPED => Value::Four(1),
        id::ACCESS_FLAGS => Value::Four(READ_WRITE),
        id::MAPPING_SIZE => Value::Eight((region.start + region.size).next_multiple_of(MAPPING) - first_mapped),
        id::MAPPING_BASE_ADDR => Value::Eight(first_mapped),
        id::MEMPOOL_HANDLE => Value::Eight(region.pool().unwrap_or(0) as u64),
        id::ALLOWED_HANDLE_TYPES => Value::Eight(0),
        id::IS_MANAGED => Value::Four(u32::from(managed)),
        id::IS_LEGACY_CUDA_IPC_CAPABLE => Value::Four(u32::from(region.place == Place::Device)),
        id::IS_GPU_DIRECT_RDMA_CAPABLE | id::IS_HW_DECOMPRESS_CAPABLE => Value::Four(0),
        _ => return None,
    })
}

/// The value for memory that is the program's own, or unmapped.
fn unknown(attribute: u32, address: u64) -> Option<Value> {
    Some(match attribute {
        id::HOST_POINTER => Value::Eight(address),
        id::DEVICE_ORDINAL => Value::Four(NO_DEVICE),
        id::RANGE_START_ADDR | id::RANGE_SIZE => Value::Nothing,
        id::CONTEXT
        | id::DEVICE_POINTER
        | id::BUFFER_ID
        | id::ALLOWED_HANDLE_TYPES
        | id::MEMPOOL_HANDLE
        | id::MAPPING_SIZE
        | id::MAPPING_BASE_ADDR
        | id::MEMORY_BLOCK_ID => Value::Eight(0),
        id::MEMORY_TYPE
        | id::SYNC_MEMOPS
        | id::IS_MANAGED
        | id::IS_LEGACY_CUDA_IPC_CAPABLE
        | id::MAPPED
        | id::IS_GPU_DIRECT_RDMA_CAPABLE
        | id::ACCESS_FLAGS
        | id::IS_HW_DECOMPRESS_CAPABLE => Value::Four(0),
        _ => return None,
    })
}

/// # Safety
///
/// `target` is null or has room for the value.
unsafe fn write(target: *mut c_void, value: Value) {
    // SAFETY: room for the value, by the contract; null is left out.
    unsafe {
        match value {
            _ if target.is_null() => {}
            Value::Four(value) => target.cast::<u32>().write_unaligned(value),
            Value::Eight(value) => target.cast::<u64>().write_unaligned(value),
            Value::Nothing => {}
        }
    }
}

/// One attribute; memory that is not known is an error, and nothing is written.
///
/// # Safety
///
/// `target` is null or has room for the attribute's value.
pub(crate) unsafe fn attribute(target: *mut c_void, attribute: u32, address: CUdeviceptr) -> Result<(), CUresult> {
    if target.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let region = shim()?.regions.find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let value = known(attribute, address, &region).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // SAFETY: room for the value, by the contract.
    unsafe { write(target, value) };
    // Device memory has no host pointer: the null is written, and called an error.
    if attribute == id::HOST_POINTER && !region.is_host() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Only the order of copies can be set, and that is always the strict one here; memory must be known.
pub(crate) fn set_attribute(value: *const c_void, attribute: u32, address: CUdeviceptr) -> Result<(), CUresult> {
    shim()?.regions.find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let known = attribute == id::SYNC_MEMOPS && !value.is_null();
    if known { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Several attributes; memory that is not known has values of its own.
///
/// # Safety
///
/// Both arrays are null or have `count` entries; each target is null or has room for its attribute's value.
pub(crate) unsafe fn attributes(
    count: u32,
    attributes: *mut u32,
    targets: *mut *mut c_void,
    address: CUdeviceptr,
) -> Result<(), CUresult> {
    if count == 0 || attributes.is_null() || targets.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let region = shim()?.regions.find(address);
    for index in 0..count as usize {
        // SAFETY: below `count`, so inside both arrays by the contract.
        let (attribute, target) =
            unsafe { (attributes.add(index).read_unaligned(), targets.add(index).read_unaligned()) };
        let value = region.map_or_else(|| unknown(attribute, address), |region| known(attribute, address, &region));
        // SAFETY: room for the value, by the contract.
        unsafe { write(target, value.ok_or(CUresult::ERROR_INVALID_VALUE)?) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(place: Place) -> Region {
        Region { start: 0x2000_0020_0000, size: 1000, place, device: 1, context: 0x1234, id: 77 }
    }

    fn value(attribute: u32, place: Place) -> Option<Value> {
        known(attribute, 0x2000_0020_0010, &region(place))
    }

    #[test]
    fn device_memory_answers_as_measured() {
        let of = |attribute| value(attribute, Place::Device).unwrap();
        assert_eq!(of(id::CONTEXT), Value::Eight(0x1234));
        assert_eq!(of(id::MEMORY_TYPE), Value::Four(2));
        assert_eq!(of(id::DEVICE_POINTER), Value::Eight(0x2000_0020_0010));
        assert_eq!(of(id::HOST_POINTER), Value::Eight(0));
        assert_eq!(of(id::DEVICE_ORDINAL), Value::Four(1));
        assert_eq!(
            (of(id::RANGE_START_ADDR), of(id::RANGE_SIZE)),
            (Value::Eight(0x2000_0020_0000), Value::Eight(1000))
        );
        assert_eq!(
            (of(id::MAPPING_BASE_ADDR), of(id::MAPPING_SIZE)),
            (Value::Eight(0x2000_0020_0000), Value::Eight(MAPPING))
        );
        assert_eq!((of(id::MAPPED), of(id::IS_MANAGED)), (Value::Four(1), Value::Four(0)));
    }

    #[test]
    fn pinned_memory_is_its_own_host_pointer() {
        let of = |attribute| value(attribute, Place::Host { flags: 2 }).unwrap();
        assert_eq!(of(id::MEMORY_TYPE), Value::Four(1));
        assert_eq!(of(id::HOST_POINTER), Value::Eight(0x2000_0020_0010));
    }

    #[test]
    fn managed_memory_is_the_devices_with_a_host_pointer_and_memory_of_a_pool_names_it() {
        let of = |attribute| value(attribute, Place::Managed).unwrap();
        assert_eq!((of(id::MEMORY_TYPE), of(id::IS_MANAGED)), (Value::Four(2), Value::Four(1)));
        assert_eq!(of(id::HOST_POINTER), Value::Eight(0x2000_0020_0010));
        assert_eq!(value(id::MEMPOOL_HANDLE, Place::Pooled { pool: 5 }), Some(Value::Eight(5)));
        assert_eq!(value(id::SYNC_MEMOPS, Place::Pooled { pool: 5 }), Some(Value::Four(0)));
    }

    #[test]
    fn other_memory_belongs_to_no_device() {
        assert_eq!(unknown(id::DEVICE_ORDINAL, 5), Some(Value::Four(-2_i32 as u32)));
        assert_eq!(unknown(id::HOST_POINTER, 5), Some(Value::Eight(5)));
        assert_eq!(unknown(id::RANGE_SIZE, 5), Some(Value::Nothing));
        assert_eq!(unknown(id::MEMORY_TYPE, 5), Some(Value::Four(0)));
    }

    #[test]
    fn attributes_that_do_not_exist_have_no_value() {
        for attribute in [0, 5, 22, 99] {
            assert_eq!((value(attribute, Place::Device), unknown(attribute, 5)), (None, None), "{attribute}");
        }
    }

    #[test]
    fn only_the_width_of_the_value_is_written() {
        let mut room = [0xaa_u8; 16];
        // SAFETY: room for both, and null.
        unsafe {
            write(room.as_mut_ptr().cast(), Value::Four(1));
            write(room.as_mut_ptr().add(8).cast(), Value::Nothing);
            write(std::ptr::null_mut(), Value::Eight(1));
        }
        assert_eq!(room[..6], [1, 0, 0, 0, 0xaa, 0xaa]);
        assert_eq!(room[8], 0xaa);
    }
}
