//! Texture and surface objects, made of the session's arrays and memory. Device code holds their numbers, which the driver
//! chose.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresult};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdSurfaceCreate, kdSurfaceCreateReply, kdTextureCreate, kdTextureCreateReply};
use katydid_wire::texture::TextureArguments;

use crate::calls::fault::{Fault, SessionError};
use crate::device::ask::ask;
use crate::handlers::{CallResult, success};
use crate::objects::arrays::ArrayObject;
use crate::state::Session;

/// `CUresourcetype`: an array; a mipmap; linear memory; pitched memory.
const RESOURCE_KINDS: [u32; 4] = [0, 1, 2, 3];

/// Returns the resource of the arguments.
fn resource(session: &Session, it: &TextureArguments) -> Result<CUDA_RESOURCE_DESC, Fault> {
    let mut resource = CUDA_RESOURCE_DESC { resType: it.kind, ..CUDA_RESOURCE_DESC::default() };
    let array_of = |id: u32| session.tables.arrays.get(id).map_err(|_| Fault::from(CUresult::ERROR_INVALID_VALUE));
    let format = u64::from(it.format) | u64::from(it.channels) << 32;
    let fields: &[u64] = match it.kind {
        kind if kind == RESOURCE_KINDS[0] => match array_of(it.array)? {
            ArrayObject::Array(array) | ArrayObject::Level(array, _) => &[array.address()],
            ArrayObject::Mipmap(_) => return Err(CUresult::ERROR_INVALID_VALUE.into()),
        },
        kind if kind == RESOURCE_KINDS[1] => match array_of(it.array)? {
            ArrayObject::Mipmap(mipmap) => &[mipmap.address()],
            _ => return Err(CUresult::ERROR_INVALID_VALUE.into()),
        },
        // Accesses past existing memory fault on the device, not here.
        kind if kind == RESOURCE_KINDS[2] => {
            session.address_check.check(it.address, 1)?;
            &[it.address, format, it.size]
        }
        _ => {
            session.address_check.check(it.address, 1)?;
            &[it.address, format, it.size, it.height, it.pitch]
        }
    };
    resource.res[..fields.len()].copy_from_slice(fields);
    Ok(resource)
}

/// Decodes how a texture is read.
fn description(fields: [u32; 14]) -> CUDA_TEXTURE_DESC {
    let float = |at: usize| f32::from_bits(fields[at]);
    CUDA_TEXTURE_DESC {
        addressMode: [fields[0], fields[1], fields[2]],
        filterMode: fields[3],
        flags: fields[4],
        maxAnisotropy: fields[5],
        mipmapFilterMode: fields[6],
        mipmapLevelBias: float(7),
        minMipmapLevelClamp: float(8),
        maxMipmapLevelClamp: float(9),
        borderColor: [float(10), float(11), float(12), float(13)],
        ..CUDA_TEXTURE_DESC::default()
    }
}

/// Decodes a view.
fn view(fields: [u64; 8]) -> CUDA_RESOURCE_VIEW_DESC {
    CUDA_RESOURCE_VIEW_DESC {
        format: fields[0] as u32,
        width: fields[1] as usize,
        height: fields[2] as usize,
        depth: fields[3] as usize,
        firstMipmapLevel: fields[4] as u32,
        lastMipmapLevel: fields[5] as u32,
        firstLayer: fields[6] as u32,
        lastLayer: fields[7] as u32,
        ..CUDA_RESOURCE_VIEW_DESC::default()
    }
}

/// Makes a texture object.
pub(crate) fn kdTextureCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdTextureCreate<'_>,
) -> CallResult<kdTextureCreateReply> {
    let arguments = TextureArguments::decode(message.arguments).ok_or_else(|| SessionError::DamagedPart {
        message: "kdTextureCreate",
        part: "arguments",
        reason: format!("{} bytes are not a texture", message.arguments.len()),
    })?;
    let resource = resource(session, &arguments)?;
    let description = description(arguments.sampler);
    let view = arguments.view.map(view);
    let viewed = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let driver = session.driver();
    // SAFETY: descriptors and output outlive the call; the memory that is named is the session's.
    let texture =
        ask(|out| unsafe { driver.cuTexObjectCreate(out, &raw const resource, &raw const description, viewed) })?;
    success(kdTextureCreateReply { texture })
}

/// Makes a surface object of an array.
pub(crate) fn kdSurfaceCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdSurfaceCreate,
) -> CallResult<kdSurfaceCreateReply> {
    let array = session.tables.arrays.array(message.array).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    let mut resource = CUDA_RESOURCE_DESC::default();
    resource.res[0] = array.address();
    let driver = session.driver();
    // SAFETY: descriptor and output outlive the call; the array is the session's.
    let surface = ask(|out| unsafe { driver.cuSurfObjectCreate(out, &raw const resource) })?;
    success(kdSurfaceCreateReply { surface })
}
