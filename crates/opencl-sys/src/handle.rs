//! Objects, structures and callbacks.

#![expect(unsafe_code, reason = "objects may be shared between threads")]

use crate::{char, void};

macro_rules! handles {
    ($($name:ident)*) => {$(
        #[doc = concat!("A `", stringify!($name), "`: what it points to begins with the address of a [`crate::Dispatch`].")]
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub *mut void);

        // SAFETY: OpenCL objects may be used from every thread; the pointer itself is never followed here.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The null handle, which names no object.
            pub const NULL: Self = Self(std::ptr::null_mut());
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }
    )*};
}

handles! {
    cl_platform_id cl_device_id cl_context cl_command_queue cl_mem cl_program cl_kernel cl_event cl_sampler
}

/// How the elements of an image are stored.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct cl_image_format {
    /// `CL_RGBA` and its like.
    pub image_channel_order: u32,
    /// `CL_UNORM_INT8` and its like.
    pub image_channel_data_type: u32,
}

impl cl_image_format {
    /// Bytes of an element: what a channel takes, times how many there are; none if the format is not known.
    #[must_use]
    pub const fn element_bytes(&self) -> Option<usize> {
        let bytes = match self.image_channel_data_type {
            // 565 and 555 have two bytes, 101010 four, whatever their channels.
            0x10d4 | 0x10d5 => return Some(2),
            0x10d6 | 0x10e0 => return Some(4),
            0x10d0 | 0x10d2 | 0x10d7 | 0x10da => 1,
            0x10d1 | 0x10d3 | 0x10d8 | 0x10db | 0x10dd => 2,
            0x10d9 | 0x10dc | 0x10de => 4,
            _ => return None,
        };
        let channels = match self.image_channel_order {
            // R, A, INTENSITY, LUMINANCE, DEPTH and, of two channels of which one is padding, Rx.
            0x10b0 | 0x10b1 | 0x10b8 | 0x10b9 | 0x10bd => 1,
            // RG, RA, Rx.
            0x10b2 | 0x10b3 | 0x10ba => 2,
            // RGx; sRGB has three.
            0x10bb | 0x10bf => 3,
            0x10b4 => 3,
            0x10b5..=0x10b7 | 0x10bc | 0x10c0..=0x10c3 => 4,
            _ => return None,
        };
        Some(bytes * channels)
    }
}

/// The shape of an image.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct cl_image_desc {
    /// `CL_MEM_OBJECT_IMAGE2D` and its like.
    pub image_type: u32,
    /// Width in elements.
    pub image_width: usize,
    /// Height in rows; of 2D and 3D images.
    pub image_height: usize,
    /// Depth in slices; of 3D images.
    pub image_depth: usize,
    /// Images of an array.
    pub image_array_size: usize,
    /// Bytes from row to row of the host's memory.
    pub image_row_pitch: usize,
    /// Bytes from slice to slice.
    pub image_slice_pitch: usize,
    /// 0 in every version so far.
    pub num_mip_levels: u32,
    /// 0 in every version so far.
    pub num_samples: u32,
    /// A buffer or image to be made of; null for none.
    pub mem_object: cl_mem,
}

/// What a sub-buffer is of its buffer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct cl_buffer_region {
    /// Offset of the first byte in the buffer.
    pub origin: usize,
    /// Length in bytes.
    pub size: usize,
}

/// Told of errors in a context.
pub type cl_context_notify = Option<unsafe extern "C" fn(*const char, *const void, usize, *mut void)>;
/// Told when a context ends.
pub type cl_context_destroyed = Option<unsafe extern "C" fn(cl_context, *mut void)>;
/// Told when a build ends, or a program.
pub type cl_program_notify = Option<unsafe extern "C" fn(cl_program, *mut void)>;
/// Told when an event reaches a state.
pub type cl_event_notify = Option<unsafe extern "C" fn(cl_event, i32, *mut void)>;
/// Told when a memory object ends.
pub type cl_mem_notify = Option<unsafe extern "C" fn(cl_mem, *mut void)>;
/// Frees shared virtual memory when its turn comes.
pub type cl_svm_free_notify = Option<unsafe extern "C" fn(cl_command_queue, u32, *mut *mut void, *mut void)>;
/// A function of the program as a command.
pub type cl_native_kernel = Option<unsafe extern "C" fn(*mut void)>;

#[cfg(test)]
mod tests {
    use super::cl_image_format;

    #[test]
    fn elements_have_the_bytes_of_their_channels() {
        let of = |image_channel_order, image_channel_data_type| {
            cl_image_format { image_channel_order, image_channel_data_type }.element_bytes()
        };
        // RGBA of 8 bits, R of 32, BGRA of 16, RGB of 565, and nonsense.
        let found = [of(0x10b5, 0x10d2), of(0x10b0, 0x10de), of(0x10b6, 0x10d8), of(0x10b4, 0x10d4), of(1, 2)];
        assert_eq!(found, [Some(4), Some(4), Some(8), Some(2), None]);
    }
}
