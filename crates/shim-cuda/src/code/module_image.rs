//! Sends module images to the worker in pieces, from the program's bare pointer or file. Code that none of the program's
//! devices can use stays here. If the server has the image from an earlier program, only its hash is sent. Hashes of images
//! in files are cached, so that the next program does not even read them.
#![expect(unsafe_code, reason = "images come as bare pointers")]

use std::env;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use katydid_client::cache;
use katydid_client::session::Session;
use katydid_cuda_sys::{CUresult, device_attribute as attribute_id};
use katydid_fatbin::{ModuleImage, ModuleImageError, ModuleImageKind, SELECTION_RULES, Selection, image_at};
use katydid_hash_cache::{HashCache, ImageHash, Lookup};
use katydid_wire::SPEC_HASH;
use katydid_wire::message::{kdModuleLookup, kdUpload};

use crate::context::device::{self, Device};
use crate::memory::system_atomics;
use crate::process::session::shim;

/// Bytes of an image in one frame.
const IMAGE_FRAME_BYTES: usize = 1 << 20;
/// Smallest image that is asked for before it is sent, in bytes: sending a smaller one takes no longer than the question.
const MIN_ASKED_IMAGE_BYTES: u64 = 64 << 10;

/// Sends the image at `pointer`; the worker keeps it for the next load of this thread. `context` may be 0.
///
/// # Errors
///
/// `ERROR_INVALID_IMAGE` for bytes that are no image; `ERROR_INVALID_VALUE` for null.
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

/// Returns the driver's code for bytes that are no image.
fn code(error: &ModuleImageError) -> CUresult {
    match error {
        ModuleImageError::Null => CUresult::ERROR_INVALID_VALUE,
        _ => CUresult::ERROR_INVALID_IMAGE,
    }
}

fn send_image(context: u32, image: &ModuleImage<'_>) -> Result<(), CUresult> {
    let session = &shim()?.session;
    let devices = architectures(session)?;
    system_atomics::note_code(image, &devices);
    // Sending over shared memory is faster than hashing, unless one hash serves all later programs.
    let lookup = look_up(image, &devices);
    let may_ask = lookup.is_some() || session.staging().is_none();
    let cached_hash = lookup.as_ref().and_then(Lookup::hash);
    if let Some(cached_hash) = cached_hash
        && is_there(context, &cached_hash)?
    {
        return Ok(());
    }
    let selection = image.for_devices(&devices);
    let table = selection.table();
    let total = (table.len() + selection.pieces().map(<[u8]>::len).sum::<usize>()) as u64;
    if may_ask && total >= MIN_ASKED_IMAGE_BYTES {
        let image_hash = ImageHash { length: total, hash: hash(&selection, &table) };
        if let Some(lookup) = lookup {
            lookup.keep(image_hash);
        }
        if cached_hash != Some(image_hash) && is_there(context, &image_hash)? {
            return Ok(());
        }
    }
    let pieces = std::iter::once(&table[..]).chain(selection.pieces()).flat_map(|part| part.chunks(IMAGE_FRAME_BYTES));
    for data in pieces {
        session.enqueue(context, &kdUpload { total, data })?;
    }
    Ok(())
}

/// Looks up the cached hash of an image that lies in a file; none for other images, and for those that are hashed as fast.
fn look_up(image: &ModuleImage<'_>, devices: &[u32]) -> Option<Lookup<'static>> {
    static HASHES: OnceLock<Option<HashCache>> = OnceLock::new();
    let length: usize = image.parts().iter().map(|part| part.len()).sum();
    // Finding the end of a PTX text has read all of it already.
    if length < katydid_hash_cache::worth_asking() || image.kind() == ModuleImageKind::Ptx {
        return None;
    }
    let folder = || cache::folder(|name| env::var_os(name)).map(|cache| HashCache::new(cache.join("hashes")));
    let hashes = HASHES.get_or_init(folder).as_ref()?;
    let addresses = image.parts().iter().map(|part| {
        let bytes = part.as_ptr_range();
        bytes.start.addr() as u64..bytes.end.addr() as u64
    });
    let numbers = [&[SELECTION_RULES, image.kind() as u32], devices].concat();
    let about = SPEC_HASH.into_iter().chain(numbers.into_iter().flat_map(u32::to_le_bytes));
    hashes.ask(addresses.collect(), about.collect())
}

/// Architectures of the program's devices, such as 90; empty where another worker's devices may differ from those that the
/// program knows.
fn architectures(session: &Session<CUresult>) -> Result<Vec<u32>, CUresult> {
    if session.moves() > 0 {
        return Ok(Vec::new());
    }
    let version = |device: &Device| {
        device.value(attribute_id::COMPUTE_CAPABILITY_MAJOR) * 10 + device.value(attribute_id::COMPUTE_CAPABILITY_MINOR)
    };
    Ok(device::all()?.iter().map(|device| u32::try_from(version(device)).unwrap_or(0)).collect())
}

/// Returns whether the server has the image from an earlier program. If so, the worker treats it as sent.
fn is_there(context: u32, image: &ImageHash) -> Result<bool, CUresult> {
    let message = kdModuleLookup { total: image.length, hash: &image.hash };
    // The program's own call reports an earlier call's failure; otherwise the image that the worker found would be left
    // over.
    Ok(shim()?.session.ask(context, &message)?.known != 0)
}

/// Hashes everything that is sent: the name of the image.
fn hash(selection: &Selection<'_>, table: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(table);
    for piece in selection.pieces() {
        hasher.update(piece);
    }
    hasher.finalize().into()
}

/// Returns the bytes of an image file, with the NUL that a text needs.
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
