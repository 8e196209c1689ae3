//! Texture and surface objects: numbers that the worker's driver chose, since device code holds them.
//!
//! The shim keeps the parameters of their creation, for the functions that query them.
#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray, CUmipmappedArray, CUresult, CUsurfObject,
    CUtexObject,
};
use katydid_driver_rules::caller::read;
use katydid_driver_rules::texture::resource_kind::{ARRAY, LINEAR, MIPMAP, PITCHED};
use katydid_wire::message::{cuSurfObjectDestroy, cuTexObjectDestroy, kdSurfaceCreate, kdTextureCreate};
use katydid_wire::texture::TextureArguments;

use crate::context::request::{call, enqueue};
use crate::context::stack;
use crate::ffi::arguments::out;
use crate::ffi::handle::object;

/// The parameters of an object's creation; a surface has only the first.
#[derive(Clone, Copy)]
struct ObjectDescription {
    resource: CUDA_RESOURCE_DESC,
    texture: CUDA_TEXTURE_DESC,
    view: CUDA_RESOURCE_VIEW_DESC,
}

/// Objects by the wire id of their context and their number.
#[derive(Default)]
struct Objects {
    records: Mutex<HashMap<(u32, u64), ObjectDescription>>,
}

static OBJECTS: LazyLock<Objects> = LazyLock::new(Objects::default);

impl Objects {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, u64), ObjectDescription>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the parameters of an object of the current context.
fn record(number: u64) -> Result<ObjectDescription, CUresult> {
    let key = (stack::wire()?, number);
    OBJECTS.lock().get(&key).copied().ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Encodes the resource for a message: with an id instead of a handle.
fn arguments(it: &CUDA_RESOURCE_DESC) -> Result<TextureArguments, CUresult> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if it.flags != 0 {
        return Err(wrong);
    }
    let [first, format, size, height, pitch, ..] = it.res;
    let pointer = std::ptr::with_exposed_provenance_mut(first as usize);
    let base = TextureArguments { kind: it.resType, ..TextureArguments::default() };
    let memory =
        TextureArguments { address: first, format: format as u32, channels: (format >> 32) as u32, size, ..base };
    Ok(match it.resType {
        ARRAY => TextureArguments { array: object(CUarray(pointer)).map_err(|_| wrong)?.wire(), ..base },
        MIPMAP => TextureArguments { array: object(CUmipmappedArray(pointer)).map_err(|_| wrong)?.wire(), ..base },
        LINEAR => memory,
        PITCHED => TextureArguments { height, pitch, ..memory },
        _ => return Err(wrong),
    })
}

/// Encodes a sampler for a message.
fn sampler(it: &CUDA_TEXTURE_DESC) -> [u32; 14] {
    let [x, y, z] = it.addressMode;
    let [red, green, blue, alpha] = it.borderColor.map(f32::to_bits);
    let levels = [it.mipmapLevelBias, it.minMipmapLevelClamp, it.maxMipmapLevelClamp].map(f32::to_bits);
    let [bias, lowest, highest] = levels;
    let modes = [x, y, z, it.filterMode, it.flags, it.maxAnisotropy, it.mipmapFilterMode];
    let [a, b, c, d, e, f, g] = modes;
    [a, b, c, d, e, f, g, bias, lowest, highest, red, green, blue, alpha]
}

/// Encodes a view for a message.
fn view_words(it: &CUDA_RESOURCE_VIEW_DESC) -> [u64; 8] {
    [
        it.format.into(),
        it.width as u64,
        it.height as u64,
        it.depth as u64,
        it.firstMipmapLevel.into(),
        it.lastMipmapLevel.into(),
        it.firstLayer.into(),
        it.lastLayer.into(),
    ]
}

/// # Safety
///
/// Pointers are null or valid; this holds for every function below.
pub(crate) unsafe fn create(
    target: *mut CUtexObject,
    resource: *const CUDA_RESOURCE_DESC,
    texture: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let (target, resource, texture) = unsafe { (out(target)?, read(resource)?, read(texture)?) };
    // SAFETY: handed on; not null.
    let view = if view.is_null() { None } else { Some(unsafe { read(view) }?) };
    let context = stack::wire()?;
    let arguments =
        TextureArguments { sampler: sampler(&texture), view: view.as_ref().map(view_words), ..arguments(&resource)? };
    let number = call(&kdTextureCreate { arguments: &arguments.encode() })?.texture;
    let record = ObjectDescription { resource, texture, view: view.unwrap_or_default() };
    OBJECTS.lock().insert((context, number), record);
    target.write(number);
    Ok(())
}

/// Destroys a texture object; a number without an object is no error.
pub(crate) fn destroy(texture: CUtexObject) -> Result<(), CUresult> {
    let context = stack::wire()?;
    // Forgotten first: the driver may give the number to the next object.
    OBJECTS.lock().remove(&(context, texture));
    enqueue(&cuTexObjectDestroy { texObject: texture })
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn resource(target: *mut CUDA_RESOURCE_DESC, texture: CUtexObject) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    target.write(record(texture)?.resource);
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn description(target: *mut CUDA_TEXTURE_DESC, texture: CUtexObject) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    target.write(record(texture)?.texture);
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn view(target: *mut CUDA_RESOURCE_VIEW_DESC, texture: CUtexObject) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    target.write(record(texture)?.view);
    Ok(())
}

/// Makes a surface object of an array, the only resource for one.
///
/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_surface(
    target: *mut CUsurfObject,
    resource: *const CUDA_RESOURCE_DESC,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let (target, resource) = unsafe { (out(target)?, read(resource)?) };
    let context = stack::wire()?;
    if resource.resType != ARRAY {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let array = arguments(&resource)?.array;
    let number = call(&kdSurfaceCreate { array })?.surface;
    let record =
        ObjectDescription { resource, texture: CUDA_TEXTURE_DESC::default(), view: CUDA_RESOURCE_VIEW_DESC::default() };
    OBJECTS.lock().insert((context, number), record);
    target.write(number);
    Ok(())
}

/// Destroys a surface object; a number without an object is no error.
pub(crate) fn destroy_surface(surface: CUsurfObject) -> Result<(), CUresult> {
    let context = stack::wire()?;
    OBJECTS.lock().remove(&(context, surface));
    enqueue(&cuSurfObjectDestroy { surfObject: surface })
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn surface_resource(target: *mut CUDA_RESOURCE_DESC, surface: CUsurfObject) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { self::resource(target, surface) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_checked_for_what_no_driver_takes() {
        let kind = |kind: u32, flags: u32| CUDA_RESOURCE_DESC { resType: kind, flags, ..CUDA_RESOURCE_DESC::default() };
        assert!(arguments(&kind(LINEAR, 0)).is_ok_and(|it| it.kind == LINEAR && it.array == 0));
        assert_eq!(arguments(&kind(LINEAR, 1)), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(arguments(&kind(4, 0)), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn samplers_travel_field_by_field() {
        let mut it = CUDA_TEXTURE_DESC { addressMode: [1, 2, 3], flags: 5, ..CUDA_TEXTURE_DESC::default() };
        it.borderColor[3] = 2.0;
        let fields = sampler(&it);
        assert_eq!((fields[..5].to_vec(), fields[13]), (vec![1, 2, 3, 0, 5], 2.0_f32.to_bits()));
    }
}
