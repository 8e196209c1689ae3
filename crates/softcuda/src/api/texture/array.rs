//! Arrays and mipmaps.
//!
//! Extents count texels; the flags are those of NVIDIA's header. The device is charged for the memory of an array as for any
//! other.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR,
    CUarray, CUarrayMapInfo, CUmipmappedArray, CUresult, CUstream,
};
use katydid_driver_rules::caller;
use katydid_driver_rules::texture::{plain, whole};

use crate::context::stack;
use crate::ffi::{In, Out, api};
use crate::process::device;
use crate::sync::streams;
use crate::texture::array;
use crate::texture::format::Format;
use crate::texture::sparse;

/// Most changes of one call.
const MAX_SPARSE_CHANGES: usize = 1 << 20;

api! {
    /// Creates an array of one or two dimensions without flags.
    fn cuArrayCreate_v2(array: Out<CUarray>, description: In<CUDA_ARRAY_DESCRIPTOR>) {
        let context = stack::usable()?;
        array.set(array::create(&context, Format::new(&whole(description.0))?)?.handle());
    }

    /// Creates an array of one to three dimensions.
    fn cuArray3DCreate_v2(array: Out<CUarray>, description: In<CUDA_ARRAY3D_DESCRIPTOR>) {
        let context = stack::usable()?;
        array.set(array::create(&context, Format::new(&description.0)?)?.handle());
    }

    /// Returns width, height and format, without the other properties.
    fn cuArrayGetDescriptor_v2(description: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) {
        description.set(plain(array::resolve(array)?.format.descriptor()));
    }

    /// Returns the description that the array was made with.
    fn cuArray3DGetDescriptor_v2(description: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) {
        description.set(array::resolve(array)?.format.descriptor());
    }

    /// Waits for the context's work, then destroys the array. A level of a mipmap stays.
    fn cuArrayDestroy(array: CUarray) {
        array::destroy(array)?;
    }

    /// Creates a mipmap, at most with all the levels that its extent allows.
    fn cuMipmappedArrayCreate(mipmap: Out<CUmipmappedArray>, description: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) {
        let context = stack::usable()?;
        mipmap.set(array::create_mipmap(&context, Format::new(&description.0)?, levels)?.handle());
    }

    /// Returns a level, always with the same handle. A missing level fails with 1.
    fn cuMipmappedArrayGetLevel(array: Out<CUarray>, mipmap: CUmipmappedArray, level: u32) {
        let mipmap = array::resolve_mipmap(mipmap)?;
        array.set(mipmap.levels.get(level as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?.handle());
    }

    /// Waits for the context's work, then destroys the mipmap and its levels.
    fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) {
        array::destroy_mipmap(mipmap)?;
    }

    /// Returns the needs of an array whose memory is mapped later, as a whole. Others fail.
    fn cuArrayGetMemoryRequirements(needs: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: CUarray, device: i32) {
        device::get(device)?;
        needs.set(sparse::requirements(array)?);
    }

    /// Returns the needs of a mipmap whose memory is mapped later, as a whole. Others fail.
    fn cuMipmappedArrayGetMemoryRequirements(
        needs: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        mipmap: CUmipmappedArray,
        device: i32,
    ) {
        device::get(device)?;
        needs.set(sparse::mipmap_requirements(mipmap)?);
    }

    /// Returns the properties of a sparse array. Others fail.
    fn cuArrayGetSparseProperties(properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>, array: CUarray) {
        properties.set(sparse::properties(array)?);
    }

    /// Returns the properties of a sparse mipmap. Others fail.
    fn cuMipmappedArrayGetSparseProperties(properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>, mipmap: CUmipmappedArray) {
        properties.set(sparse::mipmap_properties(mipmap)?);
    }

    /// Changes mappings in stream order. Changes nothing unless all entries are right.
    fn cuMemMapArrayAsync(infos: *const CUarrayMapInfo, count: u32, handle: CUstream) {
        let stream = streams::resolve(handle)?;
        // SAFETY: the caller's array has `count` entries.
        let infos = unsafe { caller::array(infos, count as usize, MAX_SPARSE_CHANGES) }?;
        sparse::map(&infos, &stream)?;
    }

    /// Fails: no array here has planes, which only video formats have.
    fn cuArrayGetPlane(_plane: Out<CUarray>, array: CUarray, _index: u32) {
        array::resolve(array)?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
}
