//! Attributes of pointers.
//!
//! Values and widths were measured on driver 580; a caller passes a variable of exactly the width. Attributes by which a
//! program would reach the GPU around the library (RDMA) answer "not capable".
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use std::ffi::c_void;

use katydid_cuda_sys::{access_flags, memory_type, pointer_attribute as id};

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Bytes of a driver mapping.
const MAPPING_BYTES: u64 = 2 << 20;
/// The ordinal of memory that belongs to no device.
const NO_DEVICE: u32 = -2_i32 as u32;

/// Memory that the driver knows.
#[derive(Debug, Clone, Copy)]
pub struct KnownMemory {
    /// Address of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
    /// An id that no other memory has.
    pub id: u64,
    /// Handle of its context; 0 for none.
    pub context: u64,
    /// Ordinal of its device.
    pub device: u32,
    /// Handle of its pool; 0 for none.
    pub pool: u64,
    /// Whether the program's processor reaches it.
    pub is_for_host: bool,
    /// Whether host and devices share it.
    pub is_managed: bool,
    /// Whether `cuMemAlloc` or a related function allocated it.
    pub is_device: bool,
}

/// The written value of one attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttributeValue {
    Four(u32),
    Eight(u64),
    /// The variable is left unchanged.
    Nothing,
}

impl KnownMemory {
    /// Returns the value of an attribute for an address in the memory.
    fn value(&self, attribute: u32, address: u64) -> Option<AttributeValue> {
        let first_mapped = self.start / MAPPING_BYTES * MAPPING_BYTES;
        let is_hosts = self.is_for_host && !self.is_managed;
        Some(match attribute {
            id::CONTEXT => AttributeValue::Eight(self.context),
            id::MEMORY_TYPE => AttributeValue::Four(if is_hosts { memory_type::HOST } else { memory_type::DEVICE }),
            id::DEVICE_POINTER => AttributeValue::Eight(address),
            id::HOST_POINTER => AttributeValue::Eight(if self.is_for_host { address } else { 0 }),
            id::SYNC_MEMOPS => AttributeValue::Four(u32::from(self.is_device || self.is_managed)),
            id::BUFFER_ID | id::MEMORY_BLOCK_ID => AttributeValue::Eight(self.id),
            id::DEVICE_ORDINAL => AttributeValue::Four(self.device),
            id::RANGE_START_ADDR => AttributeValue::Eight(self.start),
            id::RANGE_SIZE => AttributeValue::Eight(self.size),
            id::MAPPED => AttributeValue::Four(1),
            id::ACCESS_FLAGS => AttributeValue::Four(access_flags::READ_WRITE),
            id::MAPPING_SIZE => {
                AttributeValue::Eight((self.start + self.size).next_multiple_of(MAPPING_BYTES) - first_mapped)
            }
            id::MAPPING_BASE_ADDR => AttributeValue::Eight(first_mapped),
            id::MEMPOOL_HANDLE => AttributeValue::Eight(self.pool),
            id::ALLOWED_HANDLE_TYPES => AttributeValue::Eight(0),
            id::IS_MANAGED => AttributeValue::Four(u32::from(self.is_managed)),
            id::IS_LEGACY_CUDA_IPC_CAPABLE => AttributeValue::Four(u32::from(self.is_device)),
            id::IS_GPU_DIRECT_RDMA_CAPABLE | id::IS_HW_DECOMPRESS_CAPABLE => AttributeValue::Four(0),
            _ => return None,
        })
    }
}

/// Returns the value for memory that is the program's own, or unmapped.
fn unknown(attribute: u32, address: u64) -> Option<AttributeValue> {
    Some(match attribute {
        id::HOST_POINTER => AttributeValue::Eight(address),
        id::DEVICE_ORDINAL => AttributeValue::Four(NO_DEVICE),
        id::RANGE_START_ADDR | id::RANGE_SIZE => AttributeValue::Nothing,
        id::CONTEXT
        | id::DEVICE_POINTER
        | id::BUFFER_ID
        | id::ALLOWED_HANDLE_TYPES
        | id::MEMPOOL_HANDLE
        | id::MAPPING_SIZE
        | id::MAPPING_BASE_ADDR
        | id::MEMORY_BLOCK_ID => AttributeValue::Eight(0),
        id::MEMORY_TYPE
        | id::SYNC_MEMOPS
        | id::IS_MANAGED
        | id::IS_LEGACY_CUDA_IPC_CAPABLE
        | id::MAPPED
        | id::IS_GPU_DIRECT_RDMA_CAPABLE
        | id::ACCESS_FLAGS
        | id::IS_HW_DECOMPRESS_CAPABLE => AttributeValue::Four(0),
        _ => return None,
    })
}

/// # Safety
///
/// `target` is null or has room for the value.
unsafe fn write(target: *mut c_void, value: AttributeValue) {
    // SAFETY: room for the value, by the contract; null is skipped.
    unsafe {
        match value {
            _ if target.is_null() => {}
            AttributeValue::Four(value) => target.cast::<u32>().write_unaligned(value),
            AttributeValue::Eight(value) => target.cast::<u64>().write_unaligned(value),
            AttributeValue::Nothing => {}
        }
    }
}

/// Answers `cuPointerGetAttribute`. Unknown memory is an error, and nothing is written. Device memory has no host pointer:
/// null is written, and the call returns an error.
///
/// # Safety
///
/// `target` is null or has room for the attribute's value.
pub unsafe fn attribute(target: *mut c_void, attribute: u32, address: u64, memory: Option<KnownMemory>) -> Outcome {
    check(!target.is_null())?;
    let memory = memory.ok_or(INVALID_VALUE)?;
    let value = memory.value(attribute, address).ok_or(INVALID_VALUE)?;
    // SAFETY: room for the value, by the contract.
    unsafe { write(target, value) };
    check(attribute != id::HOST_POINTER || memory.is_for_host)
}

/// Answers `cuPointerGetAttributes`; unknown memory has values of its own. Refuses missing arrays and unknown attributes;
/// values before that are written.
///
/// # Safety
///
/// Both arrays are null or have `count` entries; each target is null or has room for its attribute's value.
pub unsafe fn attributes(
    count: u32,
    attributes: *const u32,
    targets: *const *mut c_void,
    address: u64,
    memory: Option<KnownMemory>,
) -> Outcome {
    check(count > 0 && !attributes.is_null() && !targets.is_null())?;
    for index in 0..count as usize {
        // SAFETY: below `count`, so inside both arrays by the contract.
        let (attribute, target) =
            unsafe { (attributes.add(index).read_unaligned(), targets.add(index).read_unaligned()) };
        let value = memory.map_or_else(|| unknown(attribute, address), |memory| memory.value(attribute, address));
        // SAFETY: room for the value, by the contract.
        unsafe { write(target, value.ok_or(INVALID_VALUE)?) };
    }
    Ok(())
}

/// Checks `cuPointerSetAttribute` for known memory: only the order of copies can be set, which is always strict here.
pub fn check_set(value: *const c_void, attribute: u32) -> Outcome {
    check(attribute == id::SYNC_MEMOPS && !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: KnownMemory = KnownMemory {
        start: 0x2000_0020_0000,
        size: 1000,
        id: 77,
        context: 0x1234,
        device: 1,
        pool: 0,
        is_for_host: false,
        is_managed: false,
        is_device: true,
    };
    const PINNED: KnownMemory = KnownMemory { is_for_host: true, is_device: false, ..DEVICE };
    const MANAGED: KnownMemory = KnownMemory { is_managed: true, ..PINNED };
    const POOLED: KnownMemory = KnownMemory { pool: 5, is_device: false, ..DEVICE };
    const AT: u64 = 0x2000_0020_0010;

    fn value(attribute: u32, memory: &KnownMemory) -> Option<AttributeValue> {
        memory.value(attribute, AT)
    }

    #[test]
    fn device_memory_answers_as_measured() {
        let of = |attribute| value(attribute, &DEVICE).unwrap();
        assert_eq!(of(id::CONTEXT), AttributeValue::Eight(0x1234));
        assert_eq!((of(id::MEMORY_TYPE), of(id::DEVICE_ORDINAL)), (AttributeValue::Four(2), AttributeValue::Four(1)));
        assert_eq!(
            (of(id::DEVICE_POINTER), of(id::HOST_POINTER)),
            (AttributeValue::Eight(AT), AttributeValue::Eight(0))
        );
        assert_eq!(
            (of(id::RANGE_START_ADDR), of(id::RANGE_SIZE)),
            (AttributeValue::Eight(DEVICE.start), AttributeValue::Eight(1000))
        );
        assert_eq!(of(id::MAPPING_BASE_ADDR), AttributeValue::Eight(DEVICE.start));
        assert_eq!(of(id::MAPPING_SIZE), AttributeValue::Eight(MAPPING_BYTES));
        assert_eq!((of(id::MAPPED), of(id::IS_MANAGED)), (AttributeValue::Four(1), AttributeValue::Four(0)));
    }

    #[test]
    fn host_and_managed_memory_are_their_own_host_pointers_and_memory_of_a_pool_names_it() {
        let of = |attribute| [PINNED, MANAGED, POOLED].map(|memory| value(attribute, &memory).unwrap());
        assert_eq!(of(id::MEMORY_TYPE), [1, 2, 2].map(AttributeValue::Four));
        assert_eq!(of(id::HOST_POINTER), [AT, AT, 0].map(AttributeValue::Eight));
        assert_eq!(
            (of(id::IS_MANAGED), of(id::SYNC_MEMOPS)),
            ([0, 1, 0].map(AttributeValue::Four), [0, 1, 0].map(AttributeValue::Four))
        );
        assert_eq!(of(id::MEMPOOL_HANDLE), [0, 0, 5].map(AttributeValue::Eight));
    }

    #[test]
    fn other_memory_belongs_to_no_device() {
        assert_eq!(unknown(id::DEVICE_ORDINAL, 5), Some(AttributeValue::Four(-2_i32 as u32)));
        assert_eq!(unknown(id::HOST_POINTER, 5), Some(AttributeValue::Eight(5)));
        assert_eq!(unknown(id::RANGE_SIZE, 5), Some(AttributeValue::Nothing));
        assert_eq!(unknown(id::MEMORY_TYPE, 5), Some(AttributeValue::Four(0)));
    }

    #[test]
    fn attributes_that_do_not_exist_have_no_value() {
        for attribute in [0, 5, 22, 99] {
            assert_eq!((value(attribute, &DEVICE), unknown(attribute, 5)), (None, None), "{attribute}");
        }
        let pointer = std::ptr::from_ref(&DEVICE);
        assert_eq!(
            (check_set(pointer.cast(), id::SYNC_MEMOPS), check_set(pointer.cast(), 1)),
            (Ok(()), Err(INVALID_VALUE))
        );
        assert_eq!(check_set(std::ptr::null(), id::SYNC_MEMOPS), Err(INVALID_VALUE));
    }

    #[test]
    fn only_the_width_of_the_value_is_written() {
        let mut room = [0xaa_u8; 16];
        let target = room.as_mut_ptr().cast();
        // SAFETY: room for each value, and null.
        unsafe {
            assert_eq!(attribute(target, id::MAPPED, AT, Some(DEVICE)), Ok(()));
            write(target.wrapping_byte_add(8), AttributeValue::Nothing);
            write(std::ptr::null_mut(), AttributeValue::Eight(1));
            assert_eq!(room[..6], [1, 0, 0, 0, 0xaa, 0xaa]);
            assert_eq!(attribute(target, id::HOST_POINTER, AT, Some(DEVICE)), Err(INVALID_VALUE));
            assert_eq!(attribute(target, id::MAPPED, AT, None), Err(INVALID_VALUE));
        }
        assert_eq!(room[..9], [0, 0, 0, 0, 0, 0, 0, 0, 0xaa]);
    }

    #[test]
    fn several_attributes_are_written_one_after_the_other() {
        let (mut kind, mut size) = (7_u32, 7_u64);
        let targets = [(&raw mut kind).cast::<c_void>(), (&raw mut size).cast(), std::ptr::null_mut()];
        let ask = |ids: [u32; 3], memory| {
            // SAFETY: three entries each, with room for 4 and 8 bytes, and null.
            unsafe { attributes(3, ids.as_ptr(), targets.as_ptr(), AT, memory) }
        };
        assert_eq!(ask([id::MEMORY_TYPE, id::RANGE_SIZE, id::CONTEXT], Some(PINNED)), Ok(()));
        assert_eq!(ask([id::MEMORY_TYPE, id::RANGE_SIZE, 99], None), Err(INVALID_VALUE));
        assert_eq!((kind, size), (0, 1000));
    }
}
