//! Sends module images: from the program's bare pointer, or its file, in pieces to the worker; what none of the program's
//! devices can use stays here.
#![expect(unsafe_code, reason = "images come as bare pointers")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use katydid_cuda_sys::{CUresult, device_attribute as attribute_id};
use katydid_fatbin::{Image, ImageError, Selection, image_at};
use katydid_wire::message::{kdImagePiece, kdImageRecall};

use crate::device::Device;
use crate::session::{Shim, shim};

/// Bytes of an image in one frame.
const PIECE: usize = 1 << 20;
/// Bytes from which an image is asked for before it is sent: those of a smaller one take no longer than the question.
const WORTH_ASKING: u64 = 64 << 10;

/// Sends the image at `pointer`; the worker keeps it for the next load of this thread. `context` may be 0.
///
/// # Errors
///
/// `ERROR_INVALID_IMAGE` for what is none; `ERROR_INVALID_VALUE` for null.
///
/// # Safety
///
/// `pointer` is null or points to an image, as `katydid_fatbin::image_at` says.
pub(crate) unsafe fn send(context: u32, pointer: *const c_void) -> Result<(), CUresult> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: handed on; the program keeps the image for the call.
    let image = unsafe { image_at(pointer.cast()) }.map_err(|error| code(&error))?;
    send_image(context, &image)
}

/// What a driver answers for bytes that are no image.
fn code(error: &ImageError) -> CUresult {
    match error {
        ImageError::Null => CUresult::ERROR_INVALID_VALUE,
        _ => CUresult::ERROR_INVALID_IMAGE,
    }
}

fn send_image(context: u32, image: &Image<'_>) -> Result<(), CUresult> {
    let shim = shim()?;
    let session = &shim.session;
    let selection = image.for_devices(&architectures(shim));
    let table = selection.table();
    let total = (table.len() + selection.pieces().map(<[u8]>::len).sum::<usize>()) as u64;
    // Memory that both sides see takes an image faster than it can be hashed.
    if total >= WORTH_ASKING && session.staging().is_none() && is_there(context, &selection, &table, total)? {
        return Ok(());
    }
    let pieces = std::iter::once(&table[..]).chain(selection.pieces()).flat_map(|part| part.chunks(PIECE));
    for data in pieces {
        session.enqueue(context, &kdImagePiece { total, data })?;
    }
    Ok(())
}

/// What the program's devices are, such as 90; nothing where another worker's may be others than the program was told of.
fn architectures(shim: &Shim) -> Vec<u32> {
    if shim.session.moves() > 0 {
        return Vec::new();
    }
    let version = |device: &Device| {
        device.value(attribute_id::COMPUTE_CAPABILITY_MAJOR) * 10 + device.value(attribute_id::COMPUTE_CAPABILITY_MINOR)
    };
    shim.devices.iter().map(|device| u32::try_from(version(device)).unwrap_or(0)).collect()
}

/// Whether the server has the image from a program before: then the worker takes it for sent.
fn is_there(context: u32, selection: &Selection<'_>, table: &[u8], total: u64) -> Result<bool, CUresult> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(table);
    for piece in selection.pieces() {
        hasher.update(piece);
    }
    let hash = hasher.finalize();
    Ok(shim()?.session.call(context, &kdImageRecall { total, hash: hash.as_bytes() })?.known != 0)
}

/// The bytes of an image file, with the NUL that a text needs.
///
/// # Errors
///
/// `ERROR_FILE_NOT_FOUND`, `ERROR_INVALID_VALUE` for null.
///
/// # Safety
///
/// `path` is null or a C string.
pub(crate) unsafe fn read_file(path: *const c_char) -> Result<Vec<u8>, CUresult> {
    if path.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: a C string, by the contract.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    bytes.push(0);
    Ok(bytes)
}
