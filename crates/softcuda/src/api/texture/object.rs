//! Texture and surface objects.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};

use crate::context::stack;
use crate::ffi::{In, Out, api};
use crate::process::device;
use crate::texture::format::{channel, check_channels};
use crate::texture::object;

/// Most texels of linear memory, and most bytes that they may take.
const MAX_LINEAR_EXTENT: (usize, usize) = (1 << 30, 1 << 32);

api! {
    /// Creates a texture object, a number from 1 on. The view is optional.
    fn cuTexObjectCreate(
        object: Out<u64>,
        resource: In<CUDA_RESOURCE_DESC>,
        description: In<CUDA_TEXTURE_DESC>,
        view: *const CUDA_RESOURCE_VIEW_DESC,
    ) {
        stack::usable()?;
        // SAFETY: null, or a view of the caller, by its promise.
        let view = (!view.is_null()).then(|| unsafe { view.read_unaligned() });
        object.set(object::create(resource.0, description.0, view)?);
    }

    /// Destroys an object. A number without an object is no error.
    fn cuTexObjectDestroy(object: u64) {
        stack::active()?;
        object::destroy(object);
    }

    /// Returns the resource that the object was made with.
    fn cuTexObjectGetResourceDesc(resource: Out<CUDA_RESOURCE_DESC>, object: u64) {
        stack::active()?;
        resource.set(object::resource(object)?);
    }

    /// Returns the description that the object was made with.
    fn cuTexObjectGetTextureDesc(description: Out<CUDA_TEXTURE_DESC>, object: u64) {
        stack::active()?;
        description.set(object::description(object)?);
    }

    /// Returns the view that the object was made with.
    fn cuTexObjectGetResourceViewDesc(view: Out<CUDA_RESOURCE_VIEW_DESC>, object: u64) {
        stack::active()?;
        view.set(object::view(object)?);
    }

    /// Creates a surface object, of an array only. The array needs no surface flag, as on an H200.
    fn cuSurfObjectCreate(object: Out<u64>, resource: In<CUDA_RESOURCE_DESC>) {
        stack::usable()?;
        object.set(object::create_surface(resource.0)?);
    }

    /// Destroys an object. A number without an object is no error.
    fn cuSurfObjectDestroy(object: u64) {
        stack::active()?;
        object::destroy(object);
    }

    /// Returns the resource that the object was made with.
    fn cuSurfObjectGetResourceDesc(resource: Out<CUDA_RESOURCE_DESC>, object: u64) {
        stack::active()?;
        resource.set(object::resource(object)?);
    }

    /// Returns as many texels as fit in 32 bits of bytes, up to 2^30.
    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) {
        device::get(device)?;
        check_channels(channels)?;
        let texel = (channel(format)?.bytes() * channels) as usize;
        width.set((MAX_LINEAR_EXTENT.1 / texel).min(MAX_LINEAR_EXTENT.0));
    }
}
