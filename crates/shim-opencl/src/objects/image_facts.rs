//! What a driver tells of an image that lies in memory which it was given, row behind row: the standard says all of it. A driver
//! whose first image of a kind has told just that need not be waited for with others of the kind, where nothing can be wrong.

use std::collections::HashSet;

use katydid_opencl_sys::constant::{
    DEVICE_IMAGE_MAX_ARRAY_SIZE, DEVICE_IMAGE2D_MAX_HEIGHT, DEVICE_IMAGE2D_MAX_WIDTH, DEVICE_IMAGE3D_MAX_DEPTH,
    DEVICE_IMAGE3D_MAX_HEIGHT, DEVICE_IMAGE3D_MAX_WIDTH, DEVICE_MAX_MEM_ALLOC_SIZE, IMAGE_ARRAY_SIZE, IMAGE_DEPTH,
    IMAGE_ELEMENT_SIZE, IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_NUM_MIP_LEVELS, IMAGE_NUM_SAMPLES, IMAGE_ROW_PITCH,
    IMAGE_SLICE_PITCH, IMAGE_WIDTH, MEM_OBJECT_IMAGE1D, MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D,
    MEM_OBJECT_IMAGE2D_ARRAY, MEM_OBJECT_IMAGE3D, MEM_SIZE,
};
use katydid_opencl_sys::{Code, cl_image_desc, cl_image_format};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::query;

use crate::objects::device::Device;

/// Kind, order and type of channels, flags as the driver has them.
pub(crate) type ImageForm = (u32, u32, u32, u64);

/// Kinds of images that the driver of a worker makes in place, and tells of as the standard has it.
#[derive(Debug, Default)]
pub(crate) struct KnownForms {
    /// The worker's number ([`crate::process::session::worker`]).
    worker: u32,
    forms: HashSet<ImageForm>,
}

impl KnownForms {
    /// Whether a worker's driver does.
    pub(crate) fn has(&self, worker: u32, form: &ImageForm) -> bool {
        self.worker == worker && self.forms.contains(form)
    }

    /// Notes that it does.
    pub(crate) fn learn(&mut self, worker: u32, form: ImageForm) {
        if self.worker != worker {
            *self = Self { worker, ..Self::default() };
        }
        self.forms.insert(form);
    }
}

/// Sizes of an image as its kind has them: width, height, depth, images.
fn sizes(shape: &cl_image_desc) -> [usize; 4] {
    let (width, height) = (shape.image_width, shape.image_height);
    match shape.image_type {
        MEM_OBJECT_IMAGE1D_ARRAY => [width, 0, 0, shape.image_array_size],
        MEM_OBJECT_IMAGE2D => [width, height, 0, 0],
        MEM_OBJECT_IMAGE2D_ARRAY => [width, height, 0, shape.image_array_size],
        MEM_OBJECT_IMAGE3D => [width, height, shape.image_depth, 0],
        _ => [width, 0, 0, 0],
    }
}

/// The facts as a worker tells them, of an image with elements of so many bytes.
pub(crate) fn expected(format: &cl_image_format, shape: &cl_image_desc, element: usize) -> Vec<u8> {
    let [width, height, depth, images] = sizes(shape);
    let row = width * element;
    let slice = match shape.image_type {
        MEM_OBJECT_IMAGE1D_ARRAY => row,
        MEM_OBJECT_IMAGE2D_ARRAY | MEM_OBJECT_IMAGE3D => row * height,
        _ => 0,
    };
    let bytes = row * height.max(1) * depth.max(1) * images.max(1);
    let number = |value: usize| (value as u64).to_le_bytes().to_vec();
    let channels = [format.image_channel_order, format.image_channel_data_type];
    let of_image = [
        (IMAGE_FORMAT, channels.into_iter().flat_map(u32::to_le_bytes).collect()),
        (IMAGE_ELEMENT_SIZE, number(element)),
        (IMAGE_ROW_PITCH, number(row)),
        (IMAGE_SLICE_PITCH, number(slice)),
        (IMAGE_WIDTH, number(width)),
        (IMAGE_HEIGHT, number(height)),
        (IMAGE_DEPTH, number(depth)),
        (IMAGE_ARRAY_SIZE, number(images)),
        (IMAGE_NUM_MIP_LEVELS, vec![0; 4]),
        (IMAGE_NUM_SAMPLES, vec![0; 4]),
    ];
    let mut facts = Vec::new();
    let all = of_image.into_iter().map(|(parameter, value): (u32, Vec<u8>)| (query::IMAGE, parameter, value));
    for (query, parameter, value) in all.chain([(query::MEMORY, MEM_SIZE, number(bytes))]) {
        query.put(&mut facts);
        parameter.put(&mut facts);
        value.put(&mut facts);
    }
    facts
}

/// Whether a device has images of these sizes.
pub(crate) fn fits(device: &Device, shape: &cl_image_desc, bytes: usize) -> Result<bool, Code> {
    let [width, height, depth, images] = sizes(shape);
    let most: &[(u32, usize)] = match shape.image_type {
        MEM_OBJECT_IMAGE1D => &[(DEVICE_IMAGE2D_MAX_WIDTH, width)],
        MEM_OBJECT_IMAGE1D_ARRAY => &[(DEVICE_IMAGE2D_MAX_WIDTH, width), (DEVICE_IMAGE_MAX_ARRAY_SIZE, images)],
        MEM_OBJECT_IMAGE2D => &[(DEVICE_IMAGE2D_MAX_WIDTH, width), (DEVICE_IMAGE2D_MAX_HEIGHT, height)],
        MEM_OBJECT_IMAGE2D_ARRAY => &[
            (DEVICE_IMAGE2D_MAX_WIDTH, width),
            (DEVICE_IMAGE2D_MAX_HEIGHT, height),
            (DEVICE_IMAGE_MAX_ARRAY_SIZE, images),
        ],
        MEM_OBJECT_IMAGE3D => {
            &[(DEVICE_IMAGE3D_MAX_WIDTH, width), (DEVICE_IMAGE3D_MAX_HEIGHT, height), (DEVICE_IMAGE3D_MAX_DEPTH, depth)]
        }
        _ => return Ok(false),
    };
    for (parameter, size) in most.iter().copied().chain([(DEVICE_MAX_MEM_ALLOC_SIZE, bytes)]) {
        if size == 0 || size as u64 > device.number(parameter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::cl_mem;

    use super::*;

    const FORMAT: cl_image_format = cl_image_format { image_channel_order: 0x10b5, image_channel_data_type: 0x10de };

    fn shape(image_type: u32) -> cl_image_desc {
        cl_image_desc {
            image_type,
            image_width: 10,
            image_height: 6,
            image_depth: 5,
            image_array_size: 3,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            mem_object: cl_mem::NULL,
        }
    }

    /// A value of eight bytes among facts.
    fn told(facts: &[u8], query: u32, parameter: u32) -> Option<u64> {
        let mut left = facts;
        while let (Some(of), Some(what), Some(value)) =
            (u32::take(&mut left), u32::take(&mut left), Vec::<u8>::take(&mut left))
        {
            if (of, what) == (query, parameter) {
                return u64::take(&mut &value[..]);
            }
        }
        None
    }

    #[test]
    fn sizes_and_pitches_are_those_of_the_kind() {
        let of = |kind| {
            let facts = expected(&FORMAT, &shape(kind), 16);
            let image = [IMAGE_ROW_PITCH, IMAGE_SLICE_PITCH, IMAGE_HEIGHT, IMAGE_DEPTH, IMAGE_ARRAY_SIZE];
            (image.map(|parameter| told(&facts, query::IMAGE, parameter)), told(&facts, query::MEMORY, MEM_SIZE))
        };
        let some = |numbers: [u64; 5]| numbers.map(Some);
        assert_eq!(of(MEM_OBJECT_IMAGE1D), (some([160, 0, 0, 0, 0]), Some(160)));
        assert_eq!(of(MEM_OBJECT_IMAGE1D_ARRAY), (some([160, 160, 0, 0, 3]), Some(480)));
        assert_eq!(of(MEM_OBJECT_IMAGE2D), (some([160, 0, 6, 0, 0]), Some(960)));
        assert_eq!(of(MEM_OBJECT_IMAGE2D_ARRAY), (some([160, 960, 6, 0, 3]), Some(2880)));
        assert_eq!(of(MEM_OBJECT_IMAGE3D), (some([160, 960, 6, 5, 0]), Some(4800)));
    }

    #[test]
    fn what_one_worker_has_shown_another_has_not() {
        let (mut known, form) = (KnownForms::default(), (1, 2, 3, 4));
        known.learn(0, form);
        assert!(known.has(0, &form) && !known.has(1, &form) && !known.has(0, &(1, 2, 3, 5)));
        known.learn(1, (1, 2, 3, 5));
        assert!(!known.has(1, &form) && !known.has(0, &form));
    }
}
