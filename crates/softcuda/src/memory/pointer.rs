//! `cuPointerGetAttribute`: what is known of an address.
//!
//! Exactly as many bytes are written as the attribute has; callers pass variables of that size.

use katydid_cuda_sys::{CUresult, access_flags, memory_type, pointer_attribute as id};

use crate::ffi::Outcome;
use crate::memory::space::{Kind, Region};

/// Ordinal that unknown memory has.
const NO_DEVICE: i32 = -2;

/// A value with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A value of 4 bytes.
    Four(u32),
    /// A value of 8 bytes.
    Eight(u64),
}

/// The value of `attribute` for an address in `region`. A device address has no host pointer: `INVALID_VALUE`.
pub(crate) fn known(region: &Region, address: u64, attribute: u32) -> Outcome<Value> {
    let (host, managed) = (region.is_host(), region.is_managed());
    Ok(match attribute {
        id::CONTEXT => Value::Eight(region.context as u64),
        id::MEMORY_TYPE => Value::Four(if host { memory_type::HOST } else { memory_type::DEVICE }),
        id::DEVICE_POINTER => Value::Eight(address),
        id::HOST_POINTER if region.is_for_host() => Value::Eight(address),
        id::HOST_POINTER => return Err(CUresult::ERROR_INVALID_VALUE),
        id::BUFFER_ID | id::MEMORY_BLOCK_ID => Value::Eight(region.id),
        id::DEVICE_ORDINAL => Value::Four(region.device as u32),
        id::RANGE_START_ADDR | id::MAPPING_BASE_ADDR => Value::Eight(region.start),
        id::RANGE_SIZE | id::MAPPING_SIZE => Value::Eight(region.size),
        id::MAPPED => Value::Four(1),
        id::ACCESS_FLAGS => Value::Four(access_flags::READ_WRITE),
        id::MEMPOOL_HANDLE => Value::Eight(if let Kind::Pooled { pool, .. } = region.kind { pool as u64 } else { 0 }),
        id::ALLOWED_HANDLE_TYPES => Value::Eight(0),
        id::SYNC_MEMOPS | id::IS_MANAGED => Value::Four(u32::from(managed)),
        id::IS_LEGACY_CUDA_IPC_CAPABLE => Value::Four(u32::from(region.kind == Kind::Device)),
        id::IS_GPU_DIRECT_RDMA_CAPABLE | id::IS_HW_DECOMPRESS_CAPABLE => Value::Four(0),
        id::P2P_TOKENS => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// What the plural call writes for an address that is in no range; `None` leaves the caller's variable alone.
pub(crate) fn unknown(address: u64, attribute: u32) -> Outcome<Option<Value>> {
    Ok(match attribute {
        id::CONTEXT | id::DEVICE_POINTER | id::BUFFER_ID => Some(Value::Eight(0)),
        id::HOST_POINTER => Some(Value::Eight(address)),
        id::MEMORY_TYPE | id::IS_MANAGED | id::MAPPED => Some(Value::Four(0)),
        id::DEVICE_ORDINAL => Some(Value::Four(NO_DEVICE as u32)),
        id::P2P_TOKENS..=id::IS_HW_DECOMPRESS_CAPABLE => None,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// What the plural call writes: as [`known`], but a missing host pointer is 0.
pub(crate) fn plural(region: Option<&Region>, address: u64, attribute: u32) -> Outcome<Option<Value>> {
    match region {
        None => unknown(address, attribute),
        Some(region) if attribute == id::HOST_POINTER && !region.is_for_host() => Ok(Some(Value::Eight(0))),
        Some(region) => known(region, address, attribute).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::space::Kind;

    #[test]
    fn device_and_host_memory_answer_as_the_real_driver() {
        let device = Region::new(0x1000, 0x100, Kind::Device, 0, 0x77);
        assert_eq!(known(&device, 0x1010, id::MEMORY_TYPE), Ok(Value::Four(2)));
        assert_eq!(known(&device, 0x1010, id::DEVICE_POINTER), Ok(Value::Eight(0x1010)));
        assert_eq!(known(&device, 0x1010, id::HOST_POINTER), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(plural(Some(&device), 0x1010, id::HOST_POINTER), Ok(Some(Value::Eight(0))));
        assert_eq!(known(&device, 0x1010, id::RANGE_SIZE), Ok(Value::Eight(0x100)));
        let host = Region::new(0x1000, 0x100, Kind::Registered(0), 0, 0x77);
        assert_eq!(known(&host, 0x1010, id::HOST_POINTER), Ok(Value::Eight(0x1010)));
        assert_eq!(known(&host, 0x1010, id::MEMORY_TYPE), Ok(Value::Four(1)));
    }

    #[test]
    fn managed_memory_is_the_hosts_too_and_memory_of_a_pool_names_it() {
        let managed = Region::new(0x1000, 0x100, Kind::Managed, 0, 0x77);
        assert_eq!(known(&managed, 0x1010, id::HOST_POINTER), Ok(Value::Eight(0x1010)));
        let told = [id::MEMORY_TYPE, id::IS_MANAGED, id::SYNC_MEMOPS].map(|attribute| known(&managed, 0, attribute));
        assert_eq!(told, [2, 1, 1].map(|value| Ok(Value::Four(value))));
        let pooled = Region::new(0x1000, 0x100, Kind::Pooled { pool: 0x55, devices: 1, managed: false }, 0, 0);
        assert_eq!(known(&pooled, 0x1010, id::MEMPOOL_HANDLE), Ok(Value::Eight(0x55)));
        assert_eq!(known(&pooled, 0x1010, id::CONTEXT), Ok(Value::Eight(0)));
        assert_eq!(known(&pooled, 0x1010, id::HOST_POINTER), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn unknown_memory_is_its_own_host_pointer_on_no_device() {
        assert_eq!(plural(None, 0x55, id::HOST_POINTER), Ok(Some(Value::Eight(0x55))));
        assert_eq!(plural(None, 0x55, id::DEVICE_ORDINAL), Ok(Some(Value::Four(-2_i32 as u32))));
        assert_eq!(plural(None, 0x55, id::RANGE_SIZE), Ok(None));
        assert_eq!(plural(None, 0x55, 999), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
