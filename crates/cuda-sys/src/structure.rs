//! Structures of the driver API. Sizes are those of the vendor's header for CUDA 13.0 and asserted below.

#![expect(unsafe_code, reason = "asserts that structures are plain bytes")]

use std::ffi::c_void;
use std::fmt;

use crate::{CUarray, CUarray_format, CUcontext, CUdeviceptr, CUfunction, CUstream, Pod};

/// Lays out structures, makes them zero by default and checks their sizes.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "fields carry the vendor's names and meaning")]
        pub struct $name {
            $(pub $field: $ty,)*
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: all fields are numbers, handles, pointers or arrays of them, for which zero is valid.
                unsafe { std::mem::zeroed() }
            }
        }

        // SAFETY: numbers, pointers and arrays of them: any bits are valid, and Rust relies on none of them.
        unsafe impl Pod for $name {}
    )*};
}

pub(crate) use structures;

/// Structures that no code looks into yet: a size, aligned to 8 bytes.
macro_rules! opaque {
    ($($name:ident $size:literal)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: ", stringify!($size), " bytes that nothing here looks into.")]
        #[repr(C, align(8))]
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pub [u8; $size]);

        impl Default for $name {
            fn default() -> Self {
                Self([0; $size])
            }
        }

        // SAFETY: an array of bytes.
        unsafe impl Pod for $name {}
    )*};
}

structures! {
    /// 16 raw bytes naming a device or a table.
    CUuuid 16 { bytes: [u8; 16] }
    /// Legacy properties of a device (`cuDeviceGetProperties`).
    CUdevprop 56 {
        maxThreadsPerBlock: i32, maxThreadsDim: [i32; 3], maxGridSize: [i32; 3], sharedMemPerBlock: i32,
        totalConstantMemory: i32, SIMDWidth: i32, memPitch: i32, regsPerBlock: i32, clockRate: i32, textureAlign: i32,
    }
    /// Two-dimensional copy: widths in bytes, heights in rows.
    CUDA_MEMCPY2D 128 {
        srcXInBytes: usize, srcY: usize, srcMemoryType: u32, srcHost: *const c_void, srcDevice: CUdeviceptr,
        srcArray: CUarray, srcPitch: usize, dstXInBytes: usize, dstY: usize, dstMemoryType: u32,
        dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray, dstPitch: usize, WidthInBytes: usize,
        Height: usize,
    }
    /// Three-dimensional copy: width in bytes, height in rows, depth in slices.
    CUDA_MEMCPY3D 200 {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize, srcMemoryType: u32, srcHost: *const c_void,
        srcDevice: CUdeviceptr, srcArray: CUarray, reserved0: *mut c_void, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize, dstMemoryType: u32, dstHost: *mut c_void,
        dstDevice: CUdeviceptr, dstArray: CUarray, reserved1: *mut c_void, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// What kind of place memory lives in, and which one.
    CUmemLocation 8 { type_: u32, id: i32 }
    /// Access to a mapped range from a place.
    CUmemAccessDesc 12 { location: CUmemLocation, flags: u32 }
    /// Properties of a physical allocation.
    CUmemAllocationProp 32 {
        type_: u32, requestedHandleTypes: u32, location: CUmemLocation, win32HandleMetaData: *mut c_void,
        compressionType: u8, gpuDirectRDMACapable: u8, usage: u16, reserved: [u8; 4],
    }
    /// Properties of a memory pool; a size of 0 leaves the limit to the driver.
    CUmemPoolProps 88 {
        allocType: u32, handleTypes: u32, location: CUmemLocation, win32SecurityAttributes: *mut c_void,
        maxSize: usize, usage: u16, reserved: [u8; 54],
    }
    /// How the copies of a batch read their sources.
    CUmemcpyAttributes 24 { srcAccessOrder: u32, srcLocHint: CUmemLocation, dstLocHint: CUmemLocation, flags: u32 }
    /// One side of a copy of a box: memory (address, elements of a row, rows of a slice, a hint), or an array (its handle,
    /// first element, row and slice).
    CUmemcpy3DOperand 40 { type_: u32, op: [u64; 4] }
    /// One copy of a box, of a group of them; extents in elements, rows and slices.
    CUDA_MEMCPY3D_BATCH_OP 112 {
        src: CUmemcpy3DOperand, dst: CUmemcpy3DOperand, extent: [usize; 3], srcAccessOrder: u32, flags: u32,
    }
    /// One launch of a cooperative group of several devices.
    CUDA_LAUNCH_PARAMS 56 {
        function: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32,
        blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream, kernelParams: *mut *mut c_void,
    }
    /// Geometry and attributes of a launch.
    CUlaunchConfig 56 {
        gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32, hStream: CUstream, attrs: *mut CUlaunchAttribute, numAttrs: u32,
    }
    /// One attribute of a launch.
    CUlaunchAttribute 72 { id: u32, pad: [u8; 4], value: [u64; 8] }
    /// Parameters of `cuCtxCreate_v4`, in the header's layout.
    CUctxCreateParams 24 { execAffinityParams: *mut c_void, numExecAffinityParams: i32, cigParams: *mut c_void }
    /// Extent and format of an array.
    CUDA_ARRAY_DESCRIPTOR 24 { Width: usize, Height: usize, Format: CUarray_format, NumChannels: u32 }
    /// Extent, format and flags of an array.
    CUDA_ARRAY3D_DESCRIPTOR 40 {
        Width: usize, Height: usize, Depth: usize, Format: CUarray_format, NumChannels: u32, Flags: u32,
    }
    /// Extent of a sparse array's tiles in texels, and of the levels that are too small for tiles.
    CUDA_ARRAY_SPARSE_PROPERTIES 48 {
        tileExtent: [u32; 3], miptailFirstLevel: u32, miptailSize: u64, flags: u32, reserved: [u32; 4],
    }
    /// Memory that an array is mapped to as a whole, in bytes.
    CUDA_ARRAY_MEMORY_REQUIREMENTS 32 { size: usize, alignment: usize, reserved: [u32; 4] }
    /// Memory for a part of an array: a handle of the array or mipmap, words that depend on the kind of part, a block.
    CUarrayMapInfo 96 {
        resourceType: u32, resource: u64, subresourceType: u32, subresource: [u64; 4], memOperationType: u32,
        memHandleType: u32, memHandle: u64, offset: u64, deviceBitMask: u32, flags: u32, reserved: [u32; 2],
    }
    /// What a texture or surface is made of: a kind, then words that depend on it.
    CUDA_RESOURCE_DESC 144 { resType: u32, pad: u32, res: [u64; 16], flags: u32 }
    /// How a texture is read.
    CUDA_TEXTURE_DESC 104 {
        addressMode: [u32; 3], filterMode: u32, flags: u32, maxAnisotropy: u32, mipmapFilterMode: u32,
        mipmapLevelBias: f32, minMipmapLevelClamp: f32, maxMipmapLevelClamp: f32, borderColor: [f32; 4],
        reserved: [i32; 12],
    }
    /// A part of an array, or its texels as another format.
    CUDA_RESOURCE_VIEW_DESC 112 {
        format: u32, width: usize, height: usize, depth: usize, firstMipmapLevel: u32, lastMipmapLevel: u32,
        firstLayer: u32, lastLayer: u32, reserved: [u32; 16],
    }
    /// Peer copy in three dimensions.
    CUDA_MEMCPY3D_PEER 200 {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize, srcMemoryType: u32, srcHost: *const c_void,
        srcDevice: CUdeviceptr, srcArray: CUarray, srcContext: CUcontext, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize, dstMemoryType: u32, dstHost: *mut c_void,
        dstDevice: CUdeviceptr, dstArray: CUarray, dstContext: CUcontext, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// Names memory of another process.
    CUipcMemHandle 64 { reserved: [u8; 64] }
    /// Names an event of another process.
    CUipcEventHandle 64 { reserved: [u8; 64] }
}

/// One slice: what a copy of rows is among copies of slices.
impl From<&CUDA_MEMCPY2D> for CUDA_MEMCPY3D {
    fn from(it: &CUDA_MEMCPY2D) -> Self {
        Self {
            srcXInBytes: it.srcXInBytes,
            srcY: it.srcY,
            srcMemoryType: it.srcMemoryType,
            srcHost: it.srcHost,
            srcDevice: it.srcDevice,
            srcArray: it.srcArray,
            srcPitch: it.srcPitch,
            dstXInBytes: it.dstXInBytes,
            dstY: it.dstY,
            dstMemoryType: it.dstMemoryType,
            dstHost: it.dstHost,
            dstDevice: it.dstDevice,
            dstArray: it.dstArray,
            dstPitch: it.dstPitch,
            WidthInBytes: it.WidthInBytes,
            Height: it.Height,
            Depth: 1,
            ..Self::default()
        }
    }
}

/// `CU_MEMCPY_OPERAND_TYPE_ARRAY`; the other kind, 1, is memory.
const OPERAND_ARRAY: u32 = 2;

/// A side of a copy of a box, as an ordinary copy gives it.
struct BoxSide {
    kind: u32,
    address: CUdeviceptr,
    array: CUarray,
    /// Bytes from row to row, rows from slice to slice.
    pitch: [usize; 2],
    /// First byte, row and slice.
    first: [usize; 3],
}

impl CUmemcpy3DOperand {
    /// The array that it is, if it is one.
    pub fn array(&self) -> Option<CUarray> {
        let handle = || CUarray(std::ptr::with_exposed_provenance_mut(self.op[0] as usize));
        (self.type_ == OPERAND_ARRAY).then(handle)
    }

    /// None for what is no operand, and for rows and slices that overlap.
    fn side(&self, element: usize, [width, height, _]: [usize; 3]) -> Option<BoxSide> {
        let [first, second, third, fourth] = self.op;
        let numbers = [second, third, fourth].map(|number| number as usize);
        if let Some(array) = self.array() {
            let first = [numbers[0].checked_mul(element)?, numbers[1], numbers[2]];
            return Some(BoxSide { kind: crate::memory_type::ARRAY, address: 0, array, pitch: [0; 2], first });
        }
        let or = |size: usize, least: usize| if size == 0 { least } else { size };
        let (row, rows) = (or(numbers[0], width), or(numbers[1], height));
        let fits = self.type_ == 1 && row >= width && rows >= height;
        let pitch = [row.checked_mul(element)?, rows];
        let kind = crate::memory_type::UNIFIED;
        fits.then_some(BoxSide { kind, address: first, array: CUarray::NULL, pitch, first: [0; 3] })
    }
}

impl CUarrayMapInfo {
    /// The place of a part of a level: level, layer, first texel, extent in texels.
    pub fn sparse_level(&self) -> [u32; 8] {
        std::array::from_fn(|at| (self.subresource[at / 2] >> (32 * (at % 2))) as u32)
    }

    /// The place of a part of the levels that are too small for tiles: layer, offset and size in bytes.
    pub fn tail(&self) -> (u32, u64, u64) {
        (self.subresource[0] as u32, self.subresource[1], self.subresource[2])
    }
}

impl CUDA_MEMCPY3D_BATCH_OP {
    /// The operation as an ordinary copy. `texel` tells the bytes of an array's elements; between memory, elements are
    /// bytes. None for anything that is not right in itself.
    pub fn as_copy(&self, texel: impl Fn(CUarray) -> Option<usize>) -> Option<CUDA_MEMCPY3D> {
        let sides = [self.dst.array(), self.src.array()];
        let mut sizes = sides.into_iter().flatten().map(texel);
        let element = sizes.next().unwrap_or(Some(1))?;
        let orders = crate::access_order::STREAM..=crate::access_order::ANY;
        let known = orders.contains(&self.srcAccessOrder) && self.flags <= 1 && !self.extent.contains(&0);
        if !known || sizes.any(|other| other != Some(element)) {
            return None;
        }
        let (to, from) = (self.dst.side(element, self.extent)?, self.src.side(element, self.extent)?);
        let [width, height, depth] = self.extent;
        Some(CUDA_MEMCPY3D {
            srcMemoryType: from.kind,
            srcDevice: from.address,
            srcArray: from.array,
            srcPitch: from.pitch[0],
            srcHeight: from.pitch[1],
            srcXInBytes: from.first[0],
            srcY: from.first[1],
            srcZ: from.first[2],
            dstMemoryType: to.kind,
            dstDevice: to.address,
            dstArray: to.array,
            dstPitch: to.pitch[0],
            dstHeight: to.pitch[1],
            dstXInBytes: to.first[0],
            dstY: to.first[1],
            dstZ: to.first[2],
            WidthInBytes: width.checked_mul(element)?,
            Height: height,
            Depth: depth,
            ..CUDA_MEMCPY3D::default()
        })
    }
}

opaque! {
    CUDA_ARRAY3D_DESCRIPTOR_v1 32
    CUDA_ARRAY_DESCRIPTOR_v1 16
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC 88
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC 104
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC 120
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC 96
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS 144
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS 144
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS 24
    CUDA_EXT_SEM_WAIT_NODE_PARAMS 24
    CUDA_MEMCPY2D_v1 96
    CUDA_MEMCPY3D_v1 144
    CUcheckpointCheckpointArgs 64
    CUcheckpointLockArgs 64
    CUcheckpointRestoreArgs 64
    CUcheckpointUnlockArgs 64
    CUdevResource 144
    CUexecAffinityParam 8
    CUmemDecompressParams 64
    CUmemPoolPtrExportData 64
    CUmulticastObjectProp 32
    CUstreamAttrValue 64
    CUtensorMap 128
}

/// In groups of 8-4-4-4-12 digits.
impl fmt::Display for CUuuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.bytes);
        let group = |from: u32, digits: u32| (number >> from) & ((1 << (4 * digits)) - 1);
        let (first, last) = (group(96, 8), group(0, 12));
        write!(out, "{first:08x}-{:04x}-{:04x}-{:04x}-{last:012x}", group(80, 4), group(64, 4), group(48, 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> CUDA_MEMCPY3D_BATCH_OP {
        let src = CUmemcpy3DOperand { type_: 1, op: [0x1000, 10, 0, 0] };
        let dst = CUmemcpy3DOperand { type_: 2, op: [0x20, 1, 2, 3] };
        CUDA_MEMCPY3D_BATCH_OP { src, dst, extent: [8, 4, 2], srcAccessOrder: 1, flags: 0 }
    }

    #[test]
    fn elements_are_those_of_the_array_and_bytes_without_one() {
        let copy = operation().as_copy(|_| Some(4)).unwrap();
        assert_eq!((copy.srcPitch, copy.srcHeight, copy.WidthInBytes), (40, 4, 32));
        assert_eq!((copy.dstXInBytes, copy.dstY, copy.dstZ), (4, 2, 3));
        let memory = CUDA_MEMCPY3D_BATCH_OP { dst: operation().src, ..operation() };
        assert_eq!(memory.as_copy(|_| None).unwrap().WidthInBytes, 8);
    }

    #[test]
    fn parts_of_arrays_are_read_in_the_order_of_the_header() {
        let subresource = [1 << 32, 3 << 32 | 2, 5 << 32 | 4, 7 << 32 | 6];
        let info = CUarrayMapInfo { subresource, ..CUarrayMapInfo::default() };
        assert_eq!(info.sparse_level(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let tail = CUarrayMapInfo { subresource: [9, 65536, 131_072, 0], ..info };
        assert_eq!(tail.tail(), (9, 65536, 131_072));
    }

    #[test]
    fn wrong_operations_are_none() {
        let wrong = |change: fn(&mut CUDA_MEMCPY3D_BATCH_OP)| {
            let mut it = operation();
            change(&mut it);
            it.as_copy(|array| Some(array.address() as usize / 8)).is_none()
        };
        assert!(!wrong(|_| ()));
        assert!(wrong(|it| it.extent[1] = 0) && wrong(|it| it.srcAccessOrder = 4) && wrong(|it| it.flags = 2));
        assert!(wrong(|it| it.src.op[1] = 7) && wrong(|it| it.src.op[2] = 3) && wrong(|it| it.src.type_ = 3));
        assert!(wrong(|it| it.src = CUmemcpy3DOperand { type_: 2, op: [0x40, 0, 0, 0] }));
    }
}
