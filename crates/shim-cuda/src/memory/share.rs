//! Memory blocks and pools as file descriptors, which programs of one server pass to each other.
//!
//! The worker owns the block's real descriptor. The program gets a small memory file with the exporter's name. It can be
//! sent, inherited and closed like the driver's. The process that opens it gets the block from the exporter's worker, so the
//! exporter must still live then.
#![expect(unsafe_code, reason = "reads and writes descriptors of C callers")]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use katydid_cuda_sys::{CUdevice, CUmemAllocationHandleType, CUmemGenericAllocationHandle, CUmemoryPool, CUresult};
use katydid_driver_rules::memory::HANDLE_TYPE_FILE_DESCRIPTOR;
use katydid_wire::message::{kdMemoryExport, kdMemoryImport};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::context::device;
use crate::ffi::arguments::out;
use crate::memory::device_backing::{UNKNOWN_IDLE_BYTES, in_need};
use crate::memory::ipc::{self, EXPORTER_NAME_BYTES};
use crate::memory::virtual_memory::Allocation;
use crate::memory::{pool, virtual_memory};
use crate::process::session::shim;
use crate::sync::stream::UnorderedWork;

/// First bytes of a block's file; the name follows.
const BLOCK_FILE_MAGIC: [u8; 8] = *b"KATYDIDB";
/// First bytes of a pool's file; the worker's ordinal of its device follows, padded to the length of a name.
const POOL_FILE_MAGIC: [u8; 8] = *b"KATYDIDP";

/// Exported blocks of this program, by the names in their files.
struct OwnBlocks(Vec<(Vec<u8>, Weak<Allocation>)>);

static OWN_BLOCKS: Mutex<OwnBlocks> = Mutex::new(OwnBlocks(Vec::new()));

impl OwnBlocks {
    fn add(&mut self, name: Vec<u8>, block: &Arc<Allocation>) {
        self.0.retain(|(other, block)| *other != name && block.strong_count() > 0);
        self.0.push((name, Arc::downgrade(block)));
    }

    fn find(&self, name: &[u8]) -> Option<Arc<Allocation>> {
        self.0.iter().find(|(own, _)| own == name)?.1.upgrade()
    }
}

/// Makes a sealed file with a name.
fn token(magic: [u8; 8], name: &[u8]) -> std::io::Result<OwnedFd> {
    let file = File::from(memfd_create("katydid-block", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all_at(&[&magic, name].concat(), 0)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

/// Reads the name in a caller's descriptor, which stays the caller's.
fn name_in(descriptor: c_int, expected_magic: [u8; 8]) -> Option<[u8; EXPORTER_NAME_BYTES]> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: it is never closed here; a descriptor that is not open only fails to be read.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let mut bytes = [0; BLOCK_FILE_MAGIC.len() + EXPORTER_NAME_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (magic, name) = bytes.split_first_chunk::<8>()?;
    if *magic == expected_magic { name.try_into().ok() } else { None }
}

/// Returns the descriptor of a block that was created for sharing.
///
/// # Safety
///
/// `target` is null or has room for a descriptor.
pub(crate) unsafe fn export(
    target: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target.cast::<c_int>()) }?;
    if kind != HANDLE_TYPE_FILE_DESCRIPTOR || flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let block = virtual_memory::shareable(handle, HANDLE_TYPE_FILE_DESCRIPTOR)?;
    let (memory, generation) = (block.wire(), ipc::generation());
    let reply = shim()?.session.call(0, &kdMemoryExport { generation, memory, address: 0, length: 0 })?;
    let file = token(BLOCK_FILE_MAGIC, &reply.name).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    OWN_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).add(reply.name, &block);
    UnorderedWork::begin_for_good();
    target.write(file.into_raw_fd());
    Ok(())
}

/// Returns a handle for the block, to be released like any other. A block of this program has one handle, which then needs
/// one more release; NVIDIA's driver makes a further handle.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn import(
    target: *mut CUmemGenericAllocationHandle,
    descriptor: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if kind != HANDLE_TYPE_FILE_DESCRIPTOR {
        return Err(wrong);
    }
    // The pointer's value is the descriptor; its upper half means nothing.
    let name = name_in(descriptor.addr() as c_int, BLOCK_FILE_MAGIC).ok_or(wrong)?;
    let own = OWN_BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).find(&name);
    if let Some(handle) = own.and_then(|block| virtual_memory::another_handle(&block)) {
        target.write(handle);
        return Ok(());
    }
    let name = ipc::import_name(name);
    UnorderedWork::begin_for_good();
    let import = || {
        virtual_memory::adopt(HANDLE_TYPE_FILE_DESCRIPTOR, |memory| {
            let reply = shim()?.session.call(0, &kdMemoryImport { memory, name: &name })?;
            Ok((reply.size, reply.device))
        })
    };
    target.write(in_need(0, UNKNOWN_IDLE_BYTES, import)?);
    Ok(())
}

/// Returns the descriptor of a pool that was created for sharing. It carries only the device: each allocation is passed
/// separately.
///
/// # Safety
///
/// As [`export`].
pub(crate) unsafe fn export_pool(
    target: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    let device = pool::exported(pool)?;
    // SAFETY: by the contract.
    let target = unsafe { out(target.cast::<c_int>()) }?;
    if kind != HANDLE_TYPE_FILE_DESCRIPTOR || flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut name = [0; EXPORTER_NAME_BYTES];
    name[..8].copy_from_slice(&(device::device(device as CUdevice)?.position as u64).to_le_bytes());
    let file = token(POOL_FILE_MAGIC, &name).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    target.write(file.into_raw_fd());
    Ok(())
}

/// Makes a pool that stands for another program's: nothing can be allocated in it.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn import_pool(
    target: *mut CUmemoryPool,
    descriptor: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if kind != HANDLE_TYPE_FILE_DESCRIPTOR || flags != 0 {
        return Err(wrong);
    }
    let name = name_in(descriptor.addr() as c_int, POOL_FILE_MAGIC).ok_or(wrong)?;
    let position = name.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let ordinal = device::all()?.iter().position(|device| device.position as u64 == position);
    target.write(pool::imported(ordinal.ok_or(CUresult::ERROR_INVALID_DEVICE)? as u32)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_token_holds_its_name_and_other_files_hold_none() {
        let file = token(BLOCK_FILE_MAGIC, &[5; EXPORTER_NAME_BYTES]).unwrap();
        assert_eq!(name_in(file.as_raw_fd(), BLOCK_FILE_MAGIC), Some([5; EXPORTER_NAME_BYTES]));
        let other = File::open("/dev/zero").unwrap();
        assert_eq!(
            (
                name_in(other.as_raw_fd(), BLOCK_FILE_MAGIC),
                name_in(-1, BLOCK_FILE_MAGIC),
                name_in(file.as_raw_fd(), POOL_FILE_MAGIC)
            ),
            (None, None, None)
        );
    }
}
