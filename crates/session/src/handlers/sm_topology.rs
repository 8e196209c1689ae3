//! The positions of a device's multiprocessors, which only a private table of the driver has: cuBLASLt shapes its kernels by
//! them.

#![expect(unsafe_code, reason = "calls a private table of the driver")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUdevice, CUresult, CUuuid, device_attribute};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdMultiprocessorPositions, kdMultiprocessorPositionsReply};

use crate::device::ask::ask;
use crate::handlers::{CallResult, success};
use crate::state::Session;

/// The table's id, in memory order.
const TOPOLOGY_TABLE: u128 = 0x1734dc26_800d_4745_8726_c0f1e7dd8bca;
/// Its slots: one makes both arrays, and one frees them.
const CREATE_SLOT: usize = 4;
const DESTROY_SLOT: usize = 13;

type Create = unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> CUresult;
type Destroy = unsafe extern "C" fn(*mut u8, *mut u8) -> CUresult;

/// Returns both arrays, of one byte for each pair of multiprocessors.
pub(crate) fn kdMultiprocessorPositions(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdMultiprocessorPositions,
) -> CallResult<kdMultiprocessorPositionsReply> {
    let driver = session.driver();
    let (make, take_back) = slots(driver)?;
    // SAFETY: the outputs are locals.
    let device: CUdevice = ask(|out| unsafe { driver.cuCtxGetDevice(out) })?;
    // SAFETY: as above.
    let count: i32 =
        ask(|out| unsafe { driver.cuDeviceGetAttribute(out, device_attribute::MULTIPROCESSOR_COUNT, device) })?;
    let pairs = count.unsigned_abs().div_ceil(2) as usize;
    let (mut first, mut second) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the outputs are locals; the slot uses the current context.
    unsafe { make(&raw mut first, &raw mut second) }.ok()?;
    if first.is_null() || second.is_null() {
        return Err(CUresult::ERROR_NOT_SUPPORTED.into());
    }
    // SAFETY: the slot returns a byte for each pair of multiprocessors (measured on driver 580), and frees them once.
    unsafe {
        let reply = kdMultiprocessorPositionsReply {
            first: std::slice::from_raw_parts(first, pairs).to_vec(),
            second: std::slice::from_raw_parts(second, pairs).to_vec(),
        };
        let _ = take_back(first, second);
        success(reply)
    }
}

/// Returns the two functions, if this driver has the table and it is long enough.
fn slots(driver: &katydid_driver::Driver) -> Result<(Create, Destroy), CUresult> {
    let mut table: *const c_void = std::ptr::null();
    let id = TOPOLOGY_TABLE.to_be_bytes();
    // SAFETY: the output is a local, an id has 16 bytes.
    unsafe { driver.cuGetExportTable(&raw mut table, id.as_ptr().cast::<CUuuid>()) }.ok()?;
    if table.is_null() {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let words = table.cast::<usize>();
    // SAFETY: a table begins with its size in bytes, and has as many words as that says.
    unsafe {
        if words.read() < (DESTROY_SLOT + 1) * size_of::<usize>() {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let (make, take_back) = (words.add(CREATE_SLOT).read(), words.add(DESTROY_SLOT).read());
        let make = std::mem::transmute::<usize, Option<Create>>(make).ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
        let back = std::mem::transmute::<usize, Option<Destroy>>(take_back).ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
        Ok((make, back))
    }
}
